"""Norms of large leaves and of many leaves, within 1 ULP, in every framework and mode."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import LARGE, MILLION, MODES, XLA, array, assert_ulp, by_inductor, call, in_mode, python, slow, tensors

import gradxform as gx
from gradxform.core.tree import Tree
from gradxform.testing import max_ulp

GPT2_EMBEDDING = 38_597_376
"""Elements of GPT-2's token embedding."""
COUNT = 1_100_003


def blocks(values: Any) -> Iterator[Any]:
    """Compute in float64, block by block."""
    for start in range(0, values.size, 1 << 20):
        yield values[start : start + (1 << 20)].astype(np.float64)


def right_norm(values: Any) -> float:
    """The 2-norm through float64, scaled so that no square is lost."""
    unit = float(np.max(np.abs(values)).astype(np.float64)) or 1.0
    return unit * float(sum(np.dot(block / unit, block / unit) for block in blocks(values)) ** 0.5)


@functools.cache
def norm_and_clip(framework: str, mode: str, limit: float, *_kind: Any) -> Any:
    """The norm of a leaf and the leaf, clipped; leaves of one shape and dtype share compiled code."""

    def run(leaf: Any) -> Any:
        view = Tree.read([leaf])
        assert view is not None
        return view.global_norm().value, gx.clip_norm(limit)(leaf)

    return in_mode(framework, mode, run)


def check(framework: str, mode: str, values: Any, limit: float = 1.0) -> None:
    """Assert that the norm is within 1 ULP of float32, and the clipped leaf within its budget."""
    norm, clipped = norm_and_clip(framework, mode, limit, values.shape, values.dtype)(tensors(framework, values))
    right = right_norm(values)
    assert max_ulp(np.float32(array(norm)), np.float32(right)) <= 1, (float(norm), right)
    budget = 1 if values.itemsize == 2 else 2
    for got, given in zip(np.array_split(array(clipped), 40), np.array_split(values, 40), strict=True):
        wanted = given.astype(np.float64) * (limit / right)
        assert max_ulp(got, wanted.astype(values.dtype)) <= budget


def normal(count: int) -> Any:
    return np.random.default_rng(0).standard_normal(count, dtype=np.float32)


def heavy(count: int) -> Any:
    """Cauchy-like tails: a few elements hold most of the norm."""
    rng = np.random.default_rng(1)
    return (rng.standard_normal(count) / np.maximum(np.abs(rng.standard_normal(count)), 1e-6)).astype(np.float32)


def one_row(count: int) -> Any:
    """Small elements with one stretch of large ones."""
    values = normal(count) * np.float32(1e-3)
    values[count // 2 : count // 2 + 200] *= np.float32(3e5)
    return values


KINDS = {
    "normal": normal,
    "heavy tails": heavy,
    "one heavy row": one_row,
    "all alike": lambda count: np.full(count, 0.1, np.float32),
    "1e-22, whose squares are lost": lambda count: normal(count) * np.float32(1e-22),
    "1e25, whose squares overflow": lambda count: normal(count) * np.float32(1e25),
    "tail": lambda count: np.concatenate([normal(count - 3), np.float32([3e3, 4e3, 5e3])]),
    "1e30 in one place": lambda count: np.where(np.arange(count) == 5000, np.float32(1e30), normal(count)),
    "whole rows": lambda count: normal(1 << 20),
    "a heavy row among whole ones": lambda count: one_row(1 << 20),
    "growing": lambda count: np.linspace(0, 1, count, dtype=np.float32) ** 4,
    "float16": lambda count: (normal(count) * 30).astype(np.float16),
    "bfloat16": lambda count: heavy(count).astype(ml_dtypes.bfloat16),
}


COMPILED = (
    "normal",
    "heavy tails",
    "whole rows",
    "a heavy row among whole ones",
    "1e25, whose squares overflow",
    "bfloat16",
)


@slow(MILLION, framework="jax", mode="eager")
@slow(MILLION, framework="tensorflow", mode="compiled")
@by_inductor
@pytest.mark.parametrize(
    ("kind", "framework", "mode"),
    [(kind, *where) for kind in KINDS for where in MODES if where[1] == "eager" or kind in COMPILED],
)
def test_a_million_elements(kind: str, framework: str, mode: str) -> None:
    values = KINDS[kind](COUNT)
    limit = 1.0 if "1e-22" not in kind else 1e-20
    check(framework, mode, values, limit)


@pytest.fixture(scope="module")
def embedding() -> Any:
    return normal(GPT2_EMBEDDING)


@slow(LARGE)
def test_an_embedding(framework: str, mode: str, embedding: Any) -> None:
    check(framework, mode, embedding)


@slow(XLA, framework="jax")
@by_inductor
def test_many_small_bfloat16_leaves(framework: str, mode: str) -> None:
    """optax computes the norm 64.0 for 5000 of these leaves."""
    # JAX and all compilers are slow for thousands of leaves.
    count = 30 if (framework, mode) == ("torch", "compiled") else 500 if framework == "jax" or mode != "eager" else 5000
    leaves = [np.ones(10, ml_dtypes.bfloat16) for _ in range(count)]
    found = call(framework, mode, gx.clip_global_norm(1.0).__call__, leaves)
    wanted = np.full(10, 1 / (10 * count) ** 0.5).astype(ml_dtypes.bfloat16)
    assert_ulp(found, [wanted] * count, 0 if mode == "eager" and framework in ("numpy", "torch") else 1)


EQUAL = """
import numpy as np, gradxform as gx
from gradxform.testing import max_ulp
for number in (1.8428417444229126, 1.8249690532684326, 3.6224350929260254, *np.linspace(1, 4, 300)):
    for count in (62_976, 64_000, 65_000):
        leaf = np.full(count, number, np.float32)
        right = np.float32(np.sqrt(count) * leaf[0].astype(np.float64))
        assert max_ulp(np.float32(gx.global_norm([leaf])), right) <= 1, (number, count)
"""


@pytest.mark.parametrize("processor", ["", "Haswell"])
def test_leaves_of_equal_numbers(processor: str) -> None:
    """Each row's sum has the same rounding error; more so without AVX-512, which OpenBLAS simulates."""
    python("-c", EQUAL, **({"OPENBLAS_CORETYPE": processor} if processor else {}))
