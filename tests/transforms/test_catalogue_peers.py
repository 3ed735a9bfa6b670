"""The transforms compared with equivalent functions of other libraries, on the same gradients.

Where all sums and products are exact (small whole numbers, and hyperparameters that are binary fractions), so is the
agreement. Elsewhere the budgets count roundings: half a ULP for each of the peer's, and half a ULP for gradxform.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import FRAMEWORKS, INF, NAN

import gradxform as gx
from gradxform.backend import lookup
from gradxform.numerics import random as threefry
from gradxform.testing import max_ulp

SHAPES: dict[str, tuple[int, ...]] = {"bias": (16,), "conv": (2, 2, 4, 8), "gain": (), "kernel": (32, 8)}
MODES = ("eager", "jitted")
Tree = dict[str, Any]


def whole(seed: int) -> Tree:
    """Gradients of small integers, nonzero in `gain`."""
    rng = np.random.default_rng(seed)
    tree = {name: np.float32(rng.integers(-6, 7, shape)) for name, shape in SHAPES.items()}
    return tree | {"gain": np.float32(seed % 3 + 1)}


def ordinary(seed: int) -> Tree:
    rng = np.random.default_rng(seed)
    return {name: np.float32(rng.standard_normal(shape) * 1.7) for name, shape in SHAPES.items()}


def corner(value: float) -> Tree:
    """Ones with one other element in the kernel; or zeros."""
    tree = {name: np.full(shape, value != 0, np.float32) for name, shape in SHAPES.items()}
    tree["kernel"][3, 5] = value
    return tree


CORNERS = {"zeros": corner(0.0), "NaN": corner(NAN), "inf": corner(INF)}


def numpys(tree: Any) -> Tree:
    return {name: np.asarray(leaf) for name, leaf in tree.items()}


def tensors(framework: str, tree: Any) -> list[Any]:
    return [lookup.backend(framework).from_numpy(np.array(leaf)) for leaf in getattr(tree, "values", lambda: tree)()]


def named(leaves: Sequence[Any]) -> Tree:
    return {str(i): leaf.detach().numpy() if hasattr(leaf, "detach") else leaf.numpy() for i, leaf in enumerate(leaves)}


def sizes(tree: Tree) -> Tree:
    return {name: np.abs(leaf) for name, leaf in tree.items()}


def farthest(got: Tree, expected: Tree) -> float:
    return max(max_ulp(got[name], expected[name]) for name in expected)


def apart(got: Tree, expected: Tree, terms: Tree) -> float:
    """The largest distance of sums, in ULP of the sum of the terms' absolute values."""
    units = {name: np.spacing(np.float32(np.maximum(np.abs(expected[name]), terms[name]))) for name in expected}
    return max(float(np.max(np.abs(np.float64(got[name]) - expected[name]) / units[name])) for name in expected)


def run(tx: Any, steps: Sequence[Tree], params: Tree, mode: str = "eager") -> list[tuple[Tree, Any]]:
    """The updates and the state of each step, in JAX."""
    jax = pytest.importorskip("jax")
    own = jax.tree.map(jax.numpy.asarray, params)
    update = jax.jit(tx.update) if mode == "jitted" else tx.update
    state, found = tx.init(own), []
    for step in steps:
        out, state = update(jax.tree.map(jax.numpy.asarray, step), state, own)
        found.append((numpys(out), state))
    return found


def both(tx: Any, other: Any, steps: Sequence[Tree], params: Tree, mode: str) -> Any:
    """The updates and states of a transform and its peer; peers with conditions are compiled, since eager is slow."""
    slow = "MultiSteps" in str(type(other)) or "apply_if_finite" in str(other.update)
    found = run(tx, steps, params, mode), run(other, steps, params, "jitted" if slow else mode)
    (got, states), (expected, others) = (tuple(zip(*each, strict=True)) for each in found)
    return got, expected, list(zip(states, others, strict=True))


def library(name: str) -> Any:
    return pytest.fixture(lambda: pytest.importorskip(name), scope="module")


optax, tf, torch = map(library, ("optax", "tensorflow", "torch"))


class Pair(NamedTuple):
    """A transform and its optax peer, by one hyperparameter: 0.5 for whole numbers, 0.875 for any.

    Allowed for integers, corners and products: a distance in ULP. Allowed for sums of any numbers: the accumulated
    rounding of each step, in ULP of the terms.
    """

    make: Callable[[Any, float], tuple[Any, Any]]
    ulp: float = 0
    corners: tuple[str, ...] = ("zeros", "NaN", "inf")  # with the same meaning in both libraries
    linear: float | None = None


NORM = 6
"""The distance if the peer computes a float32 norm of a few hundred elements, a product and a quotient."""
PAIRS = {
    "rms": Pair(lambda o, c: (gx.clip_rms(c), o.clip_by_block_rms(c)), NORM, ("zeros", "NaN")),
    "units": Pair(lambda o, c: (gx.clip_adaptive(c, axes="keras"), o.adaptive_grad_clip(c)), NORM, ("zeros", "NaN")),
    "normalize": Pair(lambda o, _: (gx.normalize_global_norm(), o.normalize_by_update_norm(eps=0.0)), NORM, ("NaN",)),
    "sign": Pair(lambda o, _: (gx.sign(), o.scale_by_sign())),
    "zero": Pair(lambda o, _: (gx.zero_nonfinite(), o.zero_nans()), corners=("zeros", "NaN")),
    "centralize": Pair(lambda o, _: (gx.centralize(), o.centralize())),
    "weights": Pair(lambda o, c: (gx.add_decayed_weights(c), o.add_decayed_weights(c)), linear=1.5),
    "ema": Pair(lambda o, d: (gx.ema(d, debias=False), o.ema(d, debias=False)), linear=1.5),
    "debiased": Pair(lambda o, d: (gx.ema(d), o.ema(d)), ulp=2, linear=3),
    "trace": Pair(lambda o, d: (gx.trace(d), o.trace(d)), linear=1.5),
    "nesterov": Pair(lambda o, d: (gx.trace(d, nesterov=True), o.trace(d, nesterov=True)), linear=2.5),
    "sum": Pair(lambda o, c: (gx.accumulate(gx.scale(c), 2), o.MultiSteps(o.scale(c), 2)), 0, ("zeros",), linear=1.5),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PAIRS)
def test_whole_numbers_and_corners_as_in_optax(name: str, mode: str, optax: Any) -> None:
    """Consecutive steps, to compare what a state keeps of NaN and infinity too."""
    steps = [whole(0), whole(1), *(CORNERS[case] for case in PAIRS[name].corners), whole(2)]
    got, expected, _ = both(*PAIRS[name].make(optax, 0.5), steps, whole(9), mode)
    assert max(map(farthest, got, expected)) <= PAIRS[name].ulp


@pytest.mark.parametrize("name", PAIRS)
def test_any_numbers_as_in_optax(name: str, optax: Any) -> None:
    pair, steps, params = PAIRS[name], [ordinary(seed) for seed in range(4)], ordinary(9)
    tx, other = pair.make(optax, 0.875)
    got, expected, _ = both(tx, other, steps, params, "jitted")
    if name == "centralize":  # element minus mean is at most twice the largest element
        terms = [{key: 2 * np.max(np.abs(leaf)) for key, leaf in step.items()} for step in steps]
        assert max(map(apart, got, expected, terms)) <= 1.5
    elif pair.linear is None:
        assert max(map(farthest, got, expected)) <= pair.ulp
    else:
        for step, (terms, _) in enumerate(run(other, list(map(sizes, steps)), sizes(params), "jitted")):
            assert apart(got[step], expected[step], terms) <= pair.linear * (step + 1)


def outcomes(tx: Any, *steps: Tree) -> list[str]:
    """Show, for each step, the kernel's odd element, another element, and another leaf."""
    found = (out for out, _ in run(tx, steps, whole(9), "jitted"))
    return [f"{out['kernel'][3, 5]} {out['kernel'][0, 0]} {out['bias'][0]}" for out in found]


def test_corners_that_optax_means_otherwise(optax: Any) -> None:
    """optax hides an infinite gradient except for one NaN; gradxform turns everything that shares the norm into NaN.

    optax multiplies the NaN of a sum by zero, so that update and all later ones are NaN.
    """
    inf, zeros, ones = CORNERS["inf"], CORNERS["zeros"], corner(1.0)
    normalize, multi = optax.normalize_by_update_norm(eps=0.0), optax.MultiSteps(optax.identity(), 2)
    assert outcomes(optax.clip_by_block_rms(2.0), inf) == ["nan 0.0 1.0"]
    assert outcomes(gx.clip_rms(2.0), inf) == ["nan nan 1.0"]
    assert outcomes(normalize, inf, zeros) == ["nan 0.0 0.0", "nan nan nan"]
    assert outcomes(gx.normalize_global_norm(), inf, zeros) == ["nan nan nan", "0.0 0.0 0.0"]
    assert outcomes(optax.zero_nans(), inf) == ["inf 1.0 1.0"]
    assert outcomes(gx.zero_nonfinite(), inf) == ["0.0 1.0 1.0"]
    steps = CORNERS["NaN"], ones, ones, ones
    assert outcomes(multi, *steps) == ["nan 0.0 0.0", "nan 1.0 1.0", "nan 0.0 0.0", "nan 1.0 1.0"]
    own = outcomes(gx.accumulate(gx.identity(), 2), *steps)
    assert own == ["0.0 0.0 0.0", "nan 1.0 1.0", "0.0 0.0 0.0", "1.0 1.0 1.0"]


def test_the_first_average_is_the_gradient_itself(optax: Any) -> None:
    """optax averages with exact 1 - d, and debiases with 1 - d in float32, which is 0.017 % larger for 0.9999."""
    grads = ordinary(0)
    (own,), (expected,), _ = both(gx.ema(0.9999), optax.ema(0.9999), [grads], grads, "jitted")
    assert farthest(own, grads) <= 1
    assert 1000 < farthest(expected, grads) < 4000


SCHEDULES: dict[str, tuple[Callable[[Any], Any], float]] = {
    # optax computes the power in float32, which XLA rounds within 2 ULP; gradxform in float64.
    "exponential": (lambda o: o.exponential_decay(0.5, 3, 0.7), 4),
    "staircase": (lambda o: o.exponential_decay(0.5, 2, 0.5, staircase=True), 0),
    "piecewise": (lambda o: o.piecewise_constant_schedule(0.5, {2: 0.25, 4: 0.5}), 0),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_optax_as_they_are(name: str, mode: str, optax: Any) -> None:
    """A scheduled factor and a scheduled limit."""
    schedule, budget = SCHEDULES[name][0](optax), SCHEDULES[name][1]
    steps = [ordinary(0), ordinary(1), CORNERS["NaN"], CORNERS["inf"], ordinary(2), ordinary(3)]
    pair = gx.scale_by_schedule(schedule), optax.scale_by_schedule(schedule)
    got, expected, states = both(*pair, steps, steps[0], mode)
    assert max(map(farthest, got, expected)) <= budget
    assert [int(own.count) for own, _ in states] == [int(other.count) for _, other in states]
    other = optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=schedule)
    steps[3] = steps[2]  # optax turns an infinite gradient into one NaN and zeros
    got, expected, _ = both(gx.clip_global_norm(schedule), other, steps, steps[0], mode)
    assert max(map(farthest, got, expected)) <= NORM + budget


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("most", [1, 100])
@pytest.mark.parametrize("inner", ["adam", "gradxform"])
def test_skipped_steps_as_in_optax(inner: str, most: int, mode: str, optax: Any) -> None:
    """The inner state does not change either, as the updates after a skipped step show."""
    kinds = [whole(0), CORNERS["NaN"], whole(1), CORNERS["inf"], CORNERS["NaN"], CORNERS["inf"], CORNERS["NaN"]]
    steps = [*map(sizes, kinds), CORNERS["zeros"], sizes(whole(2))]
    tx = optax.adam(0.25) if inner == "adam" else gx.chain(gx.trace(0.5), gx.clip_value(2.0))
    pair = gx.skip_nonfinite(tx, None if most == 100 else most), optax.apply_if_finite(tx, most)
    got, expected, states = both(*pair, steps, whole(9), mode)
    # XLA may fuse and round Adam's sums, root and quotients differently.
    assert max(map(farthest, got, expected)) <= (6 if inner == "adam" else 0)
    for own, other in states:
        assert int(own.total) == int(other.total_notfinite)
        assert int(own.consecutive) == int(other.notfinite_count)
        assert bool(gx.has_updated(own)) == (bool(other.last_finite) or int(other.notfinite_count) > most)


@pytest.mark.parametrize("mode", MODES)
def test_large_steps_are_skipped_as_in_optax(mode: str, optax: Any) -> None:
    """optax also skips a norm equal to the limit, and its has_updated does not report skips."""
    skip = functools.partial(optax.skip_large_updates, max_squared_norm=25.0)
    steps = [{"w": np.float32(values)} for values in ([3, 3], [0, 0], [3, 5], [NAN, 1], [INF, 0], [4, 1], [3, 4])]
    other = optax.MultiSteps(optax.trace(0.5), 1, should_skip_update_fn=skip)
    got, expected, states = both(gx.skip_large(gx.trace(0.5), 5.0), other, steps, steps[0], mode)
    assert max(map(farthest, got[:-1], expected[:-1])) == 0
    assert [bool(gx.has_updated(own)) for own, _ in states] == [True, True, False, False, False, True, True]
    skipped = [bool(state.skip_state["should_skip"]) for _, state in states]
    assert skipped == [False, False, True, True, True, False, True]
    assert [int(own.total) for own, _ in states] == [0, 0, 1, 2, 3, 3, 3]
    assert all(bool(other.has_updated(state)) for _, state in states)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inner", ["adam", "gradxform"])
@pytest.mark.parametrize("every", [2, 4])
def test_accumulated_steps_as_in_optax(every: int, inner: str, mode: str, optax: Any) -> None:
    """Means of integers are exact, so the inner transforms get equal gradients.

    For a mean of four, optax divides by three and is off by 1 ULP, which momentum keeps.
    """
    tx = optax.adam(0.25) if inner == "adam" else gx.chain(gx.trace(0.5), gx.clip_value(2.0), gx.scale(-0.25))
    steps, other = [sizes(whole(seed)) for seed in range(9)], optax.MultiSteps(tx, every)
    got, expected, states = both(gx.accumulate(tx, every), other, steps, whole(9), mode)
    assert max(map(farthest, got, expected)) <= (6 if inner == "adam" else 2 if every == 4 else 0)
    for own, state in states:
        assert bool(gx.has_updated(own)) == bool(other.has_updated(state))


@pytest.mark.parametrize("mode", MODES)
def test_in_a_chain_of_optax(mode: str, optax: Any) -> None:
    """Before and after Adam, and as an inner transform of optax; values are integers until Adam."""
    halves = optax.exponential_decay(1.0, 1, 0.5, staircase=True)
    adam, steps = optax.adam(0.25), [sizes(whole(seed)) for seed in range(5)]
    head, tail = (gx.sign(), gx.trace(0.5), gx.scale_by_schedule(halves)), (gx.add_decayed_weights(0.5), gx.trace(0.5))
    own = optax.chain(*head, adam, *tail)
    head = optax.scale_by_sign(), optax.trace(0.5), optax.scale_by_schedule(halves)
    other = optax.chain(*head, adam, optax.add_decayed_weights(0.5), optax.trace(0.5))
    for wrap in (lambda tx: tx, lambda tx: optax.apply_if_finite(tx, 3))[: 1 + (mode == "jitted")]:
        got, expected, _ = both(wrap(own), wrap(other), steps, sizes(whole(9)), mode)
        # A trace of five steps of -0.25, each up to 6 ULP off, and of exact decayed weights.
        assert max(apart(a, b, dict.fromkeys(SHAPES, 0.5)) for a, b in zip(got, expected, strict=True)) <= 6


@pytest.mark.parametrize(
    ("shape", "axes", "axis"), [((4, 3, 5), 0, (0, 1)), ((1, 6), (0, 1), 0), ((2, 1, 2, 3, 4), (0, 1, 2, 3), None)]
)
def test_adaptive_clips_of_other_shapes(shape: tuple[int, ...], axes: Any, axis: Any, optax: Any) -> None:
    """With three axes, optax's unit is over the first axis; a kernel with an axis of size one is one unit."""
    rng = np.random.default_rng(0)
    grads, params = ({"w": np.float32(rng.standard_normal(shape))} for _ in range(2))
    given_axis = axes if axis is None else axis
    transforms = gx.clip_adaptive(0.1, axes=axes), gx.clip_adaptive(0.1, axes="keras")
    (default, same), (given, keras) = (
        [run(tx, [grads], params, "jitted")[0][0] for tx in pair]
        for pair in zip(
            (optax.adaptive_grad_clip(0.1), optax.adaptive_grad_clip(0.1, axis=given_axis)), transforms, strict=True
        )
    )
    assert farthest(same, default) <= NORM
    assert farthest(keras, given) <= NORM
    assert (farthest(keras, default) > 1e5) == (axis is not None)


@pytest.mark.parametrize("c", [0.0, 5.0, INF])
def test_examples_as_in_optax(c: float, optax: Any) -> None:
    """optax sums 16 float32 products of slightly inaccurate factors."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(1)
    batch = {name: np.float32(rng.standard_normal((16, *shape))) for name, shape in SHAPES.items()}
    for leaf in batch.values():
        leaf[5] = 0  # a zero example is within every limit, even zero
    given, positive = (jax.tree.map(jax.numpy.asarray, tree) for tree in (batch, sizes(batch)))
    for clip, native, share in (  # optax splits a limit over the layers
        (gx.per_example_clip_global_norm, optax.per_example_global_norm_clip, c),
        (gx.per_example_clip_norm, optax.per_example_layer_norm_clip, c * len(batch) ** 0.5),
    ):
        (got, clipped), (wanted, number), (terms, _) = clip(given, c), native(given, share), native(positive, share)
        assert apart(numpys(got), numpys(wanted), numpys(terms)) <= 4
        assert jax.tree.map(int, clipped) == jax.tree.map(int, number)


def test_an_infinite_example(optax: Any) -> None:
    """gradxform makes the sum NaN. optax drops most of an infinite example, and does not scale a NaN one."""
    jax = pytest.importorskip("jax")
    for value, left in ((INF, [NAN, 3.0]), (NAN, [NAN, 12.0])):
        grads = jax.numpy.float32([[value, 9.0], [4.0, 3.0]])
        assert np.array_equal(optax.per_example_global_norm_clip(grads, 5.0)[0], left, equal_nan=True)
        assert np.isnan(jax.jit(gx.per_example_clip_global_norm)(grads, 5.0)[0]).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_random_bits_are_those_of_jax(framework: str) -> None:
    """Keys from seeds, steps and numbers, and the bits for a shape; JAX returns the XOR of two words."""
    jax = pytest.importorskip("jax")
    assert jax.config.jax_threefry_partitionable
    backend = lookup.backend(framework)

    def words(key: tuple[int, int], count: int) -> Any:
        def formula(xp: Any, numbers: Any) -> Any:
            return xp.stack([xp.float64(word) for word in threefry.bits(xp, key, numbers)])

        numbers = backend.stored(np.arange(count), "float64", backend.from_numpy(np.zeros(1)))
        found = backend.compute(formula, numbers)
        found = found if isinstance(found, np.ndarray) else backend.to_numpy(found)
        return found.astype(np.int64).astype(np.uint32)

    for seed in (7, 2**32 - 1):
        key = jax.random.key(seed)
        assert jax.random.key_data(key).tolist() == [0, seed]
        first, second = words((0, seed), 15)
        assert np.array_equal((first ^ second).reshape(3, 5), jax.random.bits(key, (3, 5)))
        folded = jax.random.key_data(jax.random.fold_in(key, 12))
        assert folded.tolist() == [first[12], second[12]]
        first, second = words(tuple(map(int, folded)), 4)
        assert np.array_equal(first ^ second, jax.random.bits(jax.random.fold_in(key, 12), (4,)))


def test_noise_from_the_generator_of_jax() -> None:
    """The Box-Muller formula in float64 on JAX's random words, by seed, step and path."""
    jax = pytest.importorskip("jax")
    draw = pytest.importorskip("jax.extend.random").threefry_2x32
    path, count = 0xCBF29CE484222325, 1001
    for character in "w":
        path = (path ^ ord(character)) * 0x100000001B3 % 2**64
    steps = [{"w": np.zeros(count, np.float32)}] * 3
    for step, (out, _) in enumerate(run(gx.add_noise(1.0, seed=7), steps, steps[0])):
        key = jax.random.key_data(jax.random.fold_in(jax.random.key(7), step))
        key = draw(key, np.uint32([path >> 32, path & 0xFFFFFFFF]))
        words = np.asarray(draw(key, np.concatenate([np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)])))
        first, second = words.astype(np.float64).reshape(2, count)
        normal = np.sqrt(-2 * np.log((first + 0.5) / 2.0**32)) * np.cos(2 * np.pi * second / 2.0**32)
        assert np.max(np.abs(out["w"] - normal) / np.spacing(np.float32(np.abs(normal)))) <= 0.5 + 1e-6


@pytest.mark.parametrize("c", [0.001, 0.05, 1e9])
def test_average_norms_as_in_tensorflow(c: float, tf: Any) -> None:
    """TensorFlow also rescales gradients within the limit, and hides infinity."""
    tx, native = gx.clip_average_norm(c), tf.compat.v1.clip_by_average_norm
    for tree in (ordinary(1), whole(1), CORNERS["zeros"], CORNERS["NaN"]):
        for leaf in tensors("tensorflow", tree):
            assert max_ulp(tx(leaf).numpy(), native(leaf, c).numpy()) <= NORM
    leaf = tf.constant([INF, 1.0])
    assert np.isnan(tx(leaf).numpy()).tolist() == [True, True]
    assert np.isnan(native(leaf, c).numpy()).tolist() == [True, False]


@pytest.mark.parametrize(("every", "momentum"), [(2, 0.0), (4, 0.5), (3, 0.5)])
def test_accumulated_steps_as_in_keras(every: int, momentum: float, tf: Any) -> None:
    """The optimizer runs only when an update is due; a mean of three numbers is rounded."""
    sgd = pytest.importorskip("keras").optimizers.SGD
    own, expected = ([tf.Variable(leaf) for leaf in whole(9).values()] for _ in range(2))
    optimizer, other = (sgd(0.25, momentum, gradient_accumulation_steps=steps) for steps in (None, every))
    tx = gx.accumulate(gx.identity(), every)
    state = tx.init(tensors("tensorflow", whole(9)))
    for seed in range(2 * every + 1):
        grads = tensors("tensorflow", whole(seed))
        updates, state = tx.update(grads, state)
        if gx.has_updated(state):
            optimizer.apply_gradients(zip(updates, own, strict=True))
        other.apply_gradients(zip(grads, expected, strict=True))
        # Two updates, each with a mean, a velocity and a difference, in ULP of a parameter near 6.
        assert apart(named(own), named(expected), dict.fromkeys(named(own), 6.0)) <= (2 if every == 3 else 0)


def in_torch(tx: Any, steps: Sequence[Any]) -> Any:
    """The updates of each step, with the gradients as tensors."""
    state = tx.init(tensors("torch", steps[0]))
    for leaves in steps:
        updates, state = tx.update(tensors("torch", leaves), state)
        yield updates, tensors("torch", leaves)


@pytest.mark.parametrize(("decay", "amplitude"), [(0.98, 2.0), (0.5, 0.25), (0.0, 1.0)])
def test_slow_gradients_as_in_grokfast(decay: float, amplitude: float, torch: Any) -> None:
    """The filter as its authors published it: the average starts with the first gradient and has the current one."""
    average: Any = None
    for got, leaves in in_torch(gx.grokfast(decay, amplitude), spiky(np.float64, 1.0)):
        average = leaves if average is None else average
        average = [m * decay + leaf * (1 - decay) for m, leaf in zip(average, leaves, strict=True)]
        wanted = [leaf + m * amplitude for leaf, m in zip(leaves, average, strict=True)]
        for own, leaf, other in zip(got, leaves, wanted, strict=True):
            most = 8 * np.spacing(float((other.abs() + leaf.abs()).max()))
            np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=0, atol=most)


def spiky(dtype: Any, size: float) -> list[list[Any]]:
    """Gradients with some much larger steps and one zero step."""
    rng = np.random.default_rng(4)
    scales = [1, 1.3, 0.7, 1.1, 9, 1, 0.2, 30, 1.2, 0, 0.9, 1.4, 2, 1]
    return [[np.asarray(rng.standard_normal(s) * scale * size, dtype) for s in ((8, 5), (40,))] for scale in scales]


@pytest.mark.parametrize(("percentile", "window"), [(10, 1000), (50, 5), (75.5, 4), (100, 1000), (0, 3)])
def test_percentiles_as_autoclip(percentile: float, window: int, torch: Any) -> None:
    """Norms are so large that clip_grad_norm_'s 1e-6 does not matter."""
    history = []
    for got, leaves in in_torch(gx.clip_percentile(percentile, window), spiky(np.float32, 1e4)):
        parameters = [torch.nn.Parameter(torch.zeros_like(leaf)) for leaf in leaves]
        for parameter, leaf in zip(parameters, leaves, strict=True):
            parameter.grad = leaf
        history.append(float(torch.nn.utils.get_total_norm(leaves)))
        torch.nn.utils.clip_grad_norm_(parameters, float(np.percentile(history[-window:], percentile)))
        assert farthest(named(got), named([parameter.grad for parameter in parameters])) <= NORM


@pytest.mark.parametrize(("threshold", "decay", "warmup"), [(2.5, 0.97, 4), (1.0, 0.5, 3), (2.0, 0.9, 2)])
def test_spikes_as_zclip(threshold: float, decay: float, warmup: int, torch: Any) -> None:
    """The paper's formulas, in float64, on float64 gradients, whose statistics are float64 too.

    With a warmup of one the first deviation is zero, and everything above the mean is a spike, for any z.
    """
    first, mean, variance = [], 0.0, 0.0
    for got, leaves in in_torch(gx.clip_zscore(threshold, decay, warmup), spiky(np.float64, 1.0)):
        limit = norm = float(torch.nn.utils.get_total_norm(leaves))
        if len(first) < warmup:
            first.append(norm)
            mean, variance = float(np.mean(first)), float(np.var(first))
        else:
            deviation = variance**0.5
            z = (norm - mean) / deviation if deviation else INF * (norm - mean)
            if z > threshold:
                limit = mean + threshold**2 / z * deviation
            mean = decay * mean + (1 - decay) * limit
            variance = decay * variance + (1 - decay) * (limit - mean) ** 2
        wanted = [leaf * (limit / norm if norm else 1.0) for leaf in leaves]
        # A limit has about ten roundings; rounding in the statistics decays.
        assert farthest(named(got), named(wanted)) <= 8


@pytest.mark.parametrize(
    ("ratio", "decay", "warmup", "c"), [(1.05, 0.98, 100, 1.0), (1.05, 0.98, 4, 1.0), (1.5, 0.5, 2, 9.0)]
)
def test_norms_of_gradients_as_adagc(ratio: float, decay: float, warmup: int, c: float, torch: Any) -> None:
    """The paper's algorithm: a global clip and the smallest norm, then each norm beside its own average."""
    averages: list[float] = []
    steps = [step for step in spiky(np.float64, 1.0) if step[0].any()]  # a zero norm would stay the smallest
    for count, (got, leaves) in enumerate(in_torch(gx.clip_adagc(ratio, decay, warmup=warmup, max_norm=c), steps)):
        if count < warmup:
            share = min(c / float(torch.nn.utils.get_total_norm(leaves)), 1.0)
            wanted = [leaf * share for leaf in leaves]
            norms = [float(leaf.norm()) for leaf in wanted]
            averages = norms if not count else list(map(min, averages, norms))
        else:
            limits = [min(ratio * a / float(leaf.norm()), 1.0) for a, leaf in zip(averages, leaves, strict=True)]
            wanted = [leaf * share for leaf, share in zip(leaves, limits, strict=True)]
            averages = [decay * a + (1 - decay) * float(x.norm()) for a, x in zip(averages, wanted, strict=True)]
        assert farthest(named(got), named(wanted)) <= 8


@pytest.mark.parametrize(("threshold", "decay", "warmup"), [(5000.0, 0.999, 20), (4.0, 0.9, 3), (1.0, 0.5, 1)])
def test_spikes_of_elements_as_spam(threshold: float, decay: float, warmup: int, torch: Any) -> None:
    """The paper's formula with the second moment of Adam: not debiased, of the step before, of the limited elements."""
    steps = [step for _ in range(3) for step in spiky(np.float64, 1.0)]
    steps[-2][0][3, 1] *= 1e6
    moments, clipped = [torch.zeros_like(leaf) for leaf in tensors("torch", steps[0])], 0
    for count, (got, leaves) in enumerate(in_torch(gx.clip_spikes(threshold, decay, warmup=warmup), steps)):
        wanted = []
        for leaf, moment in zip(leaves, moments, strict=True):
            spike = (leaf**2 > threshold * moment) & (count >= warmup)
            new = torch.where(spike, leaf.sign() * torch.sqrt(threshold * moment), leaf)
            moment.mul_(decay).addcmul_(new, new, value=1 - decay)
            clipped += int(spike.sum())
            wanted.append(new)
        assert farthest(named(got), named(wanted)) <= 16  # the authors round squares, and 1 - decay
    assert clipped > 0


@pytest.mark.parametrize("lr", [0.1, 1.0])
def test_scaled_signs_with_error_feedback(lr: float, torch: Any) -> None:
    """EF-signSGD, algorithm 1 of Karimireddy et al.: the sign, scaled by the mean size of each gradient."""
    compress = gx.elementwise(lambda p: gx.xp(p).sign(p) * gx.xp(p).abs(p).mean())
    errors: Any = None
    for got, leaves in in_torch(gx.chain(gx.scale(lr), gx.error_feedback(compress)), spiky(np.float64, 1.0)):
        errors = errors or [torch.zeros_like(leaf) for leaf in leaves]
        corrected = [lr * leaf + error for leaf, error in zip(leaves, errors, strict=True)]
        wanted = [p.sign() * p.norm(p=1) / p.numel() for p in corrected]
        errors = [p - delta for p, delta in zip(corrected, wanted, strict=True)]
        for own, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=1e-13)


@pytest.mark.parametrize(("nesterov", "weight_decay"), [(False, 0.0), (True, 0.0), (False, 0.25)])
@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_momentum_as_in_torch(decay: float, nesterov: bool, weight_decay: float, torch: Any) -> None:
    """The parameters under torch.optim.SGD; exact for integers and a decay of one half."""
    expected = list(map(torch.nn.Parameter, tensors("torch", whole(9))))
    optimizer = torch.optim.SGD(expected, 0.25, momentum=decay, nesterov=nesterov, weight_decay=weight_decay)
    tx = gx.chain(gx.add_decayed_weights(weight_decay), gx.trace(decay, nesterov=nesterov), gx.scale(-0.25))
    own = tensors("torch", whole(9))
    state = tx.init(own)
    for seed in range(4):
        updates, state = tx.update(tensors("torch", whole(seed)), state, own)
        own = [parameter + update for parameter, update in zip(own, updates, strict=True)]
        for parameter, grad in zip(expected, tensors("torch", whole(seed)), strict=True):
            parameter.grad = grad
        optimizer.step()
        # Terms up to 6 * (1 + d + ...) in a parameter of that size: one rounding per step.
        far = apart(named(own), named(expected), dict.fromkeys(named(own), 8.0))
        assert far <= (0 if decay == 0.5 else 1.5 * (seed + 1))


def test_centralized_as_in_torch(torch: Any) -> None:
    for tree, budget in ((whole(3), 0.0), (ordinary(3), 1.5)):
        for leaf in tensors("torch", tree):
            expected = leaf - leaf.mean(dim=tuple(range(1, leaf.ndim)), keepdim=True) if leaf.ndim > 1 else leaf
            got, default = gx.centralize(axes="torch")(leaf), gx.centralize()(leaf)
            assert apart(named([got]), named([expected]), {"0": 2 * leaf.abs().max().item()}) <= budget
            assert torch.equal(got, default)


@pytest.mark.parametrize("clipping", [0.01, 0.3, 1e6])
def test_adaptive_clips_as_in_timm(clipping: float, torch: Any) -> None:
    """timm's `adaptive_clip_grad`: norms over all axes except the first, parameter norms at least eps."""

    def unit_norm(x: Any) -> Any:
        return x.norm(2.0) if x.ndim <= 1 else x.norm(2.0, dim=tuple(range(1, x.ndim)), keepdim=True)

    tx = gx.clip_adaptive(clipping, axes="torch")
    zeros = CORNERS["zeros"]
    for tree, params in ((ordinary(1), ordinary(9)), (ordinary(2), zeros), (zeros, whole(9)), (CORNERS["NaN"], zeros)):
        for grad, param in zip(tensors("torch", tree), tensors("torch", params), strict=True):
            most, norm = unit_norm(param).clamp(min=1e-3) * clipping, unit_norm(grad)
            expected = torch.where(norm < most, grad, grad * (most / norm.clamp(min=1e-6)))
            assert max_ulp(tx(grad, params=param).numpy(), expected.numpy()) <= NORM


def surgery(tasks: Sequence[Any], orders: Sequence[Sequence[int]]) -> Any:
    """The paper's algorithm in float64, with a given order of tasks."""
    wide = [np.concatenate([np.float64(leaf).ravel() for leaf in task]) for task in tasks]
    total = np.zeros_like(wide[0])
    for own, order in zip(wide, orders, strict=True):
        for j in order:
            if (dot := own @ wide[j]) < 0:
                own = own - dot / (wide[j] @ wide[j]) * wide[j]
        total += own
    return total


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_gradient_surgery_as_in_the_paper(count: int, framework: str) -> None:
    """Two tasks have one result. Three tasks have eight possible ones, and each occurs for some seed."""
    rng, backend, drawn = np.random.default_rng(1), lookup.backend(framework), set()
    tasks = [[np.float32(rng.standard_normal((2, 2))), np.float32(rng.standard_normal(1))] for _ in range(count)]
    nothing = [*tasks[1:], [np.zeros_like(leaf) for leaf in tasks[0]]]
    for some in (nothing, tasks):
        orders = [itertools.permutations([j for j in range(count) if j != i]) for i in range(count)]
        allowed = [surgery(some, choice) for choice in itertools.product(*orders)]
        unit = np.spacing(np.float32(sum(np.max(np.abs(leaf)) for task in some for leaf in task)))
        drawn.clear()
        for seed in range(64 if framework == "numpy" else 3):
            out = gx.pcgrad([tensors(framework, task) for task in some], seed=seed)
            got = np.concatenate([backend.to_numpy(leaf).ravel() for leaf in out])
            far = [np.max(np.abs(got - right)) / unit for right in allowed]
            assert min(far) <= 0.5
            drawn.add(int(np.argmin(far)))
    assert len(drawn) == (1 if count < 3 else 8) or framework != "numpy"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_means_as_in_numpy(framework: str) -> None:
    """NumPy's mean in float64, rounded once."""
    backend, trees = lookup.backend(framework), [ordinary(seed) for seed in range(5)]
    for some in (trees, [*trees, CORNERS["NaN"]], [*trees, CORNERS["inf"]]):
        out = gx.mean([{name: backend.from_numpy(leaf) for name, leaf in tree.items()} for tree in some])
        for name in SHAPES:
            wanted = np.mean(np.stack([tree[name] for tree in some]), axis=0, dtype=np.float64)
            assert max_ulp(backend.to_numpy(out[name]), wanted.astype(np.float32)) == 0
