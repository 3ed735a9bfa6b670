"""The catalogue beyond its numbers: states that are saved, schedules, noise, steps that are skipped, many gradients."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import optree
import pytest
from support import (
    FRAMEWORKS,
    INF,
    MODES,
    NAN,
    STATEFUL,
    array,
    arrays,
    assert_bits,
    assert_ulp,
    bits,
    call,
    in_mode,
    tensors,
)

import gradxform as gx
from gradxform.backend import lookup
from gradxform.backend.host.elements import Block
from gradxform.numerics import elementwise, random
from gradxform.proof import parity, reference_state
from gradxform.proof.extended import narrowed, number
from gradxform.proof.gradients import few, gradients
from gradxform.testing import max_ulp
from gradxform.transforms import adding


def halving(step: Any) -> Any:
    return 2.0**-step


# --- infinities in float64, which pairs of numbers make NaN of --------------------------------------------------------


@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("expression", ["centralize()", "clip_adaptive(0.1, axes='keras')"])
def test_an_infinity_stays_one_where_nothing_makes_nan_of_it(framework: str, mode: str, expression: str) -> None:
    """Finite elements with an infinite mean; parameters with an infinite norm set no limit."""
    given = {"w": np.array([[np.inf, 1.0, 2.0], [3.0, 4.0, 5.0]]), "b": np.array([1.0, -np.inf])}
    (result,), _ = parity.run_steps(gx.parse(expression), [given], given, framework, mode)
    (wanted,) = parity.expected_steps(gx.parse(expression), [given], given)
    assert any(np.isinf(leaf).any() for leaf in wanted.values())
    for path, leaf in wanted.items():
        assert max_ulp(result.leaves[path], leaf) <= 2


@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("expression", ["sign()", "chain(scale(2.0), sign())"])
def test_the_sign_of_a_subnormal_number(framework: str, mode: str, expression: str) -> None:
    """The result is 1, or 0 in frameworks that flush the number to zero."""
    tree = {
        dtype: np.array([least, -least, 0.0, -0.0, np.nan], dtype)
        for dtype, least in (("float16", 6e-8), ("float32", 1e-40), ("float64", 1e-310))
    }
    (result,), _ = parity.runner(gx.parse(expression), framework, mode)([tree], tree)
    for dtype, (one, other, *rest) in result.leaves.items():
        flushed = framework in ("jax", "tensorflow") and dtype != "float16"
        assert one in ((0.0, 1.0) if flushed else (1.0,)) and other == -one, (dtype, one, other)
        assert bits(np.array(rest)) == bits(tree[dtype][2:]), (dtype, rest)


# --- all that keep a state, in one chain -----------------------------------------------------------------------------


def everything() -> gx.GradientTransformation:
    inner = gx.chain(
        gx.clip_percentile(60.0, 3),
        gx.clip_zscore(1.0, 0.9, 2, per_leaf=True),
        gx.clip_global_norm(lambda t: 5.0 / (1.0 + t)),
        gx.ema(0.9),
        gx.trace(0.5, nesterov=True),
        gx.add_noise(0.01, seed=3),
        gx.scale_by_schedule(halving),
    )
    return gx.skip_nonfinite(gx.skip_large(gx.accumulate(inner, 2), 1e6), max_consecutive=3)


def gradient_of(step: int) -> Any:
    """Small, since it is compiled for all of these transforms at once; one step is NaN, one is large."""
    rng = np.random.default_rng(step)
    tree = {
        "a": {"v": rng.standard_normal((3, 5)), "w": rng.standard_normal(7)},
        "b": [rng.standard_normal((2, 3)), None],
    }
    if step == 3:
        tree["a"]["w"][0] = np.nan
    if step == 5:
        tree["a"]["w"] *= 1e7
    return optree.tree_map(np.float32, tree)


def saved_and_restored(framework: str, state: Any) -> Any:
    """A state as loaded from a file."""
    backend = lookup.backend(framework)
    leaves, structure = backend.flatten(state)
    file = io.BytesIO()
    np.savez(file, *(backend.to_numpy(leaf) for leaf in leaves if leaf is not None))
    file.seek(0)
    arrays = iter(np.load(file).values())
    return backend.unflatten(structure, [None if leaf is None else backend.from_numpy(next(arrays)) for leaf in leaves])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_all_is_right_and_a_restored_state_goes_on_bit_by_bit(framework: str, mode: str) -> None:
    tx, backend = everything(), lookup.backend(framework)

    def one(updates: Any, state: Any) -> tuple[Any, Any]:
        return tx.update(updates, state)

    update = in_mode(framework, mode, one)
    steps = [gradient_of(step) for step in range(8)]
    state, other = tx.init(tensors(framework, steps[0])), None
    for step, wanted in enumerate(parity.expected_steps(tx, steps, steps[0])):
        if step == 4:
            other = saved_and_restored(framework, state)
        given = tensors(framework, steps[step])
        updates, state = update(given, state)
        _, worst = parity.differences(parity.named_leaves(updates, backend), wanted)
        assert worst is None or worst.ulp <= 2, f"step {step}: {worst}"
        if other is not None:
            again, other = update(given, other)
            assert_bits((again, other), (updates, state))


# --- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", STATEFUL)
def test_states_keep_their_structure_shapes_and_dtypes(name: str, framework: str) -> None:
    tx, backend = STATEFUL[name], lookup.backend(framework)
    dtype = "bfloat16" if framework != "numpy" else "float32"
    state = tx.init(tensors(framework, few(dtype)))
    _, new = tx.update(tensors(framework, few(dtype, 1)), state)

    def kinds(tree: Any) -> list[Any]:
        return [
            leaf if leaf is None else (backend.dtype(leaf), backend.shape(leaf)) for leaf in backend.flatten(tree)[0]
        ]

    assert kinds(new) == kinds(state)
    assert {kind[0] for kind in kinds(new) if kind} <= {"float32", "int32", "bool"}
    assert all(lookup.owner(leaf) is backend for leaf in backend.flatten(new)[0] if leaf is not None)


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("numpy", "torch")])
@pytest.mark.parametrize(
    "name", ["ema", "trace", "grokfast", "clip_spikes", "error_feedback", "accumulate", "skip_nonfinite"]
)
def test_a_result_does_not_share_memory_with_the_state(name: str, framework: str) -> None:
    tx = STATEFUL[name]
    params = tensors(framework, gradients("float32"))
    state = tx.init(params)
    for step in range(2):
        updates, state = tx.update(tensors(framework, gradients("float32", step)), state)
        before = bits(state)
        for leaf in lookup.backend(framework).flatten(updates)[0]:
            if leaf is not None:
                leaf[...] = 7
        assert bits(state) == before


@pytest.mark.parametrize("name", STATEFUL)
def test_in_place_is_the_same(name: str) -> None:
    tx, state, other = STATEFUL[name], *(STATEFUL[name].init(gradients("float32")) for _ in range(2))
    for step in range(4):
        tree = gradients("float32", step)
        wanted, state = tx.update(gradients("float32", step), state)
        other = gx.numpy.apply_(tx, tree, other)
        assert_bits(tree, wanted)
    assert_bits(other, state)


def test_a_gradient_that_is_none_leaves_its_state_as_it_is() -> None:
    for tx in (gx.ema(0.5, debias=False), gx.trace(0.5), gx.grokfast(0.5), gx.accumulate(gx.identity(), 3)):
        state = tx.init({"a": np.ones(2), "b": np.ones(2)})
        _, state = tx.update({"a": np.ones(2), "b": np.ones(2)}, state)
        updates, state = tx.update({"a": np.ones(2), "b": None}, state)
        assert updates["b"] is None
        whole = optree.tree_flatten(state)[0]
        assert any(leaf.shape == (2,) and leaf[0] in (1.0, 0.5, 1 / 3) for leaf in whole)
    tx = gx.clip_percentile(100.0, 2, per_leaf=True)
    state = tx.init([np.ones(1), np.ones(1)])
    _, state = tx.update([np.ones(1), None], state)
    assert state.count.tolist() == [1, 0]
    _, state = tx.update([None, np.full(1, 3.0)], state)
    assert state.history.tolist() == [[1.0, 0.0], [3.0, 0.0]]


@pytest.mark.parametrize("hole", [gx.freeze("b"), gx.chain(gx.measure(gx.identity()), gx.freeze("b"))], ids=repr)
def test_a_gradient_that_is_frozen_or_masked_out_has_no_norm_in_a_table(hole: Any) -> None:
    tree = {"a": np.full(2, 3.0), "b": np.full(3, 5.0)}
    inner = gx.clip_percentile(50.0, 2, per_leaf=True)
    for tx in (gx.chain(hole, inner), gx.chain(gx.measure(gx.identity()), gx.masked(inner, "a"))):
        state = tx.init(tree)
        _, state = tx.update(tree, state)
        assert state[-1].count.tolist() == [1, 0]
        assert state[-1].history[1].tolist() == [0.0, 0.0]


def test_states_go_through_scan() -> None:
    jax = pytest.importorskip("jax")
    tx = everything()
    steps = [gradient_of(step) for step in range(6)]
    stacked = optree.tree_map(lambda *leaves: jax.numpy.stack(leaves), steps[0], *steps[1:])
    state = tx.init(tensors("jax", steps[0]))
    last, _ = jax.lax.scan(lambda state, updates: tx.update(updates, state)[::-1], state, stacked)
    for given in steps:
        _, state = jax.jit(tx.update)(tensors("jax", given), state)
    assert_ulp(last, state)


# --- schedules -------------------------------------------------------------------------------------------------------

SCHEDULED: dict[str, Callable[[Any], gx.GradientTransformation]] = {
    "clip_value": lambda f: gx.clip_value(f),
    "clip_value low": lambda f: gx.clip_value(low=lambda t: -f(t)),
    "clip_norm": lambda f: gx.clip_norm(f),
    "clip_global_norm": lambda f: gx.clip_global_norm(f),
    "clip_rms": lambda f: gx.clip_rms(f),
    "clip_average_norm": lambda f: gx.clip_average_norm(f),
    "scale": lambda f: gx.scale(f),
    "scale_by_schedule": lambda f: gx.scale_by_schedule(f),
    "add_decayed_weights": lambda f: gx.add_decayed_weights(f),
    "clip_adaptive": lambda f: gx.clip_adaptive(f, axes="keras"),
    "ema": lambda f: gx.ema(f, debias=False),
    "trace": lambda f: gx.trace(f),
    "grokfast": lambda f: gx.grokfast(f, f),
    "clip_percentile": lambda f: gx.clip_percentile(lambda t: 100.0 * f(t), 3),
    "clip_adagc": lambda f: gx.clip_adagc(f, f, warmup=1, max_norm=f),
    "clip_spikes": lambda f: gx.clip_spikes(f, f, warmup=1),
    "clip_zscore": lambda f: gx.clip_zscore(f, warmup=1),
    "skip_large": lambda f: gx.skip_large(gx.identity(), lambda t: 100.0 * f(t)),
    "add_noise": lambda f: gx.add_noise(f, 1),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", SCHEDULED)
def test_any_number_may_be_a_schedule(name: str, framework: str) -> None:
    tx = SCHEDULED[name](halving)
    assert tx.stateful
    steps, params = [few("float32", step) for step in range(3)], few("float32", 99)
    results, state = parity.run_steps(tx, steps, params, framework, "eager")
    assert array(state.count) == 3
    for step, wanted in enumerate(parity.expected_steps(tx, steps, params)):
        _, worst = parity.differences(results[step].leaves, wanted)
        assert worst is None or worst.ulp <= 2, f"step {step}: {worst}"


@pytest.mark.parametrize(("framework", "mode"), [pair for pair in MODES if pair[1] == "compiled"])
def test_a_schedule_does_not_trace_again(framework: str, mode: str) -> None:
    seen = []

    def schedule(step: Any) -> Any:
        return 1.0 / (1.0 + step)

    tx = gx.clip_global_norm(schedule)

    def one(updates: Any, state: Any) -> tuple[Any, Any]:
        if framework != "torch":
            seen.append(1)
        return tx.update(updates, state)

    update = in_mode(framework, mode, one)
    grads = tensors(framework, [np.float32([3, 4])])
    state = tx.init(grads)
    if framework == "torch":
        import torch._dynamo

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    for step in range(4):
        updates, state = update(grads, state)
        norm = np.linalg.norm(array(updates[0]))
        assert norm == pytest.approx(1.0 / (1.0 + step), rel=1e-6)
    if framework == "torch":
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    else:
        assert len(seen) == 1


def test_a_schedule_below_zero_is_clamped_and_nan_gives_nan() -> None:
    for framework in FRAMEWORKS:
        grads = tensors(framework, [np.float32([3, 4])])
        for limit, wanted in ((-1.0, [0.0, 0.0]), (math.nan, [math.nan] * 2)):
            tx = gx.clip_norm(lambda t, limit=limit: limit)
            updates, _ = tx.update(grads, tx.init(grads))
            np.testing.assert_array_equal(array(updates[0]), np.float32(wanted))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("decay", [lambda t: (1 + t) / (10 + t), lambda t: gx.xp(t).where(t < 1, 0.0, 0.9)])
def test_a_scheduled_average_of_a_constant_is_the_constant(framework: str, decay: Any) -> None:
    tx, grads = gx.ema(decay), tensors(framework, [np.float32([3.0])])
    state = tx.init(grads)
    for _ in range(6):
        updates, state = tx.update(grads, state)
        assert_ulp(updates, [np.float32([3.0])])


def test_values_out_of_range_are_brought_back() -> None:
    def last(tx: gx.GradientTransformation, *values: float) -> float:
        state = tx.init([np.zeros(1)])
        for value in values:
            updates, state = tx.update([np.full(1, value)], state)
        return float(updates[0][0])

    assert last(gx.ema(lambda t: 1.5, debias=False), 1.0, 2.0) == 0.0
    assert last(gx.ema(lambda t: -0.5), 1.0, 2.0) == 2.0
    assert last(gx.ema(1.0), 1.0, 2.0) == 0.0
    assert last(gx.trace(lambda t: -1.0), 1.0, 2.0) == 2.0
    assert last(gx.clip_percentile(lambda t: 150.0, 4), 1.0, 3.0, 2.0) == 2.0
    assert last(gx.add_noise(lambda t: -1.0, 0), 1.0) == 1.0


def test_what_can_be_no_schedule() -> None:
    with pytest.raises(TypeError, match="scale_by_schedule: fn must be a function"):
        gx.scale_by_schedule(0.1)
    assert gx.clip_norm(halving) == gx.clip_norm(halving)
    assert gx.clip_norm(halving) != gx.clip_norm(lambda t: 2.0**-t)
    assert gx.clip_zscore(float("2.5")) == gx.clip_zscore()
    assert gx.clip_percentile(10.0, int("1000")) == gx.clip_percentile(10.0)
    assert repr(gx.clip_zscore(2.5, 0.97, 25)) == "clip_zscore()"


@pytest.mark.parametrize("decay", [0.9, 0.9999, 0.1, 1 / 3])
def test_a_blend_is_rounded_once(decay: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 500)).astype(np.float32).astype(np.float64)
    blended = elementwise.Combination(lambda xp, d: (d, 1.0 - d))(Block(0), x, y, decay)
    increased = elementwise.Combination(lambda xp, d: (1.0, d))(Block(0), x, y, decay)
    for i in range(500):
        a, b, first, second = (Fraction(float(number)) for number in (x[i], y[i], decay, 1.0 - decay))
        assert blended[i] == float(first * a + second * b)
        assert increased[i] == float(a + first * b)


# --- noise -----------------------------------------------------------------------------------------------------------


def test_threefry_is_that_of_jax() -> None:
    jax = pytest.importorskip("jax")
    for seed in (0, 7, 2**32 - 1, 2**40 + 3):
        key = jax.random.wrap_key_data(np.uint32([seed >> 32, seed & 0xFFFFFFFF]), impl="threefry2x32")
        with np.errstate(over="ignore"):
            first, second = random.bits(Block(0), (seed >> 32, seed & 0xFFFFFFFF), np.arange(1000))
        result = (first ^ second).view(np.uint32)
        np.testing.assert_array_equal(result, np.asarray(jax.random.bits(key, (1000,), np.uint32)))
        folded = jax.random.key_data(jax.random.fold_in(key, 5))
        with np.errstate(over="ignore"):
            again = reference_state.threefry(seed >> 32, seed & 0xFFFFFFFF, 0, 5)
        np.testing.assert_array_equal(np.uint32(again), np.asarray(folded))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_noise_is_the_same_everywhere(framework: str, mode: str, dtype: str) -> None:
    if (framework, mode, dtype) == ("torch", "compiled", "float32"):
        pytest.skip("inductor takes its time; float64 computes the same and more")
    zeros = {"w": np.zeros((3, 5), dtype), "b": np.zeros(33000 if mode == "eager" else 7, dtype)}
    tx, steps = gx.add_noise(1.0, seed=-5), [zeros, zeros]
    results, _ = parity.run_steps(tx, steps, zeros, framework, mode)
    for got, wanted in zip(results, parity.expected_steps(tx, steps, zeros), strict=True):
        for path, right in wanted.items():
            assert max_ulp(got.leaves[path], right) <= (4 if dtype == "float64" else 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_numbers_of_elements_may_be_float32_arrays(framework: str, dtype: str) -> None:
    tree = tensors(framework, [np.array([3.0, 4.0], dtype)])
    half, tenth = tensors(framework, [np.array(0.5, np.float32), np.array(0.1, np.float32)])
    for tx, wanted in (
        (gx.add_decayed_weights(half), [4.5, 6.0]),
        (gx.trace(half), [3.0, 4.0]),
        (gx.ema(half), [3.0, 4.0]),
        (gx.chain(gx.scale(half), gx.add_decayed_weights(tenth)), [1.5 + 0.3, 2.0 + 0.4]),
    ):
        updates, _ = tx.update(tree, tx.init(tree), tree)
        np.testing.assert_allclose(array(updates[0]), wanted, rtol=1e-7)


def test_noise_does_not_depend_on_the_number_of_a_model() -> None:
    def noise(tree: Any) -> list[Any]:
        tx = gx.add_noise(1.0, seed=1)
        return optree.tree_leaves(tx.update(tree, tx.init(tree))[0])

    layer = {"kernel": np.zeros(3), "bias_1": np.zeros(2)}
    named = noise({"net": layer})
    for name in ("net_1", "net_12"):
        assert_bits(noise({name: layer}), named)
    assert_bits(noise({"net_1": {**layer, "bias_2": None}}), named)
    for other in ("net1", "net_1a", "ne", "1"):
        assert noise({other: layer})[0].tolist() != named[0].tolist()
    both = noise({"net": layer, "net_1": layer})
    assert_bits(both[:2], named)
    assert both[2].tolist() != named[0].tolist()
    assert noise({"w_1": np.zeros(3)})[0].tolist() != noise({"w": np.zeros(3)})[0].tolist()


def test_noise_is_normal_and_independent() -> None:
    count = 400_000
    zeros = {"a": np.zeros(count), "b": np.zeros(count)}

    def noise(seed: int, steps: int = 1) -> Any:
        tx = gx.add_noise(1.0, seed)
        state = tx.init(zeros)
        for _ in range(steps):
            updates, state = tx.update(zeros, state)
        return updates

    first = noise(0)
    streams = [first["a"], first["b"], noise(1)["a"], noise(0, 2)["a"]]
    for i, x in enumerate(streams):
        assert abs(x.mean()) < 5 / math.sqrt(count)
        assert abs(x.var() - 1) < 5 * math.sqrt(2 / count)
        assert abs((x**3).mean()) < 5 * math.sqrt(15 / count)
        assert abs((x**4).mean() - 3) < 5 * math.sqrt(96 / count)
        assert abs((x[1:] * x[:-1]).mean()) < 5 / math.sqrt(count)
        for other in streams[:i]:
            assert abs((x * other).mean()) < 5 / math.sqrt(count)
    ordered = np.sort(streams[0])
    normal = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in ordered[::100]])
    assert np.abs(normal - (np.arange(count)[::100] + 0.5) / count).max() < 1.95 / math.sqrt(count)  # Kolmogorov
    assert ordered[-1] > 4


def test_noise_does_not_depend_on_the_other_gradients() -> None:
    tx = gx.add_noise(1.0, 0)
    alone = tx.update({"b": np.zeros(5)}, tx.init({"b": np.zeros(5)}))[0]["b"]
    beside = {"a": np.zeros(3), "b": np.zeros(5)}
    np.testing.assert_array_equal(tx.update(beside, tx.init(beside))[0]["b"], alone)


# --- steps that are not applied --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_skipped_steps_leave_all_as_it_was(framework: str, mode: str) -> None:
    tx = gx.skip_nonfinite(gx.trace(0.5), max_consecutive=2)

    def one(updates: Any, state: Any) -> tuple[Any, Any]:
        return tx.update(updates, state)

    update = in_mode(framework, mode, one)
    state = tx.init(tensors(framework, [np.float32([0, 0])]))
    seen = []
    for value in (1.0, math.nan, 1.0, math.inf, math.nan, -math.inf, 1.0):
        updates, state = update(tensors(framework, [np.float32([value, 1])]), state)
        due = bool(array(gx.has_updated(state)))
        seen.append((due, array(updates[0]).tolist()))
    assert seen[:5] == [
        (True, [1.0, 1.0]),
        (False, [0.0, 0.0]),
        (True, [1.5, 1.5]),
        (False, [0.0, 0.0]),
        (False, [0.0, 0.0]),
    ]
    assert seen[5] == (True, [-math.inf, 1.75])  # the third in a row is passed on
    assert arrays([state.total, state.consecutive]) == [4, 0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_large_steps_are_skipped_and_nan_is_large(framework: str) -> None:
    tx = gx.skip_large(gx.scale(2.0), 5.0)
    state = tx.init(tensors(framework, [np.float32([0, 0])]))
    seen = []
    for value in ([3, 4], [3, 4.1], [math.nan, 0], [math.inf, 0], [1, 1]):
        updates, state = tx.update(tensors(framework, [np.float32(value)]), state)
        seen.append(array(updates[0]).tolist())
    assert seen == [[6.0, 8.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [2.0, 2.0]]
    assert array(state.total) == 3


def test_has_updated_asks_all_states() -> None:
    grads = [np.ones(1)]
    tx = gx.chain(gx.trace(0.5), gx.masked(gx.accumulate(gx.skip_large(gx.identity(), 0.5), 2), "**"))
    state = tx.init(grads)
    due = []
    for first, known in ((gx.accumulate(gx.identity(), 2), False), (gx.skip_nonfinite(gx.identity()), True)):
        assert bool(gx.has_updated(first.init(grads))) is known
    assert bool(gx.has_updated(gx.skip_large(gx.identity(), 0.5).init(grads)))
    for value in (0.1, 0.1, 10.0, 10.0):
        _, state = tx.update([np.full(1, value)], state)
        due.append(bool(gx.has_updated(state)))
    assert due == [False, True, False, False]
    assert gx.has_updated(gx.scale(1.0).init(grads)) is True
    assert gx.has_updated({"a": (state,)}) == np.False_


def test_sums_hold_what_rounding_takes() -> None:
    parts = [np.float32([1e8]), np.float32([1.0]), np.float32([-1e8]), np.float32([3.0])]
    for framework in FRAMEWORKS:
        tx = gx.accumulate(gx.identity(), 4)
        state = tx.init(tensors(framework, [parts[0]]))
        for part in parts:
            updates, state = tx.update(tensors(framework, [part]), state)
        assert array(updates[0]).tolist() == [1.0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_mean_is_rounded_once(framework: str) -> None:
    steps = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    tx = gx.accumulate(gx.identity(), 3)
    state = tx.init(tensors(framework, [steps[0]]))
    for step in steps:
        updates, state = tx.update(tensors(framework, [step]), state)
    assert array(updates[0]).tolist() == narrowed(number(steps).sum(0) / 3, np.float32).tolist()


def test_a_mean_does_not_overflow_in_its_sum() -> None:
    for framework in FRAMEWORKS:
        tx = gx.accumulate(gx.identity(), 2)
        state = tx.init(tensors(framework, [np.float32([0])]))
        for _ in range(2):
            updates, state = tx.update(tensors(framework, [np.float32([2e38])]), state)
        assert array(updates[0]) == np.float32(2e38)


def test_no_limit_lets_a_step_through_that_is_not_finite() -> None:
    for limit in (math.inf, lambda t: math.inf):
        tx = gx.skip_large(gx.identity(), limit)
        for value in (math.nan, math.inf):
            updates, state = tx.update([np.array([value, 1.0])], tx.init([np.zeros(2)]))
            assert updates[0].tolist() == [0.0, 0.0]
            assert not gx.has_updated(state)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_statistics_of_norms_that_float32_does_not_hold(framework: str) -> None:
    def run(tx: gx.GradientTransformation, *values: float) -> Any:
        state = tx.init(tensors(framework, [np.float32([0, 0])]))
        for value in values:
            updates, state = tx.update(tensors(framework, [np.float32([value, value])]), state)
        return array(updates[0]), state

    large, state = run(gx.clip_percentile(100.0, 4), 3e38)  # its norm is 4.2e38
    assert large.tolist() == np.float32([3e38, 3e38]).tolist()
    assert array(state.count).tolist() == [0]
    large, _ = run(gx.clip_percentile(100.0, 4), 1.0, 3e38)
    np.testing.assert_allclose(large, [1.0, 1.0], rtol=1e-6)
    spike, _ = run(gx.clip_zscore(2.0, warmup=2), 1e25, 2e25, 1e30)
    assert spike[0] < 2.1e25
    calm, _ = run(gx.clip_zscore(2.0, warmup=2), 1e-25, 2e-25, 2.2e-25)  # 1.4 deviations off
    assert calm[0] == np.float32(2.2e-25)
    _, state = run(gx.clip_zscore(2.0, warmup=2), 1.0, 3e38)
    assert [float(array(part)[0]) for part in state[:1]] == [1.0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_norms_that_leave_an_average_as_it_is(framework: str) -> None:
    """A limit of zero would last; a nonfinite norm makes its own gradient NaN, in the warm-up all."""
    tx = gx.clip_adagc(2.0, 0.5, warmup=1, max_norm=10.0)
    steps = [[0.0, 6.0, 8.0], [4.0, NAN, 0.0], [9.0, 6.0, 99.0], [NAN, 20.0, 16.0]]
    state = tx.init(tensors(framework, [np.zeros(1, np.float32)] * 3))
    found = []
    for step in steps:
        updates, state = tx.update(tensors(framework, [np.float32([value]) for value in step]), state)
        found.append([*(float(array(leaf)[0]) for leaf in updates), array(state.average).tolist()])
    assert found[0] == [0.0, 6.0, 8.0, [0.0, 6.0, 8.0]]
    assert found[1][0] == 4.0 and math.isnan(found[1][1]) and found[1][2:] == [0.0, [4.0, 6.0, 8.0]]
    assert found[2] == [8.0, 6.0, 16.0, [6.0, 6.0, 12.0]]
    assert math.isnan(found[3][0]) and found[3][1:] == [12.0, 16.0, [6.0, 9.0, 14.0]]
    first = tensors(framework, [np.float32([1.0]), np.float32([NAN])])
    updates, state = tx.update(first, tx.init(first))
    assert [math.isnan(array(leaf)[0]) for leaf in updates] == [True, True]
    assert array(state.average).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_an_average_that_some_frameworks_would_flush(framework: str, mode: str) -> None:
    """It keeps its last normal value; flushed to zero, it would be no limit any more."""
    tx, found = gx.clip_adagc(1e-30, 0.0, warmup=1, max_norm=10.0), []
    state = tx.init(tensors(framework, [np.zeros(1, np.float32)]))
    step = in_mode(framework, mode, lambda g, state: tx.update(g, state))
    for value in (1e-5, 1.0, 1.0):
        updates, state = step(tensors(framework, [np.float32([value])]), state)
        found.append((float(array(updates[0])[0]), float(array(state.average)[0])))
    limit = float(np.float32(np.float64(np.float32(1e-5)) * 1e-30))
    assert found == [(float(np.float32(1e-5)),) * 2, (limit, limit), (0.0, limit)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_spikes_that_are_not_finite_and_elements_without_a_history(framework: str) -> None:
    """An infinity becomes its limit and counts like it; NaN, and infinity without a limit, change no average."""
    tx, steps = gx.clip_spikes(4.0, 0.0, warmup=1), ([1.0, 1.0, 0.0, INF], [INF, NAN, -INF, 1.0], [9.0, 9.0, 9.0, 9.0])
    state = tx.init(tensors(framework, [np.zeros(4, np.float32)]))
    found = []
    for step in steps:
        updates, state = tx.update(tensors(framework, [np.float32(step)]), state)
        found.append(array(updates[0]).tolist())
    assert found[0] == [1.0, 1.0, 0.0, INF]
    assert found[1][0] == 2.0 and math.isnan(found[1][1]) and found[1][2:] == [-INF, 1.0]
    assert found[2] == [4.0, 2.0, 9.0, 2.0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 1e30), ("float32", 1e-30), ("float64", 1e200), ("float64", 1e-200)]
)
def test_spikes_whose_squares_are_out_of_range(framework: str, dtype: str, size: float) -> None:
    tx = gx.clip_spikes(4.0, 0.75, warmup=1)
    state = tx.init(tensors(framework, [np.zeros(2, dtype)]))
    for values in ([2.0, -1.0], [9.0, -1.5], [-9.0, 0.0]):
        updates, state = tx.update(tensors(framework, [np.array(values, dtype) * np.dtype(dtype).type(size)]), state)
    # the mean squares 1 and 1/4, then 7/4 and 3/4
    np.testing.assert_allclose(array(updates[0]) / size, [-2 * 1.75**0.5, 0.0], rtol=1e-6)


@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_error_is_what_was_left_out(dtype: str, framework: str, mode: str) -> None:
    """The sum of all results and the last error is the sum of the gradients; exact for few digits."""
    tx, steps = (
        gx.error_feedback(gx.chain(gx.clip_value(0.5), gx.masked(gx.scale(0.25), "b"))),
        [{"a": np.array([k / 4, -k / 2], dtype), "b": np.array([[1.0 + k]], dtype)} for k in range(4)],
    )
    update, state = in_mode(framework, mode, tx.update), tx.init(tensors(framework, steps[0]))
    total = {name: np.zeros_like(leaf, np.float64) for name, leaf in steps[0].items()}
    for step in steps:
        updates, state = update(tensors(framework, step), state)
        total = {name: total[name] + np.float64(array(updates[name])) for name in step}
    for name in total:
        assert array(state.error[name]).dtype == np.float32
        np.testing.assert_array_equal(total[name] + array(state.error[name]), sum(step[name] for step in steps))
    assert np.abs(array(state.error["b"])) > 8.0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_errors_that_stay_as_they_are(framework: str) -> None:
    """Of None, of stopped gradients, and where the difference is not finite."""
    tx = gx.error_feedback(gx.chain(gx.freeze("c"), gx.clip_value(1.0)))
    state = tx.init(tensors(framework, {name: np.float32([0, 0]) for name in "abc"}))
    steps: list[dict[str, Any]] = [
        {"a": [3.0, 2.0], "b": [3.0, -3.0], "c": [3.0, 3.0]},
        {"a": [NAN, INF], "b": None, "c": [3.0, 3.0]},
        {"a": [0.0, 0.0], "b": [0.0, 0.0], "c": [0.0, 0.0]},
    ]
    found = []
    for step in steps:
        leaves = {name: None if leaf is None else np.float32(leaf) for name, leaf in step.items()}
        updates, state = tx.update(tensors(framework, leaves), state)
        found.append([array(updates["a"]).tolist(), {name: array(leaf).tolist() for name, leaf in state.error.items()}])
    assert found[0] == [[1.0, 1.0], {"a": [2.0, 1.0], "b": [2.0, -2.0], "c": [0.0, 0.0]}]
    assert math.isnan(found[1][0][0]) and found[1][0][1] == 1.0 and found[1][1] == found[0][1]
    assert found[2] == [[1.0, 1.0], {"a": [1.0, 0.0], "b": [1.0, -1.0], "c": [0.0, 0.0]}]


def test_a_state_keeps_its_dtype() -> None:
    for tx in (
        gx.ema(0.5),
        gx.trace(0.5),
        gx.grokfast(),
        gx.accumulate(gx.identity(), 2),
        gx.skip_nonfinite(gx.trace(0.5)),
    ):
        for own, given in ((np.float64, np.float32), (np.float32, np.float64)):
            state = tx.init([np.zeros(2, own)])
            _, new = tx.update([np.ones(2, given)], state)
            kinds = [[leaf.dtype for leaf in optree.tree_leaves(tree)] for tree in (state, new)]
            assert kinds[0] == kinds[1]


def test_other_shapes_and_rows_are_refused() -> None:
    grads = [np.ones((2, 3))]
    with pytest.raises(ValueError, match=r"the parameters have shape \(3,\) at '0', where the gradient has \(2, 3\)"):
        gx.add_decayed_weights(0.1)(grads, params=[np.ones(3)])
    with pytest.raises(ValueError, match=r"trace: the traces have shape \(3,\)"):
        gx.trace(0.5).update(grads, gx.trace(0.5).init([np.ones(3)]))
    tx = gx.clip_percentile(50.0, 2, per_leaf=True)
    with pytest.raises(ValueError, match="the state has norms of 1 gradients, the tree 2; both must match"):
        tx.update([np.ones(1), np.ones(1)], tx.init([np.ones(1)]))


def test_skipped_steps_keep_sparse_gradients_sparse() -> None:
    torch = pytest.importorskip("torch")
    tx = gx.skip_nonfinite(gx.clip_norm(1.0))
    rows = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([[math.nan]]), (3, 1), check_invariants=False)
    updates, _ = tx.update([rows], tx.init([torch.zeros(3, 1)]))
    assert updates[0].is_sparse
    assert updates[0].to_dense().tolist() == [[0.0]] * 3


def test_what_rounds_to_infinity_is_not_finite() -> None:
    half = [np.float16([60000.0])]
    tx = gx.chain(gx.trace(0.9), gx.zero_nonfinite())
    state = tx.init(half)
    seen = []
    for _ in range(2):
        updates, state = tx.update(half, state)
        seen.append(float(updates[0][0]))
    assert seen == [60000.0, 0.0]
    tx = gx.chain(gx.scale(1e30), gx.skip_nonfinite(gx.identity()))
    updates, state = tx.update([np.float32([1e20])], tx.init([np.float32([0])]))
    assert updates[0].tolist() == [0.0]


def test_a_gradient_flows_through_statistics_and_masks() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.array([3.0, 4.0])
    for tx in (
        gx.chain(gx.freeze("b"), gx.clip_norm(1.0)),
        gx.chain(gx.freeze("b"), gx.clip_global_norm(1.0)),
        gx.clip_percentile(50.0, 4),
        gx.clip_percentile(50.0, 4, per_leaf=True),
        gx.clip_zscore(1.0, 0.9, 1, per_leaf=True),
        gx.error_feedback(gx.clip_norm(0.5)),
        gx.clip_adagc(0.5, warmup=0),
        gx.clip_adagc(0.5, max_norm=0.5),
        gx.clip_spikes(0.5, warmup=0),
        gx.skip_nonfinite(gx.ema(0.9)),
        gx.accumulate(gx.trace(0.9), 1),
    ):

        def loss(x: Any, tx: gx.GradientTransformation = tx) -> Any:
            tree = {"a": x, "b": x, "c": 2 * x}
            updates, _ = tx.update(tree, tx.init(tree))
            return sum(jax.numpy.sum(leaf) for leaf in updates.values())

        assert np.isfinite(np.asarray(jax.grad(loss)(x))).all()


# --- functions of one's own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_a_function_of_ones_own_runs_everywhere(framework: str, mode: str) -> None:
    def capper(g: Any) -> Any:
        xp = gx.xp(g)
        return xp.where(g > 0.5, g * 0.5, g) / (1.0 + abs(g))

    tree = gradients("float32")
    (result,) = parity.run(gx.chain(gx.scale(2.0), gx.elementwise(capper)), [tree], [framework], [mode])[0]
    assert not result.problem
    for path, leaf in parity.named_leaves(tree).items():
        x = 2 * leaf.astype(np.float64)
        assert max_ulp(result.leaves[path], (np.where(x > 0.5, x * 0.5, x) / (1 + abs(x))).astype(np.float32)) <= 2


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_a_transform_of_ones_own_over_the_view(framework: str, mode: str) -> None:
    def soft(g: Any) -> Any:
        return g.scaled(g.compute(lambda xp, n: 1.0 / (1.0 + n), g.global_norm()))

    tree = {"a": np.float32([3.0, 0.0]), "b": [np.float32([4.0])]}
    (result,) = parity.run(gx.chain(gx.transform(soft), gx.scale(6.0)), [tree], [framework], [mode])[0]
    assert result.leaves["a"].tolist() == [3.0, 0.0]
    assert result.leaves["b/0"].tolist() == [4.0]


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("numpy", "torch")])
def test_a_function_that_writes_does_not_write_into_the_gradients(framework: str) -> None:
    def writing(g: Any) -> Any:
        g *= 2
        return g

    grads = tensors(framework, [np.float32([1, 2])])
    assert array(gx.elementwise(writing)(grads)[0]).tolist() == [2.0, 4.0]
    assert array(grads[0]).tolist() == [1.0, 2.0]


def test_a_result_that_the_user_keeps_is_not_written_to() -> None:
    table = np.array([5.0, 6.0])
    updates = gx.chain(gx.elementwise(lambda g: table), gx.scale(2.0))([np.ones(2)])
    assert (updates[0].tolist(), table.tolist()) == ([10.0, 12.0], [5.0, 6.0])
    assert type(gx.elementwise(lambda g: g / 2)(np.asarray(3.0))) is np.ndarray


def test_functions_that_are_refused() -> None:
    grads = {"w": np.ones((2, 3), np.float32)}
    for fn, error, match in (
        (lambda g: g.sum(axis=0), ValueError, r"changed the shape of the gradient at 'w' from \(2, 3\) to \(3,\)"),
        (lambda g: g > 0, TypeError, r"the gradient at 'w' from float32 to bool"),
        (lambda g: g + 1j, TypeError, r"the gradient at 'w' from float32 to complex64"),
        (lambda g: None, TypeError, r"NoneType for the gradient at 'w'"),
        (lambda g: g.tolist(), TypeError, r"must return an array of numpy, got a list for the gradient at 'w'"),
    ):
        with pytest.raises(error, match=match):
            gx.elementwise(fn)(grads)
    with pytest.raises(TypeError, match="fn must be a function of one array"):
        gx.elementwise(3)
    with pytest.raises(TypeError, match="fn must return a flat view"):
        gx.transform(lambda g: None)(grads)
    with pytest.raises(TypeError, match="fn must be a function of a flat view"):
        gx.transform("x")
    with pytest.raises(TypeError, match="xp: expected an array of numpy"):
        gx.xp("x")
    assert gx.elementwise(lambda g: g.astype(np.float64))(grads)["w"].dtype == np.float32


# --- parameters ------------------------------------------------------------------------------------------------------


def test_adapters_hand_on_the_parameters() -> None:
    if "torch" in FRAMEWORKS:
        import torch

        layer = torch.nn.Linear(2, 1, bias=False)
        layer.weight.data = torch.tensor([[5.0, -5.0]])
        layer.weight.grad = torch.tensor([[1.0, 1.0]])
        gx.torch.apply_(gx.add_decayed_weights(0.1), layer.named_parameters())
        assert layer.weight.grad.tolist() == [[1.5, 0.5]]
    if "tensorflow" in FRAMEWORKS:
        import tensorflow as tf

        w = tf.Variable([5.0, -5.0])
        ((new, _),) = gx.tensorflow.apply(gx.add_decayed_weights(0.1), [(tf.constant([1.0, 1.0]), w)])
        assert new.numpy().tolist() == [1.5, 0.5]
        rows = tf.IndexedSlices(tf.constant([1.0]), tf.constant([1]), tf.constant([2]))
        ((new, _),) = gx.tensorflow.apply(gx.add_decayed_weights(0.1), [(rows, w)])
        assert tf.convert_to_tensor(new).numpy().tolist() == [0.5, 0.5]


def test_parameters_that_are_missing_or_strange() -> None:
    for tx in (gx.add_decayed_weights(0.1), gx.clip_adaptive(0.1, axes="keras")):
        with pytest.raises(ValueError, match=r"needs the parameters: call tx\.update\(updates, state, params\)"):
            tx([np.ones(1)])
        with pytest.raises(ValueError, match=r"the parameters must have the keys .* at '1'"):
            tx([np.ones(1)], params=[np.ones(1), np.ones(1)])


def test_which_axes_must_be_said() -> None:
    kernel = {"dense": {"kernel": np.ones((2, 3)), "bias": np.ones(3)}}
    with pytest.raises(ValueError, match=r"give the input axes of 'dense/kernel'.*'keras'.*Haiku.*'torch'"):
        gx.clip_adaptive(0.1)(kernel, params=kernel)
    with pytest.raises(ValueError, match=r"axes \(2,\) must be different axes of 'dense/kernel' of shape \(2, 3\)"):
        gx.clip_adaptive(0.1, axes=2)(kernel, params=kernel)
    with pytest.raises(
        ValueError, match=r"no pattern of axes matches 'dense/kernel'; the patterns are \['conv/\*\*'\]"
    ):
        gx.clip_adaptive(0.1, axes={"conv/**": "keras"})(kernel, params=kernel)
    with pytest.raises(ValueError, match="axes must be 'keras'"):
        gx.clip_adaptive(0.1, axes="flax")
    same = [
        gx.clip_adaptive(0.1, axes=axes)(kernel, params=kernel)["dense"]["kernel"]
        for axes in (
            "keras",
            0,
            -2,
            (0,),
            {"dense/*": "keras"},
            lambda path, leaf: "keras" if "dense" in path else None,
        )
    ]
    for other in same[1:]:
        np.testing.assert_array_equal(same[0], other)
    params = {"dense": {"kernel": np.float64([[1, 2, 3], [4, 5, 6]]), "bias": np.ones(3)}}
    rows, columns = (
        gx.clip_adaptive(0.1, axes=axes)(kernel, params=params)["dense"]["kernel"] for axes in ("torch", "keras")
    )
    np.testing.assert_allclose(rows[:, 0], 0.1 * np.sqrt([14 / 3, 77 / 3]), rtol=1e-15)
    np.testing.assert_allclose(columns[0], 0.1 * np.sqrt([17 / 2, 29 / 2, 45 / 2]), rtol=1e-15)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: gx.ema(1.5), ValueError, r"ema: decay must be between 0 and 1, got 1\.5"),
        (lambda: gx.trace(-0.1), ValueError, r"trace: decay must be between 0 and 1"),
        (lambda: gx.trace("x"), TypeError, r"trace: decay must be a real number"),
        (lambda: gx.grokfast(1.5), ValueError, r"grokfast: decay must be between 0 and 1, got 1\.5"),
        (lambda: gx.grokfast(0.5, -1), ValueError, r"grokfast: amplitude must be at least 0, got -1"),
        (lambda: gx.accumulate(gx.identity(), 0), ValueError, r"accumulate: every must be at least 1, got 0"),
        (lambda: gx.accumulate(gx.identity(), 2.0), TypeError, r"accumulate: every must be an int"),
        (
            lambda: gx.accumulate(3, 2),
            TypeError,
            r"accumulate: expected a transformation or an object with init and update",
        ),
        (lambda: gx.clip_percentile(101), ValueError, r"percentile must be between 0 and 100, got 101"),
        (lambda: gx.clip_percentile(-1), ValueError, r"percentile must be at least 0"),
        (lambda: gx.clip_percentile(50, 0), ValueError, r"window must be at least 1"),
        (lambda: gx.clip_zscore(warmup=0), ValueError, r"warmup must be at least 1"),
        (lambda: gx.clip_zscore(decay=2), ValueError, r"decay must be between 0 and 1"),
        (lambda: gx.error_feedback(3), TypeError, r"error_feedback: expected a transformation or an object with init"),
        (lambda: gx.clip_adagc(-1), ValueError, r"clip_adagc: ratio must be at least 0, got -1"),
        (lambda: gx.clip_adagc(decay=2), ValueError, r"clip_adagc: decay must be between 0 and 1, got 2"),
        (lambda: gx.clip_adagc(warmup=-1), ValueError, r"clip_adagc: warmup must be at least 0, got -1"),
        (lambda: gx.clip_adagc(max_norm=math.nan), ValueError, r"clip_adagc: max_norm must not be NaN"),
        (lambda: gx.clip_spikes(-1), ValueError, r"clip_spikes: threshold must be at least 0, got -1"),
        (lambda: gx.clip_spikes(decay=2), ValueError, r"clip_spikes: decay must be between 0 and 1, got 2"),
        (lambda: gx.clip_spikes(warmup=-1), ValueError, r"clip_spikes: warmup must be at least 0, got -1"),
        (lambda: gx.clip_spikes(warmup=0.5), TypeError, r"clip_spikes: warmup must be an int"),
        (lambda: gx.skip_nonfinite(gx.identity(), -1), ValueError, r"max_consecutive must be at least 0"),
        (lambda: gx.skip_large(gx.identity(), -1), ValueError, r"max_norm must be at least 0"),
        (lambda: gx.add_noise(-1, 0), ValueError, r"stddev must be at least 0"),
        (lambda: gx.add_noise(1.0, 0.5), TypeError, r"seed must be an int, got 0\.5"),
        (lambda: gx.add_noise(1.0, 2**64), ValueError, r"seed must have at most 64 bits"),
        (lambda: gx.clip_rms(-1), ValueError, r"clip_rms: max_rms must be at least 0"),
        (lambda: gx.clip_average_norm(math.nan), ValueError, r"clip_average_norm: max_norm must not be NaN"),
        (lambda: gx.clip_adaptive(0.1, eps=-1), ValueError, r"clip_adaptive: eps must be at least 0"),
        (lambda: gx.add_decayed_weights(math.nan), ValueError, r"weight_decay must not be NaN"),
        (lambda: gx.centralize(axes="optax"), ValueError, r"centralize: axes must be 'keras'"),
    ],
)
def test_hyperparameters_that_make_no_sense(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("tx", [gx.sign(), gx.centralize(), gx.add_noise(1.0, 0)], ids=str)
def test_complex_gradients_are_refused_by_name(tx: Any) -> None:
    real = {kind: np.ones((2, 2), kind) for kind in ("float16", ml_dtypes.bfloat16, "float32", "float64")}
    for beside in ({}, {str(kind): leaf for kind, leaf in real.items()}):
        tree = {"w": np.ones((2, 2), np.complex64), **beside}
        with pytest.raises(TypeError, match=rf"{tx.name}: the gradient at 'w' has dtype complex64"):
            tx.update(tree, tx.init(tree))


@pytest.mark.parametrize(
    "tx", [gx.clip_rms(1.0), gx.zero_nonfinite(), gx.trace(0.5), gx.normalize_norm(), gx.elementwise(abs)], ids=str
)
def test_integer_gradients_are_refused_by_path(tx: Any) -> None:
    with pytest.raises(TypeError, match=r"the gradient at 'w' has dtype int64"):
        tx.update({"w": np.ones(2, int)}, tx.init({"w": np.ones(2)}))


# --- sparse gradients ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tx",
    [
        gx.clip_rms(0.1),
        gx.clip_average_norm(0.01),
        gx.normalize_norm(),
        gx.sign(),
        gx.zero_nonfinite(),
        gx.centralize(),
    ],
    ids=str,
)
def test_sparse_gradients_give_what_dense_ones_give(tx: gx.GradientTransformation) -> None:
    values, rows = np.float32([[3, 1], [3, -2], [4, 0.5]]), [0, 0, 1]
    dense = np.zeros((4, 2), np.float32)
    np.add.at(dense, rows, values)
    wanted = tx([dense])[0]
    if "torch" in FRAMEWORKS:
        import torch

        sparse = torch.sparse_coo_tensor(torch.tensor([rows]), torch.tensor(values), (4, 2), check_invariants=False)
        (new,) = tx([sparse])
        np.testing.assert_array_equal(new.to_dense().numpy() if new.is_sparse else new.numpy(), wanted)
        assert new.is_sparse == (tx.name != "centralize")
    if "tensorflow" in FRAMEWORKS:
        import tensorflow as tf

        slices = tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([4, 2]))
        np.testing.assert_array_equal(tf.convert_to_tensor(tx([slices])[0]).numpy(), wanted)


# --- many gradients at once ------------------------------------------------------------------------------------------


def batch(dtype: str = "float32", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    tree = {
        "w": rng.standard_normal((6, 3, 4)) * 2,
        "b": [rng.standard_normal((6, 5)), None],
        "c": rng.standard_normal(6),
    }
    return optree.tree_map(lambda leaf: leaf.astype(dtype), tree)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_per_example_clips(framework: str, mode: str, dtype: str) -> None:
    if (framework, mode, dtype) == ("torch", "compiled", "float64"):
        pytest.skip("inductor takes its time with pairs")
    tree = batch(dtype if dtype != "bfloat16" else _bfloat16())
    wide = {path: number(leaf) for path, leaf in parity.named_leaves(tree).items()}
    norms = {path: np.sqrt((leaf**2).reshape(6, -1).sum(axis=1)) for path, leaf in wide.items()}
    total = np.sqrt(sum(norm**2 for norm in norms.values()))

    def clipped(limit_of: Callable[[str], Any]) -> dict[str, Any]:
        out = {}
        for path, leaf in wide.items():
            factor = np.minimum(1, 2 / limit_of(path)).reshape(6, *[1] * (leaf.ndim - 1))
            out[path] = (leaf * factor).sum(axis=0)
        return out

    for function, wanted, counts in (
        (gx.per_example_clip_norm, clipped(lambda path: norms[path]), {p: (n > 2).sum() for p, n in norms.items()}),
        (gx.per_example_clip_global_norm, clipped(lambda path: total), (total > 2).sum()),
    ):
        sums, above = call(framework, mode, lambda grads, function=function: function(grads, 2.0), tree)
        backend = lookup.backend(framework)
        got = parity.named_leaves(sums, backend)
        for path, right in wanted.items():
            assert got[path].dtype == parity.named_leaves(tree)[path].dtype
            assert got[path].shape == wide[path].shape[1:]
            near = narrowed(right, got[path].dtype)
            assert max_ulp(got[path], near) <= (1 if dtype == "bfloat16" else 2), path
        if isinstance(counts, dict):
            assert {p: int(n) for p, n in parity.named_leaves(above, backend).items()} == counts
        else:
            assert int(array(above)) == counts


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_example_that_is_nan_is_reported(framework: str) -> None:
    tree = batch()
    tree["w"][2, 0, 0] = np.nan
    given = tensors(framework, tree)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sums, number = gx.per_example_clip_global_norm(given, 2.0)
        alone, _ = gx.per_example_clip_norm(given, 2.0)
    assert all(np.isnan(leaf).all() for leaf in arrays(sums))
    named = parity.named_leaves(alone, lookup.backend(framework))
    assert {path: bool(np.isnan(leaf).all()) for path, leaf in named.items()} == {"w": True, "b/0": False, "c": False}
    squares = sum((leaf.astype(np.float64) ** 2).reshape(6, -1).sum(axis=1) for leaf in optree.tree_leaves(tree))
    assert int(array(number)) == (squares > 4).sum()  # NaN is not above the limit
    texts = [str(warning.message) for warning in caught if "example 2" in str(warning.message)]
    if framework != "jax":
        assert any("per_example_clip_global_norm: a gradient has NaN" in text for text in texts)
        assert any("the gradient at 'w' has NaN" in text for text in texts)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("count", "said"), [(5, "0, 1, 2, 3, 4, which"), (7, "0, 1, 2, 3, 4 and 2 more, which")])
def test_five_of_the_examples_that_are_nan_are_named(count: int, said: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"in example {said} makes the sum NaN") as caught:
        gx.per_example_clip_norm(np.full((count, 1), np.nan), 1.0)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("gradient", "kept"),
    [
        (np.array([np.finfo(np.float64).max]), True),
        (np.array([np.finfo(np.float32).max, 8e34], np.float32), True),
        (np.array([np.finfo(np.float32).max, 1e35], np.float32), False),
    ],
)
def test_norms_that_a_state_can_hold_are_kept(gradient: Any, kept: bool) -> None:
    for tx in (gx.clip_percentile(50.0, 3), gx.clip_zscore(1.0, 0.9, 2)):
        _, state = tx.update([gradient], tx.init([gradient]))
        assert state.count.tolist() == [int(kept)]


@pytest.mark.parametrize(
    ("path", "name"), [("net_3/w", "net/w"), ("layer12/w", "layer12/w"), ("net_/w", "net_/w"), ("net/w", "net/w")]
)
def test_noise_is_named_by_the_path_without_the_number_of_a_model(path: str, name: str) -> None:
    assert list(adding._names([path])) == [name]


def test_batches_that_are_refused() -> None:
    for function in (gx.per_example_clip_norm, gx.per_example_clip_global_norm):
        with pytest.raises(ValueError, match=r"at 'b' is a scalar without a batch axis"):
            function({"w": np.ones((2, 3)), "b": np.float32(1)}, 1.0)
        with pytest.raises(ValueError, match=r"batch lengths differ: the first axis has length 2 at 'w' and 3 at 'b'"):
            function({"b": np.ones(3), "w": np.ones((2, 3))}, 1.0)
        with pytest.raises(TypeError, match=r"complex128"):
            function({"w": np.ones((2, 3), complex)}, 1.0)
        with pytest.raises(ValueError, match="has no gradients"):
            function({}, 1.0)
        with pytest.raises(ValueError, match="max_norm must be at least 0"):
            function({"w": np.ones((2, 3))}, -1.0)


def test_an_unknown_rank_is_refused() -> None:
    tf = pytest.importorskip("tensorflow")
    for function in (
        lambda x: gx.per_example_clip_norm([x], 1.0),
        lambda x: gx.per_example_clip_global_norm([x], 1.0),
        lambda x: gx.pcgrad([[x], [x]], 0),
    ):
        with pytest.raises(ValueError, match=r"the rank of .* is unknown in the graph; set its static shape"):
            tf.function(function, input_signature=[tf.TensorSpec(None)])(tf.ones((2, 2)))


def surgery(trees: list[dict[str, Any]], orders: list[list[int]]) -> dict[str, Any]:
    """The paper's algorithm, step by step, in extended precision."""
    wide = [{path: number(leaf) for path, leaf in tree.items()} for tree in trees]
    total = {path: np.zeros_like(leaf) for path, leaf in wide[0].items()}
    for i, order in enumerate(orders):
        mine = dict(wide[i])
        for j in order:
            dot = sum((mine[path] * wide[j][path]).sum() for path in mine)
            if dot < 0:
                size = sum((leaf**2).sum() for leaf in wide[j].values())
                mine = {path: mine[path] - dot / size * wide[j][path] for path in mine}
        total = {path: total[path] + mine[path] for path in total}
    return total


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_gradient_surgery(framework: str, mode: str, dtype: str) -> None:
    if (framework, mode, dtype) == ("torch", "compiled", "float64"):
        pytest.skip("inductor takes its time with pairs")
    rng = np.random.default_rng(1)
    trees = [
        {"a": rng.standard_normal((3, 4)).astype(dtype), "b": rng.standard_normal(2).astype(dtype)} for _ in range(3)
    ]
    orders = [[first, second] for first in ([1, 2], [2, 1]) for second in ([0, 2], [2, 0])]
    candidates = [surgery(trees, [*pair, third]) for pair in orders for third in ([0, 1], [1, 0])]
    for seed in range(3 if mode == "eager" else 1):
        got = call(framework, mode, lambda *given, seed=seed: gx.pcgrad(list(given), seed), *trees)
        named = parity.named_leaves(got, lookup.backend(framework))
        errors = [max(float(np.abs(named[path] - right[path]).max()) for path in named) for right in candidates]
        assert min(errors) < (3e-7 if dtype == "float32" else 2e-15)
        result = call("numpy", "eager", lambda *given, seed=seed: gx.pcgrad(list(given), seed), *trees)
        for path, leaf in parity.named_leaves(result).items():
            assert max_ulp(named[path], leaf) <= (2 if dtype == "float32" else 16)


def test_the_order_of_surgery_follows_the_seed() -> None:
    trees = [[np.array([1.0, 0.2, -0.3])], [np.array([-1.0, 0.5, 0.1])], [np.array([0.2, -1.0, 0.4])]]
    different = {gx.pcgrad(trees, seed)[0].tobytes() for seed in range(20)}
    assert 2 <= len(different) <= 8
    for seed in range(20):
        with np.errstate(over="ignore"):
            draws = [reference_state.threefry(0, seed, i, np.arange(3))[0].view(np.int32) for i in range(3)]
        orders = [sorted({0, 1, 2} - {i}, key=draws[i].__getitem__) for i in range(3)]
        right = surgery([{"w": leaf} for (leaf,) in trees], orders)["w"]
        np.testing.assert_allclose(gx.pcgrad(trees, seed)[0], right.astype(float), atol=1e-14)
    assert gx.pcgrad(trees, np.int32(7))[0].tobytes() == gx.pcgrad(trees, 7)[0].tobytes()
    for seed in (7, -1, -(2**40)):
        assert gx.pcgrad(trees, np.array(seed))[0].tobytes() == gx.pcgrad(trees, seed)[0].tobytes()
    jax = pytest.importorskip("jax")
    given = tensors("jax", trees)
    surgeon = jax.jit(lambda trees, seed: gx.pcgrad(trees, seed))
    for seed in (5, -1):
        assert_bits(surgeon(given, jax.numpy.int32(seed)), surgeon(given, seed))
        assert_bits(surgeon(given, seed), jax.jit(lambda t, s=seed: gx.pcgrad(t, s))(given))


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_the_mean_of_trees(framework: str, mode: str) -> None:
    trees = [gradients("float32", seed) for seed in range(3)]
    got = call(framework, mode, lambda *given: gx.mean(list(given)), *trees)
    named = [parity.named_leaves(tree) for tree in trees]
    for path, leaf in parity.named_leaves(got, lookup.backend(framework)).items():
        wanted = narrowed(sum(number(tree[path]) for tree in named) / 3, np.float32)
        assert max_ulp(leaf, wanted) <= 2


@pytest.mark.parametrize("function", [gx.mean, lambda trees: gx.pcgrad(trees, 0)], ids=["mean", "pcgrad"])
def test_one_tree_is_refused(function: Any) -> None:
    for tree in ({"w": np.ones(2)}, np.ones(2), gx.ema(0.5).init([np.ones(2)])):
        with pytest.raises(TypeError, match=r"expected a list of trees, one per task, got one tree"):
            function(tree)
    with pytest.raises(ValueError, match="expected a list of trees with gradients, found none"):
        function([])
    with pytest.raises(ValueError, match="tree 1 must have the keys and containers of tree 0; they differ at 'b'"):
        function([{"w": np.ones(2)}, {"w": np.ones(2), "b": np.ones(2)}])
    with pytest.raises(ValueError, match="the gradients at 'w' differ in shape or dtype"):
        function([{"w": np.ones(2)}, {"w": np.ones(3)}])
    with pytest.raises(ValueError, match="differ in shape or dtype"):
        function([{"w": np.ones(2)}, {"w": np.ones(2, np.float32)}])
    for leaf, dtype in ((np.ones(2, int), "int64"), (np.ones(2, complex), "complex128")):
        for trees in ([{"w": leaf}], [{"w": None}, {"w": leaf}]):
            with pytest.raises(TypeError, match=f"the gradient at 'w' of tree {len(trees) - 1} has dtype {dtype}"):
                function(trees)


def test_none_in_one_tree_counts_as_zero() -> None:
    assert gx.mean([{"w": np.ones(1), "v": None}, {"w": None, "v": None}]) == {"w": np.array([0.5]), "v": None}
    both = gx.pcgrad([{"w": np.ones(1), "v": np.ones(1)}, {"w": None, "v": -np.ones(1)}], 0)
    assert (both["w"].tolist(), both["v"].tolist()) == ([1.5], [-0.5])


# --- the order of a chain --------------------------------------------------------------------------------------------


def test_orders_that_are_surely_wrong() -> None:
    def named(name: str) -> Any:
        def unscale_update(updates: Any, state: Any, params: Any = None) -> Any:
            return updates, state

        unscale_update.__qualname__ = f"{name}.<locals>.update_fn"

        class Foreign:
            init = staticmethod(lambda params: ())
            update = staticmethod(unscale_update)

        return Foreign()

    clip, decay = gx.clip_norm(1.0), gx.add_decayed_weights(0.1)
    for txs, first, second in (
        ((clip, gx.accumulate(gx.identity(), 2)), "clip_norm", "accumulate"),
        ((gx.clip_value(1.0), gx.scale(2.0), named("unscale")), "clip_value", "unscale"),
        ((gx.freeze("**"), decay), "freeze", "add_decayed_weights"),
        ((gx.stop(), decay), "stop", "add_decayed_weights"),
    ):
        with pytest.warns(gx.OrderWarning, match=rf"chain: {first}.* comes before {second}") as caught:
            gx.chain(*txs)
        assert len(caught) == 1
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.chain(gx.accumulate(clip, 2), clip, decay, gx.freeze("**"), gx.scale(-0.1))
        warnings.simplefilter("ignore", gx.OrderWarning)
        gx.chain(clip, gx.accumulate(gx.identity(), 2))


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_averages_of_a_matrix_of_numpy() -> None:
    m = np.asmatrix(np.float32([[1.0, 2.0]]))
    tx = gx.trace(0.9)
    updates, _ = tx.update([m, m], tx.init([m, m]))
    assert np.asarray(updates[0]).tolist() == [[1.0, 2.0]]
