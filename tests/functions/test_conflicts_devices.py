"""Conflicting gradients on devices: without reads and transfers, without float64, sharded over eight devices."""

from __future__ import annotations

import json
from typing import Any

import conflicts
import numpy as np
import pytest
from support import PROCESSES, assert_sums, python, slow
from test_conflicts import ALL, FUNCTIONS, RIGHT
from without_float64 import indexing, of_torch

SLOW = (pytest.mark.slow(reason="thousands of operations on pairs are counted; mgda is quick"),)

LEAVES = 300
LAUNCHES = {"mgda": 190, "cagrad": 275, "upgrad": 160, "pcgrad": 530}
"""For three tasks, whose leaves are joined: some 50 for products and the weighted sum, the rest for the weights."""
OF_FLOAT64 = {"mgda": 2500, "cagrad": 2750, "upgrad": 2450, "pcgrad": 9600}
"""There products are pairs, and norms and weights pairs with exponents."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=SLOW if dtype != "float32" or name in ("cagrad", "upgrad") else ())
        for name in LAUNCHES
        for dtype in ("float32", "bfloat16", "float64")
    ],
)
def test_launches_on_cuda(name: str, dtype: str, torch: Any) -> None:
    """Nothing is read, nothing is sent, and memory beyond the result's is for one piece of the leaves."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch_counting import Counted

    from gradxform_torch.parts import PART

    kind = getattr(torch, dtype)
    with FakeTensorMode(), indexing():
        trees = [[torch.empty(64, 48, device="cuda", dtype=kind) for _ in range(LEAVES)] for _ in range(3)]
        with Counted() as found:
            ALL[name](trees)
        large = [[torch.empty(2048, 4096, device="cuda", dtype=kind)] for _ in range(3)]
        with Counted() as pieces:
            ALL[name](large)
    assert found.launches.total() <= (OF_FLOAT64 if dtype == "float64" else LAUNCHES)[name], found.launches
    assert found.between == found.waits == pieces.between == pieces.waits == []
    copies = 16 if dtype == "float64" else 8  # pairs are two numbers
    assert found.peak <= 64 * 48 * LEAVES * max(kind.itemsize, 4) + copies * 8 * PART
    assert pieces.peak <= 2048 * 4096 * (kind.itemsize if dtype != "bfloat16" else 6) + (copies + 1) * 8 * PART


@pytest.mark.parametrize("unit", [1.0, 1e15, 1e-12])
def test_without_float64(unit: float, monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    """In float32, with squares beyond it."""
    trees = [{p: (leaf * unit).astype(np.float32) for p, leaf in t.items()} for t in conflicts.trees(np.float64)]
    rows = np.stack([conflicts.flat(tree) for tree in trees])
    with of_torch(monkeypatch):
        for name, function in FUNCTIONS.items():
            given = [{path: torch.from_numpy(leaf) for path, leaf in tree.items()} for tree in trees]
            found = {path: leaf.numpy() for path, leaf in function(given).items()}
            right = (RIGHT[name](rows / unit) * unit).astype(np.float32)
            largest = np.max(np.abs(rows), axis=0)
            assert_sums(found["a"], right[:12].reshape(3, 4), largest[:12].reshape(3, 4), what=name)
            assert_sums(found["b"], right[12:], largest[12:], what=name)


@slow(PROCESSES)
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind: str, jax: Any) -> None:
    """Only numbers are communicated; results keep their sharding; numbers are the ones of unsharded leaves."""
    reports = json.loads(python("tests/functions/jax_conflicts.py", kind).stdout.splitlines()[-1])
    assert set(reports) == {"mgda", "cagrad", "upgrad", "pcgrad"}
    for name, found in reports.items():
        assert found["off"] <= 8, (name, found)
        assert found["spread"] == [], name
        assert set(found["traffic"]) == {"all-reduce"} and found["traffic"]["all-reduce"] <= 64, (name, found)
        assert found["vmapped"] <= 8, name
