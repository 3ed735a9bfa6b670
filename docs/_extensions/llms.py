"""Writes llms.txt, a list of the pages, and llms-full.txt, their text with all docstrings, beside the site's pages."""

import functools
import inspect
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

import gradxform as gx

BLOCK = re.compile(r"^```\{([\w-]+)\} *(.*?)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
FRONT_MATTER = re.compile(r"\A---\n.*?^---\n\n", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^:::+(?:\{([\w-]+)\} *(.*))?\n(?:^:[\w-]+:.*\n)*", re.MULTILINE)
TITLED = ("tab-item", "grid-item-card", "dropdown")
ENTRY = re.compile(r"^\.\. auto\w+:: (\S+)", re.MULTILINE)


def contents(env, page="index"):
    """Captions with their pages, each page with those below it."""
    for toctree in env.get_doctree(page).findall(addnodes.toctree):
        pages = []
        for title, below in toctree["entries"]:
            pages.append((below, title or env.titles[below].astext()))
            pages += [page for _, inner in contents(env, below) for page in inner]
        yield toctree.get("caption"), pages


def sentence(env, page):
    """The first sentence of a page."""
    first = next(iter(env.get_doctree(page).findall(nodes.paragraph)), None)
    return "" if first is None else re.split(r"(?<=[.?:])\s", " ".join(first.astext().split()))[0]


def entry(name):
    """A name with its signature and its docstring."""
    name = name.removeprefix("gradxform.")
    value = functools.reduce(getattr, name.split("."), gx) if hasattr(gx, name.split(".")[0]) else None
    if value is None:
        return ""
    signature = inspect.signature(value) if inspect.isfunction(value) else ""
    return f"### gx.{name}{signature}\n\n{inspect.getdoc(value)}\n"


def block(found):
    """What stands for a directive: docstrings for the reference's, code and text as they are, nothing for the rest."""
    name, argument, body = found.groups()
    if name == "eval-rst":
        return "\n".join(map(entry, ENTRY.findall(body)))
    if name in ("code-block", "code-cell"):
        return f"```{argument}\n{body}```\n"
    return body if name == "rst-class" else ""


def plain(text):
    """Markdown without directives."""
    text = BLOCK.sub(block, FRONT_MATTER.sub("", text))
    text = FENCE.sub(lambda found: f"**{found[2]}**\n\n" if found[1] in TITLED else "", text)
    return re.sub(r"^\{\.[\w-]+\}\n", "", re.sub(r"\n{3,}", "\n\n", text), flags=re.MULTILINE)


def write(app, failed):
    """Write both files once the site is built."""
    if failed or app.builder.name != "html":
        return
    sections = list(contents(app.env))
    about = f"# gradxform\n\n> {sentence(app.env, 'index')}\n"
    lists = [
        f"## {caption}\n\n" + "\n".join(f"- [{title}]({page}.html): {sentence(app.env, page)}" for page, title in pages)
        for caption, pages in sections
    ]
    Path(app.outdir, "llms.txt").write_text("\n\n".join([about.strip(), *lists]) + "\n", encoding="utf-8")
    pages = ["index", *(page for _, pages in sections for page, _ in pages)]
    texts = [plain(Path(app.env.doc2path(page)).read_text(encoding="utf-8")) for page in pages]
    Path(app.outdir, "llms-full.txt").write_text("\n\n".join(texts), encoding="utf-8")


def setup(app):
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
