"""Details of each primitive, in every framework."""

from __future__ import annotations

import functools
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import (
    DTYPES_ALIKE,
    FRAMEWORKS,
    MOST,
    TRACES,
    XLA,
    array,
    arrays,
    assert_bits,
    assert_ulp,
    by_inductor,
    call,
    f32,
    slow,
    tensors,
)

import gradxform as gx
from gradxform.backend import lookup
from gradxform.backend.host.kernels import Block
from gradxform.numerics import random
from gradxform.proof import parity, reference_state
from gradxform.proof.extended import narrowed, number
from gradxform.testing import max_ulp

MAKE = [gx.clip_norm, gx.clip_global_norm, functools.partial(gx.clip_norm, axes=0)]


def run(framework: str, tx: Any, given: Any) -> list[Any]:
    return arrays(tx(tensors(framework, given)))


def test_identity_and_scale_and_integers(framework: str) -> None:
    (out,) = run(framework, gx.identity(), [np.array([1, 2])])
    assert out.tolist() == [1, 2]


# 1 ULP below one, and an element that makes the norm exceed one in float64 but not in float32
BARELY = f32(1 - 2.0**-24, 4.5e-4)


@pytest.mark.parametrize("make", MAKE)
def test_float32_is_compared_in_float32(make: Any, framework: str) -> None:
    norm = float(np.sqrt(np.sum(BARELY.astype(np.float64) ** 2)))
    assert norm > 1
    assert np.float32(norm) == 1
    assert (BARELY.astype(np.float64) / norm).astype(np.float32).tobytes() != BARELY.tobytes()
    for tree in ([BARELY], [BARELY, f32(0, 0)]):
        assert run(framework, make(1.0), tree)[0].tobytes() == BARELY.tobytes()


@pytest.mark.parametrize("make", MAKE)
def test_float64_is_compared_in_float64(make: Any, framework: str) -> None:
    above = np.float64([1 + 1e-9])
    assert run(framework, make(1.0), [above])[0].tolist() == [1.0]
    assert run(framework, make(1.0), [f32(0), above])[1].tolist() == [1.0]
    if make is gx.clip_norm:  # each in its own dtype
        assert run(framework, make(1.0), [BARELY, above])[0].tobytes() == BARELY.tobytes()


@pytest.mark.parametrize("make", MAKE)
def test_whole_numbers_whose_sum_is_the_limit_are_not_clipped(make: Any, framework: str) -> None:
    tree = [np.float64([114, 59, 59, 59, 59, 59])]  # in units of the largest, their sum is rounded up
    assert run(framework, make(409.0, ord=1), tree)[0].tolist() == tree[0].tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_numpy_arrays_beside_tensors_keep_their_dtype(dtype: str, framework: str) -> None:
    backend = lookup.backend(framework)
    if framework == "jax" and dtype == "float64":
        pytest.skip("without 64 bits JAX has no such array")
    leaf = np.array([3.0], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if framework == "torch" and dtype == "bfloat16":
        pytest.skip("torch.as_tensor does not know ml_dtypes")
    out = gx.scale(0.5)([backend.from_numpy(f32(1)), leaf])
    assert backend.dtype(out[1]) == dtype


@pytest.mark.parametrize(("framework", "mode"), MOST)
@pytest.mark.parametrize(("limit", "wanted"), [(-1.0, [0, 0]), (0.0, [0, 0]), (np.nan, [np.nan] * 2), (np.inf, [3, 4])])
@pytest.mark.parametrize("make", [*MAKE, gx.clip_value])
def test_an_array_limit_is_clamped_at_zero_and_nan_gives_nan(
    make: Any, limit: float, wanted: Any, framework: str, mode: str
) -> None:
    for given, right in ((f32(3, 4), f32(*wanted)), (f32(0, 0), 0 * f32(*wanted))):
        (out,) = call(framework, mode, lambda c, tree: make(c)(tree), np.array(limit, np.float32), [given])
        assert_ulp(out, right, 0)


def test_bounds_broadcast_along_the_last_axes(framework: str) -> None:
    leaf = np.full((2, 3), 5.0, np.float32)
    (out,) = run(framework, gx.clip_value(high=tensors(framework, f32(1, 2, 9))), [leaf])
    assert out.tolist() == [[1, 2, 5]] * 2
    assert np.isnan(run(framework, gx.clip_value(high=tensors(framework, f32(np.nan, 1))), [f32(3, 4)])[0][0])
    with pytest.raises(ValueError, match=r"\(2,\).*\(2, 3\)"):
        run(framework, gx.clip_value(high=tensors(framework, f32(1, 2))), [leaf])


AT, LOW, HIGH = np.float32([-3.0, 0.5, 3.0]), np.float32(1.0), np.float32(-1.0)


@by_inductor
@pytest.mark.parametrize("numbers", ["arrays", "given", "low", "high"])
def test_the_upper_of_two_reversed_bounds_wins(framework: str, mode: str, numbers: str) -> None:
    """Also where compiled code closes over them, or is given them."""
    low, high = tensors(framework, [np.asarray(LOW), np.asarray(HIGH)])
    kept = 1.0 if numbers == "high" else low, -1.0 if numbers == "low" else high

    def clipped(x: Any, *given: Any) -> Any:
        low, high = given if numbers == "given" else kept
        return gx.clip_value(low=low, high=high)([x])

    found = call(framework, mode, clipped, AT, np.asarray(LOW), np.asarray(HIGH))
    assert_bits(found, tensors(framework, [np.full_like(AT, -1.0)]))


def test_a_bound_that_is_a_schedule() -> None:
    tx = gx.clip_value(low=lambda step: step - 1.0, high=0.5)
    state = tx.init([AT])
    for low in (-1.0, 0.0, 0.5):  # in the last step it is above the upper one
        updates, state = tx.update([AT], state)
        assert updates[0].tolist() == [low, 0.5, 0.5]


@pytest.mark.parametrize(("framework", "mode"), [(f, "eager") for f in FRAMEWORKS] + [("tensorflow", "compiled")])
@pytest.mark.parametrize("make", MAKE)
def test_subnormal_gradients_within_the_limit_stay(make: Any, framework: str, mode: str) -> None:
    leaf = f32(1e-40, -1e-42)
    for tree in ([leaf], [leaf] * 5, *([[f32(3, 4), leaf], [f32(3, 4), *[leaf] * 5]] if make is gx.clip_norm else ())):
        assert array(call(framework, mode, make(1.0).__call__, tree)[-1]).tobytes() == leaf.tobytes()


@slow(TRACES)
def test_unknown_ranks_with_axes_and_bounds(tf: Any) -> None:

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def clip(gradient: Any) -> Any:
        return gx.chain(gx.clip_value(high=tf.constant([3.0, 3.0])), gx.clip_norm(1.0, axes=-1))(gradient)

    assert max_ulp(clip(f32(3, 4)).numpy(), f32(0.5**0.5, 0.5**0.5)) <= 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(framework: str, dtype: str) -> None:
    """The result is the nearest number to the exact product, not the second nearest."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    leaf = (np.random.default_rng(0).normal(size=(50, 100)) * 3).astype(kind)
    wide = leaf.astype(np.float64)
    wanted = (wide * 0.3).astype(kind)
    over_rows = (wide * (0.7 / np.linalg.norm(wide, axis=1, keepdims=True))).astype(kind)
    assert np.mean(run(framework, gx.scale(0.3), [leaf])[0] != wanted) < 0.01
    assert np.mean(run(framework, gx.clip_norm(0.7, axes=1), [leaf])[0] != over_rows) < 0.01
    if framework == "torch":
        p, p.grad = tensors(framework, (leaf, leaf))
        gx.torch.apply_(gx.scale(0.3), [p])
        assert np.mean(array(p.grad) != wanted) < 0.01


def test_norms_of_high_order_over_axes_of_tiny_numbers() -> None:
    (clipped,) = gx.clip_norm(1e-31, axes=-1, ord=12)([np.float32([[1e-30, 2e-30]])])
    assert clipped == pytest.approx(np.array([[0.5, 1.0]]) * 1e-31 / (1 + 0.5**12) ** (1 / 12), rel=1e-6, abs=0)


def test_many_float64_numbers_are_added_up_exactly_over_any_axis(framework: str, mode: str) -> None:
    outer = np.full((100_000, 2), 0.1)
    for axis, leaf in ((0, outer), (-2, outer), (1, np.full((2, 100_000), 0.1, order="F"))):
        clipped, rest = (
            array(call(framework, mode, tx(axes=axis).__call__, leaf))
            for tx in (functools.partial(gx.clip_norm, 1.0), gx.centralize)
        )
        assert clipped == pytest.approx(1e5**-0.5, rel=16 * 2.0**-52, abs=0)
        assert rest == pytest.approx(0.0, abs=1.6 * 2.0**-52)


@pytest.mark.parametrize("ord", [1, 2, 3, np.inf])
@pytest.mark.parametrize("axes", [None, 0, 1])
def test_a_nan_in_a_large_leaf_is_never_lost(axes: Any, ord: float, framework: str) -> None:
    """XLA's maximum of 100000 numbers and more loses a NaN. An infinite norm makes NaN, too."""
    for bad in (np.nan, np.inf):
        leaf = np.ones((3, 100_001), np.float32)
        leaf[0, 5] = bad
        count = leaf.size if axes is None else leaf.shape[axes]
        wanted = np.where(np.isfinite(leaf).all(axes, keepdims=True), count ** (-1 / ord), np.nan)
        found = run(framework, gx.clip_norm(1.0, axes=axes, ord=ord), [leaf])[0]
        np.testing.assert_allclose(found, np.broadcast_to(wanted, leaf.shape), rtol=1e-6)
        if axes is None:
            assert np.isnan(run(framework, gx.clip_global_norm(1.0, ord=ord), [leaf])[0]).all()


def test_norms_of_large_float64_leaves(framework: str) -> None:
    leaves = [np.random.default_rng(0).uniform(0.1, 1, 300_001)]
    for leaf in [*leaves, *([np.full(3_000_001, 0.1)] if framework in ("numpy", "torch") else [])]:
        found = array(gx.global_norm(tensors(framework, [leaf])))
        wide = number(leaf)
        assert max_ulp(np.float64(found), narrowed(np.sqrt(np.sum(wide * wide)), np.float64)) <= 16


@slow(TRACES)
@pytest.mark.parametrize("ord", [1, 2, 3, np.inf])
def test_a_nan_under_tensorflows_xla_is_never_lost(ord: float, tf: Any) -> None:
    """TensorFlow's XLA loses a NaN in the maximum of two numbers."""
    for make in (gx.clip_norm, gx.clip_global_norm):
        clip = tf.function(make(1.0, ord=ord).__call__, jit_compile=True)
        assert np.isnan(clip([tf.constant([np.nan, 3.0]), tf.constant([0.5])])[0]).all()
    clip = tf.function(gx.clip_global_norm(1.0, ord=ord).__call__, jit_compile=True)
    for place in range(3):
        tree = [tf.constant([np.nan if i == place else 0.5 + i]) for i in range(3)]
        assert all(np.isnan(leaf).all() for leaf in clip(tree)), place


# --- many leaves, which are worked on together -----------------------------------------------------------------------

MANY = [
    "clip_norm(1.0)",
    "clip_global_norm(1.0)",
    "chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))",
    "chain(clip_value(0.5), clip_norm(2.0), scale(2.0), clip_value(0.3), clip_global_norm(9.0), clip_norm(1.0))",
    "chain(masked(clip_norm(1.0), '**/w'), clip_norm(3.0), masked(clip_global_norm(2.0), '**/v'), scale(0.3))",
    "chain(freeze('3/w'), clip_norm(1.0), scale(1e-30), scale(1e10))",
    "chain(clip_norm(1.0), freeze('3/w'))",
    "chain(clip_norm(5.0), masked(clip_norm(1.0), '**/w'))",
    "chain(clip_norm(5.0, ord=1), clip_norm(1.0))",
    "chain(clip_norm(1.0, ord=3), clip_global_norm(1.0, ord=float('inf')))",
    "chain(clip_norm(1.0), trace(0.5))",
]


COMPILED_MANY = slow(XLA, lambda framework, mode: framework == "jax" or (framework, mode) == ("tensorflow", "compiled"))


KINDS = {"one": (np.float32,), "mixed": (np.float32, ml_dtypes.bfloat16, np.float16)}


def many(kinds: str) -> dict[str, dict[str, Any]]:
    """Leaves of recurring sizes in changing order, with empty, 0-d and large ones."""
    rng, dtypes = np.random.default_rng(3), KINDS[kinds]
    shapes = [(7,), (3, 4), (), (0, 3), (7,), (12,), (1,), (2, 3, 2), (301,), (9000,), (64, 1100)]
    order = rng.integers(0, len(shapes), 60)
    return {
        str(i): {key: (3 * rng.standard_normal(shapes[order[2 * i + j]])).astype(dtypes[i % len(dtypes)])
                 for j, key in enumerate("vw")}
        for i in range(30)
    }  # fmt: skip


@functools.cache
def expected_of_many(expression: str, kinds: str) -> parity.Expected:
    return parity.expected(gx.parse(expression), many(kinds))


@slow(DTYPES_ALIKE, kinds="one")
@COMPILED_MANY
@pytest.mark.parametrize("expression", MANY)
@pytest.mark.parametrize(  # JAX takes leaf by leaf, however many are of one dtype
    ("framework", "mode", "kinds"), [(*where, k) for where in MOST for k in KINDS if (where[0], k) != ("jax", "one")]
)
def test_many_leaves(expression: str, kinds: str, framework: str, mode: str) -> None:
    tx, tree = gx.parse(expression), many(kinds)
    right = expected_of_many(expression, kinds)
    result = parity.runner(tx, framework, mode)([tree], tree)[0][0]
    assert not result.problem
    for path, wanted in right.items():
        budget = 1 if wanted.dtype.itemsize == 2 else 2
        assert max_ulp(result.leaves[path], wanted) <= budget, path


SHAPES = [(40,), (3, 5), (6000,), (0,), (8, 5), (), (100, 100), (15,), (2,)]


@COMPILED_MANY
@by_inductor
@pytest.mark.parametrize("repeats", [2, 14])
def test_many_leaves_of_few_sizes_have_each_their_own_norm(repeats: int, framework: str, mode: str, rng: Any) -> None:
    """Small leaves are read and multiplied together, with the same results."""
    if repeats > 2 and (framework, mode) == ("torch", "compiled"):
        pytest.skip("torch.compile takes its time")
    sizes = 10.0 ** rng.uniform(-36, 37, (repeats, len(SHAPES)))
    sizes[:, 2] = 1e37  # makes the factor inexact in float32
    tree = [
        np.asarray(rng.standard_normal(shape) * size, np.float32)
        for row in sizes
        for shape, size in zip(SHAPES, row, strict=True)
    ]
    tree[8] = f32(1e-40, -1e-42)
    tx = gx.clip_norm(1.0)
    out = arrays(call(framework, mode, tx.__call__, tree))
    for got, given, right in zip(out, tree, parity.expected(tx, tree).values(), strict=True):
        assert got.shape == given.shape
        assert max_ulp(got, right) <= 2
        if np.linalg.norm(given.astype(np.float64)) < 0.999:
            assert got.tobytes() == given.tobytes()


# --- found by a review -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e20, 1.0, 1e-15])
def test_derivatives_of_large_leaves_of_any_size_in_tensorflow(size: float, tf: Any) -> None:
    leaf, limit = np.tile(np.float32([1.0, 0.5]), 10_000) * np.float32(size), min(size, 1.0)

    @tf.function
    def derivative(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(gx.clip_norm(limit)([x])[0])
        return tape.gradient(total, x)

    wide = number(leaf)
    norm = np.sqrt(np.sum(wide * wide))
    right = limit * (1 / norm - wide * np.sum(wide) / norm**3)
    np.testing.assert_allclose(derivative(tf.constant(leaf)).numpy(), narrowed(right, np.float64), rtol=1e-4)


# --- the catalogue ---------------------------------------------------------------------------------------------------


@slow(XLA, framework="jax")
@pytest.mark.parametrize(("framework", "mode"), MOST)
def test_examples_of_any_size_are_clipped(framework: str, mode: str) -> None:
    for size in (1e200, 1e-200):
        grads = [np.float64([[3 * size], [3]]), np.float64([[4 * size], [4]])]
        (first, second), _ = call(framework, mode, lambda given: gx.per_example_clip_global_norm(given, 1.0), grads)
        wanted = (1.2, 1.6) if size > 1 else (0.6, 0.8)
        assert (array(first)[0], array(second)[0]) == pytest.approx(wanted, rel=1e-15)


def test_numbers_beyond_32_bits_have_random_words_of_their_own() -> None:
    with np.errstate(over="ignore"):
        found = random.bits(Block(0), (0, 7), np.array([5, 5 + 2**32]))
        right = reference_state.threefry(0, 7, np.uint32([0, 1]), np.uint32([5, 5]))
    assert [words.view(np.uint32).tolist() for words in found] == [words.tolist() for words in right]


def test_parameters_may_be_arrays_of_numpy(framework: str) -> None:
    for param in (f32(4), types.SimpleNamespace(value=f32(4))):  # or objects that hold one
        (out,) = gx.add_decayed_weights(0.5)(tensors(framework, [f32(1)]), params=[param])
        assert array(out).tolist() == [3.0]


def test_examples_that_are_negative_numbers(framework: str) -> None:
    total, count = gx.per_example_clip_norm(tensors(framework, [f32(-3, 0.5, 2)]), 1.0)
    assert array(total[0]).tolist() == 0.5
    assert array(count[0]).tolist() == 2
