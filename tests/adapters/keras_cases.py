"""gradxform in Keras 3, on the backend named by KERAS_BACKEND; test_keras.py runs these in one process per backend."""

from __future__ import annotations

import collections
import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support import assert_ulp, bits, one_sentence

import gradxform as gx

# NumPy warns because Keras reads its variables this way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:keras.wrap.* cannot be saved with the model:UserWarning"),
]

BACKEND = keras.backend.backend()
opt = keras.optimizers
G = [np.float32([[3.0, -4.0], [0.5, 2.0]]), np.float32([6.0, -1.0])]
PATHS = ["dense/kernel", "dense/bias"]


def tensors(arrays: Any) -> list[Any]:
    return [None if array is None else keras.ops.convert_to_tensor(array) for array in arrays]


def variables(values: Any = None) -> list[Any]:
    """Variables with the paths of a dense layer."""
    given = [np.zeros_like(g) for g in G] if values is None else values
    with keras.name_scope("dense"):
        return [keras.Variable(value, name=path[6:]) for value, path in zip(given, PATHS, strict=True)]


def steps(optimizer: Any, gradients: Any, given: Any = None) -> list[np.ndarray]:
    """Train variables for some steps."""
    made = variables() if given is None else given
    for gradient in gradients:
        if BACKEND == "jax" and isinstance(optimizer, opt.LossScaleOptimizer):  # its apply leaks tracers in JAX
            _apply_statelessly(optimizer, tensors(gradient), made)
        else:
            optimizer.apply(tensors(gradient), made)
    return list(map(keras.ops.convert_to_numpy, made))


def _apply_statelessly(optimizer: Any, gradient: Any, made: Any) -> None:
    if not optimizer.built:
        optimizer.build(made)
    weights, held = optimizer.stateless_apply([v.value for v in optimizer.variables], gradient, [v.value for v in made])
    for variable, value in zip([*made, *optimizer.variables], [*weights, *held], strict=True):
        variable.assign(value)


def many(count: int, seed: int = 0) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=g.shape).astype(np.float32) * 5 for g in G] for _ in range(count)]


def in_order(by_path: dict[str, Any]) -> list[Any]:
    """The contents of a state by path, in the order of the variables."""
    return [by_path[path] for path in PATHS]


def starts() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=g.shape).astype(np.float32) for g in G]


@keras.saving.register_keras_serializable("tests")
class Custom(opt.Optimizer):
    """A custom optimizer with an option and a step."""

    def __init__(self, learning_rate: float = 1.0, power: float = 1.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.power = power

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_sub(variable, keras.ops.sign(gradient) * keras.ops.abs(gradient) ** self.power * learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "power": self.power}


# --- it is the optimizer, but for the transformation ---------------------------------------------------------------

NAMES = sorted(
    name
    for name, value in vars(opt).items()
    if isinstance(value, type)
    and issubclass(value, opt.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight decay, averages": {"weight_decay": 0.1, "use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    "accumulation": {"gradient_accumulation_steps": 2},
    "loss scale": {"loss_scale_factor": 8.0},
    "Keras's clip": {"global_clipnorm": 1.5},
}
MAKE: dict[str, Callable[[], Any]] = {
    "SGD, momentum": lambda: opt.SGD(0.1, momentum=0.9),
    "SGD, a function": lambda: opt.SGD(lambda: 0.25),
    "SGD, a schedule": lambda: opt.SGD(opt.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "LossScaleOptimizer": lambda: opt.LossScaleOptimizer(opt.Adam(0.1), dynamic_growth_steps=2),
    **{name: functools.partial(getattr(opt, name), learning_rate=0.1) for name in NAMES},
    **{f"SGD, {name}": functools.partial(opt.SGD, learning_rate=0.1, **options) for name, options in OPTIONS.items()},
    **{f"Adam, {name}": functools.partial(opt.Adam, learning_rate=0.1, **options) for name, options in OPTIONS.items()},
}


def test_there_are_optimizers() -> None:
    assert {"SGD", "Adam", "AdamW", "RMSprop", "Lion", "Nadam", "Adafactor"} <= set(NAMES)


@pytest.mark.parametrize("name", MAKE)
def test_the_identity_changes_no_bit(name: str) -> None:
    gradients = many(5)
    plain = steps(MAKE[name](), gradients, variables(starts()))
    wrapped = steps(gx.keras.wrap(MAKE[name](), gx.identity()), gradients, variables(starts()))
    assert bits(plain) == bits(wrapped)
    assert bits(plain) != bits(starts())


@pytest.mark.parametrize("name", MAKE)
def test_frozen_variables_stay_bit_by_bit_and_the_others_move_as_if_alone(name: str) -> None:
    gradients = many(5)
    tx = gx.chain(gx.freeze("**/kernel"), gx.trace(0.5))
    kernel, bias = steps(gx.keras.wrap(MAKE[name](), tx), gradients, variables(starts()))
    assert kernel.tobytes() == starts()[0].tobytes()
    alone = gx.keras.wrap(MAKE[name](), gx.trace(0.5))
    if "Keras's clip" in name:  # runs first and sees all gradients
        return
    (moved,) = steps(alone, [g[1:] for g in gradients], variables(starts())[1:])
    assert bias.tobytes() == moved.tobytes()
    assert bias.tobytes() != starts()[1].tobytes()


def test_averages_of_frozen_weights_do_not_move_them() -> None:
    tx = gx.freeze("**/kernel")
    optimizer = gx.keras.wrap(opt.SGD(0.1, use_ema=True, ema_momentum=0.123), tx)
    given = variables(starts())
    steps(optimizer, many(9), given)
    optimizer.finalize_variable_values(given)
    assert bits(given[:1]) == bits(starts()[:1])


def test_options_and_class_are_the_optimizers_own() -> None:
    optimizer = gx.keras.wrap(opt.AdamW(0.25, weight_decay=0.5, beta_1=0.75, name="mine"), gx.clip_value(1.0))
    assert isinstance(optimizer, opt.AdamW)
    assert (optimizer.weight_decay, optimizer.beta_1, optimizer.name) == (0.5, 0.75, "mine")
    assert float(optimizer.learning_rate) == 0.25
    optimizer.learning_rate = 0.125
    assert float(optimizer.learning_rate) == 0.125
    assert optimizer.gradient_transformation == gx.clip_value(1.0)


def test_a_wrapped_optimizer_says_what_is_in_what() -> None:
    assert repr(gx.keras.wrap(keras.optimizers.SGD(1.0), CLIP)) == f"<keras.wrap: {CLIP!r} in SGD>"


def test_the_given_optimizer_is_left_as_it_is() -> None:
    plain = opt.SGD(1.0)
    wrapped = gx.keras.wrap(plain, gx.stop())
    assert type(plain).__name__ == "SGD"
    assert_ulp(steps(plain, [G]), [-g for g in G], ulp=0)
    assert int(wrapped.iterations) == 0


def test_an_optimizer_by_its_name() -> None:
    assert isinstance(gx.keras.wrap("adam", gx.clip_norm(1.0)), opt.Adam)


def test_an_optimizer_that_is_built_goes_on() -> None:
    gradients = many(6)
    whole, given = opt.Adam(0.1), variables(starts())
    steps(whole, gradients, given)
    half, other = opt.Adam(0.1), variables(starts())
    steps(half, gradients[:3], other)
    steps(gx.keras.wrap(half, gx.identity()), gradients[3:], other)
    assert bits(given) == bits(other)


# --- what the transformation sees ------------------------------------------------------------------------------------

CLIP = gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0))


def test_what_is_applied_is_the_transformed_gradient() -> None:
    assert_ulp(steps(gx.keras.wrap(opt.SGD(1.0), CLIP), [G]), [-g for g in CLIP(G)])


def test_the_paths_are_those_of_the_variables() -> None:
    seen: list[str] = []
    tx = gx.masked(gx.identity(), lambda path, leaf: bool(seen.append(path)))
    steps(gx.keras.wrap(opt.SGD(1.0), tx), [G])
    assert sorted(seen) == sorted(PATHS)


def test_loss_scaling_by_a_factor_comes_first() -> None:
    optimizer = gx.keras.wrap(opt.SGD(1.0, loss_scale_factor=1024.0), CLIP)
    assert float(optimizer.scale_loss(1.0)) == 1024.0
    assert_ulp(steps(optimizer, [[g * 1024 for g in G]]), [-g for g in CLIP(G)])


@pytest.mark.parametrize("outside", [True, False])
def test_with_a_loss_scale_optimizer_the_chain_sees_unscaled_gradients(outside: bool) -> None:
    if outside:
        optimizer = opt.LossScaleOptimizer(gx.keras.wrap(opt.SGD(1.0), CLIP), initial_scale=1024.0)
    else:
        optimizer = gx.keras.wrap(opt.LossScaleOptimizer(opt.SGD(1.0), initial_scale=1024.0), CLIP)
    assert type(optimizer) is opt.LossScaleOptimizer
    assert float(optimizer.scale_loss(1.0)) == 1024.0
    assert_ulp(steps(optimizer, [[g * 1024 for g in G]]), [-g for g in CLIP(G)])


def test_a_step_that_loss_scaling_skips_changes_no_state() -> None:
    optimizer = gx.keras.wrap(opt.LossScaleOptimizer(opt.SGD(1.0), initial_scale=4.0), gx.trace(0.5))
    given = variables()
    steps(optimizer, [[g * 4 for g in G]], given)
    before = bits(given), bits(in_order(optimizer.inner_optimizer.gradient_transformation_state.trace))
    steps(optimizer, [[g * np.float32(np.inf) for g in G]], given)
    assert before == (bits(given), bits(in_order(optimizer.inner_optimizer.gradient_transformation_state.trace)))
    assert float(optimizer.dynamic_scale) == 2.0


def test_a_built_loss_scale_optimizer_keeps_its_scale() -> None:
    optimizer, given = opt.LossScaleOptimizer(opt.SGD(1.0), initial_scale=4.0), variables()
    steps(optimizer, [[g * np.float32(np.nan) for g in G]], given)
    assert float(gx.keras.wrap(optimizer, CLIP).dynamic_scale) == 2.0


def test_the_chain_sees_the_mean_of_accumulated_gradients() -> None:
    (one, two), tx = many(2), gx.chain(gx.clip_global_norm(1.0), gx.trace(1.0))
    optimizer, given = gx.keras.wrap(opt.SGD(1.0, gradient_accumulation_steps=2), tx), variables()
    steps(optimizer, [one], given)
    assert not any(np.any(keras.ops.convert_to_numpy(v)) for v in given)
    assert not any(np.any(np.asarray(leaf)) for leaf in optimizer.gradient_transformation_state[1].trace.values())
    found = steps(optimizer, [two], given)
    wanted = gx.clip_global_norm(1.0)([(a + b) / 2 for a, b in zip(one, two, strict=True)])
    assert_ulp(found, [-g for g in wanted])


def test_keras_s_own_clip_comes_first() -> None:
    found = steps(gx.keras.wrap(opt.SGD(1.0, clipvalue=2.0), gx.scale(2.0)), [G])
    assert_ulp(found, [-2 * np.clip(g, -2.0, 2.0) for g in G], ulp=0)


def test_parameters_are_there_for_those_that_need_them() -> None:
    tx = gx.chain(gx.clip_adaptive(0.01, axes=0), gx.add_decayed_weights(0.5))
    found = steps(gx.keras.wrap(opt.SGD(1.0), tx), [G], variables(starts()))
    wanted = [p - u for p, u in zip(starts(), tx.update(G, tx.init(G), starts())[0], strict=True)]
    assert_ulp(found, wanted)


STATEFUL = {
    "trace": gx.trace(0.9),
    "ema of some": gx.chain(gx.masked(gx.ema(0.9), "**/bias"), gx.scale(0.5)),
    "partition": gx.partition({"**/bias": gx.trace(0.5)}, default=gx.ema(0.5)),
    "skip_nonfinite": gx.skip_nonfinite(gx.ema(0.5)),
    "accumulate": gx.accumulate(gx.trace(0.5), every=2),
    "percentile": gx.clip_percentile(50.0, window=3),
    "z-score": gx.clip_zscore(2.0),
    "a schedule": gx.clip_global_norm(lambda step: 1.0 / (1.0 + step)),
    "noise": gx.add_noise(0.1, seed=3),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_moves_on_as_numpys_does(name: str) -> None:
    tx, gradients = STATEFUL[name], many(5)
    if name == "skip_nonfinite":
        gradients[2][0][0, 0] = np.nan
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), tx), variables()
    state = tx.init({"dense": {"bias": np.zeros_like(G[1]), "kernel": np.zeros_like(G[0])}})
    for kernel, bias in gradients:
        for variable in given:
            variable.assign(np.zeros(variable.shape, np.float32))
        updates, state = tx.update({"dense": {"bias": bias, "kernel": kernel}}, state)
        wanted = [-updates["dense"]["kernel"], -updates["dense"]["bias"]]
        assert_ulp(steps(optimizer, [[kernel, bias]], given), wanted)


def test_noise_is_that_of_another_model_of_the_same_layers() -> None:
    found = []
    for _ in range(2):  # the second name is "sequential_1" or higher
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(3, name="out")])
        before = [np.array(weight) for weight in model.get_weights()]
        zeros = [np.zeros(weight.shape, np.float32) for weight in before]
        steps(gx.keras.wrap(opt.SGD(1.0), gx.add_noise(0.1, seed=3)), [zeros], model.trainable_variables)
        found.append([after - start for after, start in zip(model.get_weights(), before, strict=True)])
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)  # the initial weights differ
        assert np.any(first)


LOSS_SCALED: dict[str, Callable[[Any], Any]] = {
    "plain": lambda tx: gx.keras.wrap(opt.SGD(1.0, loss_scale_factor=4.0), tx),
    "outside": lambda tx: opt.LossScaleOptimizer(gx.keras.wrap(opt.SGD(1.0), tx), initial_scale=4.0),
    "inside": lambda tx: gx.keras.wrap(opt.LossScaleOptimizer(opt.SGD(1.0), initial_scale=4.0), tx),
}


@pytest.mark.parametrize("where", LOSS_SCALED)
def test_what_the_optimizer_measured_and_whether_it_was_applied(where: str) -> None:
    optimizer = LOSS_SCALED[where](gx.chain(gx.measure(gx.clip_global_norm(1.0)), gx.accumulate(gx.identity(), 2)))
    given = variables()
    for wanted in (False, True):
        steps(optimizer, [[g * 4 for g in G]], given)
        measured = {name: float(value) for name, value in gx.metrics(optimizer).items()}
        assert measured["clip_global_norm/norm_before"] == pytest.approx(float(gx.global_norm(G)), rel=1e-6)
        assert measured["clip_global_norm/norm_after"] == pytest.approx(1.0, rel=1e-6)
        assert bool(gx.has_updated(optimizer)) is wanted


def test_a_measured_transform_may_have_any_name() -> None:
    """TensorFlow refuses variables with a space or an asterisk in their names."""
    tx = gx.chain(gx.measure(gx.identity(), "no clip"), gx.measure(gx.masked(gx.scale(2.0), "**/bias")))
    model = network()
    model.compile(gx.keras.wrap(opt.SGD(1.0), tx), loss="mse")
    x, y = digits()
    model.fit(x, y, batch_size=len(x), epochs=1, verbose=0)
    assert float(gx.metrics(model.optimizer)["no clip/norm_before"]) > 0


CHOOSING_NOTHING = {
    "z-score": gx.clip_zscore(1.0, 0.9, 2, per_leaf=True),
    "percentile": gx.clip_percentile(50.0, 3, per_leaf=True),
    "trace": gx.trace(0.5),
    "accumulate": gx.accumulate(gx.trace(0.5), 2),
    "noise": gx.add_noise(0.1, 3),
}


@pytest.mark.parametrize("name", CHOOSING_NOTHING)
def test_a_transform_that_chose_nothing(name: str) -> None:
    tx = gx.masked(CHOOSING_NOTHING[name], lambda path, leaf: False)
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), tx), variables()
    for count in (1, 2, 3):
        assert_ulp(steps(optimizer, [G], given), [-count * g for g in G], ulp=0)
        kept = gx.to_numpy(optimizer.gradient_transformation_state)
        optimizer.gradient_transformation_state = kept  # Keras wraps it in its own containers
        assert bits(gx.to_numpy(optimizer.gradient_transformation_state)) == bits(kept)


@pytest.mark.parametrize("missing", [0, 1])
def test_missing_gradients(missing: int) -> None:
    tx = gx.chain(gx.trace(0.5), gx.clip_global_norm(1.0))
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), tx), variables()
    some = [None if i == missing else g for i, g in enumerate(G)]
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        found = steps(optimizer, [some], given)
    assert [bool(v.any()) for v in found] == [g is not None for g in some]
    steps(optimizer, [G], given)
    state = tx.init(G)
    for gradients in (some, G):
        _, state = tx.update(gradients, state)
    assert_ulp(in_order(optimizer.gradient_transformation_state[0].trace), state[0].trace, ulp=0)


def test_the_state_can_be_set_to_one_from_elsewhere() -> None:
    tx, tree = gx.chain(gx.clip_norm(3.0), gx.trace(0.5)), dict(zip(PATHS, G, strict=True))
    _, state = tx.update(tree, tx.init(tree))
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), tx), variables()
    with pytest.raises(ValueError, match=r"no state yet; call optimizer\.build"):
        optimizer.gradient_transformation_state = state
    optimizer.build(given)
    optimizer.gradient_transformation_state = gx.to_numpy(state)
    assert_ulp(steps(optimizer, [G], given), [-g for g in tx.update(tree, state)[0].values()])
    with pytest.raises(ValueError, match=r"keras\.wrap: the state lacks '1/trace/dense/bias'"):
        optimizer.gradient_transformation_state = ()


def test_built_twice_it_has_its_variables_once() -> None:
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), gx.trace(0.5)), variables()
    steps(optimizer, [G], given)
    before, trace = len(optimizer.variables), bits(in_order(optimizer.gradient_transformation_state.trace))
    optimizer.build(given)
    assert len(optimizer.variables) == before
    assert bits(in_order(optimizer.gradient_transformation_state.trace)) == trace


def test_the_first_state_is_that_of_init() -> None:
    tx = gx.chain(gx.skip_nonfinite(gx.trace(0.5)), gx.clip_percentile(50.0, window=3))
    optimizer = gx.keras.wrap(opt.SGD(1.0), tx)
    optimizer.build(variables())
    first, wanted = optimizer.gradient_transformation_state, tx.init(G)
    assert bool(gx.has_updated(first)) is bool(gx.has_updated(wanted)) is True
    assert bits(in_order(first[0].inner.trace)) == bits(wanted[0].inner.trace)


def test_stateless_apply() -> None:
    if BACKEND != "jax":
        pytest.skip("Keras has no stateless_apply on TensorFlow, and one that writes in place on PyTorch")
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), gx.trace(0.5)), variables()
    optimizer.build(given)
    weights, held = [v.value for v in given], [v.value for v in optimizer.variables]
    for _ in range(2):
        weights, held = optimizer.stateless_apply(held, tensors(G), weights)
    assert_ulp(weights, [-2.5 * g for g in G])
    assert not any(np.any(keras.ops.convert_to_numpy(v)) for v in given)


# --- steps that are left out -----------------------------------------------------------------------------------------

CAREFUL: dict[str, Callable[..., Any]] = {
    "AdamW": functools.partial(opt.AdamW, 0.1, weight_decay=0.1),
    "SGD, averages": functools.partial(opt.SGD, 0.1, momentum=0.9, weight_decay=0.1, use_ema=True),
    "RMSprop": functools.partial(opt.RMSprop, 0.1),
}


@pytest.mark.parametrize("name", CAREFUL)
@pytest.mark.parametrize(
    "tx",
    [
        gx.skip_nonfinite(gx.identity()),
        gx.chain(gx.skip_large(gx.identity(), 100.0)),
        gx.measure(gx.chain(gx.skip_nonfinite(gx.identity()), gx.scale(1.0))),
    ],
    ids=repr,
)
def test_a_step_that_is_skipped_leaves_the_optimizer_alone(name: str, tx: Any) -> None:
    """A skipped step has no effect; zeros would still move weights by momentum and weight decay."""
    good = many(4)
    plain, given = CAREFUL[name](), variables(starts())
    wanted = steps(plain, good, given)
    bad = [[g * np.float32(np.nan) for g in G], *good[:2], [G[0] * np.float32(np.inf), G[1]], *good[2:]]
    optimizer, others = gx.keras.wrap(CAREFUL[name](), tx), variables(starts())
    assert bits(steps(optimizer, bad, others)) == bits(wanted)
    assert int(optimizer.iterations) == 4
    assert bits(list(plain.variables)) == bits(list(optimizer.variables[: len(plain.variables)]))


@pytest.mark.parametrize("name", CAREFUL)
def test_accumulation_by_the_transformation_leaves_the_optimizer_alone_in_between(name: str) -> None:
    gradients = many(6)
    pairs = [(gradients[i], gradients[i + 1]) for i in (0, 2, 4)]
    means = [[np.float32((a.astype(np.float64) + b) / 2) for a, b in zip(one, two, strict=True)] for one, two in pairs]
    wanted = steps(CAREFUL[name](), means, variables(starts()))
    optimizer, given = gx.keras.wrap(CAREFUL[name](), gx.accumulate(gx.identity(), every=2)), variables(starts())
    found = steps(optimizer, gradients, given)
    assert bits(found) == bits(wanted)
    assert int(optimizer.iterations) == 3


ACCUMULATED = gx.accumulate(gx.identity(), every=2)


@pytest.mark.parametrize(
    "tx",
    [
        gx.masked(ACCUMULATED, "**/bias"),
        gx.measure(gx.masked(ACCUMULATED, "**/bias")),
        gx.measure(gx.measure(gx.chain(gx.scale(1.0), gx.chain(gx.measure(gx.masked(ACCUMULATED, "**/bias")))))),
    ],
    ids=repr,
)
def test_what_a_masked_part_leaves_out_is_its_own_affair(tx: Any) -> None:
    kernel, bias = steps(gx.keras.wrap(opt.SGD(1.0), tx), [G, G])
    assert_ulp([kernel, bias], [-2 * G[0], -G[1]])


def test_skipped_steps_in_fit() -> None:
    x, y = digits()
    spoilt = y.copy()
    spoilt[16:32] = np.nan
    results = []
    for targets, tx in ((y, gx.identity()), (spoilt, gx.skip_nonfinite(gx.identity()))):
        model = network()
        model.compile(gx.keras.wrap(opt.AdamW(0.05, weight_decay=0.1), tx), loss="mse")
        parts = [(x[:16], targets[:16]), (x[16:32], targets[16:32]), (x[32:], targets[32:])]
        for part in parts if np.isnan(targets).any() else (parts[0], parts[2]):
            model.fit(*part, batch_size=16, epochs=1, verbose=0, shuffle=False)
        results.append(model.get_weights())
    assert bits(results[0]) == bits(results[1])


# --- options that are in no configuration ----------------------------------------------------------------------------


def test_weights_that_are_excluded_from_decay_stay_excluded() -> None:
    results = []
    for wrapped in (False, True):
        optimizer = opt.SGD(0.1, weight_decay=1.0)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        optimizer = gx.keras.wrap(optimizer, gx.identity()) if wrapped else optimizer
        results.append(bits(steps(optimizer, many(2), variables(starts()))))
    assert results[0] == results[1]


class WithFunction(Custom):
    """A custom optimizer whose config omits a function and a list."""

    def __init__(self, learning_rate: float = 1.0, fn: Any = None, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.fn, self.seen = fn, ["one"] if fn else []

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(self.fn(gradient), variable, learning_rate)


def test_an_option_that_is_not_in_the_configuration() -> None:
    plain = WithFunction(fn=lambda g: g * 2.0)
    wrapped = gx.keras.wrap(plain, gx.clip_value(2.0))
    assert list(wrapped.seen) == ["one"]
    wrapped.seen.append("two")
    assert list(plain.seen) == ["one"]
    assert_ulp(steps(wrapped, [G]), [-2 * np.clip(g, -2, 2) for g in G])


def test_a_limit_that_is_a_variable_changes_in_fit() -> None:
    limit = keras.Variable(1.0, name="limit")
    model = network()
    model.compile(gx.keras.wrap(opt.SGD(1.0), gx.clip_global_norm(limit)), loss="mse")
    x, y = digits()
    for size in (1.0, 0.125):
        limit.assign(size)
        before = model.get_weights()
        model.fit(x, y, batch_size=48, epochs=1, verbose=0, shuffle=False)
        both = zip(model.get_weights(), before, strict=True)
        moved = np.sqrt(sum(np.sum((a.astype(np.float64) - b) ** 2) for a, b in both))
        assert moved == pytest.approx(size, rel=1e-4)


def test_the_state_before_the_optimizer_is_built_and_in_memory_of_its_own() -> None:
    optimizer = gx.keras.wrap(opt.SGD(1.0), gx.trace(0.5))
    assert optimizer.gradient_transformation_state is None
    given = variables()
    steps(optimizer, [G], given)
    state = optimizer.gradient_transformation_state
    steps(optimizer, [G], given)
    assert_ulp(in_order(state.trace), G, ulp=0)


def test_a_wrapped_optimizer_is_pickled() -> None:
    import pickle

    optimizer = gx.keras.wrap(opt.Adam(0.1), CLIP)
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.gradient_transformation == CLIP
    assert type(again) is type(optimizer)


def test_an_empty_step_after_one_that_was_skipped() -> None:
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), gx.skip_nonfinite(gx.identity())), variables()
    steps(optimizer, [G, [g * np.float32(np.nan) for g in G]], given)
    optimizer.apply([], [])
    assert int(optimizer.iterations) == 1


def test_a_step_whose_gradients_are_all_frozen_does_nothing() -> None:
    optimizer, given = gx.keras.wrap(opt.Adam(0.1, weight_decay=0.5), gx.freeze("**/kernel")), variables(starts())
    optimizer.build(given)
    optimizer.apply(tensors(G[:1]), given[:1])
    assert bits(given) == bits(starts())


def test_keras_s_variables_are_leaves() -> None:
    given = variables(G)
    assert bits(gx.global_norm(given)) == bits(gx.global_norm(G))
    assert_ulp(CLIP(given), CLIP(G))
    assert len(gx.ema(0.9).init(given).ema) == 2
    assert bits(gx.on_backward(CLIP)(given)[0]) == bits(G[0])
    with pytest.raises(TypeError, match=r"symbolic.*gx.keras.GradientTransform"):
        gx.on_backward(CLIP)(keras.Input((3,)))


# --- fit, save, load -------------------------------------------------------------------------------------------------


def digits(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(48, 5)).astype(np.float32)
    return x, (x @ rng.normal(size=(5, 2)) * 10).astype(np.float32)


def network() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4, "tanh", name="a"), keras.layers.Dense(2, name="b")]
    )


def fit(model: Any, epochs: int = 1) -> Any:
    model.fit(*digits(), batch_size=16, epochs=epochs, verbose=0, shuffle=False)
    return model


CHAIN = gx.chain(gx.freeze("**/kernel"), gx.clip_global_norm(1.0), gx.trace(0.5))
SAVED: dict[str, Callable[[], Any]] = {
    "SGD": lambda: opt.SGD(0.05, momentum=0.9),
    "AdamW, accumulation": lambda: opt.AdamW(0.05, weight_decay=0.1, gradient_accumulation_steps=2),
    "LossScaleOptimizer": lambda: opt.LossScaleOptimizer(opt.Adam(0.05), initial_scale=64.0),
    "a schedule": lambda: opt.SGD(opt.schedules.ExponentialDecay(0.05, 2, 0.5)),
    "averages": lambda: opt.SGD(0.05, use_ema=True, ema_momentum=0.7),
}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("outside", [True, False])
def test_a_model_that_is_saved_goes_on_bit_by_bit(name: str, outside: bool, tmp_path: Path) -> None:
    optimizer = SAVED[name]()
    if outside and isinstance(optimizer, opt.LossScaleOptimizer):
        optimizer = opt.LossScaleOptimizer(gx.keras.wrap(optimizer.inner_optimizer, CHAIN), initial_scale=64.0)
    else:
        optimizer = gx.keras.wrap(optimizer, CHAIN)
    model = network()
    model.compile(optimizer, loss="mse")
    frozen = model.get_weights()[0].tobytes()
    fit(model)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    held = getattr(again.optimizer, "inner_optimizer", again.optimizer)
    assert held.gradient_transformation == CHAIN
    assert bits(list(again.optimizer.variables)) == bits(list(model.optimizer.variables))
    assert any(np.any(np.asarray(leaf)) for leaf in held.gradient_transformation_state[2].trace.values())
    if (BACKEND, name) != ("jax", "averages"):  # Keras cannot fit twice here: the weights are the averages
        assert bits(fit(again).get_weights()) == bits(fit(model).get_weights())
    assert model.get_weights()[0].tobytes() == frozen


def decay() -> Any:
    return opt.schedules.ExponentialDecay(1.0, 2, 0.5)


@keras.saving.register_keras_serializable("tests")
def halving(step: Any) -> Any:
    return 2.0**-step


@keras.saving.register_keras_serializable("tests")
def halved(gradient: Any) -> Any:
    return gradient * 0.5


@keras.saving.register_keras_serializable("tests")
def is_bias(path: str, _: Any) -> bool:
    return path.endswith("bias")


OBJECTS: dict[str, Callable[[], Any]] = {
    "a schedule": lambda: gx.clip_global_norm(decay()),
    "two schedules": lambda: gx.chain(gx.masked(gx.clip_norm(decay()), "**/kernel"), gx.scale(decay())),
    "in a partition": lambda: gx.partition({"**/kernel": gx.clip_norm(decay())}, default=gx.clip_norm(1.0)),
    "a registered function": lambda: gx.clip_global_norm(halving),
    "of gradients": lambda: gx.chain(gx.elementwise(halved), gx.clip_norm(1.0)),
    "where": lambda: gx.freeze(is_bias),
    "a variable": lambda: gx.clip_norm(keras.Variable(0.75, name="limit")),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_that_keras_knows_are_in_the_config(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        optimizer = gx.keras.wrap(opt.SGD(0.5), OBJECTS[name]())
    written = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    again = keras.saving.deserialize_keras_object(written)
    assert again.get_config() == optimizer.get_config()
    given = [variables(starts()) for _ in range(2)]
    results = [bits(steps(made, many(3), own)) for made, own in zip((optimizer, again), given, strict=True)]
    assert results[0] == results[1]


def test_a_model_with_limits_that_are_objects_goes_on_bit_by_bit(tmp_path: Path) -> None:
    limit = keras.Variable(1.0, name="limit")
    model = network()
    tx = gx.chain(gx.clip_norm(limit), gx.clip_global_norm(decay()), gx.trace(0.5))
    model.compile(gx.keras.wrap(opt.SGD(0.05), tx), loss="mse")
    limit.assign(0.5)
    fit(model)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    restored, clip = (tx.arguments[0][1] for _, tx in again.optimizer.gradient_transformation.arguments[:2])
    assert (float(restored), clip.get_config()) == (0.5, decay().get_config())
    restored.assign(0.125)
    limit.assign(0.125)
    assert bits(fit(again).get_weights()) == bits(fit(model).get_weights())


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"jit_compile": True}], ids=["eager", "compiled"])
def test_eager_and_compiled(how: dict[str, bool]) -> None:
    if BACKEND == "torch" and "jit_compile" in how:
        pytest.skip("Keras compiles a whole model in PyTorch, which takes its time")
    results = []
    for options in ({}, how):
        model = network()
        model.compile(gx.keras.wrap(opt.SGD(0.05), CHAIN), loss="mse", **options)
        results.append(fit(model, 2).get_weights())
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert bits(results[0]) != bits(network().get_weights())


@pytest.mark.parametrize("way", ["as it is", "XLA", "accelerator", "accelerator, XLA"])
def test_mixed_precision(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "as it is" and BACKEND == "torch":
        pytest.skip("XLA compiles nothing of PyTorch's")
    if "accelerator" in way:
        if BACKEND != "tensorflow":
            pytest.skip("only TensorFlow's kernels ask what the process sees")
        monkeypatch.setattr("gradxform_tensorflow._eager.has_only_cpus", lambda: False)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy(before)
    start = model.get_weights()
    optimizer = gx.keras.wrap(opt.SGD(1.0), gx.measure(gx.clip_global_norm(0.25)))
    model.compile(optimizer, loss="mse", jit_compile="XLA" in way)
    assert isinstance(model.optimizer, opt.LossScaleOptimizer)
    model.optimizer.initial_scale = 64.0
    x, y = digits()
    model.fit(x, y, batch_size=48, epochs=1, verbose=0, shuffle=False)
    moved = np.sqrt(
        sum(np.sum((a.astype(np.float64) - b) ** 2) for a, b in zip(model.get_weights(), start, strict=True))
    )
    assert moved == pytest.approx(0.25, rel=1e-5)
    measured = gx.metrics(model.optimizer)
    assert float(measured["clip_global_norm/norm_after"]) == pytest.approx(0.25, rel=1e-5)
    assert float(measured["clip_global_norm/norm_before"]) > 0.25


@pytest.mark.parametrize("name", SAVED)
def test_a_config_is_json_and_makes_the_optimizer_again(name: str) -> None:
    optimizer = gx.keras.wrap(SAVED[name](), CHAIN)
    written = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    again = keras.saving.deserialize_keras_object(written)
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
    given = [variables(starts()) for _ in range(2)]
    results = [bits(steps(made, many(3), own)) for made, own in zip((optimizer, again), given, strict=True)]
    assert results[0] == results[1]


def test_a_changed_learning_rate_is_in_the_config() -> None:
    optimizer = gx.keras.wrap(opt.SGD(0.5), CHAIN)
    optimizer.learning_rate = 0.25
    assert type(optimizer).from_config(optimizer.get_config()).learning_rate == 0.25


@pytest.mark.parametrize("limit", [float("inf"), 0.0, 1e-30])
def test_limits_in_a_config(limit: float) -> None:
    optimizer = gx.keras.wrap(opt.SGD(0.5), gx.clip_norm(limit))
    assert type(optimizer).from_config(optimizer.get_config()).gradient_transformation == gx.clip_norm(limit)


def test_callbacks_that_change_the_learning_rate() -> None:
    model = network()
    model.compile(gx.keras.wrap(opt.SGD(1.0), gx.clip_global_norm(0.5)), loss="mse")
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    model.fit(*digits(), epochs=2, verbose=0, callbacks=[scheduler])
    assert float(model.optimizer.learning_rate) == 0.25


def test_an_optimizer_of_ones_own() -> None:
    optimizer = gx.keras.wrap(Custom(power=2.0), gx.clip_value(2.0))
    assert optimizer.power == 2.0
    again = type(optimizer).from_config(optimizer.get_config())
    for made in (optimizer, again):
        found = steps(made, [G])
        assert_ulp(found, [-np.sign(g) * np.clip(np.abs(g), 0, 2) ** 2 for g in G])


# --- errors ----------------------------------------------------------------------------------------------------------


class Forgetful(Custom):
    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["power"]
        return config


class Demanding(Custom):
    def __init__(self, learning_rate: float, must: int, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)


def test_a_class_whose_config_does_not_give_its_options() -> None:
    assert gx.keras.wrap(Forgetful(power=2.0), CLIP).power == 2.0
    with pytest.raises(TypeError, match="Demanding cannot be rebuilt"):
        gx.keras.wrap(Demanding(1.0, must=1), CLIP)


@pytest.mark.parametrize("given", [3.0, None, opt.SGD, object()], ids=lambda given: type(given).__name__)
def test_what_is_no_optimizer(given: Any) -> None:
    with pytest.raises(TypeError, match=r"keras.wrap: optimizer must be a Keras 3 optimizer"):
        gx.keras.wrap(given, CLIP)


@pytest.mark.parametrize("given", [3.0, None, gx.clip_norm], ids=["number", "None", "factory"])
def test_what_is_no_transformation(given: Any) -> None:
    with pytest.raises(TypeError, match=r"keras.wrap: expected a transformation"):
        gx.keras.wrap(opt.SGD(), given)


def test_wrapped_already() -> None:
    wrapped = gx.keras.wrap(opt.SGD(), CLIP)
    for given in (wrapped, opt.LossScaleOptimizer(wrapped)):
        with pytest.raises(TypeError, match=r"wrapped already, with chain\(clip_norm"):
            gx.keras.wrap(given, CLIP)


def test_an_optimizer_of_optimizers() -> None:
    if not hasattr(opt, "MultiOptimizer"):
        pytest.skip("this Keras has none")
    with pytest.raises(TypeError, match="MultiOptimizer hands gradients on"):
        gx.keras.wrap(opt.MultiOptimizer(opt.OptimizerMap(opt.SGD())), CLIP)


def test_all_stopped() -> None:
    with pytest.raises(ValueError, match=r"stops the gradients of all variables.*dense/bias, dense/kernel"):
        steps(gx.keras.wrap(opt.SGD(1.0), gx.stop()), [G])


def test_a_pattern_that_matches_no_variable() -> None:
    with pytest.raises(ValueError, match=r"matches no path; the paths are 'dense/bias', 'dense/kernel'"):
        steps(gx.keras.wrap(opt.SGD(1.0), gx.freeze("head/**")), [G])


def test_a_pattern_is_checked_when_the_optimizer_is_built() -> None:
    optimizer = gx.keras.wrap(opt.SGD(1.0), gx.freeze("head/**"))
    with pytest.raises(ValueError, match=r"'head/\*\*' matches no path"):
        optimizer.build(variables())
    built = opt.SGD(1.0)
    built.build(variables())
    with pytest.raises(ValueError, match=r"'heads' matches no path"):
        gx.keras.wrap(built, gx.freeze("heads"))


def test_variables_are_chosen_by_identity() -> None:
    """Like a model's variables, and unlike limits, they do not belong to the optimizer."""
    kernel, bias = variables()
    optimizer = gx.keras.wrap(opt.SGD(1.0, momentum=0.9, weight_decay=0.1), gx.freeze([kernel]))
    before = keras.ops.convert_to_numpy(kernel)
    after = steps(optimizer, many(2), [kernel, bias])
    assert bits(after[0]) == bits(before)
    assert np.all(after[1] != 0)
    assert all(variable is not kernel for variable in optimizer.variables)
    assert repr(optimizer.gradient_transformation) == "freeze(<dense/kernel>)"
    for tx in (optimizer.gradient_transformation, gx.chain(gx.masked(gx.scale(2.0), ["dense/bias", kernel]))):
        with pytest.raises(
            ValueError, match=r"since it chooses variables\. Write their paths, such as 'encoder/kernel'; "
        ):
            gx.keras.wrap(opt.SGD(), tx).get_config()
    with pytest.raises(ValueError, match="belong to none of the variables <dense/kernel>"):
        gx.keras.wrap(opt.SGD(1.0), gx.freeze(kernel)).build(variables())


@pytest.mark.parametrize("pattern", ["net/encoder/bias", "encoder/bias", "encoder.bias", "**/encoder/bias"])
def test_the_name_of_a_model_may_be_left_out(pattern: str) -> None:
    layers = [keras.layers.Dense(2, name="encoder"), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input((2,)), *layers], name="net")
    wanted = ["net/encoder/kernel", "net/encoder/bias", "net/head/kernel", "net/head/bias"]
    assert gx.paths(model) == gx.paths(model.trainable_variables) == wanted
    model.compile(gx.keras.wrap(opt.SGD(1.0), gx.freeze(pattern)), loss="mse")
    with pytest.raises(ValueError, match="is not built and has no variables"):
        gx.paths(model.optimizer)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert [not np.any(keras.ops.convert_to_numpy(v)) for v in (layers[0].bias, layers[1].bias)] == [True, False]
    assert gx.paths(model.optimizer) == wanted
    assert gx.paths(layers[1]) == wanted[2:]


A_FUNCTION = "<function <lambda> .*Write a function with a name, decorated with @keras.saving"


class Constant(opt.schedules.LearningRateSchedule):
    """A custom schedule without get_config."""

    def __call__(self, step: Any) -> Any:
        return 1.0


Foreign = collections.namedtuple("Foreign", ["init", "update"])
NOT_SAVED = {
    "a function": (gx.elementwise(abs), "<built-in function abs>. Write a function with a name, decorated"),
    "a schedule": (gx.scale(lambda step: 1.0), A_FUNCTION),
    "a schedule without get_config": (gx.clip_norm(Constant()), ".*Constant object.*Write a function with a name"),
    "where": (gx.chain(gx.freeze(lambda path, leaf: False), gx.clip_norm(decay())), A_FUNCTION),
    "of optax": (
        gx.chain(gx.clip_norm(1.0), Foreign(dict, gx.trace(0.5).update)),
        "Foreign.*Write transforms of gradx",
    ),
    "an array": (gx.clip_norm(np.ones(())), r"array\(1\.\).*Write a number or a keras.Variable"),
}


@pytest.mark.parametrize("name", NOT_SAVED)
def test_what_cannot_be_saved_says_so_when_it_is_wrapped(name: str) -> None:
    tx, reason = NOT_SAVED[name]
    with pytest.warns(
        UserWarning, match=f"^keras.wrap: .* cannot be saved with the model, since it holds {reason}"
    ) as w:
        optimizer = gx.keras.wrap(opt.SGD(), tx)
    assert w[0].filename == __file__
    with pytest.raises(ValueError, match=f"cannot be saved with the model, since it holds {reason}"):
        optimizer.get_config()


# --- layers ----------------------------------------------------------------------------------------------------------


def one_step(layer: Any, weights: np.ndarray) -> np.ndarray:
    """Return the change of a kernel in a step of size one; its output goes through a layer and is weighted."""
    given = keras.Input((1,))
    dense = keras.layers.Dense(len(weights), use_bias=False, kernel_initializer="zeros")
    model = keras.Model(given, layer(dense(given)))
    model.compile(opt.SGD(1.0), loss=lambda y, out: keras.ops.sum(out * y, axis=-1))
    model.fit(np.ones((1, 1), np.float32), weights[None], epochs=1, verbose=0)
    return -np.asarray(dense.get_weights()[0][0])


W = np.float32([30.0, 40.0])


def test_a_layer_that_clips_what_flows_back() -> None:
    assert_ulp(one_step(gx.keras.GradientTransform(gx.clip_norm(1.0)), W), [0.6, 0.8])
    assert_ulp(one_step(gx.keras.GradientTransform("chain(clip_value(35.0), scale(0.5))"), W), [15.0, 17.5], ulp=0)


def test_a_layer_that_reverses_what_flows_back() -> None:
    assert_ulp(one_step(gx.keras.GradientReversal(), W), -W, ulp=0)
    assert_ulp(one_step(gx.keras.GradientReversal(0.25), W), -W / 4, ulp=0)


def test_the_factor_of_a_layer_changes_between_steps() -> None:
    reversal, given = gx.keras.GradientReversal(1.0), keras.Input((1,))
    dense = keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(given, reversal(dense(given)))
    model.compile(opt.SGD(1.0), loss=lambda y, out: keras.ops.sum(out * y, axis=-1))
    steps = []
    for factor in (1.0, 0.5):
        reversal.scale.assign(factor)
        before = dense.get_weights()[0].copy()
        model.fit(np.ones((1, 1), np.float32), W[None], epochs=1, verbose=0)
        steps.append(dense.get_weights()[0][0] - before[0])
    assert bits(steps) == bits([W, W / 2])


@pytest.mark.parametrize(
    "make",
    [
        lambda: gx.keras.GradientTransform(gx.clip_norm(1.0)),
        lambda: gx.keras.GradientReversal(2.0),
        lambda: gx.keras.wrap(keras.optimizers.SGD(0.1), gx.clip_norm(1.0)),
    ],
    ids=["GradientTransform", "GradientReversal", "wrap"],
)
def test_what_was_saved_under_the_first_names_is_read(make: Any) -> None:
    config = keras.saving.serialize_keras_object(make())
    package, _, name = config["registered_name"].partition(">")
    assert package != "gradxform"
    found = keras.saving.deserialize_keras_object({**config, "registered_name": f"gradxform>{name}"})
    assert found.get_config() == config["config"]
    assert repr(found.tx if name == "GradientTransform" else found).count("clip_norm(1.0)") == (
        name != "GradientReversal"
    )


@pytest.mark.parametrize("layer", [gx.keras.GradientTransform(gx.clip_norm(1.0)), gx.keras.GradientReversal(2.0)])
def test_layers_are_the_identity_forward(layer: Any) -> None:
    values = {"a": np.float32([[np.nan, -0.0, 3.0]]), "b": [np.float32([[1.0]]), np.int32([[7]])]}
    found = layer(keras.tree.map_structure(keras.ops.convert_to_tensor, values))
    assert bits(found) == bits(values)
    assert layer.compute_output_shape((None, 3)) == (None, 3)
    symbolic = layer(keras.Input((3, 4), dtype="float32"))
    assert tuple(symbolic.shape) == (None, 3, 4)


def test_layers_in_a_model_that_is_saved(tmp_path: Path) -> None:
    given = keras.Input((5,))
    body = keras.layers.Dense(4, "tanh", name="body")(given)
    body = gx.keras.GradientTransform(gx.chain(gx.clip_global_norm(0.01), gx.scale(0.5)), name="clip")(body)
    head = keras.layers.Dense(2, name="head")(body)
    domain = keras.layers.Dense(2, name="domain")(gx.keras.GradientReversal(0.25, name="reverse")(body))
    model = keras.Model(given, [head, domain])
    model.compile(opt.Adam(0.01), loss=["mse", "mse"])
    x, y = digits()
    model.fit(x, [y, y], batch_size=16, epochs=1, verbose=0, shuffle=False)
    model.get_layer("reverse").scale.assign(0.75)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_layer("clip").tx == gx.chain(gx.clip_global_norm(0.01), gx.scale(0.5))
    assert float(again.get_layer("reverse").scale) == 0.75
    for each in (model, again):
        each.fit(x, [y, y], batch_size=16, epochs=1, verbose=0, shuffle=False)
    assert bits(model.get_weights()) == bits(again.get_weights())


def test_layers_in_mixed_precision() -> None:
    layer = gx.keras.GradientReversal(0.1, dtype="mixed_float16")
    out = layer(keras.ops.ones((1, 2), "float16"))
    assert keras.backend.standardize_dtype(out.dtype) == "float16"
    assert float(layer.scale) == pytest.approx(0.1, abs=1e-8)


@pytest.mark.parametrize(
    "make", [lambda **k: gx.keras.GradientTransform(gx.scale(0.5), **k), gx.keras.GradientReversal]
)
def test_layers_change_no_dtype_whatever_the_policy(make: Any) -> None:
    layer = make(dtype="mixed_float16")
    out = layer(keras.ops.convert_to_tensor(np.float32([[1e6]])))
    assert keras.backend.standardize_dtype(out.dtype) == "float32"
    assert float(keras.ops.convert_to_numpy(out)[0, 0]) == 1e6
    assert layer(keras.Input((3,), dtype="int32")).dtype == "int32"


def test_what_a_layer_does_not_take() -> None:
    with pytest.raises(TypeError, match=r"on_backward: tx must be stateless"):
        gx.keras.GradientTransform(gx.trace(0.9))
    with pytest.raises(ValueError, match="no transform is named 'clip_nrom'"):
        gx.keras.GradientTransform("clip_nrom(1.0)")
    with pytest.raises(TypeError, match="GradientReversal: scale must be a real number"):
        gx.keras.GradientReversal("1.0")
    with pytest.raises(ValueError, match="GradientReversal: scale must not be NaN"):
        gx.keras.GradientReversal(float("nan"))
    assert float(gx.keras.GradientReversal(np.float32(0.5)).scale) == 0.5
    with pytest.warns(UserWarning, match=r"the layer 'mine'.*cannot be saved"):
        layer = gx.keras.GradientTransform(gx.elementwise(abs), name="mine")
    with pytest.raises(ValueError, match=r"the layer 'mine'.*cannot be saved"):
        layer.get_config()


def test_a_layer_whose_function_is_registered() -> None:
    layer = gx.keras.GradientTransform(gx.elementwise(halved))
    again = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
    assert again.tx == layer.tx
    assert_ulp(one_step(again, W), W / 2, ulp=0)


# --- TensorFlow ------------------------------------------------------------------------------------------------------

on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's own")


@on_tensorflow
@pytest.mark.parametrize("compiled", [False, True])
def test_sparse_gradients_of_an_embedding(compiled: bool) -> None:
    import tensorflow as tf

    optimizer = gx.keras.wrap(opt.SGD(1.0), gx.clip_norm(1.0))
    table = keras.Variable(np.zeros((4, 1), np.float32))

    def step() -> Any:
        rows = tf.IndexedSlices(tf.constant([[3.0], [3.0], [4.0]]), tf.constant([0, 0, 2]), tf.constant([4, 1]))
        optimizer.apply([rows], [table])

    optimizer.build([table])
    (tf.function(step) if compiled else step)()
    assert_ulp(table, -np.float32([[6.0], [0.0], [4.0], [0.0]]) / np.sqrt(np.float32(52)))


@on_tensorflow
def test_plain_variables_in_a_function_that_builds_the_optimizer() -> None:
    import tensorflow as tf

    w, optimizer = tf.Variable([0.0, 0.0], name="w"), gx.keras.wrap(opt.SGD(1.0), gx.trace(0.5))

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.constant([1.0, 2.0]), w)])

    step()
    step()
    assert w.numpy().tolist() == [-2.5, -5.0]


@on_tensorflow
def test_a_limit_in_a_variable_changes_without_a_retrace() -> None:
    import tensorflow as tf

    limit, traces = tf.Variable(1.0), []
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), gx.clip_global_norm(limit)), variables()
    optimizer.build(given)

    @tf.function
    def step() -> None:
        traces.append(1)
        optimizer.apply(tensors(G), given)

    for size in (1.0, 0.25):
        for variable in given:
            variable.assign(np.zeros(variable.shape))
        limit.assign(size)
        step()
        assert_ulp(given, [-g for g in gx.clip_global_norm(size)(G)])
    assert len(traces) == 1


@on_tensorflow
def test_a_checkpoint_restores_the_state(tmp_path: Path) -> None:
    import tensorflow as tf

    results = []
    for restored in (False, True):
        optimizer, given = gx.keras.wrap(opt.Adam(0.1), CHAIN_OF_STATES), variables(starts())
        optimizer.build(given)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, weights=[v.value for v in given])
        if restored:
            checkpoint.read(str(tmp_path / "half")).assert_existing_objects_matched()
        else:
            steps(optimizer, many(3), given)
            checkpoint.write(str(tmp_path / "half"))
        results.append(bits(steps(optimizer, many(3, seed=1), given)))
    assert results[0] == results[1]


CHAIN_OF_STATES = gx.chain(gx.masked(gx.trace(0.5), "**/kernel"), gx.clip_zscore(2.0))


# --- the same everywhere ---------------------------------------------------------------------------------------------


def test_write_what_other_backends_are_compared_with(request: pytest.FixtureRequest) -> None:
    """Return the weights after three steps of every stateful chain, for test_keras.py."""
    import os

    folder = os.environ.get("GRADXFORM_KERAS_OUT")
    if folder is None:
        pytest.skip("only test_keras.py asks for it")
    with warnings.catch_warnings():
        found = {
            f"{name}/{path}": array
            for name, tx in {**STATEFUL, "clip": CLIP, "frozen": CHAIN_OF_STATES}.items()
            for path, array in zip(PATHS, steps(gx.keras.wrap(opt.SGD(1.0), tx), many(1)), strict=True)
        }
    np.savez(Path(folder) / f"{BACKEND}.npz", **found)


TYPED = [
    ("gx.keras.wrap(tx, optimizer)", "write gx.keras.wrap(optimizer, tx)"),
    ("gx.keras.wrap(model, tx)", "optimizer must be a Keras 3 optimizer", "train with gx.keras.wrap(optimizer, tx)"),
    ("gx.chain(tx, optimizer)", "chain: SGD is a Keras optimizer", "write gx.keras.wrap(optimizer, tx)"),
    ("gx.chain(tx, opt.Adam)", "chain: Adam is a Keras optimizer", "write gx.keras.wrap(optimizer, tx)"),
    ("tx(model)", "this is a Keras model or layer (Sequential)", "tape.gradient(loss, model.trainable_variables)"),
    ("gx.nonfinite_paths(model.layers[0])", "this is a Keras model or layer (Dense)"),
    ("gx.clip_norm(model)", "clip_norm is made of its hyperparameters alone", "gx.clip_norm(max_norm)(gradients)"),
    ("gx.clip_global_norm(model.trainable_variables, 1.0)", "gx.clip_global_norm(1.0)(gradients)"),
    ("gx.scale(opt.schedules.ExponentialDecay)", "it is a class: make an instance of it first"),
    ("gx.scale(optimizer)", "write gx.keras.wrap(optimizer, tx)"),
]


@pytest.mark.parametrize(("typed", "words"), [(typed, words) for typed, *words in TYPED], ids=[row[0] for row in TYPED])
def test_one_sentence_says_what_to_write(typed: str, words: list[str]) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(TypeError) as caught:
        eval(typed, {"gx": gx, "opt": opt, "tx": gx.clip_norm(1.0), "model": model, "optimizer": opt.SGD(0.1)})
    one_sentence(str(caught.value), *words)
