"""gradxform in Keras 3, on the backend named by KERAS_BACKEND; test_keras.py runs these in one process per backend."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conformance
import keras
import numpy as np
import pytest
from conformance import Driver, Leaves, assembled
from support import GRAPHS, XLA, array, assert_ulp, bits, run_advice, slow

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
    return [
        keras.ops.convert_to_tensor(given) if isinstance(given, np.ndarray | np.generic) else given for given in arrays
    ]


def variables(values: Any = None) -> list[Any]:
    """Variables with the paths of a dense layer."""
    given = [np.zeros_like(g) for g in G] if values is None else values
    with keras.name_scope("dense"):
        return [keras.Variable(value, name=path[6:]) for value, path in zip(given, PATHS, strict=True)]


def steps(optimizer: Any, gradients: Any, given: Any = None) -> list[np.ndarray]:
    """Train variables for some steps."""
    made = variables() if given is None else given
    for gradient in gradients:
        apply(optimizer, tensors(gradient), made)
    return list(map(keras.ops.convert_to_numpy, made))


def apply(optimizer: Any, gradient: Any, made: Any, stateless: bool = False, **extra: Any) -> None:
    leaks = BACKEND == "jax" and isinstance(optimizer, opt.LossScaleOptimizer)  # tracers, from its apply
    if not stateless and not leaks:
        optimizer.apply(gradient, made, **extra)
        return
    if not optimizer.built:
        optimizer.build(made)
    old = ([v.value for v in own] for own in (optimizer.variables, made))
    weights, held = optimizer.stateless_apply(next(old), gradient, next(old), **extra)
    for variable, value in zip([*made, *optimizer.variables], [*weights, *held], strict=True):
        variable.assign(value)


def many(count: int, seed: int = 0) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=g.shape).astype(np.float32) * 5 for g in G] for _ in range(count)]


def starts() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=g.shape).astype(np.float32) for g in G]


# --- the suite of all adapters ---------------------------------------------------------------------------------------


class Wrap(Driver):
    """A wrapped optimizer, by itself or with loss scaling."""

    name, framework = "keras.wrap", BACKEND
    empty = none_left = ValueError
    refuses_nothing = True
    checks_first = by_identity = has_paths = True
    sparse = BACKEND == "tensorflow"
    optimizers = ("momentum", "adamw", "averages", "rmsprop")
    scales = ("factor", "outside", "inside")
    compiles_scaling = BACKEND == "jax"  # with lax.cond

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        self.variables: Leaves = {}
        for path, value in params.items():
            scope, _, name = path.rpartition("/")
            with keras.name_scope(scope) if scope else contextlib.nullcontext():
                self.variables[path] = keras.Variable(np.float32(value), dtype=value.dtype.name, name=name)
        scale = how.get("scale")
        options = {"loss_scale_factor": 1024.0} if scale == "factor" else {}
        made = {
            "sgd": functools.partial(opt.SGD, 1.0),
            "momentum": functools.partial(opt.SGD, 0.1, momentum=0.9, weight_decay=0.1),
            "adamw": functools.partial(opt.AdamW, 0.1, weight_decay=0.5),
            "averages": functools.partial(opt.SGD, 0.1, momentum=0.9, weight_decay=0.1, use_ema=True),
            "rmsprop": functools.partial(opt.RMSprop, 0.1),
        }[optimizer](**options)
        made = opt.LossScaleOptimizer(made, initial_scale=1024.0) if scale == "inside" else made
        on = "updates" if self.on_updates else "gradients"
        tx = assembled(tx, self.variables, how)
        self.optimizer = made if tx is None else gx.keras.wrap(made, tx, on=on)
        if scale == "outside":
            self.optimizer = opt.LossScaleOptimizer(self.optimizer, initial_scale=1024.0)
        self.optimizer.build(list(self.variables.values()))

    def step(self, gradients: Leaves, **loss: Any) -> None:
        factor = np.float32(keras.ops.convert_to_numpy(self.optimizer.scale_loss(1.0)))
        given = [g if g is None or factor == 1 else g * factor for g in gradients.values()]
        made = list(self.variables.values())
        given = given or self.optimizer.apply_gradients(zip((), (), strict=True))
        given = [sparse(g, v) if isinstance(g, tuple) else g for g, v in zip(given, made, strict=True)]
        given, loss = tensors(given), dict(zip(loss, tensors(loss.values()), strict=True))
        if loss and not self.on_updates:
            self.optimizer.apply_gradients(zip(given, made, strict=True), **loss)
        else:
            apply(self.optimizer, given, made, bool(loss) and BACKEND == "jax", **loss)

    def flush(self, **loss: Any) -> None:
        self.optimizer.flush(**loss)

    def read(self) -> Leaves:
        return {path: array(v).copy() for path, v in self.variables.items()}

    def assign(self, params: Leaves) -> None:
        for path, value in params.items():
            self.variables[path].assign(keras.ops.cast(np.float32(value), value.dtype.name))

    @property
    def handle(self) -> Any:
        return self.optimizer

    @property
    def state(self) -> Any:
        return getattr(self.optimizer, "inner_optimizer", self.optimizer).gradient_transformation_state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.gradient_transformation_state = state

    def save(self, folder: Path) -> None:
        stored: Leaves = {}
        self.optimizer.save_own_variables(stored)
        (folder / "run").write_bytes(pickle.dumps([self.read(), stored]))

    def load(self, folder: Path) -> None:
        params, stored = pickle.loads((folder / "run").read_bytes())
        self.assign(params)
        self.optimizer.load_own_variables(stored)


class WrapUpdates(Wrap):
    name, on_updates, sparse, none_left = "keras.wrap, on updates", True, False, None


DRIVERS = [Wrap, WrapUpdates]
AGAIN = ("transform, ", "loss scaling", "saved", "flush, ")
SAVES = "saves and loads models; one stays quick"


def sparse(given: Any, variable: Any) -> Any:
    import tensorflow as tf

    return tf.IndexedSlices(tf.constant(given[1]), tf.constant(given[0]), tf.constant(list(variable.shape)))


@slow("the same on gradients stays quick", lambda driver, case: driver.endswith("updates") and case.startswith(AGAIN))
@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
@pytest.mark.parametrize(("driver", "case"), conformance.pairs(DRIVERS))
def test_an_adapter(driver: str, case: str, tmp_path: Path) -> None:
    conformance.check(DRIVERS, driver, case, tmp_path)


@keras.saving.register_keras_serializable("tests")
class Custom(opt.Optimizer):
    """A custom optimizer with an option and a step."""

    def __init__(self, learning_rate: float = 1.0, power: float = 1.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.power = power

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_sub(variable, keras.ops.sign(gradient) * keras.ops.abs(gradient) ** self.power * learning_rate)

    def apply_gradients(self, grads_and_vars: Any, name: str | None = None) -> Any:
        return super().apply_gradients(grads_and_vars)

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
twice = pytest.mark.filterwarnings("ignore:keras.wrap. .* clips before the transform:UserWarning")
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


UNTOUCHED = gx.chain(gx.clip_norm(1e9), gx.clip_global_norm(1e9), gx.scale(1.0))


@twice
@pytest.mark.parametrize("name", MAKE)
def test_every_optimizer_keeps_what_is_within_its_limits_and_what_is_frozen(name: str) -> None:
    """Bit by bit; what is not frozen moves as without a transformation, or as if it were alone."""

    def run(tx: Any = None, on: str = "gradients", first: int = 0) -> list[np.ndarray]:
        optimizer = MAKE[name]() if tx is None else gx.keras.wrap(MAKE[name](), tx, on=on)
        return steps(optimizer, [g[first:] for g in many(5)], variables(starts())[first:])

    plain, start = run(), starts()
    assert bits(plain) != bits(start)
    assert bits(plain) == bits(run(UNTOUCHED)) == bits(run(UNTOUCHED, "updates"))
    if "averages" not in name:  # which overwrite the weights
        assert bits(run(gx.freeze("**/kernel"), "updates")) == bits([start[0], plain[1]])
    kernel, bias = run(gx.chain(gx.freeze("**/kernel"), gx.trace(0.5)))
    assert bits(kernel) == bits(start[0])
    if "Keras's clip" not in name:  # runs first and sees all gradients
        assert bits([bias]) == bits(run(gx.trace(0.5), first=1)) != bits(start[1:])


@pytest.mark.parametrize("on", ["gradients", "updates"])
def test_averages_of_frozen_weights_do_not_move_them(on: str) -> None:
    averaged = opt.SGD(0.1, use_ema=True, ema_momentum=0.123, ema_overwrite_frequency=4)
    optimizer, given = gx.keras.wrap(averaged, gx.freeze("**/kernel"), on=on), variables(starts())
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


def test_the_given_optimizer_is_left_as_it_is() -> None:
    plain = opt.SGD(1.0)
    wrapped = gx.keras.wrap(plain, gx.stop())
    assert type(plain).__name__ == "SGD" and repr(wrapped) == "<keras.wrap: stop() in SGD>"
    assert_ulp(steps(plain, [G]), [-g for g in G], ulp=0)
    assert int(wrapped.iterations) == 0


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


def test_keras_s_own_clip_and_accumulation_come_first() -> None:
    with pytest.warns(UserWarning, match="has clipvalue and clips before the transform"):
        wrapped = gx.keras.wrap(opt.SGD(1.0, clipvalue=2.0), gx.scale(2.0))
    found = steps(wrapped, [G])
    assert_ulp(found, [-2 * np.clip(g, -2.0, 2.0) for g in G], ulp=0)
    two, skips = OPTIONS["accumulation"], gx.skip_nonfinite(CLIP)
    for tx in (skips, gx.chain(CLIP, gx.accumulate(gx.identity(), 2))):
        with pytest.warns(UserWarning, match=r"gradient_accumulation_steps=None.*gx\.accumulate"):
            gx.keras.wrap(opt.SGD(1.0, **two), tx)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "keras.wrap")
        gx.keras.wrap(opt.SGD(1.0, clipvalue=2.0, **two), skips, on="updates")
        gx.keras.wrap(opt.SGD(1.0, **two), CLIP)


def test_a_measured_transform_may_have_any_name() -> None:
    """TensorFlow refuses variables with a space or an asterisk in their names."""
    tx = gx.chain(gx.measure(gx.identity(), "no clip"), gx.measure(gx.masked(gx.scale(2.0), "**/bias")))
    model = network()
    model.compile(gx.keras.wrap(opt.SGD(1.0), tx), loss="mse")
    x, y = digits()
    model.fit(x, y, batch_size=len(x), epochs=1, verbose=0)
    assert float(gx.metrics(model.optimizer)["no clip/norm_before"]) > 0


def test_built_twice_it_has_its_variables_once() -> None:
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), gx.trace(0.5)), variables()
    steps(optimizer, [G], given)
    before, trace = len(optimizer.variables), bits(optimizer.gradient_transformation_state.trace)
    optimizer.build(given)
    assert len(optimizer.variables) == before
    assert bits(optimizer.gradient_transformation_state.trace) == trace


# --- steps that are left out -----------------------------------------------------------------------------------------


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


def test_apply_gradients_of_its_class() -> None:
    gx.keras.wrap(Custom(), CLIP).apply_gradients(zip(tensors(G), variables(), strict=True), name="of its class")


def test_fit_says_how_to_give_the_loss() -> None:
    model = network()
    model.compile(gx.keras.wrap(opt.SGD(1.0), gx.skip_spikes(gx.identity(), of="loss")), loss="mse")
    with pytest.raises(ValueError, match=r"value=loss\) of gx\.keras\.wrap .*train_step"):
        model.fit(*digits(), epochs=1, verbose=0)


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
    wrapped.seen.append("two")
    assert (wrapped.seen, plain.seen) == (["one", "two"], ["one"])
    assert_ulp(steps(wrapped, [G]), [-2 * np.clip(g, -2, 2) for g in G])


HOOKS = [("on_epoch_begin", 220), ("on_epoch_end", 22), ("on_train_batch_begin", 11110), ("on_train_begin", 220)]


@pytest.mark.parametrize(("hook", "moved"), HOOKS)
def test_a_callback_changes_a_limit(hook: str, moved: int) -> None:
    """Two steps in each of two epochs, or in each of two fits."""
    limit, calls = keras.Variable(1.0, trainable=False), []

    def assign(*_: Any, **__: Any) -> None:
        calls.append(1)
        held = BACKEND == "jax" and "batch" in hook and len(calls) % 2 == 0
        with pytest.raises(RuntimeError, match=r"self\.model") if held else contextlib.nullcontext():
            _ = model.optimizer.gradient_transformation_state
        assert callback.model is model  # by which JAX's fit reads its variables again
        limit.assign(10.0 ** len(calls))

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)])
    model.compile(gx.keras.wrap(opt.SGD(1.0), gx.measure(gx.clip_global_norm(limit))), loss="mse")
    x, callback = np.ones((8, 1), np.float32), keras.callbacks.LambdaCallback(**{hook: assign})
    for _ in range(fits := 2 if hook == "on_train_begin" else 1):
        model.fit(x, 1e6 * x, batch_size=4, epochs=2 // fits, verbose=0, callbacks=[callback])
    assert float(model.get_weights()[0][0, 0]) == moved


def test_the_state_before_the_optimizer_is_built_and_in_memory_of_its_own() -> None:
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), gx.trace(0.5)), variables()
    assert optimizer.gradient_transformation_state is None
    steps(optimizer, [G], given)
    state = optimizer.gradient_transformation_state
    steps(optimizer, [G], given)
    assert_ulp([state.trace[path] for path in PATHS], G, ulp=0)


@pytest.mark.parametrize("on", ["gradients", "updates"])
def test_a_wrapped_optimizer_is_pickled(on: str) -> None:
    optimizer = gx.keras.wrap(opt.Adam(0.1), CLIP, on=on)
    assert ("on" in optimizer.get_config()) is (on == "updates")
    for again in (pickle.loads(pickle.dumps(optimizer)), opt.deserialize(opt.serialize(optimizer))):
        assert (type(again), again.gradient_transformation) == (type(optimizer), CLIP)
        assert repr(again) == repr(optimizer) and again.get_config() == optimizer.get_config()


def test_no_gradients_of_variables_are_an_error_also_after_a_skipped_step() -> None:
    optimizer, given = gx.keras.wrap(opt.SGD(1.0), gx.skip_nonfinite(gx.identity())), variables()
    for _ in range(2):
        for stateless in {False, BACKEND == "jax"}:
            with pytest.raises(ValueError, match=r"no gradients; write optimizer\.apply\(gradients, variables\)"):
                apply(optimizer, [], given, stateless)
        steps(optimizer, [G, [g * np.float32(np.nan) for g in G]], given)
    given[1].overwrite_with_gradient = True
    optimizer.apply(tensors(G[1:]), given[1:])  # as in float8; the transform has no gradient, and the step counts
    assert int(optimizer.iterations) == 3


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_a_model_without_trainable_variables_is_fit() -> None:
    model = network()
    model.trainable, before = False, bits(model.get_weights())
    model.compile(gx.keras.wrap(opt.SGD(1.0), gx.skip_nonfinite(gx.clip_norm(1.0))), loss="mse")
    assert bits(fit(model).get_weights()) == before


def test_keras_s_variables_are_leaves() -> None:
    given = variables(G)
    assert bits(gx.global_norm(given)) == bits(gx.global_norm(G))
    assert_ulp(CLIP(given), CLIP(G))
    assert_ulp(CLIP(given[1]), CLIP(G[1]))  # alone, as in a constraint
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


def decay() -> Any:
    return opt.schedules.ExponentialDecay(1.0, 2, 0.5)


LIMIT = keras.Variable(1.0, name="limit")
LIMITS = gx.chain(gx.clip_norm(LIMIT), gx.clip_global_norm(decay()), gx.trace(0.5))
OF_UPDATES = gx.chain(gx.masked(gx.trace(0.5), "**/kernel"), gx.clip_rms(0.01), gx.skip_nonfinite(gx.clip_norm(0.05)))
GOES_ON: dict[str, Callable[[], Any]] = {
    **{name: (lambda make=make: gx.keras.wrap(make(), CHAIN)) for name, make in SAVED.items()},
    "LossScaleOptimizer, outside": lambda: opt.LossScaleOptimizer(gx.keras.wrap(opt.Adam(0.05), CHAIN), 64.0),
    "limits that are objects": lambda: gx.keras.wrap(opt.SGD(0.05), LIMITS),
    "on updates": lambda: gx.keras.wrap(opt.AdamW(0.01), OF_UPDATES, on="updates"),
}


@slow(SAVES, lambda name: name != "SGD")
@pytest.mark.parametrize("name", GOES_ON)
def test_a_model_that_is_saved_goes_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    model = network()
    model.compile(GOES_ON[name](), loss="mse")
    LIMIT.assign(0.5)
    fit(model).save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    configs = [keras.saving.serialize_keras_object(each.optimizer) for each in (model, again)]
    assert configs[0] == configs[1]
    assert bits(list(again.optimizer.variables)) == bits(list(model.optimizer.variables))
    state = getattr(again.optimizer, "inner_optimizer", again.optimizer).gradient_transformation_state
    assert any(np.any(np.asarray(leaf)) for leaf in keras.tree.flatten(state))
    if (BACKEND, name) != ("jax", "averages"):  # Keras cannot fit twice here: the weights are the averages
        assert bits(fit(again).get_weights()) == bits(fit(model).get_weights())


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


CONFIGURED = [*(("a schedule", name) for name in SAVED), *((name, "SGD") for name in OBJECTS)]


@pytest.mark.parametrize(("name", "optimizer"), CONFIGURED)
def test_a_config_is_json_and_makes_the_optimizer_again(name: str, optimizer: str) -> None:
    """With objects that Keras knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        made = gx.keras.wrap(SAVED[optimizer](), OBJECTS[name]())
    written = json.loads(json.dumps(keras.saving.serialize_keras_object(made)))
    again = keras.saving.deserialize_keras_object(written)
    assert type(again) is type(made) and again.get_config() == made.get_config()
    given = [variables(starts()) for _ in range(2)]
    results = [bits(steps(wrapped, many(3), own)) for wrapped, own in zip((made, again), given, strict=True)]
    assert results[0] == results[1]


@slow(XLA, way=("XLA", "accelerator, XLA"))
@slow(GRAPHS, way="accelerator")
@pytest.mark.parametrize("way", ["as it is", "XLA", "accelerator", "accelerator, XLA"])
@pytest.mark.parametrize("on", ["gradients", "updates"])
def test_mixed_precision(on: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "as it is" and BACKEND == "torch":
        pytest.skip("XLA compiles nothing of PyTorch's")
    if "accelerator" in way:
        if BACKEND != "tensorflow":
            pytest.skip("only TensorFlow's kernels ask what the process sees")
        monkeypatch.setattr("gradxform_tensorflow.running.has_only_cpus", lambda: False)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy(before)
    start, limit = model.get_weights(), 0.25 if on == "gradients" else 0.01
    optimizer = opt.SGD(1.0) if on == "gradients" else opt.Adam(1.0)
    optimizer = gx.keras.wrap(optimizer, gx.measure(gx.clip_global_norm(limit)), on=on)
    model.compile(optimizer, loss="mse", jit_compile="XLA" in way)
    assert isinstance(model.optimizer, opt.LossScaleOptimizer)
    model.optimizer.initial_scale = 64.0
    model.fit(*digits(), batch_size=48, epochs=1, verbose=0, shuffle=False)
    moved = np.sqrt(sum(np.sum((np.float64(a) - b) ** 2) for a, b in zip(model.get_weights(), start, strict=True)))
    assert moved == pytest.approx(limit, rel=1e-5 if on == "gradients" else 1e-4)
    measured = gx.metrics(model.optimizer)
    assert float(measured["clip_global_norm/norm_after"]) == pytest.approx(limit, rel=1e-5)
    assert float(measured["clip_global_norm/norm_before"]) > limit
    if on == "updates":  # Adam's first step
        assert float(measured["clip_global_norm/norm_before"]) == pytest.approx(34**0.5, rel=1e-2)


def test_an_optimizer_of_ones_own() -> None:
    optimizer = gx.keras.wrap(Custom(power=2.0), gx.clip_value(2.0))
    assert optimizer.power == 2.0
    again = type(optimizer).from_config(optimizer.get_config())
    for made in (optimizer, again):
        found = steps(made, [G])
        assert_ulp(found, [-np.sign(g) * np.clip(np.abs(g), 0, 2) ** 2 for g in G])


# --- updates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"jit_compile": False}, {"jit_compile": True}], ids=str)
def test_unchanged_updates_change_no_bit_of_what_fit_trains(how: dict[str, bool]) -> None:
    if BACKEND == "torch" and how.get("jit_compile"):
        pytest.skip("Keras on PyTorch would need a C++ compiler")
    ends = []
    for tx in (None, UNTOUCHED):
        model = network()
        optimizer = opt.AdamW(0.01, weight_decay=0.1)
        model.compile(optimizer if tx is None else gx.keras.wrap(optimizer, tx, on="updates"), loss="mse", **how)
        ends.append(fit(model, 2).get_weights())
    if how.get("jit_compile"):  # a compiler may contract a product and a sum, in one program and not in the other
        for one, other in zip(*ends, strict=True):
            np.testing.assert_allclose(one, other, rtol=3e-6, atol=3e-7)
    else:
        assert bits(ends[0]) == bits(ends[1])


def test_accumulation_by_keras_is_one_update() -> None:
    """Between the updates nothing moves, and the state neither."""
    made = [keras.Variable(np.float32([0.0]), name="w")]
    tx = gx.chain(gx.scale(0.5), gx.ema(0.5, debias=False))
    optimizer = gx.keras.wrap(opt.SGD(1.0, gradient_accumulation_steps=2), tx, on="updates")
    seen = []
    for gradient in (1.0, 3.0, 2.0, 6.0):
        weight = steps(optimizer, [[np.float32([gradient])]], made)[0].item()
        seen.append((weight, int(optimizer.gradient_transformation_state[1].count)))
    assert [count for _, count in seen] == [0, 1, 1, 2]
    assert seen[0][0] == 0.0 and seen[1][0] == seen[2][0] == -0.5


def test_a_constraint_comes_after() -> None:
    made = [keras.Variable(np.float32([1.0, -1.0]), name="w")]
    made[0].constraint = keras.constraints.NonNeg()
    optimizer = gx.keras.wrap(opt.SGD(1.0), gx.scale(0.5), on="updates")
    assert steps(optimizer, [[np.float32([1.0, 1.0])]], made)[0].tolist() == [0.5, 0.0]


def test_an_embedding() -> None:
    """Its gradients are sparse in TensorFlow; updates are not."""
    ends = []
    for tx in (None, UNTOUCHED, gx.clip_global_norm(0.01)):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 3), keras.layers.Flatten()]
        )
        optimizer = opt.SGD(0.1)
        model.compile(optimizer if tx is None else gx.keras.wrap(optimizer, tx, on="updates"), loss="mse")
        start = model.get_weights()
        model.fit(np.int32([[0, 3]]), np.ones((1, 6), np.float32), epochs=1, verbose=0)
        ends.append(model.get_weights())
    assert bits(ends[0]) == bits(ends[1])
    np.testing.assert_allclose(np.linalg.norm(ends[2][0] - start[0]), 0.01, rtol=1e-4)


# --- errors ----------------------------------------------------------------------------------------------------------


WRONG: list[tuple[str, type[Exception], str]] = [
    ("gx.keras.wrap(tx, optimizer)", TypeError, "write gx.keras.wrap(optimizer, tx)"),
    ("gx.keras.wrap(model, tx)", TypeError, "train with gx.keras.wrap(optimizer, tx)"),
    *((f"gx.keras.wrap({given}, tx)", TypeError, "a Keras 3 opt") for given in (3.0, None, "opt.SGD", "object()")),
    *((f"gx.keras.wrap(optimizer, {given})", TypeError, "transformation") for given in (3.0, None, "gx.clip_norm")),
    ("gx.keras.wrap(gx.keras.wrap(optimizer, tx), tx)", TypeError, "wrapped already"),
    ("gx.keras.wrap(opt.LossScaleOptimizer(gx.keras.wrap(optimizer, tx)), tx)", TypeError, "wrapped already"),
    ("gx.keras.wrap(optimizer, gx.stop()).apply(gradients, variables)", ValueError, "dense/kernel, dense/bias"),
    ("optimizer.build(variables); gx.keras.wrap(optimizer, gx.freeze('heads'))", ValueError, "'heads' matches no path"),
    ("optimizer.build(variables[:1]); gx.keras.wrap(optimizer, gx.freeze('**/bias'))", ValueError, "not trainable"),
    ("gx.keras.wrap(optimizer, gx.cautious())", ValueError, "write on='updates'"),
    ("gx.keras.wrap(opt.LossScaleOptimizer(optimizer), gx.skip_spikes(tx, of='loss'))", ValueError, "of='norm'"),
    *((f"gx.keras.wrap(optimizer, tx, on={on!r})", ValueError, "'updates'") for on in ("update", None, True)),
    ("gx.keras.wrap(optimizer, gx.trace(0.5)).gradient_transformation_state = ()", ValueError, "call optimizer.build"),
    ("gx.chain(tx, optimizer)", TypeError, "write gx.keras.wrap(optimizer, tx)"),
    ("gx.chain(tx, opt.Adam)", TypeError, "write gx.keras.wrap(optimizer, tx)"),
    ("tx(model)", TypeError, "tape.gradient(loss, model.trainable_variables)"),
    ("gx.nonfinite_paths(model.layers[0])", TypeError, "a Keras model or layer"),
    ("gx.clip_norm(model)", TypeError, "tape.gradient(loss, model.trainable_variables)"),
    ("gx.clip_norm(model.trainable_variables, 1.0)", TypeError, "tx = gx.clip_norm(...), then tx(gradients)"),
    ("gx.scale(opt.schedules.ExponentialDecay)", TypeError, "make an instance of it first"),
    ("gx.scale(optimizer)", TypeError, "write gx.keras.wrap(optimizer, tx)"),
    ("gx.keras.GradientTransform(gx.trace(0.9))", TypeError, "must be stateless"),
    ("gx.keras.GradientTransform('clip_nrom(1.0)')", ValueError, "'clip_nrom'"),
    ("gx.keras.GradientReversal('1.0')", TypeError, "must be a real number"),
    ("gx.keras.GradientReversal(float('nan'))", ValueError, "must not be NaN"),
]
if hasattr(opt, "MultiOptimizer"):
    several = "gx.keras.wrap(opt.MultiOptimizer(opt.OptimizerMap(optimizer)), tx)"
    WRONG.append((several, TypeError, "MultiOptimizer hands gradients on"))


@pytest.mark.parametrize(("typed", "error", "words"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_call_says_what_to_write(typed: str, error: type[Exception], words: str) -> None:
    def names() -> dict[str, Any]:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        own = {"gx": gx, "keras": keras, "opt": opt, "tx": gx.clip_norm(1.0), "model": model, "optimizer": opt.SGD(0.1)}
        return own | {"variables": variables(), "gradients": tensors(G)}

    with pytest.raises(error, match=re.escape(words)) as caught:
        exec(typed, names())
    run_advice(str(caught.value), names)


class Demanding(Custom):
    def __init__(self, learning_rate: float, must: int, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)


def test_a_class_that_its_config_cannot_rebuild() -> None:
    with pytest.raises(TypeError, match="Demanding cannot be rebuilt"):
        gx.keras.wrap(Demanding(1.0, must=1), CLIP)


def test_variables_that_are_chosen_belong_to_no_config() -> None:
    """Like a model's variables, and unlike limits, they do not belong to the optimizer."""
    kernel, bias = variables()
    optimizer = gx.keras.wrap(opt.SGD(1.0, momentum=0.9, weight_decay=0.1), gx.freeze([kernel]))
    steps(optimizer, many(2), [kernel, bias])
    assert all(variable is not kernel for variable in optimizer.variables)
    assert repr(optimizer.gradient_transformation) == "freeze(<dense/kernel>)"
    for tx in (optimizer.gradient_transformation, gx.chain(gx.masked(gx.scale(2.0), ["dense/bias", kernel]))):
        with pytest.raises(ValueError, match=r"it chooses variables.*Write .*paths such as 'encoder/kernel'"):
            gx.keras.wrap(opt.SGD(), tx).get_config()


BIAS = {"encoder": {"kernel": False, "bias": True}, "head": False}


@pytest.mark.parametrize(
    "pattern", ["net/encoder/bias", "encoder/bias", "encoder.bias", "**/encoder/bias", BIAS, {"net": BIAS}]
)
def test_the_name_of_a_model_may_be_left_out(pattern: Any) -> None:
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


A_FUNCTION = "<function <lambda> .*functions with a name, decorated with @keras.saving"


class Constant(opt.schedules.LearningRateSchedule):
    """A custom schedule without get_config."""

    def __call__(self, step: Any) -> Any:
        return 1.0


Foreign = collections.namedtuple("Foreign", ["init", "update"])
NOT_SAVED = {
    "a function": (gx.elementwise(abs), "<built-in function abs>. Write .*functions with a name, decorated"),
    "a schedule": (gx.scale(lambda step: 1.0), A_FUNCTION),
    "a schedule without get_config": (
        gx.clip_norm(Constant()),
        ".*Constant object.*Write .*schedules of keras.optimizers.schedules",
    ),
    "where": (gx.chain(gx.freeze(lambda path, leaf: False), gx.clip_norm(decay())), A_FUNCTION),
    "of optax": (
        gx.chain(gx.clip_norm(1.0), Foreign(dict, gx.trace(0.5).update)),
        "Foreign",
    ),
    "an array": (gx.clip_norm(np.ones(())), r"array\(1\.\). Write numbers, .*keras.Variable"),
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


W = np.float32([30.0, 40.0])


def steps_back(layer: Any, *before: Callable[[], Any]) -> list[np.ndarray]:
    """Return the changes of a kernel in steps of size one; its output goes through a layer and is weighted."""
    given = keras.Input((1,))
    dense = keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(given, layer(dense(given)))
    model.compile(opt.SGD(1.0), loss=lambda y, out: keras.ops.sum(out * y, axis=-1))
    found = []
    for change in before or (lambda: None,):
        change()
        old = dense.get_weights()[0].copy()
        model.fit(np.ones((1, 1), np.float32), W[None], epochs=1, verbose=0)
        found.append((old - dense.get_weights()[0])[0])
    return found


@pytest.mark.parametrize(
    ("layer", "wanted"),
    [
        (gx.keras.GradientTransform(gx.clip_norm(1.0)), [0.6, 0.8]),
        (gx.keras.GradientTransform("chain(clip_value(35.0), scale(0.5))"), [15.0, 17.5]),
        (gx.keras.GradientTransform(gx.elementwise(halved)), W / 2),
        (gx.keras.GradientReversal(), -W),
        (gx.keras.GradientReversal(0.25), -W / 4),
    ],
)
def test_a_layer_transforms_what_flows_back(layer: Any, wanted: Any) -> None:
    """So does the layer that its config makes, with functions that Keras knows."""
    again = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
    assert getattr(again, "tx", None) == getattr(layer, "tx", None)
    for each in (layer, again):
        assert_ulp(steps_back(each), [np.float32(wanted)])


def test_the_factor_of_a_layer_changes_between_steps() -> None:
    reversal = gx.keras.GradientReversal(1.0)
    found = steps_back(reversal, *(functools.partial(reversal.scale.assign, factor) for factor in (1.0, 0.5)))
    assert bits(found) == bits([-W, -W / 2])


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize(
    "make", [functools.partial(gx.keras.GradientTransform, gx.scale(0.1)), gx.keras.GradientReversal]
)
def test_layers_are_the_identity_forward_whatever_the_policy(make: Any, policy: str) -> None:
    layer = make(dtype=policy)
    values = {"a": np.float32([[np.nan, -0.0, 1e6]]), "b": [np.float16([[1.0]]), np.int32([[7]])]}
    found = layer(keras.tree.map_structure(keras.ops.convert_to_tensor, values))
    assert bits(found) == bits(values)
    assert layer.compute_output_shape((None, 3)) == (None, 3)
    for dtype in ("float32", "int32"):
        symbolic = layer(keras.Input((3, 4), dtype=dtype))
        assert (tuple(symbolic.shape), symbolic.dtype) == ((None, 3, 4), dtype)
    assert make is not gx.keras.GradientReversal or float(make(0.1, dtype=policy).scale) == pytest.approx(0.1, abs=1e-8)


@slow(SAVES)
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


def test_a_layer_that_cannot_be_saved() -> None:
    with pytest.warns(UserWarning, match=r"the layer 'mine'.*cannot be saved"):
        layer = gx.keras.GradientTransform(gx.elementwise(abs), name="mine")
    with pytest.raises(ValueError, match=r"the layer 'mine'.*cannot be saved"):
        layer.get_config()


# --- TensorFlow ------------------------------------------------------------------------------------------------------

on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's own")


@on_tensorflow
def test_a_layer_that_a_function_builds() -> None:
    """Its limit has no value there."""
    import tensorflow as tf

    tx = gx.clip_norm(keras.Variable(1.0, trainable=False))
    assert tf.function(lambda x: gx.keras.GradientTransform(tx)(x))(tf.ones(2)).shape == (2,)


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


CHAIN_OF_STATES = gx.chain(gx.masked(gx.trace(0.5), "**/kernel"), gx.clip_zscore(2.0))


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


# --- the same everywhere ---------------------------------------------------------------------------------------------


def test_write_what_other_backends_are_compared_with() -> None:
    """Write the weights after a step of every transform, for test_keras.py."""
    folder = os.environ.get("GRADXFORM_KERAS_OUT")
    if folder is None:
        pytest.skip("only test_keras.py asks for it")
    found = {}
    for name, tx in conformance.TRANSFORMS.items():
        run = Wrap(tx, conformance.ZEROS)
        run.step(conformance.drawn(0))
        found |= {f"{name}, {path}".replace("/", "."): value for path, value in run.read().items()}
    np.savez(Path(folder) / f"{BACKEND}.npz", **found)
