"""Formulas of NumPy's memory in blocks and threads, and of small leaves together: the same bits as one by one."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support import FRAMEWORKS, array, assert_bits, tensors

import gradxform as gx
from gradxform.backend.host import kernels, threads
from gradxform.numerics.elementwise import weighted

MANY = 5000
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-40, 3.4e38, -1.0]


def numbers(seed: int, dtype: Any, shape: Any = MANY) -> Any:
    """Numbers of all sizes, with special ones among them."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        found = (rng.standard_normal(shape) * 2.0 ** rng.integers(-150, 120, shape)).astype(dtype)
        places = rng.integers(0, max(found.size, 1), found.size // 4)
        found.reshape(-1)[places] = rng.choice(SPECIAL, len(places)).astype(dtype)
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_a_sum_is_the_same_in_blocks(dtype: str) -> None:
    x, y = (numbers(seed, dtype, 1 << 17) for seed in (0, 1))
    with np.errstate(all="ignore"):
        (found,) = kernels.of_leaves(weighted, [[x], [y]], [None, None], [None], {})
        cut = [(x[i : i + 999], y[i : i + 999]) for i in range(0, 1 << 17, 999)]
        small = [kernels.of_leaves(weighted, [[x], [y]], [None, None], [None], {})[0] for x, y in cut]
        kind = np.result_type(dtype, np.float32)
        np.testing.assert_array_equal(found, x.astype(kind) + y.astype(kind))
    np.testing.assert_array_equal(found, np.concatenate(small))
    assert found.dtype == kind


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_a_tree_is_the_same_with_threads(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves of all sizes, in any order of memory, are shared among threads."""
    shapes = [(1 << 20,), (300, 1 << 10), (1 << 13,), (7, 5), (), (0, 3), ((1 << 13) + 1,)]
    first, second = ([numbers(seed + i, dtype, shape) for i, shape in enumerate(shapes)] for seed in (0, 9))
    first[1] = np.asfortranarray(first[1])

    def thirds(xp: Any, x: Any, y: Any, a: Any) -> Any:
        return xp.where(xp.iota(x) % 3 == 1, 0.0, x + a * y)

    given = (weighted, [first, second], [None, 0.9]) if dtype == "float64" else (thirds, [first, second], [0.9])
    run = functools.partial(kernels.of_leaves, *given, [None] * len(shapes), {})
    monkeypatch.setattr(threads, "_count", lambda: 1)
    wanted = run()
    monkeypatch.setattr(threads, "_count", lambda: 2)
    for leaf, found, alone in zip(first, run(), wanted, strict=True):
        assert found.shape == leaf.shape and found.dtype == np.result_type(dtype, np.float32)
        np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("numpy", "torch", "tensorflow")])
def test_error_feedback_around_a_transform_that_narrows(framework: str) -> None:
    class Narrow:
        def init(self, params: Any) -> Any:
            return ()

        def update(self, updates: Any, state: Any, params: Any = None) -> Any:
            return tensors(framework, [array(leaf).astype(np.float32) for leaf in updates]), state

    tx, gradient = gx.error_feedback(Narrow()), np.array([1.0 + 2.0**-30, 0.1])
    given = tensors(framework, [gradient])
    (error,) = map(array, tx.update(given, tx.init(given))[1].error)
    wanted = gradient - gradient.astype(np.float32)
    np.testing.assert_allclose(error, wanted, rtol=1e-7, atol=0.0)


# --- small leaves, computed together ---------------------------------------------------------------------------------


SHAPES = ((3, 4), (0, 2), (5,), (), (9000,), (2, 1, 3), (8192,))


def columns(*dtypes: Any) -> list[list[Any]]:
    """Random leaves and arrays beside them."""
    rng = np.random.default_rng(0)
    return [[np.asarray(rng.normal(size=shape)).astype(dtype) for shape in SHAPES] for dtype in dtypes]


def _counted(xp: Any, x: Any, y: Any, number: Any) -> Any:
    return x * number + y * xp.iota(x)


@pytest.mark.parametrize("factors", ([None] * 7, [0.3] * 7, [0.3, 0.5, 0.3, 0.5, 1.0, 0.3, 0.5]))
@pytest.mark.parametrize("dtypes", (("f4", "f4"), ("f2", "f4"), ("f8", "f8"), ("f4", "f8"), ("c8", "c8")))
def test_as_one_by_one(dtypes: tuple[str, str], factors: list[Any]) -> None:
    """The index of an element is that in its leaf; each result has memory of its own."""
    given = columns(*dtypes)
    found = kernels.of_leaves(_counted, given, [0.25], factors, {})
    alone = [
        kernels.of_leaves(_counted, [[part] for part in row], [0.25], [factor], {})[0]
        for row, factor in zip(zip(*given, strict=True), factors, strict=True)
    ]
    assert_bits(found, alone)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(found) for b in found[:i])
