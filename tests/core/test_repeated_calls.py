"""Several calls: nothing given is written to, results share no memory with states, and work in place is as right."""

from __future__ import annotations

import gc
import importlib
import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import optree
import pytest
from support import FRAMEWORKS, array, arrays, assert_bits, assert_expected, assert_right, assert_ulp, tensors

import gradxform as gx
from gradxform.proof import parity
from gradxform.proof.cases import Group, Run
from gradxform.proof.judge import judge
from gradxform.proof.registry import ROWS, Row

TREE = {
    "a/w": np.float32([[3.0, -4.0, 0.1], [0.5, 2.0, 1e-3]]),
    "a/v": np.float32([[1.0, np.pi]]),
    "none": None,
    "empty": np.zeros((0, 2), np.float32),
    "large/w": np.linspace(-1, 1, 9000, dtype=np.float32).reshape(90, 100),
}
FACTORS = (1.0, 0.3, 1e20, 0.0, 1e-30, np.inf, np.nan, 1.0)
COMBINED = [
    Row(expression)
    for expression in (
        "masked(clip_norm(0.5), '**/w')",
        "chain(clip_norm(5.0), clip_global_norm(1.0), masked(scale(3.0), '**/v'), clip_value(0.1), normalize_norm())",
        "chain(clip_global_norm(1.0), ema(0.9), scale(-0.1))",
        "partition({'**/v': trace(0.9)}, default=measure(clip_global_norm(1.0)))",
        "chain(accumulate(ema(0.9), 2), clip_global_norm(1.0), scale(-0.1))",
        "chain(skip_nonfinite(chain(freeze('**/v'), clip_global_norm(1.0))), scale(-0.1))",
        "chain(clip_norm(2.0), skip_large(skip_nonfinite(ema(0.9)), 4.0), scale(-0.1))",
        "measure(skip_nonfinite(clip_global_norm(1.0)))",
        "chain(skip_nonfinite(identity()), clip_global_norm(1.0))",
        "chain(masked(skip_large(scale(2.0), 9.0), '**/w'), clip_norm(1.0))",
        "skip_nonfinite(clip_global_norm(1.0, ord=1))",
    )
]
"""Norms, factors and outcomes that hang together."""
HOST = pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("numpy", "torch")])


def scaled(framework: str, tree: Any) -> list[Any]:
    """The gradients of some steps, of many sizes."""
    with np.errstate(all="ignore"):
        return [tensors(framework, optree.tree_map(lambda leaf: leaf * np.float32(f), tree)) for f in FACTORS]  # noqa: B023


def run(tx: gx.GradientTransformation, steps: list[Any], params: Any) -> Iterator[tuple[Any, Any]]:
    """Yield updates and states; what is handed in is not written to, and has its class afterwards."""
    state = tx.init(params)
    for gradients in steps:
        given = arrays([gradients, state, params])
        before = given, optree.tree_map(np.copy, given)
        updates, new = tx.update(gradients, state, params)
        assert_bits(*before)
        assert not any(np.shares_memory(made, held) for made in arrays(updates) for held in arrays(new))
        assert optree.tree_structure(new) == optree.tree_structure(state)
        assert [type(leaf) for leaf in optree.tree_leaves([updates, new])] == [
            type(leaf) for leaf in optree.tree_leaves([gradients, state])
        ]
        state = new
        yield updates, new


@HOST
@pytest.mark.parametrize("row", COMBINED, ids=str)
def test_right_numbers(row: Row, framework: str) -> None:
    tree = {path: leaf for path, leaf in TREE.items() if leaf is not None}
    assert_right(row, Group("float32", "many sizes", {"": Run(scaled("numpy", tree), tree)}), framework, "eager")


@HOST
@pytest.mark.parametrize("row", [row for row in (*ROWS, *COMBINED) if "cautious" not in row.expression], ids=str)
def test_in_place(row: Row, framework: str) -> None:
    """The same memory has right numbers, and shares none with a state; a parameter of PyTorch may have no gradient."""
    tx, params = row.tx, tensors(framework, {path: leaf for path, leaf in TREE.items() if leaf is not None})
    state, named = tx.init(params), {}
    if framework == "torch":
        named = {path: importlib.import_module("torch").nn.Parameter(leaf) for path, leaf in params.items()}
    steps = scaled(framework, {path: leaf for path, leaf in TREE.items() if leaf is not None})
    wanted = [updates for updates, _ in run(tx, steps, params)]
    if row.sums:
        numbers = [{path: array(leaf) for path, leaf in step.items()} for step in steps]
        wanted = parity.expected_steps(tx, numbers, {path: array(leaf) for path, leaf in params.items()})
    for gradients, right in zip(steps, wanted, strict=True):
        given = dict(gradients)
        if framework == "torch":
            for path, leaf in gradients.items():
                named[path].grad = leaf
            state = gx.torch.apply_(tx, named, state)
            gradients = {path: parameter.grad for path, parameter in named.items()}
        else:
            state = gx.numpy.apply_(tx, gradients, state, params=params)
        found = {path: array(right[path] * 0 if leaf is None else leaf) for path, leaf in gradients.items()}
        if row.products is not None and row.sums:
            verdict = judge(found, right, framework, row)
            assert verdict.over is None and not verdict.wrong, verdict
        elif row.sums:
            assert_expected(found, right)
        else:
            assert_ulp(found, dict(right), 2 * row.ulp)
        for path, leaf in gradients.items():
            if leaf is None:
                assert not array(right[path]).any()
            else:
                assert leaf is given[path]
            assert not any(np.shares_memory(array(given[path]), held) for held in arrays(state))


@HOST
@pytest.mark.parametrize(
    "inner", ["trace(0.9)", "trace(0.9, nesterov=True)", "ema(0.5)", "mars(9.0, 0.9)", "mars(0.5, 0.5)"]
)
def test_parts_of_a_large_tree_in_place(inner: str, framework: str) -> None:
    """Several megabytes at a time give what a pure update gives; leaves that a mask leaves out stay in their places.

    In half precision a sum may be too large before its limit, and is not rounded before the next transform. PyTorch,
    and sums of half precision, start with a read-only state of NumPy.
    """
    sizes = {"a/w": 1 << 20, "b": 5, "c/w": 3 << 20, "d/w": 1 << 20, "e/w": (1 << 20) + 1, "f/w": 3, "g/w": 9000}
    most, dtype, limit = (2, np.float32, 800.0) if inner != "mars(0.5, 0.5)" else (20000, np.float16, math.inf)
    tree = {path: np.linspace(-1, most, size, dtype=dtype) for path, size in sizes.items()}
    tree["g/w"] = np.full(9000, 2.001, np.float16 if inner == "ema(0.5)" else dtype)
    tx = gx.chain(
        gx.clip_norm(limit), gx.masked(gx.parse(inner), "**/w"), gx.masked(gx.clip_global_norm(1.0), ["f/w", "g/w"])
    )
    params = tensors(framework, tree)
    state, own = tx.init(params), tx.init(tree)
    for leaf in optree.tree_leaves(own) if framework == "torch" or dtype is np.float16 else ():
        leaf.setflags(write=False)
    for by in (1.0, 3.0, 3.0):
        wanted, state = tx.update(tensors(framework, {path: leaf * by for path, leaf in tree.items()}), state)
        found = tensors(framework, {path: leaf * by for path, leaf in tree.items()})
        if framework == "torch":
            named = {path: importlib.import_module("torch").nn.Parameter(leaf) for path, leaf in params.items()}
            for path, leaf in found.items():
                named[path].grad = leaf
            own = gx.torch.apply_(tx, named, own)
        else:
            own = gx.numpy.apply_(tx, found, own)
        assert_ulp([array(leaf) for leaf in found.values()], [array(leaf) for leaf in wanted.values()])
        assert_ulp(arrays(own), arrays(state))


@HOST
def test_a_skipped_step_computes_nothing_of_its_transform(framework: str) -> None:
    calls: list[float] = []
    tx = gx.chain(gx.skip_large(gx.scale(lambda step: calls.append(float(step)) or 0.5), 10.0), gx.scale(-1.0))
    small, large = (tensors(framework, {"w": np.float32([value])}) for value in (3.0, 30.0))
    state, found = tx.init(small), []
    calls.clear()
    for gradients in (small, large, small, large, small):
        updates, state = tx.update(gradients, state)
        found.append(float(array(updates["w"])[0]))
    assert found == [-1.5, 0, -1.5, 0, -1.5] and calls == [0, 1, 2]


def test_calls_keep_no_array() -> None:
    tx, leaf = gx.chain(gx.clip_norm(1.0), gx.ema(0.5)), np.ones(3, np.float32)
    state = tx.init([leaf])
    kept = [weakref.ref(leaf), weakref.ref(state[1].ema[0])]
    for _ in range(2):
        _, state = tx.update([leaf], state)
    del leaf, state, _
    gc.collect()
    assert [ref() for ref in kept] == [None, None]
