"""Formulas as MathML, which browsers draw by themselves: the pages need no script and no network for them."""

from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

log = logging.getLogger(__name__)


def _formula(node, block):
    try:
        return tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        log.warning("a formula that cannot be drawn: %s: %s", error, node.astext(), location=node)
        return escape(node.astext())


def _inline(translator, node):
    translator.body.append(_formula(node, False))
    raise nodes.SkipNode


def _block(translator, node):
    translator.body.append(f'<div class="math">{_formula(node, True)}</div>')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
