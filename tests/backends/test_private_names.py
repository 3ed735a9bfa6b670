"""Other libraries' undocumented names occur in one file per backend."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

FILES = sorted(path for folder in ("backends", "gradxform") for path in (ROOT / folder).rglob("*.py"))
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
PRIVATE_FILES = ("private",)
UNDOCUMENTED = re.compile(r"(?!gradxform)(.+\.)?(_[a-zA-Z]\w*|python|src)(\..+)?")
"""Modules: with a leading underscore, `tensorflow.python`, `keras.src`."""
ALLOWED = {
    "_replace": "of named tuples, documented",
    "_asdict": "of named tuples, documented",
    "_fields": "of named tuples, documented",
    "_make": "of named tuples, documented",
    "_field_defaults": "of named tuples, documented",
    "_getframe": "of CPython, documented; gradxform_torch has a test of it",
    "_exit": "of the os module, documented; Ctrl-C in the command line leaves by it",
    "_value": "of Keras variables, compared by identity; gradxform_tensorflow/private.py reads it, with a test",
    "_orig_mod": "a key that torch.compile adds to the names of parameters, compared as text",
    "_fsdp_wrapped_module": "a key that FSDP adds to the names of parameters, compared as text",
    "_proj_weight": "the end of names of parameters of torch.nn.MultiheadAttention",
}


def own_names(trees: list[ast.AST]) -> set[str]:
    """Private names that this library defines."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    found = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    found |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return found | {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
    }


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Private names that a module reads: attributes, strings, and modules that it imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            yield node.lineno, node.attr
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE.fullmatch(node.value):
            yield node.lineno, node.value
        for module in _modules(node):
            if UNDOCUMENTED.fullmatch(module):
                yield node.lineno, module


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def foreign(path: Path, own: set[str]) -> list[str]:
    """Private names of other libraries, with their lines."""
    found = private(ast.parse(path.read_text(encoding="utf-8")))
    return [f"{path.relative_to(ROOT)}:{line} {name}" for line, name in found if name not in own | ALLOWED.keys()]


def test_private_names_of_other_libraries_are_in_one_file_per_backend() -> None:
    own = own_names([ast.parse(path.read_text(encoding="utf-8")) for path in FILES if path.stem not in PRIVATE_FILES])
    own |= {path.stem for path in FILES}
    found = [line for path in FILES if path.stem not in PRIVATE_FILES for line in foreign(path, own)]
    assert not found, "move these to the backend's private.py, with a test:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torch._foreach_mul_(x, 2.0)", "_foreach_mul_"),
        ("hasattr(x, '_layout')", "_layout"),
        ("from torch.utils import _pytree", "torch.utils._pytree"),
        ("from tensorflow.python.eager import record", "tensorflow.python.eager.record"),
        ("import keras.src.optimizers", "keras.src.optimizers"),
    ],
)
def test_the_search_finds(line: str, name: str) -> None:
    assert [found for _, found in private(ast.parse(line))] == [name]
