"""The catalogue beyond its numbers: states, schedules, noise, steps that are skipped, many gradients at once."""

from __future__ import annotations

import functools
import itertools
import math
import re
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import optree
import pytest
from entries import ENTRIES
from support import (
    DTYPES_ALIKE,
    EAGER,
    EVERY_MODE,
    FRAMEWORKS,
    INDUCTOR,
    INF,
    MOST,
    NAN,
    STATEFUL,
    XLA,
    array,
    arrays,
    assert_bits,
    assert_expected,
    assert_sums,
    assert_ulp,
    bits,
    by_graph,
    by_inductor,
    call,
    in_mode,
    slow,
    tensors,
    traced,
    without_generated_code,
)
from trees import few, gradients

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity
from gradxform.proof.extended import narrowed, number


def halving(step: Any) -> Any:
    return 2.0**-step


# --- steps with results by hand --------------------------------------------------------------------------------------


def tree(text: str, dtype: Any = np.float32) -> Any:
    """Leaves a, b and so on: "3 4 | -" are a vector and None."""
    leaves = zip("abc", text.split("|"), strict=False)
    return {name: None if leaf.strip() == "-" else np.array(leaf.split(), dtype) for name, leaf in leaves}


SPIKE = 1.5e25 + 4 / ((1e30 - 1.5e25) / 0.5e25) * 0.5e25
LARGEST = repr(float(np.finfo(np.float32).max))
ADAGC, IDENTITY = gx.clip_adagc(2.0, 0.5, warmup=1, max_norm=10.0), gx.identity()
FEEDBACK = gx.error_feedback(gx.chain(gx.freeze("c"), gx.clip_value(1.0)))
# A transform, its gradients and updates step by step, and if necessary fields of the last state and a distance in ULP.
BY_HAND: dict[str, tuple[Any, ...]] = {
    "large_steps_are_skipped, NaN and infinity too": (
        gx.skip_large(gx.scale(2.0), 5.0), "3 4 -> 6 8; 3 4.1 -> 0 0; nan 0 -> 0 0; inf 0 -> 0 0; 1 1 -> 2 2",
        {"total": np.int32(3)},
    ),
    "spikes are skipped and not recorded": (
        gx.skip_spikes(IDENTITY, 3.0, 4),
        "1 -> 1; 2 -> 2; 9 -> 0; nan -> nan; 9 -> 9; 4 -> 4; 2 -> 2; 3 -> 3; inf -> 0",
        {"count": np.int32([4]), "total": np.int32(2), "consecutive": np.int32(1)},
    ),
    "equal norms have no spikes": (gx.skip_spikes(IDENTITY, 0.0, 4), "1 -> 1; 1 -> 1; 1 -> 1; 1 -> 1; 5 -> 5; 6 -> 0"),
    "a higher level is accepted": (
        gx.skip_spikes(gx.trace(1.0), 1.0, 8),
        "1 -> 1; 2 -> 3; 50 -> 0; 60 -> 0; 50 -> 53; 70 -> 123; 60 -> 183; 200 -> 0; 60 -> 243",
        {"count": np.int32([4]), "total": np.int32(3), "consecutive": np.int32(0)},
    ),
    "no limit": (gx.skip_large(IDENTITY, INF), "nan 1 -> 0 0; inf 1 -> 0 0; 3e38 1 -> 3e38 1"),
    "a schedule of no limit": (gx.skip_large(IDENTITY, lambda t: INF), "nan 1 -> 0 0; inf 1 -> 0 0; 3e38 1 -> 3e38 1"),
    "a scaled infinity": (gx.chain(gx.scale(1e30), gx.skip_nonfinite(IDENTITY)), "1e20 -> 0; 1 -> 1e30"),
    "skipped steps; the third in a row is passed on": (
        gx.skip_nonfinite(gx.trace(0.5), max_consecutive=2),
        "1 1 -> 1 1; nan 1 -> 0 0; 1 1 -> 1.5 1.5; inf 1 -> 0 0; nan 1 -> 0 0; -inf 1 -> -inf 1.75; 1 1 -> -inf 1.875",
        {"total": np.int32(4), "consecutive": np.int32(0)},
    ),
    "a mean does not overflow in its sum": (gx.accumulate(IDENTITY, 2), "2e38 -> 0; 2e38 -> 2e38"),
    "a schedule below zero": (gx.clip_norm(lambda t: -1.0), "3 4 -> 0 0"),
    "a schedule of NaN": (gx.clip_norm(lambda t: NAN), "3 4 -> nan nan"),
    "values_out_of_range, above one": (gx.ema(lambda t: 1.5, debias=False), "1 -> 0; 2 -> 0"),
    "values_out_of_range, below zero": (gx.ema(lambda t: -0.5), "1 -> 1; 2 -> 2"),
    "values_out_of_range, a trace": (gx.trace(lambda t: -1.0), "1 -> 1; 2 -> 2"),
    "values_out_of_range, a percentile": (gx.clip_percentile(lambda t: 150.0, 4), "1 -> 1; 3 -> 3; 2 -> 2"),
    "values_out_of_range, noise": (gx.add_noise(lambda t: -1.0, 0), "1 -> 1"),
    "a decay of one has no average": (gx.ema(1.0), "1 -> 0; 2 -> 0"),
    "an average of a constant": (gx.ema(lambda t: (1 + t) / (10 + t)), ";".join(["3 -> 3"] * 6), {}, 2),
    "a decay from step two": (gx.ema(lambda t: gx.xp(t).where(t < 1, 0.0, 0.9)), ";".join(["3 -> 3"] * 6), {}, 2),
    "a trace of None": (gx.trace(0.5), "1 | 1 -> 1 | 1; 1 | - -> 1.5 | -; 0 | 1 -> 0.75 | 1.5"),
    "an average of None": (
        gx.ema(0.5, debias=False), "1 | 1 -> 0.5 | 0.5; 1 | - -> 0.75 | -; 0 | 0 -> 0.375 | 0.25"
    ),
    "slow gradients of None": (gx.grokfast(0.5), "1 | 1 -> 3 | 3; 1 | - -> 3 | -; 0 | 0 -> 1 | 1"),
    "changes of None": (
        gx.mars(1.0, 0.5, max_norm=9.0), "1|1 -> 1|1; 2|- -> 3|-; -|3 -> -|5; 4|20 -> 6|9; 1|1 -> -2|-9"
    ),
    "a change from infinity": (gx.mars(1.0, 0.5, max_norm=INF), "1 -> 1; inf -> inf; 1 -> -inf; 2 -> 3"),
    "a large part of no change": (gx.mars(1.0, 0.9999, max_norm=INF), "0.3 -> 0.3; 0.3 -> 0.3; 2e38 -> inf"),
    "a norm that is known": (gx.clip_global_norm(2.0, norm=lambda t: 8.0 * t), "8|4 -> 8|4; 8|4 -> 2|1; 8|- -> 1|-"),
    "a known norm of infinity": (gx.clip_global_norm(2.0, norm=INF), "1 2 -> nan nan"),
    "a mean of None": (gx.accumulate(IDENTITY, 4), "1|1 -> 0|0; 1|- -> 0|-; 1|1 -> 0|0; 1|0 -> 1|0.5"),
    "norms of None": (
        gx.clip_percentile(0.0, 2, per_leaf=True), "5|7 -> 5|7; 1|- -> 1|-; -|3 -> -|3; 9|9 -> 1|3"
    ),
    "a norm above float32": (gx.clip_percentile(100.0, 4), "3e38 3e38 -> 3e38 3e38", {"count": np.int32([0])}),
    "a norm above float32 beside another": (
        gx.clip_percentile(100.0, 4), "1 1 -> 1 1; 3e38 3e38 -> 1 1", {"count": np.int32([1])}, 2
    ),
    **{
        f"{tx} of a norm {words}": (tx, f"{LARGEST} {other} -> {LARGEST} {other}", {"count": np.int32([count])})
        for tx in (gx.clip_percentile(50.0, 3), gx.clip_zscore(1.0, 0.9, 2))
        for words, other, count in (("near the largest", 8e34, 1), ("beyond", 1e35, 0))
    },
    "a huge spike": (gx.clip_zscore(2.0, warmup=2), f"1e25 -> 1e25; 2e25 -> 2e25; 1e30 -> {SPIKE}", {}, 4),
    "norms apart by rounding": (gx.clip_zscore(warmup=3), "1 -> 1; 1 -> 1; 1.0000001 -> 1.0000001; 100 -> 100"),
    "tiny norms": (gx.clip_zscore(2.0, warmup=2), "1e-25 -> 1e-25; 2e-25 -> 2e-25; 2.2e-25 -> 2.2e-25"),
    "norms of zero and NaN leave an average": (
        ADAGC, "0|6|8 -> 0|6|8; 4|nan|0 -> 4|nan|0; 9|6|99 -> 8|6|16; nan|20|16 -> nan|12|16",
        {"average": np.float32([6, 9, 14])},
    ),
    "NaN in the warm-up": (ADAGC, "1 | nan -> nan | nan", {"average": np.float32([0, 0])}),
    "an infinite spike counts like its limit": (
        gx.clip_spikes(4.0, 0.0, warmup=1),
        "1 1 0 inf -> 1 1 0 inf; inf nan -inf 1 -> 2 nan -inf 1; 9 9 9 9 -> 4 2 9 2",
    ),
    "zeros of two signs": (
        gx.chain(gx.partition({"a": gx.scale(0.0)}, default=gx.scale(-0.0)), gx.clip_spikes()), "3 | 4 -> 0 | -0"
    ),
    "errors of None, of what is stopped and of what is not finite": (
        FEEDBACK,
        "3 2|3 -3|3 3 -> 1 1|1 -1|0 0; nan inf|-|3 3 -> nan 1|-|0 0; 0 0|0 0|0 0 -> 1 1|1 -1|0 0",
        {"error": tree("1 0 | 1 -1 | 0 0")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_steps_by_hand(name: str, framework: str) -> None:
    tx, steps, *rest = BY_HAND[name]
    after, ulp = (*rest, *({}, 0)[len(rest) :])
    state = None
    for step in steps.split(";"):
        given, wanted = map(tree, step.split("->"))
        state = tx.init(tensors(framework, given)) if state is None else state
        updates, state = tx.update(tensors(framework, given), state)
        assert_ulp(updates, wanted, ulp, step)
    for field in after:
        assert_bits(getattr(state, field), tensors(framework, after[field]))


@pytest.mark.filterwarnings("ignore::gradxform.OrderWarning")
def test_what_rounds_to_infinity_is_not_finite() -> None:
    tx, half = gx.chain(gx.trace(0.9), gx.zero_nonfinite()), [np.float16([60000.0])]
    first, state = tx.update(half, tx.init(half))
    assert [float(found[0][0]) for found in (first, tx.update(half, state)[0])] == [60000.0, 0.0]


def test_what_a_pending_factor_leaves_finite_is_finite() -> None:
    tx = gx.chain(gx.scale(3.0), gx.zero_nonfinite())
    for dtype, size in ((np.float16, 2e4), (ml_dtypes.bfloat16, 1e38), (np.float32, 1e38)):
        found, _ = tx.update([np.array([size, np.inf], dtype)], tx.init([np.zeros(2, dtype)]))
        assert np.isfinite(found[0]).all() and float(found[0][0]) > 2.9 * size, dtype


def test_a_norm_that_float64_holds_is_kept() -> None:
    for tx in (gx.clip_percentile(50.0, 3), gx.clip_zscore(1.0, 0.9, 2)):
        largest = [np.array([np.finfo(np.float64).max])]
        assert tx.update(largest, tx.init(largest))[1].count.tolist() == [1]


@pytest.mark.parametrize("hole", [gx.freeze("b"), gx.chain(gx.measure(gx.identity()), gx.freeze("b"))], ids=repr)
def test_a_gradient_that_is_frozen_or_masked_out_has_no_norm_in_a_table(hole: Any) -> None:
    grads, inner = {"a": np.full(2, 3.0), "b": np.full(3, 5.0)}, gx.clip_percentile(50.0, 2, per_leaf=True)
    for tx in (gx.chain(hole, inner), gx.chain(gx.measure(gx.identity()), gx.masked(inner, "a"))):
        _, state = tx.update(grads, tx.init(grads))
        assert state[-1].count.tolist() == [1, 0]
        assert state[-1].history[1].tolist() == [0.0, 0.0]


@by_graph
@slow(EAGER, framework="jax", mode="eager")
@slow(XLA, lambda framework, expression: framework != "torch" and "adaptive" in expression, mode="compiled")
@pytest.mark.parametrize("expression", ["centralize()", "clip_adaptive(0.1, axes='keras')"])
def test_an_infinity_stays_one_where_nothing_makes_nan_of_it(framework: str, mode: str, expression: str) -> None:
    """Finite elements with an infinite mean; parameters with an infinite norm set no limit."""
    given = {"w": np.array([[np.inf, 1.0, 2.0], [3.0, 4.0, 5.0]]), "b": np.array([1.0, -np.inf])}
    (result,), _ = parity.runner(gx.parse(expression), framework, mode)([given], given)
    (wanted,) = parity.expected_steps(gx.parse(expression), [given], given)
    assert any(np.isinf(leaf).any() for leaf in wanted.values())
    assert_expected(result.leaves, wanted)


@by_inductor
@pytest.mark.parametrize("expression", ["sign()", "chain(scale(2.0), sign())"])
def test_the_sign_of_a_subnormal_number(framework: str, mode: str, expression: str) -> None:
    """The result is 1, or 0 in frameworks that flush the number to zero."""
    given = {
        dtype: np.array([least, -least, 0.0, -0.0, np.nan], dtype)
        for dtype, least in (("float16", 6e-8), ("float32", 1e-40), ("float64", 1e-310))
    }
    (result,), _ = parity.runner(gx.parse(expression), framework, mode)([given], given)
    for dtype, (one, other, *rest) in result.leaves.items():
        flushed = framework in ("jax", "tensorflow") and dtype != "float16"
        assert one in ((0.0, 1.0) if flushed else (1.0,)) and other == -one, (dtype, one, other)
        assert bits(np.array(rest)) == bits(given[dtype][2:]), (dtype, rest)


# --- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_keeps_its_dtype(name: str) -> None:
    for own, given in ((np.float64, np.float32), (np.float32, np.float64)):
        state = STATEFUL[name].init([np.zeros(2, own)])
        _, new = STATEFUL[name].update([np.ones(2, given)], state)
        assert [leaf.dtype for leaf in optree.tree_leaves(new)] == [leaf.dtype for leaf in optree.tree_leaves(state)]


@pytest.mark.parametrize("name", STATEFUL)
def test_a_tree_of_nothing_but_none_or_in_a_mask_of_nothing(framework: str, name: str) -> None:
    tx, given = gx.masked(STATEFUL[name], lambda path, leaf: False), tensors(framework, {"w": ONES, "unused": None})
    for of, tree in itertools.product((STATEFUL[name], tx), ({"w": None, "b": [None, None]}, [], {})):
        assert of.update(tree, of.init(tree))[0] == tree
    state = tx.init(given)
    assert {lookup.owner(leaf).name for leaf in optree.tree_leaves(state)} <= {framework}
    for _ in range(3):
        updates, state = tx.update(given, state)
        assert_bits(updates, given)


@slow(XLA)
@pytest.mark.parametrize("name", [*STATEFUL, "frozen, each", "frozen, all"])
def test_a_gradient_flows_through_statistics_and_masks(name: str, jax: Any) -> None:
    frozen = {"frozen, each": gx.clip_norm(1.0), "frozen, all": gx.clip_global_norm(1.0)}
    tx = STATEFUL[name] if name in STATEFUL else gx.chain(gx.freeze("b"), frozen[name])

    def loss(x: Any) -> Any:
        grads = {"a": x, "b": x, "c": 2 * x}
        updates, _ = tx.update(grads, tx.init(grads))
        return sum(jax.numpy.sum(leaf) for leaf in updates.values())

    assert np.isfinite(np.asarray(jax.grad(loss)(jax.numpy.array([3.0, 4.0])))).all()


@by_inductor
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


@by_graph
def test_spikes_of_the_loss(framework: str, mode: str) -> None:
    """Negative and nonfinite ones too; after a quarter of the window skipped in a row, the window starts again."""
    tx, found = gx.chain(gx.skip_spikes(gx.trace(1.0), 3.0, 8, of="loss"), gx.scale(2.0)), []
    step = in_mode(framework, mode, lambda g, state, loss: tx.update(g, state, value=loss))
    one = tensors(framework, [np.float32([1.0])])
    state = tx.init(one)
    for loss in (-3.0, -2.0, -1.0, 9.0, -INF, NAN, 9.0, 10.0, 50.0, 8.0):
        updates, state = step(one, state, tensors(framework, [np.float32(loss)])[0])
        found.append(float(array(updates[0])[0]))
    assert found == [2.0, 4.0, 6.0, 0.0, 0.0, 8.0, 10.0, 12.0, 0.0, 14.0]
    with pytest.raises(ValueError, match=r"value=loss"):
        tx.update(one, state)
    with pytest.raises(ValueError, match=r"shape \(1,\)$"):
        tx.update(one, state, value=one[0])


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_averages_of_a_matrix_of_numpy() -> None:
    m = np.asmatrix(np.float32([[1.0, 2.0]]))
    updates, _ = gx.trace(0.9).update([m, m], gx.trace(0.9).init([m, m]))
    assert np.asarray(updates[0]).tolist() == [[1.0, 2.0]]


# --- schedules -------------------------------------------------------------------------------------------------------


def scheduled() -> list[str]:
    """The expressions of random chains, with a schedule for each number that may be one."""
    found = ["clip_value(low=lambda t: -(2.0**-t))", "clip_percentile(lambda t: 100 * 2.0**-t, 3)"]
    found += ["skip_large(identity(), lambda t: 100 * 2.0**-t)"]
    filled = {"<tx>": "identity()", "<order>": "", "<few>": "1", "<bool>": "False", "<size>": "0.5"}
    for template in itertools.chain.from_iterable(entry.chains for entry in ENTRIES):
        new = re.sub("<limit>|<share>|(?<!t: )(?<!-)<size>", "halving", template)
        for placeholder, text in filled.items():
            new = new.replace(placeholder, text)
        if new not in found and ("halving" in new or "lambda t" in new) and "<" not in new:
            found.append(new)
    return found


@functools.cache
def expected_of_schedule(expression: str) -> tuple[Any, list[Any], Any, list[parity.Expected]]:
    """A transform, its gradients, its parameters, and the reference's results."""
    tx = eval(expression, {**vars(gx), "halving": halving})
    steps, params = [few("float32", step) for step in range(3)], few("float32", 99)
    return tx, steps, params, parity.expected_steps(tx, steps, params)


@slow(EAGER, framework="jax")
@pytest.mark.parametrize("expression", scheduled())
def test_any_number_may_be_a_schedule(expression: str, framework: str) -> None:
    tx, steps, params, right = expected_of_schedule(expression)
    assert tx.stateful
    results, state = parity.runner(tx, framework, "eager")(steps, params)
    assert 3 in [array(leaf) for leaf in optree.tree_leaves(state) if array(leaf).shape == ()]
    for step, wanted in enumerate(right):
        assert_expected(results[step].leaves, wanted, f"step {step}")


@slow(INDUCTOR)
@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name == "torch"])
def test_a_process_compiles_more_chains_than_torch_recompiles(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_generated_code(monkeypatch)
    for count in range(1, 11):
        tx, ones = gx.scale(float(count)), tensors(framework, [np.ones(2)])
        assert array(in_mode(framework, "compiled", tx.update)(ones, tx.init(ones))[0][0]).tolist() == [count, count]


TRACING = [name for name in FRAMEWORKS if name != "numpy"]


@pytest.mark.parametrize("framework", TRACING)
def test_a_schedule_does_not_trace_again(framework: str) -> None:
    tx, grads = gx.clip_global_norm(lambda step: 1.0 / (1.0 + step)), tensors(framework, [np.ones(4)])
    states = [tx.init(grads)]
    for _ in range(3):
        states.append(tx.update(grads, states[-1])[1])
    traces, results = traced(framework, tx.update, [(grads, state) for state in states])
    norms = [np.linalg.norm(array(updates[0])) for updates, _ in results]
    assert traces == 1 and norms == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], rel=1e-6)


@pytest.mark.parametrize("framework", TRACING)
def test_a_rebuilt_equal_chain_does_not_trace_again(framework: str) -> None:
    """Though the first one is gone; one of other numbers is traced."""

    def chain(factor: float) -> gx.GradientTransformation:
        return gx.chain(gx.clip_norm(5.0), gx.masked(gx.scale(factor), "w"), gx.clip_value(low=-1))

    grads = tensors(framework, {"w": np.ones(2)})
    calls = ((chain(factor), grads) for factor in (-0.1, -0.1, -0.1, -0.2))
    assert traced(framework, lambda tx, g: tx(g), calls, static=(0,))[0] == 2


def test_a_limit_that_is_a_tensor_is_read_anew(torch: Any) -> None:
    limit, grads = torch.tensor(1.0), torch.tensor([3.0, 4.0])
    calls = ((limit.fill_(value), (grads,))[1] for value in (1.0, 2.0))
    traces, (one, two) = traced("torch", gx.clip_norm(limit), calls)
    assert traces == 1 and torch.equal(one * 2, two)


def test_schedules_and_formulas_of_ones_own_may_read_what_changes(framework: str) -> None:
    grads, now = tensors(framework, [np.array([3.0, 4.0])]), {}
    formula = functools.partial(lambda limits, xp, norm: limits["limit"] / norm, now)
    own = gx.transform(lambda g: g.scaled(g.compute(formula, g.global_norm())))
    for tx in (gx.clip_global_norm(lambda step: now["limit"]), own):
        state = tx.init(grads)
        for now["limit"] in (1.0, 2.0):
            updates, state = tx.update(grads, state)
            assert np.linalg.norm(array(updates[0])) == pytest.approx(now["limit"], rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_of_elements_may_be_float32_arrays(framework: str, dtype: str) -> None:
    grads = tensors(framework, [np.array([3.0, 4.0], dtype)])
    half, tenth = tensors(framework, [np.array(0.5, np.float32), np.array(0.1, np.float32)])
    for tx, wanted in (
        (gx.add_decayed_weights(half), [4.5, 6.0]),
        (gx.trace(half), [3.0, 4.0]),
        (gx.ema(half), [3.0, 4.0]),
        (gx.chain(gx.scale(half), gx.add_decayed_weights(tenth)), [1.5 + 0.3, 2.0 + 0.4]),
    ):
        updates, _ = tx.update(grads, tx.init(grads), grads)
        np.testing.assert_allclose(array(updates[0]), wanted, rtol=1e-7)


def test_schedules_are_compared_by_identity_and_numbers_by_value() -> None:
    assert gx.clip_norm(halving) == gx.clip_norm(halving) != gx.clip_norm(lambda t: 2.0**-t)
    assert gx.clip_percentile(10.0, int("1000")) == gx.clip_percentile(10.0)
    assert repr(gx.clip_zscore(float("2.5"), 0.97, 25)) == "clip_zscore()"


# --- noise -----------------------------------------------------------------------------------------------------------


def test_noise_depends_on_the_path_but_not_on_the_number_of_a_model_or_other_gradients() -> None:
    def noise(grads: Any) -> list[Any]:
        tx = gx.add_noise(1.0, seed=1)
        return optree.tree_leaves(tx.update(grads, tx.init(grads))[0])

    layer = {"kernel": np.zeros(3), "bias_1": np.zeros(2)}
    named = noise({"net": layer})
    for name in ("net_1", "net_12"):
        assert_bits(noise({name: layer}), named)
    assert_bits(noise({"net_1": {**layer, "bias_2": None}}), named)
    for other in ("net1", "net_1a", "net_", "ne", "1"):
        assert noise({other: layer})[0].tolist() != named[0].tolist()
    both = noise({"net": layer, "net_1": layer})
    assert_bits(both[:2], named)
    assert both[2].tolist() != named[0].tolist()
    assert noise({"w_1": np.zeros(3)})[0].tolist() != noise({"w": np.zeros(3)})[0].tolist()


# --- steps that are not applied --------------------------------------------------------------------------------------


def test_has_updated_asks_all_states() -> None:
    grads = [np.ones(1)]
    for first, known in (
        (gx.accumulate(gx.identity(), 2), False),
        (gx.skip_nonfinite(gx.identity()), True),
        (gx.skip_large(gx.identity(), 0.5), True),
        (gx.scale(1.0), True),
    ):
        assert bool(gx.has_updated(first.init(grads))) is known
    tx = gx.chain(gx.trace(0.5), gx.masked(gx.accumulate(gx.skip_large(gx.identity(), 0.5), 2), "**"))
    state, due = tx.init(grads), []
    for value in (0.1, 0.1, 10.0, 10.0):
        _, state = tx.update([np.full(1, value)], state)
        due.append(bool(gx.has_updated(state)))
    assert due == [False, True, False, False]
    assert not gx.has_updated({"a": (state,)})


def test_skipped_steps_keep_sparse_gradients_sparse(torch: Any) -> None:
    tx = gx.skip_nonfinite(gx.clip_norm(1.0))
    rows = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([[math.nan]]), (3, 1), check_invariants=False)
    updates, _ = tx.update([rows], tx.init([torch.zeros(3, 1)]))
    assert updates[0].is_sparse
    assert updates[0].to_dense().tolist() == [[0.0]] * 3


# --- functions of one's own ------------------------------------------------------------------------------------------


def capped(g: Any) -> Any:
    return gx.xp(g).where(g > 0.5, g * 0.5, g) / (1.0 + abs(g))


def soft(g: Any) -> Any:
    return g.scaled(g.compute(lambda xp, n: 1.0 / (1.0 + n), g.global_norm()))


@by_inductor
@slow(EAGER, framework="jax", mode="eager")
def test_functions_of_ones_own_run_everywhere(framework: str, mode: str) -> None:
    given, tx = gradients("float32"), gx.chain(gx.scale(2.0), gx.elementwise(capped), gx.transform(soft), gx.scale(6.0))
    (result,) = parity.run(tx, [given], framework, mode)
    leaves = {path: capped(2 * leaf.astype(np.float64)) for path, leaf in parity.named_leaves(given).items()}
    factor = 6 / (1 + np.sqrt(sum(np.sum(leaf**2) for leaf in leaves.values())))
    assert_ulp(result.leaves, {path: (leaf * factor).astype(np.float32) for path, leaf in leaves.items()})


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
    assert gx.elementwise(lambda g: g.astype(np.float64))([np.float32([1.0])])[0].dtype == np.float32


def test_axes_of_units_given_by_number() -> None:
    grad = np.array([[1.0, 3.0, 5.0], [2.0, 6.0, 4.0]])
    for axes in ((1,), (-1,), 1):
        assert gx.centralize(axes=axes)([grad])[0].tolist() == [[-2.0, 0.0, 2.0], [-2.0, 2.0, 0.0]]
        (clipped,) = gx.clip_adaptive(0.5, axes=axes)([grad], params=[np.ones((2, 3))])
        np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), [0.5 * 3**0.5] * 2, rtol=1e-15)
    with pytest.raises(ValueError, match=r"axes \(1, -1\) must be different axes of '0' of shape \(2, 3\)"):
        gx.centralize(axes=(1, -1))([grad])


# inductor takes seconds for each of the four; the same formula is compiled there in test_table.py
@pytest.mark.parametrize(("framework", "mode"), MOST)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinite_parameters_allow_anything_but_times_zero(framework: str, mode: str, dtype: str) -> None:
    grads, params = np.array([[3.0, 4.0], [3.0, 4.0]], dtype), np.array([[np.inf, 2.0], [3.0, 4.0]], dtype)
    for clipping, wanted in ((2.0, [[3.0, 4.0], [3.0, 4.0]]), (0.0, [[np.nan, np.nan], [0.0, 0.0]])):
        tx = gx.clip_adaptive(clipping, axes="torch")
        found = call(framework, mode, lambda g, p, tx=tx: tx({"w": g}, {"w": p})["w"], grads, params)
        np.testing.assert_array_equal(found, wanted)


# --- what is refused -------------------------------------------------------------------------------------------------

ONES = np.ones(2)
REFUSED: dict[type[Exception], dict[str, str]] = {
    ValueError: {
        "clip_global_norm(1.0, norm=1.0, ord=1)": "clip_global_norm: norm= is of any order; leave out ord and like",
        "mars(decay=1.0)": "mars: decay must be below 1, got 1.0",
        "skip_spikes(identity(), of='value')": "skip_spikes: of must be 'norm' or 'loss', got 'value'",
        "add_noise(1.0, 2**64)": "seed must have at most 64 bits",
        "cautious().update([W], gradients=[None])": "None at '0'",
        "cautious().update({'a': W}, gradients={'b': W})": "cautious: the gradients must have the keys",
        "centralize(axes='optax')": "centralize: axes must be 'keras'",
        "clip_adaptive(0.1)(KERNEL, params=KERNEL)": "'dense/kernel'",
        "clip_adaptive(0.1, axes=2)(KERNEL, params=KERNEL)": "(2,) must be different axes of 'dense/kernel'",
        "clip_adaptive(0.1, axes={'conv/**': 'keras'})(KERNEL, params=KERNEL)": "'dense/kernel'; the patterns are",
        "add_decayed_weights(0.1)([W])": "tx.update(updates, state, params)",
        "clip_adaptive(0.1, axes='keras')([W])": "tx.update(updates, state, params)",
        "add_decayed_weights(0.1)([W], params=[W, W])": "at '1'",
        "clip_adaptive(0.1, axes='keras')([W], params=[W, W])": "at '1'",
        "add_decayed_weights(0.1)([np.ones((2, 3))], params=[np.ones(3)])": "(3,) at '0'",
        "trace(0.5).update([np.ones((2, 3))], trace(0.5).init([np.ones(3)]))": "trace: the traces have shape (3,)",
        "ROWS.update([W, W], ROWS.init([W]))": "1 gradients, the tree 2",
        "elementwise(lambda g: g.sum(axis=0))({'w': np.ones((2, 3))})": "'w', (2, 3), but returned (3,)",
        "per_example_clip_norm({'w': np.ones((2, 3)), 'b': np.float32(1)}, 1.0)": "at 'b'",
        "per_example_clip_norm({'b': np.ones(3), 'w': np.ones((2, 3))}, 1.0)": "length 2 at 'w' and 3 at 'b'",
        "per_example_clip_norm({}, 1.0)": "no gradients",
        "testing.assert_parity(clip_norm(1.0), {'w': None})": "no gradients in {'w': None}",
        "per_example_clip_norm([W], -1.0)": "max_norm must be at least 0",
        "mean([])": "a list of trees",
        "mean([{'w': W}, {'w': W, 'b': W}])": "differ at 'b'",
        "mean([{'w': W}, {'w': np.ones(3)}])": "'w' differ in shape or dtype",
    },
    TypeError: {
        "scale_by_schedule(0.1)": "scale_by_schedule: fn",
        "elementwise(3)": "fn must be a function",
        "elementwise(lambda g: g > 0)({'w': np.float32(W)})": "returned bool for the gradient at 'w', float32",
        "elementwise(lambda g: g + 1j)({'w': np.float32(W)})": "returned complex64 for the gradient at 'w', float32",
        "elementwise(lambda g: None)({'w': W})": "NoneType for the gradient at 'w'",
        "elementwise(lambda g: g.tolist())({'w': W})": "numpy, got a list for the gradient at 'w'",
        "transform(lambda g: None)({'w': W})": "fn must return a flat view",
        "transform('x')": "fn must be a function",
        "xp('x')": "array of numpy",
        "per_example_clip_norm({'w': np.ones((2, 3), complex)}, 1.0)": "complex128",
        "trace(0.5).update([np.ones(2, int)], trace(0.5).init([W]))": "'0' has dtype int64",
        "elementwise(abs)({'w': np.ones(2, int)})": "'w' has dtype int64",
        "mean({'w': W})": "a list of trees, one per task, got a",
        "mean(ema(0.5).init([W]))": "a list of trees, one per task, got a",
        "mean([{'w': np.ones(2, int)}])": "'w' of tree 0 has dtype int64",
        "mean([{'w': None}, {'w': W * 1j}])": "'w' of tree 1 has dtype complex128",
    },
}
LIKE_THEM = {"per_example_clip_norm": "per_example_clip_global_norm", "mean": "seeded_pcgrad"}
"""Functions that refuse the same."""
NAMES = {
    **vars(gx),
    "np": np,
    "nan": NAN,
    "W": ONES,
    "ROWS": gx.clip_percentile(9.0, 2, per_leaf=True),
    "KERNEL": {"dense": {"kernel": np.ones((2, 3)), "bias": np.ones(3)}},
    "seeded_pcgrad": lambda trees: gx.pcgrad(trees, 0),
}


@pytest.mark.parametrize(
    ("expression", "error"), [(expression, error) for error, table in REFUSED.items() for expression in table]
)
def test_what_is_refused(expression: str, error: type[Exception]) -> None:
    name = expression.partition("(")[0]
    for written in {expression, expression.replace(name, LIKE_THEM.get(name, name), 1)}:
        with pytest.raises(error, match=re.escape(REFUSED[error][expression])):
            eval(written, NAMES)


@pytest.mark.parametrize("tx", [gx.sign(), gx.centralize(), gx.add_noise(1.0, 0)], ids=str)
def test_complex_gradients_are_refused_by_name(tx: Any) -> None:
    real = {kind: np.ones((2, 2), kind) for kind in ("float16", ml_dtypes.bfloat16, "float32", "float64")}
    for beside in ({}, {str(kind): leaf for kind, leaf in real.items()}):
        grads = {"w": np.ones((2, 2), np.complex64), **beside}
        with pytest.raises(TypeError, match=rf"{tx.name}: the gradient at 'w' has dtype complex64"):
            tx.update(grads, tx.init(grads))


def test_an_unknown_rank_is_refused(tf: Any) -> None:
    for function in (
        lambda x: gx.per_example_clip_norm([x], 1.0),
        lambda x: gx.per_example_clip_global_norm([x], 1.0),
        lambda x: gx.pcgrad([[x], [x]], 0),
    ):
        with pytest.raises(ValueError, match="set its static shape"):
            tf.function(function, input_signature=[tf.TensorSpec(None)])(tf.ones((2, 2)))


def test_orders_that_are_surely_wrong() -> None:
    class Foreign:
        init = staticmethod(lambda params: ())

        @staticmethod
        def update(updates: Any, state: Any, params: Any = None) -> Any:
            return updates, state

    Foreign.update.__qualname__ = "unscale.<locals>.update_fn"
    clip, decay = gx.clip_norm(1.0), gx.add_decayed_weights(0.1)
    for txs, first, second in (
        ((clip, gx.accumulate(gx.identity(), 2)), "clip_norm", "accumulate"),
        ((gx.clip_value(1.0), gx.scale(2.0), Foreign()), "clip_value", "unscale"),
    ):
        with pytest.warns(gx.OrderWarning, match=rf"{first}.* before {second}") as caught:
            gx.chain(*txs)
        assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.chain(gx.accumulate(gx.chain(clip, decay), 2), clip, gx.freeze("**"), gx.scale(-0.1)).init({"w": np.ones(2)})
        gx.chain(gx.freeze("**"), decay, gx.ema(0.9)).init({"w": np.ones(2)})
        gx.chain(gx.clip_value(1.0), gx.clip_spikes(), gx.zero_nonfinite(), clip, gx.ema(0.9), gx.skip_large(clip, 2.0))
        gx.chain(clip, gx.skip_nonfinite(gx.chain(clip, gx.ema(0.9))))
        gx.chain(gx.chain(gx.zero_nonfinite(), clip), gx.trace(0.9), gx.zero_nonfinite())
        gx.chain(gx.clip_global_norm(1.0, norm=3.0), gx.zero_nonfinite())
        warnings.simplefilter("ignore", gx.OrderWarning)
        gx.chain(clip, gx.accumulate(gx.identity(), 2))


ON_DEVICES = sorted({expression for entry in ENTRIES for expression in entry.devices if "<" not in expression})


@pytest.mark.parametrize("expression", [each for each in ON_DEVICES if "lambda" not in each and each != "cautious()"])
def test_what_a_nan_stays_in_comes_after_what_skips_it(expression: str) -> None:
    """A warning comes where a NaN would stay for good, and the line that it gives forgets the NaN."""
    params = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    bad = {"w": np.full((2, 3), np.nan, np.float32)}

    def spoiled(tx: gx.GradientTransformation) -> bool:
        state, out = tx.init(params), params
        for given in [params, bad, *[params] * 6]:
            out, state = tx.update(given, state, params)
        return not np.isfinite(out["w"]).all()

    tx = gx.parse(expression)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        whole = gx.chain(tx, gx.skip_nonfinite(gx.identity()))
    assert bool(caught) == spoiled(tx), str(caught)
    if caught:
        moved = [not np.any(whole.update(params, whole.update(bad, whole.init(params), params)[1], params)[0]["w"])]
        better = gx.parse(str(caught[0].message).rpartition("write ")[2])
        assert moved == [True] and not spoiled(better) and repr(tx) in repr(better)


@pytest.mark.parametrize(
    "expression", ["clip_global_norm(1.0)", "clip_norm(1.0)", "normalize_global_norm()", "ema(0.9)"]
)
def test_what_spreads_a_nan_comes_after_what_replaces_it(expression: str) -> None:
    bad = {"w": np.float32([np.nan, 1.0])}
    with pytest.warns(gx.OrderWarning) as caught:
        whole = gx.chain(gx.parse(expression), gx.zero_nonfinite())
    better = gx.parse(str(caught[0].message).rpartition("write ")[2])
    found = [tx.update(bad, tx.init(bad))[0]["w"][1] for tx in (whole, better)]
    assert found[1] != 0.0 and (found[0] == 0.0 or expression == "ema(0.9)")


@pytest.mark.parametrize(
    "first", ["skip_nonfinite(clip_norm(1.0))", "skip_large(clip_norm(1.0), 9.0)", "accumulate(identity(), 2)"]
)
@pytest.mark.parametrize(
    ("later", "moves"),
    [
        ("ema(0.9)", True),
        ("masked(trace(0.9), '**')", True),
        ("clip_zscore()", True),
        ("add_decayed_weights(0.1)", True),
        ("add_noise(1.0, 0)", True),
        ("chain(scale(2.0), grokfast())", True),
        ("scale(-0.1)", False),
        ("measure(clip_global_norm(1.0))", False),
    ],
)
def test_what_zeros_move_belongs_inside(first: str, later: str, moves: bool) -> None:
    """The advice of the warning is a transform, which warns no more and keeps the state at a skipped step."""
    params = {"w": np.ones(2)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gx.chain(gx.chain(gx.parse(first), gx.scale(1.0)), gx.parse(later)).init(params)
    assert [(warning.category, warning.filename) for warning in caught] == [(gx.OrderWarning, __file__)] * moves
    if moves:
        tx = gx.parse(str(caught[0].message).rpartition("write ")[2])
        _, state = tx.update({"w": np.full(2, np.nan)}, tx.init(params), params)
        assert not gx.has_updated(state)
        assert repr(gx.parse(later)) in repr(tx)


def test_a_warning_of_zeros_reaches_optax_and_flax(nnx: Any, optax: Any, jax: Any) -> None:
    """The commonest wrong order in JAX: an optimizer after what skips steps."""
    model, tx = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), gx.chain(gx.skip_nonfinite(gx.clip_norm(1.0)), optax.adamw(0.1))
    init = functools.partial(tx.init, {"w": jax.numpy.ones(2)})
    for start in (lambda: nnx.Optimizer(model, tx, wrt=nnx.Param), init, jax.jit(init)):
        with pytest.warns(gx.OrderWarning, match="write skip_nonfinite"):
            start()


def test_a_window_in_another_library_says_what_to_write(optax: Any) -> None:
    tx, params = optax.chain(gx.accumulate(gx.clip_norm(1.0), 4), optax.sgd(0.1)), {"w": np.ones(2)}
    with pytest.raises(TypeError, match=r"gx.accumulate\(optax.chain"):
        gx.flush(tx, tx.init(params), params)


# --- sparse gradients ------------------------------------------------------------------------------------------------


SPARSE = ("clip_rms(0.1)", "clip_average_norm(0.01)", "normalize_norm()", "sign()", "zero_nonfinite()")
SPARSE += ("clip_norm(1.0)", "clip_norm(1.0, ord=1)", "clip_global_norm(1.0)", "clip_value(3.5)", "scale(-0.5)")
SPARSE += (
    "top_k(0.05)",
    "top_k(0.2)",
    "top_k(0.9)",
    "clip_value(low=-1.0)",
    "chain(clip_value(5.0), clip_global_norm(2.0), scale(3.0))",
    "identity()",
)
DENSE = ("centralize()", "clip_value(low=0.5)", "clip_value(high=-0.5)", "clip_norm(1.0, axes=1)")
"""Transforms that change zeros, or look along rows."""


@slow(DTYPES_ALIKE, dtype=(np.float64, np.float16))
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("expression", [*SPARSE, *DENSE])
def test_sparse_gradients_give_what_dense_ones_give(expression: str, dtype: Any) -> None:
    """Sums of rows that are given twice; sparse ones unless zeros change."""
    tx, values, rows = gx.parse(expression), np.array([[3, 1], [3, -2], [4, 0.5]], dtype), [0, 0, 1]
    dense = np.zeros((4, 2), dtype)
    np.add.at(dense, rows, values)
    wanted = tx([dense])[0]

    def check(found: Any, is_sparse: bool) -> None:
        assert is_sparse is (expression in SPARSE)
        assert_ulp(array(found) + 0, wanted + 0, 0 if dtype == np.float32 else 2)  # zeros not stored have no sign

    if "torch" in FRAMEWORKS:
        import torch

        sparse = torch.sparse_coo_tensor(torch.tensor([rows]), torch.tensor(values), (4, 2), check_invariants=False)
        parameter = torch.nn.Parameter(torch.zeros(4, 2, dtype=sparse.dtype))
        parameter.grad = sparse.clone()
        gx.torch.apply_(tx, [parameter])
        elements = sparse.to_dense().to_sparse()  # whose values have one axis
        for found in (tx([sparse])[0], tx([elements])[0], parameter.grad):
            check(found, found.is_sparse)
    if "tensorflow" in FRAMEWORKS:
        import tensorflow as tf

        def run(values: Any) -> Any:
            (found,) = tx([tf.IndexedSlices(values, tf.constant(rows), tf.constant([4, 2]))])
            kinds.append(isinstance(found, tf.IndexedSlices))
            return tf.convert_to_tensor(found)

        for function in (run, tf.function(run), tf.function(run, jit_compile=True)):
            kinds: list[bool] = []
            check(function(tf.constant(values)), kinds[0])


# --- many gradients at once ------------------------------------------------------------------------------------------

by_xla = slow(
    XLA, lambda framework, mode: framework == "jax" or (framework, mode) == ("tensorflow", "compiled"), dtype="float64"
)


def batch(dtype: Any = "float32") -> Any:
    rng = np.random.default_rng(0)
    w, b, c = rng.standard_normal((6, 3, 4)) * 2, rng.standard_normal((6, 5)), rng.standard_normal(6)
    w[4], b[4], c[4] = 0.0, 0.0, 0.0
    return optree.tree_map(lambda leaf: leaf.astype(dtype), {"w": w, "b": [b, None], "c": c})


@by_xla
@by_inductor
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_per_example_clips(framework: str, mode: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (framework, mode) == ("torch", "compiled") and dtype != "float32":  # whose code they share, but for conversions
        without_generated_code(monkeypatch)
    grads = batch(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16)
    leaves, backend = parity.named_leaves(grads), lookup.backend(framework)
    wide = {path: number(leaf) for path, leaf in leaves.items()}
    norms = {path: np.sqrt((leaf**2).reshape(6, -1).sum(axis=1)) for path, leaf in wide.items()}
    total = np.sqrt(sum(norm**2 for norm in norms.values()))
    for function, sizes in (
        (gx.per_example_clip_norm, norms),
        (gx.per_example_clip_global_norm, dict.fromkeys(norms, total)),
    ):
        sums, above = call(framework, mode, lambda grads, function=function: function(grads, 2.0), grads)
        for path, got in parity.named_leaves(sums, backend).items():
            factor = np.where(sizes[path] > 2, 2 / np.maximum(sizes[path], 2), 1).reshape(
                6, *[1] * (wide[path].ndim - 1)
            )
            terms = wide[path] * factor
            right, largest = narrowed(terms.sum(axis=0), leaves[path].dtype), np.abs(terms).max(axis=0)
            assert (got.dtype, got.shape) == (right.dtype, wide[path].shape[1:])
            assert_sums(got, right, largest.astype(np.float64), further=len(terms) - 1, what=path)
        counts = {path: int((size > 2).sum()) for path, size in sizes.items()}
        if sizes is norms:
            assert {path: int(n) for path, n in parity.named_leaves(above, backend).items()} == counts
        else:
            assert {int(array(above))} == set(counts.values())


def test_an_example_that_is_nan_is_reported(framework: str) -> None:
    grads = batch()
    grads["w"][2, 0, 0] = np.nan
    given = tensors(framework, grads)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sums, above = gx.per_example_clip_global_norm(given, 2.0)
        alone, _ = gx.per_example_clip_norm(given, 2.0)
    assert all(np.isnan(leaf).all() for leaf in arrays(sums))
    named = parity.named_leaves(alone, lookup.backend(framework))
    assert {path: bool(np.isnan(leaf).all()) for path, leaf in named.items()} == {"w": True, "b/0": False, "c": False}
    squares = sum((leaf.astype(np.float64) ** 2).reshape(6, -1).sum(axis=1) for leaf in optree.tree_leaves(grads))
    assert int(array(above)) == (squares > 4).sum()  # NaN is not above the limit
    texts = [str(warning.message) for warning in caught if "example 2" in str(warning.message)]
    if framework != "jax":
        assert any("per_example_clip_global_norm" in text for text in texts)
        assert any("'w'" in text for text in texts)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("count", "said"), [(5, "0, 1, 2, 3, 4,"), (7, "0, 1, 2, 3, 4 and 2 more")])
def test_five_of_the_examples_that_are_nan_are_named(count: int, said: str) -> None:
    with pytest.warns(RuntimeWarning, match=said) as caught:
        gx.per_example_clip_norm(np.full((count, 1), np.nan), 1.0)
    assert caught[0].filename == __file__


@slow(XLA)
def test_the_seed_of_surgery_may_be_traced(jax: Any) -> None:
    given = tensors("jax", [[np.array([1.0, 0.2, -0.3])], [np.array([-1.0, 0.5, 0.1])], [np.array([0.2, -1.0, 0.4])]])
    surgeon = jax.jit(lambda trees, seed: gx.pcgrad(trees, seed))
    for seed in (5, -1):
        assert_bits(surgeon(given, jax.numpy.int32(seed)), surgeon(given, seed))
        assert_bits(surgeon(given, seed), jax.jit(lambda t, s=seed: gx.pcgrad(t, s))(given))


@by_inductor
@pytest.mark.parametrize(("framework", "mode"), EVERY_MODE)
@pytest.mark.parametrize(("function", "divisor"), [(gx.mean, 5), (gx.sum, 1)])
def test_the_mean_and_the_sum_of_trees(function: Any, divisor: int, framework: str, mode: str) -> None:
    """A sum; what rounds its steps is one ULP of the largest term each."""
    trees = [gradients("float32", seed) for seed in range(5)]
    trees[3]["a"]["v"][1, :2] = NAN, INF
    got = call(framework, mode, lambda *given: function(list(given)), *trees)
    named = [parity.named_leaves(one) for one in trees]
    for path, leaf in parity.named_leaves(got, lookup.backend(framework)).items():
        with np.errstate(invalid="ignore"):
            wanted = narrowed(sum(number(one[path]) for one in named) / divisor, np.float32)
        largest = np.max([np.nan_to_num(np.abs(one[path]), posinf=0.0) for one in named], axis=0) / divisor
        assert_sums(leaf, wanted, largest, further=4)


def test_merged_trees_keep_their_dtype() -> None:
    trees = [[np.float16([1.0, 2.0]), np.float64([1.0])], [np.float16([3.0, 5.0]), np.float64([2.0])]]
    sums = [[4.0, 7.0], [3.0]]
    for found, wanted in ((gx.mean(trees), [[2.0, 3.5], [1.5]]), (gx.sum(trees), sums), (gx.pcgrad(trees, 0), sums)):
        assert [leaf.dtype for leaf in found] == [np.float16, np.float64]
        assert [leaf.tolist() for leaf in found] == wanted


def test_a_seed_that_is_an_array_has_two_words() -> None:
    trees = [[np.array([1.0, 0.2, -0.3])], [np.array([-1.0, 0.5, 0.1])], [np.array([0.2, -1.0, 0.4])]]
    for seed in (5, -1, -(2**40), 2**31 + 9, 2**33 + 7, 2**40 + 1):
        for like in (np.array(seed), np.int64(seed)):
            assert gx.pcgrad(trees, like)[0].tolist() == gx.pcgrad(trees, seed)[0].tolist(), seed
    for seed in range(2**60, 2**60 + 8):
        assert gx.pcgrad(trees, np.array(seed))[0].tolist() == gx.pcgrad(trees, seed)[0].tolist(), seed
    for what in (None, object(), True, 1.0, "1", np.ones(2), np.array(5.0), np.float32(5.0), np.bool_(True)):
        with pytest.raises(TypeError, match="seed must be an int"):
            gx.pcgrad(trees, what)
