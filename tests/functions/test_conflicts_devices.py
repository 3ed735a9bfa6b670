"""Conflicting gradients on devices: without reads and transfers, without float64, sharded over eight devices."""

from __future__ import annotations

import json

import conflicts
import numpy as np
import pytest
from support import python
from test_conflicts import FUNCTIONS, RIGHT
from without_float64 import indexing, of_torch

from gradxform.testing import max_ulp

LEAVES, PRODUCTS = 36, 6 * 36
LAUNCHES = {name: 4 * PRODUCTS + 8 * LEAVES + own for name, own in {"mgda": 210, "cagrad": 300, "upgrad": 180}.items()}
"""For three tasks: four launches for a product of two leaves, eight for a weighted sum, the rest for the weights."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_launches_on_cuda(name: str) -> None:
    """Nothing is read, nothing is sent, and no copy of a leaf but the result's is kept."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    from gradxform_torch.counting import Counted

    with FakeTensorMode(), indexing():
        trees = [[torch.empty(64, 48, device="cuda") for _ in range(LEAVES)] for _ in range(3)]
        with Counted() as found:
            FUNCTIONS[name](trees)
    assert LEAVES < found.launches.total() <= LAUNCHES[name], found.launches
    assert found.between == found.waits == []
    assert found.peak <= 4 * 64 * 48 * (LEAVES + 12)


@pytest.mark.parametrize("unit", [1.0, 1e15, 1e-12])
def test_without_float64(unit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pairs of float32 numbers, with squares beyond float32."""
    torch = pytest.importorskip("torch")
    trees = [{p: (leaf * unit).astype(np.float32) for p, leaf in t.items()} for t in conflicts.trees(np.float64)]
    rows = np.stack([conflicts.flat(tree) for tree in trees])
    with of_torch(monkeypatch):
        for name, function in FUNCTIONS.items():
            given = [{path: torch.from_numpy(leaf) for path, leaf in tree.items()} for tree in trees]
            found = {path: leaf.numpy() for path, leaf in function(given).items()}
            right = (RIGHT[name](rows / unit) * unit).astype(np.float32)
            assert max_ulp(found["a"], right[:12].reshape(3, 4)) <= 2, name
            assert max_ulp(found["b"], right[12:]) <= 2, name


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind: str) -> None:
    """Only numbers are communicated; results keep their sharding; numbers are the ones of unsharded leaves."""
    pytest.importorskip("jax")
    reports = json.loads(python("tests/functions/jax_conflicts.py", kind).stdout.splitlines()[-1])
    assert set(reports) == {"mgda", "cagrad", "upgrad", "pcgrad"}
    for name, found in reports.items():
        assert found["off"] <= 2, (name, found)
        assert found["spread"] == [], name
        assert set(found["traffic"]) == {"all-reduce"} and found["traffic"]["all-reduce"] <= 64, (name, found)
        assert found["vmapped"] <= 2, name
