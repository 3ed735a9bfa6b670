"""Edge cases that other libraries get wrong, with correct answers, in every framework and mode."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import (
    EAGER,
    INF,
    MODES,
    NAN,
    array,
    assert_ulp,
    by_graph,
    by_inductor,
    call,
    f16,
    f32,
    slow,
    without_generated_code,
)

import gradxform as gx
from gradxform.proof import parity


def c64(*values: complex) -> Any:
    return np.array(values, np.complex64)


class Case(NamedTuple):
    what: str
    limit: float
    given: list[Any]
    together: list[Any]
    """After clip_global_norm."""
    each: list[Any]
    """After clip_norm."""
    ulp: float = 2


CASES = [
    Case("at the limit", 5.0, [f32(3, 4)], [f32(3, 4)], [f32(3, 4)], 0),
    Case("NaN in one leaf", 1.0, [f32(NAN, 1), f32(2)], [f32(NAN, NAN), f32(NAN)], [f32(NAN, NAN), f32(1)]),
    Case("inf in one leaf", 1.0, [f32(INF, 1), f32(2)], [f32(NAN, NAN), f32(NAN)], [f32(NAN, NAN), f32(1)]),
    Case("-inf and NaN", 1.0, [f32(-INF, NAN), f32(0.5)], [f32(NAN, NAN), f32(NAN)], [f32(NAN, NAN), f32(0.5)]),
    Case("1e30", 1.0, [f32(1e30), f32(3)], [f32(1), f32(3e-30)], [f32(1), f32(1)]),
    Case("1e25, which eager and compiled disagree on", 1.0, [f32(1e25), f32(0)], [f32(1), f32(0)], [f32(1), f32(0)]),
    Case("the largest float32", 1.0, [f32(3.4e38, 3.4e38)], [f32(0.5**0.5, 0.5**0.5)], [f32(0.5**0.5, 0.5**0.5)]),
    Case("float16 300", 1.0, [f16(300), f16(3)], [f16(1), f16(0.01)], [f16(1), f16(1)], 1),
    Case("float16 below the limit", 1000.0, [f16(100, 100)], [f16(100, 100)], [f16(100, 100)], 0),
    Case("3e-30", 1e-31, [f32(3e-30, 4e-30)], [f32(6e-32, 8e-32)], [f32(6e-32, 8e-32)]),
    Case("3e-8", 1e-8, [f32(3e-8, 4e-8)], [f32(6e-9, 8e-9)], [f32(6e-9, 8e-9)]),
    Case("mixed dtypes", 1.0, [f32(3), f16(4)], [f32(0.6), f16(0.8)], [f32(1), f16(1)]),
    Case("complex64", 1.0, [c64(3j), c64(4)], [c64(0.6j), c64(0.8)], [c64(1j), c64(1)]),
    Case("a limit of zero", 0.0, [f32(3), f32(0)], [f32(0), f32(0)], [f32(0), f32(0)], 0),
    Case("zero and a limit of zero", 0.0, [f32(0, 0)], [f32(0, 0)], [f32(0, 0)], 0),
    Case("no limit", INF, [f32(3, 1e30)], [f32(3, 1e30)], [f32(3, 1e30)], 0),
    Case("zeros", 1.0, [f32(0, 0), f32()], [f32(0, 0), f32()], [f32(0, 0), f32()], 0),
    Case("no elements", 1.0, [np.zeros((0, 3), np.float32), f32(2)], [np.zeros((0, 3), np.float32), f32(1)],
         [np.zeros((0, 3), np.float32), f32(1)]),
    Case("no axes", 1.0, [np.asarray(np.float32(7))], [np.asarray(np.float32(1))], [np.asarray(np.float32(1))]),
]  # fmt: skip


def clipped(make: Any, framework: str, mode: str, limits: list[Any], trees: list[list[Any]]) -> Any:
    """Clip each tree to its limit, in one function."""
    return call(framework, mode, lambda trees: [make(c)(tree) for c, tree in zip(limits, trees, strict=True)], trees)


@by_inductor
@pytest.mark.parametrize(("framework", "mode"), [*MODES, ("mlx", "eager")])
@pytest.mark.parametrize("make", [gx.clip_norm, gx.clip_global_norm])
def test_hard_cases(make: Any, framework: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor generates code for the norms over all leaves; the table has that of a norm of each leaf."""
    if (framework, mode, make) == ("torch", "compiled", gx.clip_norm):
        without_generated_code(monkeypatch)
    results = clipped(make, framework, mode, [case.limit for case in CASES], [case.given for case in CASES])
    for case, result in zip(CASES, results, strict=True):
        wanted = case.together if make is gx.clip_global_norm else case.each
        assert_ulp(result, wanted, case.ulp, case.what)
        reference = parity.expected(make(case.limit), case.given)
        assert_ulp(list(reference.values()), wanted, case.ulp, case.what)


@by_graph
@pytest.mark.parametrize(("framework", "mode"), [*MODES, ("mlx", "eager")])
@pytest.mark.parametrize("make", [gx.clip_norm, gx.clip_global_norm])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_a_limit_that_is_an_array_of_another_dtype(make: Any, dtype: Any, framework: str, mode: str) -> None:
    if framework == "jax" and dtype is np.float64:
        pytest.skip("without 64 bits JAX has no such array")
    if (framework, mode) == ("torch", "compiled") and dtype is not np.float64:
        pytest.skip("one dtype is enough for a compiler that takes its time")
    found = call(framework, mode, lambda limit, tree: make(limit)(tree), np.asarray(2, dtype), [f32(3, 4)])
    assert_ulp(found, [f32(1.2, 1.6)])


ROWS = f32(3, 4, 3e30, 4e30, 3e-30, 4e-30, 0, 0, NAN, 1, INF, 1).reshape(-1, 2)


@slow(EAGER, framework="jax", mode="eager")
@pytest.mark.parametrize(("framework", "mode"), [("jax", "eager"), ("jax", "compiled"), ("torch", "eager")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_whole_range_under_vmap(dtype: Any, framework: str, mode: str) -> None:
    module = pytest.importorskip(framework)
    with np.errstate(all="ignore"):
        rows = ROWS if dtype is np.float32 else np.where(np.isfinite(ROWS), ROWS.astype(dtype) ** 5, ROWS)
    with module.enable_x64(dtype is np.float64) if framework == "jax" else contextlib.nullcontext():
        for tx in (gx.clip_norm(1.0), gx.clip_global_norm(1.0)):
            out = call(framework, mode, (module if framework == "jax" else module.func).vmap(tx), rows)
            for row, result in zip(rows, array(out), strict=True):
                assert_ulp([result], list(parity.expected(tx, [row]).values()))
