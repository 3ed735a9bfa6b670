"""The backend of docs/extending/backend.md is discovered, and within the same error budgets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import ROOT, assert_right, f32

import gradxform as gx
from gradxform import numerics
from gradxform.backend import lookup
from gradxform.proof.cases import ordinary_and_hard
from gradxform.proof.rows import ROWS, Row
from gradxform.testing import assert_parity

strict = pytest.importorskip("array_api_strict")

DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the backend's folder importable; conftest.py forgets it afterwards."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_right_numbers(row: Row) -> None:
    for dtype in row.dtypes:
        if dtype in DTYPES:
            assert_right(row, ordinary_and_hard(row, dtype), "array_api_strict", "eager")


def test_parity_with_numpy() -> None:
    grads = {"w": f32(3.0, 4.0), "n": None, "b": [f32(1.0)]}
    tx = gx.chain(gx.clip_global_norm(1.0), gx.trace(0.5))
    assert_parity(tx, grads, frameworks=["numpy", "array_api_strict"])


def test_its_arrays_come_out() -> None:
    tree: Any = {"w": strict.asarray([3.0, 4.0], dtype=strict.float32), "b": None}
    out = gx.clip_norm(1.0)(tree)
    assert isinstance(out["w"], lookup.backend("array_api_strict").types)
    assert np.asarray(out["w"]).tolist() == pytest.approx([0.6, 0.8], rel=1e-7)
    assert out["b"] is None
    assert gx.xp(out["w"]) is strict


def test_it_has_no_backward_pass() -> None:
    with pytest.raises(TypeError, match="no backward pass"):
        gx.on_backward(gx.scale(2.0))(strict.asarray([1.0]))


def test_its_dtypes_are_told_from_numpys() -> None:
    """Both have the same hash, and comparing them makes array-api-strict warn."""
    numerics._name.cache_clear()
    both = strict.ones(1, dtype=strict.float32), np.ones(1, np.float32)
    assert [numerics.dtype_name(array) for array in both] == ["float32", "float32"]
