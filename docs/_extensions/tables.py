"""Tables of sentences, which the style sheet shows as a list on a phone, where columns would break words."""

from docutils import nodes

SENTENCE, COLUMNS = 26, 4
"""Characters of a cell behind the first from which its table is one of sentences, and the most columns of such a table.

A table of figures keeps its columns.
"""


def cells(row):
    return list(row.findall(nodes.entry))


def stack(app, doctree, page):
    """Give a table of sentences its class, and its cells from the third column on (wide: the second) their title."""
    for table in doctree.findall(nodes.table):
        head, body = (next(iter(table.findall(kind)), None) for kind in (nodes.thead, nodes.tbody))
        if head is None or "hard" in table["classes"]:
            continue
        titles, rows = [cell.astext() for cell in cells(head)], [cells(row) for row in body.findall(nodes.row)]
        longest = max((len(cell.astext()) for row in rows for cell in row[1:]), default=0)
        if len(titles) > COLUMNS or longest < SENTENCE:
            continue
        table["classes"].append("stack")
        for row in rows:
            for title, cell in list(zip(titles, row, strict=True))[1 if len(row) > 3 else 2 :]:
                if title and cell.astext().strip():
                    cell[0].insert(0, nodes.inline("", f"{title}: ", classes=["column"]))


def setup(app):
    app.connect("doctree-resolved", stack)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
