"""The notebooks' text: cells that compile, names that exist, installable extras. The site's build runs them."""

from __future__ import annotations

import ast
import operator
import re
import tomllib

import pytest
from support import ROOT

import gradxform as gx

PAGES = sorted((ROOT / "docs/notebooks").glob("*.md"))


def cells(text: str) -> list[str]:
    """The code of a notebook, without cells that are only shown."""
    found = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    found = [re.sub(r"\A---\n.*?^---\n", "", cell, flags=re.DOTALL | re.MULTILINE) for cell in found]  # its options
    return [cell for cell in found if "skip-execution" not in cell]


def unknown(code: str) -> set[str]:
    """The names in some code that gradxform does not have."""
    dotted = {ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)}
    return {name for name in dotted if re.fullmatch(r"gx(\.\w+)+", name) and not exists(name.removeprefix("gx."))}


def exists(name: str) -> bool:
    try:
        operator.attrgetter(name)(gx)
    except AttributeError:
        return False
    return True


def test_there_is_one_for_each_framework() -> None:
    assert [page.stem for page in PAGES] == ["jax", "keras", "tensorflow", "torch"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_cell_compiles_and_uses_names_that_exist(page) -> None:
    pytest.importorskip(page.stem)
    code = "\n".join(cells(page.read_text()))
    assert not unknown(code)
    assert code.count("assert ") >= 2
    for used in ("gx.measure", "gx.clip_global_norm", "gx.metrics", "freeze", "semilogy"):
        assert used in code, used


def test_a_name_that_does_not_exist_is_found() -> None:
    assert unknown("gx.clip_global_nrom(1.0)\ngx.clip_norm(1.0)") == {"gx.clip_global_nrom"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_install_line_names_an_extra(page) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"^%pip install -q '\.\./\.\.\[([a-z,]+)\]' matplotlib$", page.read_text(), re.MULTILINE)
    assert page.stem in named.split(",")
    assert set(named.split(",")) <= set(extras)
