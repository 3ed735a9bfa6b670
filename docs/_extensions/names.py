"""Public names: each must be in the reference, and each `gx.name` in the text links to it.

`{names} PAGE` lists those on a page. A public name without an entry is a warning, an error in `make docs`.
"""

import functools
import inspect
import re
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

import gradxform as gx

log = logging.getLogger(__name__)
PLACES = ("numpy", "jax", "tensorflow", "keras", "torch", "testing")
ENTRY = re.compile(r"^\.\. auto(?:function|class):: (?:gradxform\.)?(\S+)", re.MULTILINE)
LONG = 30
"""Characters above which a name in a table may break."""
CALL = re.compile(r"(?:gx\.|gradxform\.)?([A-Za-z_.]+)(\(.*\))?", re.DOTALL)


def public():
    """The names as users write them behind `gradxform.`."""
    names = [name for name in gx.__all__ if not inspect.ismodule(getattr(gx, name))]
    return names + [f"{place}.{name}" for place in PLACES for name in getattr(gx, place).__all__]


class Names(SphinxDirective):
    """A table of the public names on a page of the reference, with the first sentences of their docstrings."""

    required_arguments = 1

    def run(self):
        page = Path(self.env.doc2path(f"reference/{self.arguments[0]}"))
        self.env.note_dependency(page)
        lines = ["{.names}", "| name | what it does |", "|---|---|"]
        for name in ENTRY.findall(page.read_text(encoding="utf-8")):
            if name not in public():
                continue
            value = functools.reduce(getattr, name.split("."), gx)
            sentence = inspect.getdoc(value).partition("\n")[0].replace("|", "\\|")
            lines.append(f"| {{py:obj}}`gx.{name} <gradxform.{name}>` | {sentence} |")
        return self.parse_text_to_nodes("\n".join(lines))


def check(app, env):
    """Warn of each public name that the reference leaves out."""
    objects = env.domains["py"].objects
    for name in public():
        if f"gradxform.{name}" not in objects:
            log.warning("the public name gx.%s has no entry in the reference", name, location="reference/index")


def link(app, doctree, page):
    """Make a link of each inline literal that is a public name, or a call of one."""
    objects = app.env.domains["py"].objects
    for literal in list(doctree.findall(nodes.literal)):
        if len(literal.astext()) > LONG:
            literal["classes"].append("long")
        found = CALL.fullmatch(literal.astext())
        target = objects.get(f"gradxform.{found[1]}") if found else None
        inside = literal.parent
        while inside is not None and not isinstance(inside, (nodes.reference, nodes.title, nodes.section)):
            inside = inside.parent
        if target is None or not isinstance(inside, nodes.section) or page == target.docname:
            continue
        reference = make_refnode(app.builder, page, target.docname, target.node_id, [literal.deepcopy()])
        literal.replace_self(reference)


def setup(app):
    app.add_directive("names", Names)
    app.connect("env-check-consistency", check)
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
