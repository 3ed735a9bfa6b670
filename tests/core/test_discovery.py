"""A backend of an unknown framework is found by its package name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import python

import gradxform as gx
from gradxform.backend import lookup
from gradxform.testing import assert_parity

FRAMEWORK = """
import numpy
class Array(numpy.ndarray):
    pass
class Strange:
    pass
def array(values):
    return numpy.array(values, numpy.float32).view(Array)
"""
BACKEND = """
import numpy
import fakelib
from gradxform.backend.lookup import register
from gradxform_numpy.kernels import NumPy
def _owned(arrays):
    return [numpy.asarray(array).view(fakelib.Array) for array in arrays]
class Fake(NumPy):
    name, types = "fakelib", (fakelib.Array,)
    def multiply(self, leaves, factors, inplace):
        return _owned(super().multiply(leaves, factors, inplace))
    def from_numpy(self, array, like=None):
        return _owned([array])[0]
    def to_numpy(self, leaf):
        return numpy.asarray(leaf).view(numpy.ndarray)
backend = Fake()
register(backend)
"""
PACKAGE = '"""A framework."""\nfrom gradxform_fakelib.backend import backend as backend\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a framework and a folder with its backend."""
    (tmp_path / "gradxform_fakelib").mkdir()
    (tmp_path / "fakelib.py").write_text(FRAMEWORK)
    (tmp_path / "gradxform_fakelib/__init__.py").write_text(PACKAGE)
    (tmp_path / "gradxform_fakelib/backend.py").write_text(BACKEND)
    return tmp_path


@pytest.fixture
def fakelib(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the framework without its backend; conftest.py forgets the backend afterwards."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, "fakelib", None)  # removed again after the test
    del sys.modules["fakelib"]
    return importlib.import_module("fakelib")


def test_it_is_found_when_an_array_turns_up_and_not_before(folder: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(folder)!r})
import numpy as np, gradxform as gx
gx.scale(2.0)([np.ones(3)])
try: gx.scale(2.0)([object()])
except TypeError as error: print("(numpy, jax, tensorflow, torch)" in str(error))
try: gx.scale(2.0)([type("Alike", (), {{"__module__": "fakelib.core"}})()])
except TypeError: pass
print("fakelib" in sys.modules, "gradxform_fakelib" in sys.modules)
import fakelib
print(gx.clip_norm(1.0)([fakelib.array([3.0, 4.0])]), gx.fakelib.backend.name, "jax" in sys.modules)
"""
    found = python("-c", code)
    wanted = ["True", "False False", "[Array([0.6, 0.8], dtype=float32)] fakelib False"]
    assert found.stdout.split("\n")[:3] == wanted, found.stderr


def test_all_doors_know_it(fakelib: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "fakelib" not in lookup.known()
    leaf = fakelib.array([3.0, 4.0])
    assert type(gx.clip_norm(1.0)({"a": leaf})["a"]) is fakelib.Array
    assert gx.fakelib.backend is lookup.backend("fakelib") is lookup.owner(leaf)
    assert gx.xp(leaf) is np
    assert type(gx.to_numpy([leaf])[0]) is np.ndarray
    tx = gx.trace(0.5)
    state = gx.from_numpy({"trace": {"0": np.float32([1, 2])}}, like=tx.init([leaf]))
    assert state.trace[0].tolist() == [1.0, 2.0]
    assert lookup.installed() == tuple(n for n in lookup.FRAMEWORKS if importlib.util.find_spec(n))
    assert lookup.known() == (*lookup.FRAMEWORKS, "fakelib")
    with pytest.raises(TypeError, match=r"torch, fakelib\); hand in"):
        gx.scale(2.0)([fakelib.Strange()])


def test_parity_runs_it_once_it_is_imported(fakelib: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "FRAMEWORKS", ("numpy",))
    seen, grads = [], [np.float32([3.0, 4.0])]
    assert_parity(gx.scale(3.0), grads, frameworks=["fakelib"])
    backend = lookup.backend("fakelib")
    true = backend.from_numpy
    monkeypatch.setattr(backend, "from_numpy", lambda array, like=None: seen.append(array) or true(array, like))
    assert_parity(gx.scale(3.0), grads)
    assert seen
    for name, words in (("paddle", r"paddle.*known ones are numpy, fakelib"), ("a.b", r"no framework is named 'a\.b'")):
        with pytest.raises(ValueError, match=words):
            assert_parity(gx.scale(3.0), grads, frameworks=[name])


def test_its_tree_engine_opens_what_no_other_knows(fakelib: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Box:
        def __init__(self, leaf: Any) -> None:
            self.leaf = leaf

    backend = lookup.backend("fakelib")
    monkeypatch.setattr(backend, "flatten", lambda tree: ([tree.leaf], None) if isinstance(tree, Box) else ([tree], 1))
    monkeypatch.setattr(backend, "unflatten", lambda structure, leaves: Box(leaves[0]))
    out = gx.scale(2.0)(Box(fakelib.array([3.0])))
    assert isinstance(out, Box)
    assert out.leaf.tolist() == [6.0]


def test_a_path_that_comes_later_is_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lookup.extends("fakelib")
    monkeypatch.syspath_prepend(str(folder))
    assert lookup.extends("fakelib")


def test_a_backend_that_lacks_something_says_what(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gradxform_fakelib/backend.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ImportError, match=r"gradxform\.fakelib needs 'nowhere_to_be_found', which is not installed$"):
        gx.fakelib  # noqa: B018


@pytest.mark.parametrize("content", [None, "x = 1\n"])
def test_what_only_has_the_name_is_no_backend(
    fakelib: Any, folder: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder or package of the same name is not a backend; the error still names the path."""
    (folder / "other").mkdir()
    (folder / "other/gradxform_fakelib").mkdir()
    if content is not None:
        (folder / "other/gradxform_fakelib/__init__.py").write_text(content)
    monkeypatch.setattr(sys, "path", [str(folder / "other"), *(path for path in sys.path if path != str(folder))])
    importlib.invalidate_caches()
    assert not hasattr(gx, "fakelib")
    with pytest.raises(TypeError, match=r"the leaf at 'b' is a fakelib\.Strange"):
        gx.scale(2.0)({"a": np.ones(2), "b": fakelib.Strange()})
