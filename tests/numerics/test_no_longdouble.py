"""Simulated platforms whose longdouble is not wider than float64 (Windows, Apple and Arm processors)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import FRAMEWORKS, assert_right, assert_ulp, f16, f32, slow

import gradxform as gx
from gradxform.backend import lookup
from gradxform.backend.host import longdouble
from gradxform.numerics.double_double import Pair
from gradxform.proof.cases import Group, Run, ordinary_and_hard
from gradxform.proof.registry import MIXED, ROWS, STATELESS, Row

EAGER_ON_THE_HOST = [name for name in FRAMEWORKS if name != "jax"]
"""Frameworks whose arrays NumPy reads."""
HOST = "runs NumPy's kernels as NumPy and PyTorch do, which stay quick"


@pytest.fixture(autouse=True)
def no_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longdouble, "WIDER", False)


@slow(HOST, framework="tensorflow")
@pytest.mark.parametrize("framework", EAGER_ON_THE_HOST)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_right_numbers(row: Row, framework: str) -> None:
    for dtype in ("float64", "complex128"):
        if dtype in row.dtypes:
            assert_right(row, ordinary_and_hard(row, dtype), framework, "eager")


@slow(HOST, framework="tensorflow")
@pytest.mark.parametrize("framework", EAGER_ON_THE_HOST)
@pytest.mark.parametrize("row", [row for row in STATELESS if not row.matrix], ids=str)
def test_mixed_dtypes(row: Row, framework: str) -> None:
    tree = {"a": {"v": f32(3, 4), "w": f16(30)}, "b": np.float64([5])}
    assert_right(row, Group(MIXED, "mixed", {"mixed": Run([tree], tree)}), framework, "eager")


@pytest.mark.parametrize("make", [gx.clip_norm, gx.clip_global_norm, lambda c: gx.clip_norm(c, axes=-1)])
def test_norms_and_factors_beyond_float64(make: Any) -> None:
    for size, limit in ((1.7e308, 1e-200), (1e-300, 1e-305)):
        clipped = make(limit)([np.full((1, 4), size)])[0]
        assert_ulp(clipped, np.full((1, 4), limit / 2))


def test_no_number_is_a_longdouble() -> None:
    found = lookup.backend("numpy").norms([np.ones(3), f32(3, 4)], 2.0)
    assert isinstance(found, Pair)
    assert {part.dtype for part in found if part is not None} == {np.dtype(np.float64)}
