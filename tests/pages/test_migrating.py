"""The tables of function equivalents: each phrase of each row is a check that calls both functions.

A row of `docs/migrating/index.md` names a function of another library, the equivalent in gradxform, and their
differences: phrases separated by semicolons. A phrase is looked up among the row's own checks, then in `PHRASES`,
whose checks take any two functions of a list of gradients and a limit.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import importlib.util
import inspect
import io
import itertools
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import test_catalogue_peers as catalogue
from support import INF, NAN, ROOT, assert_bits

import gradxform as gx
from gradxform.backend import lookup
from gradxform.testing import max_ulp

PAGE = ROOT / "docs/migrating/index.md"
F = np.float32
Leaves = Sequence[Any]
Side = Callable[[Leaves, float], list[Any]]
Check = Callable[[], None]


class Row(NamedTuple):
    """The native function and its equivalent, of gradients and a limit, and checks of this row's own phrases."""

    native: Side | None = None
    equivalent: Side | None = None
    own: Mapping[str, Check] = types.MappingProxyType({})


def in_framework(name: str) -> Callable[[Callable[[list[Any], float], Any]], Side]:
    """Return a decorator that lets a function of a framework's arrays take and return NumPy arrays."""
    backend = lookup.backend(name)

    def lift(function: Callable[[list[Any], float], Any]) -> Side:
        def side(leaves: Leaves, c: float) -> list[Any]:
            with np.errstate(all="ignore"):
                found = function([leaf if leaf is None else backend.from_numpy(leaf.copy()) for leaf in leaves], c)
            return [leaf if leaf is None else backend.to_numpy(leaf) for leaf in found]

        return side

    return lift


# --- phrases ---------------------------------------------------------------------------------------------------------


def ordinary(seed: int, size: float = 1.0) -> list[Any]:
    return [leaf * F(size) for leaf in catalogue.ordinary(seed).values()]


def norm(leaves: Leaves) -> float:
    return float(np.sqrt(sum(np.sum(np.float64(leaf) ** 2) for leaf in leaves)))


def distance(row: Row) -> float:
    """The largest distance for gradients of three sizes, clipped hard, slightly and not at all."""
    far = 0.0
    for seed, size in enumerate((1e-2, 1.0, 1e3)):
        leaves = ordinary(seed, size)
        for share in (0.05, 0.9, 50.0):
            c = share * norm(leaves)
            native, result = row.native(leaves, c), row.equivalent(leaves, c)
            assert len(native) == len(result)
            far = max(far, *map(max_ulp, native, result))
    return far


def signs(leaves: Leaves) -> list[Any]:
    return [np.signbit(leaf) for leaf in leaves]


def same(row: Row) -> None:
    assert distance(row) == 0
    leaves = [*ordinary(7), F([NAN, 1, 0, -0.0, 3e-30, -3e30])]
    native, result = row.native(leaves, 0.5), row.equivalent(leaves, 0.5)
    assert [leaf.dtype for leaf in native] == [leaf.dtype for leaf in result]
    for a, b in zip(native, result, strict=True):
        assert np.array_equal(a, b, equal_nan=True)
        assert (np.isnan(a) | (np.signbit(a) == np.signbit(b))).all()


def within(row: Row, ulp: float) -> None:
    assert distance(row) <= ulp


def equal(leaves: Leaves, expected: Leaves) -> None:
    for a, b in zip(leaves, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=0, equal_nan=True)


def large(row: Row, value: float) -> None:
    """Clip 1e30 and 3; only the first result is fixed, since a clip is either global or per gradient."""
    assert np.array_equal(row.native([F([1e30]), F([3])], 1.0)[0], [value], equal_nan=True)
    assert 0 < row.equivalent([F([1e30]), F([3])], 1.0)[0][0] <= 1.5


def large_norm(row: Row) -> None:
    assert row.native([F([1e30])], 1.0)[0] == INF
    equal(row.equivalent([F([1e30])], 1.0), [1e30])


def infinite(row: Row) -> None:
    equal(row.native([F([INF, 1])], 1.0), [[NAN, 0]])
    equal(row.equivalent([F([INF, 1])], 1.0), [[NAN, NAN]])


def zeros(row: Row, limit: float) -> None:
    equal(row.native([F([0, 0])], limit), [[NAN, NAN]])
    equal(row.equivalent([F([0, 0])], limit), [[0, 0]])


def no_limit(row: Row) -> None:
    equal(row.native([F([3, 4])], 0.0), [[3, 4]])
    equal(row.equivalent([F([3, 4])], 0.0), [[0, 0]])


def infinite_limit(row: Row) -> None:
    equal(row.native([F([3, 4])], INF), [[NAN, NAN]])
    equal(row.equivalent([F([3, 4])], INF), [[3, 4]])


def epsilon(row: Row) -> None:
    """Adding 1e-6 changes a gradient at the limit, and turns a norm of 5e-8 into 105e-8."""
    assert not np.array_equal(row.native([F([3, 4])], 5.0)[0], F([3, 4]))
    assert np.array_equal(row.equivalent([F([3, 4])], 5.0)[0], F([3, 4]))
    native, result = (side([F([3e-8, 4e-8])], 1e-8)[0] for side in (row.native, row.equivalent))
    np.testing.assert_allclose(result / native, 21, rtol=1e-3)


def half(row: Row) -> None:
    leaves = [np.float16([300]), np.float16([300])]
    native, result = row.native(leaves, 600.0), row.equivalent(leaves, 600.0)
    assert not any(np.isfinite(leaf).all() and leaf.any() for leaf in native)
    assert all(np.isfinite(leaf).all() and leaf.all() for leaf in result)


def refuses(row: Row, leaves: Leaves) -> None:
    with pytest.raises(Exception):  # noqa: B017, whatever the library raises
        row.native(leaves, 1.0)
    assert all(leaf is None or np.isfinite(leaf).all() for leaf in row.equivalent(leaves, 1.0))


def changed(row: Row) -> None:
    leaves = ordinary(3)
    native, result = row.native(leaves, 3.1 * norm(leaves)), row.equivalent(leaves, 3.1 * norm(leaves))
    assert any(map(max_ulp, native, leaves))
    assert not any(map(max_ulp, result, leaves))


def apart(row: Row) -> None:
    """Rows 0, 0 and 1 of a table of two add up to the gradient [6, 4]."""
    tf = pytest.importorskip("tensorflow")
    sparse = tf.IndexedSlices(tf.constant([3.0, 3.0, 4.0]), tf.constant([0, 0, 1]), tf.constant([2]))
    native, result = (raw(side)([sparse], 5.0) for side in (row.native, row.equivalent))
    dense = raw(row.equivalent)([tf.constant([6.0, 4.0])], 5.0)
    native, result, dense = (np.asarray(tf.convert_to_tensor(leaves[0])) for leaves in (native, result, dense))
    assert max_ulp(result, dense) <= 2
    assert max_ulp(native, dense) > 100


def raw(side: Side) -> Any:
    """The function that a side wraps."""
    return inspect.getclosurevars(side).nonlocals["function"]


PHRASES: dict[str, Callable[[Row], None]] = {
    "bit-identical": same,
    "1e30 becomes 0": lambda row: large(row, 0.0),
    "1e30 becomes NaN": lambda row: large(row, NAN),
    "1e30 has norm inf": large_norm,
    "infinity gives NaN and zeros": infinite,
    "zeros become NaN": lambda row: zeros(row, 1.0),
    "limit 0 turns zeros into NaN": lambda row: zeros(row, 0.0),
    "limit 0 means no limit": no_limit,
    "infinite limit gives NaN": infinite_limit,
    "adds 1e-6 to norms": epsilon,
    "float16 overflows": half,
    "refuses None": lambda row: refuses(row, [F([3, 4]), None]),
    "refuses mixed dtypes": lambda row: refuses(row, [F([3]), np.float16([4])]),
    "changes gradients within the limit": changed,
    "does not sum sparse duplicates": apart,
} | {f"within {ulp} ULP": functools.partial(within, ulp=ulp) for ulp in (4, 8)}


# --- rows ------------------------------------------------------------------------------------------------------------


def tensorflow() -> dict[str, Row]:
    tf = pytest.importorskip("tensorflow")
    tf1, eager = tf.compat.v1, in_framework("tensorflow")

    def pair(native: Any, equivalent: Any, **own: Check) -> Row:
        return Row(eager(native), eager(equivalent), {name.replace("_", " "): check for name, check in own.items()})

    def gradient(function: Any, x: Any = (0.5, -2.0, 3.0)) -> Any:
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(function(x) * [3.0, -0.05, 4.0])
        found = tape.gradient(y, x)
        return y, tf.zeros([1]) if found is None else found

    def axes() -> None:
        for g in ordinary(1)[1:]:
            over = tuple(range(max(g.ndim - 1, 0))) or None
            found = tf.clip_by_norm(tf.constant(g), 0.9, axes=over)
            assert max_ulp(found.numpy(), gx.clip_norm(0.9, axes=over)(tf.constant(g)).numpy()) <= 4

    def stopped() -> None:
        assert_bits(gradient(lambda x: tf.stop_gradient(x) * x), gradient(lambda x: gx.stop_gradient(x) * x))
        assert_bits(gradient(tf.stop_gradient), gradient(gx.stop_gradient))

    def passed() -> None:
        assert_bits(gradient(tf.grad_pass_through(tf.round)), gradient(gx.straight_through(tf.round)))

    def custom() -> None:
        @tf.custom_gradient
        def clipped(x: Any) -> Any:
            return tf.identity(x), lambda g: tf.clip_by_value(g, -0.1, 0.1)

        assert_bits(gradient(clipped), gradient(gx.on_backward(gx.clip_value(0.1))))

    def in_graph(make: Any) -> Any:
        with tf.Graph().as_default() as graph, tf1.Session() as session:
            x = tf.constant([0.5, -2.0, 3.0])
            with make(graph):
                y = tf.identity(x)
            return session.run([y, *tf.gradients(y * [3.0, -0.05, 4.0], x)])

    @functools.cache
    def registered(name: str) -> Any:
        function = {
            "MigratingGradxform": gx.tensorflow.gradient_function(gx.clip_value(0.1)),
            "MigratingNative": lambda op, g: tf.clip_by_value(g, -0.1, 0.1),
        }[name]
        return tf.RegisterGradient(name)(function)

    def by_name(name: str) -> Any:
        registered(name)
        return in_graph(lambda graph: graph.gradient_override_map({"Identity": name}))

    def registers() -> None:
        assert_bits(by_name("MigratingNative"), by_name("MigratingGradxform"))

    def once() -> None:
        registered("MigratingGradxform")
        with pytest.raises(KeyError, match="two gradient"):
            tf.RegisterGradient("MigratingGradxform")(lambda op, g: g)

    def overrides() -> None:
        result = in_graph(lambda _: gx.tensorflow.override_gradients({"Identity": gx.clip_value(0.1)}))
        assert_bits(by_name("MigratingNative"), result)

    def ignored() -> None:
        registered("MigratingNative")
        names = {"Identity": "MigratingNative"}
        with tf1.get_default_graph().gradient_override_map(names):
            assert_bits(gradient(tf.identity), gradient(lambda x: x * 1.0))
        with pytest.raises(RuntimeError), gx.tensorflow.override_gradients({"Identity": gx.clip_value(0.1)}):
            gradient(tf.identity)

    def some() -> None:
        results = []
        for frozen in (False, True):
            with tf.Graph().as_default(), tf1.Session() as session:
                a, b = (tf1.get_variable(name, initializer=[1.0, -2.0]) for name in "ab")
                optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
                loss = tf.reduce_sum(a * a * b)
                pairs = optimizer.compute_gradients(loss, None if frozen else [a])
                pairs = gx.tensorflow.apply(gx.freeze("b"), pairs) if frozen else pairs
                step = optimizer.apply_gradients(pairs) if frozen else optimizer.minimize(loss, var_list=[a])
                session.run(tf1.global_variables_initializer())
                for _ in range(3):
                    session.run(step)
                results.append(session.run([a, b]))
        assert_bits(*results)
        assert_bits(results[0][1:], [F([1, -2])])

    def averages(first: bool) -> list[Any]:
        g, average = tf.Variable([4.0, 8.0]), tf.train.ExponentialMovingAverage(0.5)
        process = gx.tensorflow.GradientProcessor(gx.ema(0.5), [g])
        found = []
        for value in ([4.0, 8.0], [2.0, 0.0]):
            g.assign(value)
            average.apply([g])
            found.append((average.average(g).numpy(), process([(tf.constant(value), g)])[0][0].numpy()))
        return found[0 if first else 1]

    def weighed() -> None:
        """TensorFlow starts at the first value, which keeps weight 1/2; ema weighs the two values 1 to 2."""
        assert_bits(*([leaf] for leaf in averages(first=True)))
        equal(averages(first=False), [[3, 4], [8 / 3, 8 / 3]])

    def accumulators() -> None:
        steps = [ordinary(seed)[0] for seed in range(4)]
        with tf.Graph().as_default(), tf1.Session() as session:
            held = tf1.ConditionalAccumulator(tf.float32, steps[0].shape)
            for step in steps:
                session.run(held.apply_grad(tf.constant(step), local_step=1))
            found = session.run(held.take_grad(4))
        tx = gx.accumulate(gx.identity(), 4)
        state = tx.init(tf.constant(steps[0]))
        for step in steps:
            updates, state = tx.update(tf.constant(step), state)
        unit = np.spacing(sum(map(np.abs, steps)))
        assert (np.abs(found - updates.numpy()) <= unit).all()

    sums = "within 1 ULP of the sum of magnitudes"
    return {
        "tf.clip_by_value": pair(
            lambda g, c: [tf.clip_by_value(leaf, -c, c) for leaf in g], lambda g, c: gx.clip_value(c)(g)
        ),
        "tf.clip_by_norm": pair(lambda g, c: [tf.clip_by_norm(leaf, c) for leaf in g], lambda g, c: gx.clip_norm(c)(g)),
        "tf.clip_by_norm(axes=)": Row(own={"within 4 ULP": axes}),
        "tf.clip_by_global_norm": pair(
            lambda g, c: tf.clip_by_global_norm(g, c)[0], lambda g, c: gx.clip_global_norm(c)(g)
        ),
        "tf1.clip_by_average_norm": pair(
            lambda g, c: [tf1.clip_by_average_norm(leaf, c) for leaf in g], lambda g, c: gx.clip_average_norm(c)(g)
        ),
        "tf.linalg.global_norm": pair(lambda g, c: [tf.linalg.global_norm(g)], lambda g, c: [gx.global_norm(g)]),
        "tf.norm": pair(lambda g, c: [tf.norm(leaf) for leaf in g], lambda g, c: list(gx.norms(g).values())),
        "tf.linalg.normalize": pair(
            lambda g, c: [tf.linalg.normalize(leaf)[0] for leaf in g], lambda g, c: gx.normalize_norm()(g)
        ),
        "tf.stop_gradient": Row(own={"bit-identical": stopped}),
        "tf.grad_pass_through": Row(own={"bit-identical": passed}),
        "tf.custom_gradient": Row(own={"bit-identical": custom}),
        "tf.RegisterGradient": Row(own={"bit-identical": registers, "a name can be registered only once": once}),
        "gradient_override_map": Row(
            own={"bit-identical": overrides, "silently ignored in eager mode, where gradxform raises": ignored}
        ),
        "var_list=": Row(own={"bit-identical": some}),
        "tf.train.ExponentialMovingAverage": Row(own={"starts at the first value, without debiasing": weighed}),
        "tf1.ConditionalAccumulator": Row(own={sums: accumulators}),
    }


def keras() -> dict[str, Row]:
    keras = pytest.importorskip("keras")
    tf, eager = pytest.importorskip("tensorflow"), in_framework("tensorflow")
    SGD = keras.optimizers.SGD

    def own(argument: str) -> Any:
        return lambda g, c: SGD(**{argument: c})._clip_gradients(g)

    def train(optimizer: Any, steps: int = 5) -> Any:
        w = keras.Variable(ordinary(9)[-1])
        optimizer.build([w])
        for seed in range(steps):
            optimizer.apply_gradients([(tf.constant(ordinary(seed)[-1]), w)])
        return w.numpy()

    def one() -> None:
        with pytest.raises(ValueError, match="Only one"):
            SGD(clipnorm=1.0, clipvalue=1.0)
        assert train(gx.keras.wrap(SGD(0.1), gx.chain(gx.clip_value(1.0), gx.clip_norm(1.0)))).any()

    def accumulated() -> None:
        catalogue.test_accumulated_steps_as_in_keras(4, 0.5, tf)

    def unscaled() -> None:
        """Scale by a power of two, so that unscaling is exact."""
        results = []
        for scale in (None, 1024.0):
            w = keras.Variable([0.0, 0.0])
            optimizer = gx.keras.wrap(SGD(1.0, loss_scale_factor=scale), gx.clip_norm(1.0))
            optimizer.apply_gradients([(tf.constant([3.0, 4.0]) * (scale or 1.0), w)])
            results.append(w.numpy())
        assert_bits(results[:1], results[1:])

    def dynamic() -> None:
        w = keras.Variable([0.0, 0.0])
        optimizer = gx.keras.wrap(keras.optimizers.LossScaleOptimizer(SGD(1.0), 1024.0), gx.clip_norm(1.0))
        optimizer.build([w])
        for value in ([3.0, 4.0], [INF, 1.0], [3.0, 4.0]):
            optimizer.apply_gradients([(tf.constant(value) * optimizer.scale_loss(tf.constant(1.0)), w)])
        equal([w.numpy()], [[-1.2, -1.6]])

    def decayed() -> None:
        wrapped = train(gx.keras.wrap(SGD(0.5), gx.add_decayed_weights(0.25)), 1)
        np.testing.assert_allclose(train(SGD(0.5, weight_decay=0.25), 1), wrapped, rtol=0, atol=1e-6)

    def coupled() -> None:
        native, wrapped = SGD(0.5, 0.5, weight_decay=0.25), gx.keras.wrap(SGD(0.5, 0.5), gx.add_decayed_weights(0.25))
        assert np.max(np.abs(train(native) - train(wrapped))) > 0.1

    def gone() -> None:
        with pytest.raises(ValueError, match="gradient_transformers"):
            SGD(1.0, gradient_transformers=[lambda pairs: pairs])
        assert train(gx.keras.wrap(SGD(1.0), gx.scale(0.0)), 1).tobytes() == ordinary(9)[-1].tobytes()

    def untrainable() -> None:
        results = []
        for frozen in (False, True):
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Dense(3, name="first"), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((2,)), *layers])
            layers[0].trainable = frozen  # Keras freezes the layer; gradxform leaves it trainable
            optimizer = keras.optimizers.AdamW(0.1)
            model.compile(gx.keras.wrap(optimizer, gx.freeze("**/first/*")) if frozen else optimizer, loss="mse")
            start = [w.numpy() for w in layers[0].weights]
            model.fit(np.ones((8, 2)), np.arange(8.0), epochs=2, batch_size=4, verbose=0, shuffle=False)
            assert_bits([w.numpy() for w in layers[0].weights], start)
            results.append(model.get_weights())
        assert_bits(*results)

    def stopped() -> None:
        x = tf.constant([1.0, -2.0])
        found = []
        for stop in (keras.ops.stop_gradient, gx.stop_gradient):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = stop(x) * x
            found.append([y.numpy(), tape.gradient(y, x).numpy()])
        assert_bits(*found)

    def pair(argument: str, tx: Any, **own_checks: Check) -> Row:
        checks = {name.replace("_", " "): check for name, check in own_checks.items()}
        return Row(eager(own(argument)), eager(lambda g, c: tx(c)(g)), checks)

    return {
        "clipnorm=": pair("clipnorm", gx.clip_norm, only_one_of_the_three_at_a_time=one),
        "global_clipnorm=": pair("global_clipnorm", gx.clip_global_norm, only_one_of_the_three_at_a_time=one),
        "clipvalue=": pair("clipvalue", gx.clip_value, only_one_of_the_three_at_a_time=one),
        "gradient_accumulation_steps=": Row(own={"bit-identical for whole numbers": accumulated}),
        "loss_scale_factor=": Row(own={"keep it: transforms see unscaled gradients": unscaled}),
        "LossScaleOptimizer": Row(own={"keep it: transforms see unscaled gradients and no skipped step": dynamic}),
        "weight_decay=": Row(
            own={"equal without momentum": decayed, "decoupled in Keras, so momentum does not see it": coupled}
        ),
        "gradient_transformers=": Row(own={"removed in Keras 3": gone}),
        "layer.trainable = False": Row(own={"bit-identical": untrainable}),
        "keras.ops.stop_gradient": Row(own={"bit-identical": stopped}),
    }


def optax() -> dict[str, Row]:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    import test_optax as combinators

    jnp, eager = jax.numpy, in_framework("jax")
    params = {"a": jnp.float32([1.0, -2.0, 0.5]), "b": jnp.float32([[0.25, 3.0]])}

    def one(tx: Any, leaves: Any) -> Any:
        return jax.jit(tx.update)(leaves, tx.init(leaves))[0]

    def pair(native: Any, equivalent: Any, **own: Check) -> Row:
        checks = {name.replace("_", " "): check for name, check in own.items()}
        return Row(eager(lambda g, c: one(native(c), g)), eager(lambda g, c: one(equivalent(c), g)), checks)

    def train(tx: Any, steps: int = 4, extra: Any = None) -> Any:
        """The parameters after some steps on multiples of one half."""
        held, state = params, tx.init(params)
        for step in range(steps):
            grads = jax.tree.map(lambda p: jnp.round(p * 4 + step) / 2, params)  # noqa: B023
            updates, state = jax.jit(tx.update)(grads, state, held)
            held = jax.tree.map(lambda p, u: p + u, held, updates)
        return jax.tree.leaves(held)

    def alike(native: Any, equivalent: Any) -> Check:
        return lambda: assert_bits(train(native()), train(equivalent()))

    sums = "within the rounding of the sum"

    def of_catalogue(name: str) -> Check:
        return lambda: catalogue.test_any_numbers_as_in_optax(name, optax)

    def adaptive() -> None:
        catalogue.test_whole_numbers_and_corners_as_in_optax("units", "jitted", optax)

    def units() -> None:
        g, p = (jnp.asarray(catalogue.ordinary(seed)["conv"]) for seed in (1, 2))
        norms = [optax.transforms.unitwise_norm(leaf) for leaf in (g, p)]
        found = optax.transforms.unitwise_clip(norms[0], 0.1 * jnp.maximum(norms[1], 1e-3), g)
        assert max_ulp(np.asarray(found), np.asarray(gx.clip_adaptive(0.1, axes="keras")(g, params=p))) <= 8

    def unsaid() -> None:
        """With three axes, optax takes the norm over the first; gradxform asks for the layout."""
        shape = (4, 3, 5)
        catalogue.test_adaptive_clips_of_other_shapes(shape, 0, (0, 1), optax)
        with pytest.raises(ValueError, match="axes"):
            gx.clip_adaptive(0.1)(jnp.ones(shape), params=jnp.ones(shape))

    def examples() -> None:
        catalogue.test_examples_as_in_optax(5.0, optax)

    def poisoned() -> None:
        catalogue.test_an_infinite_example(optax)

    def scaled() -> None:
        x, y = jnp.float32([1.0, -2.0]), jnp.float32([3.0, 0.1])
        native, equivalent = functools.partial(optax.scale_gradient, scale=0.3), gx.on_backward(gx.scale(0.3))
        assert_bits(*([jax.grad(lambda x, f=f: jnp.sum(f(x) * y))(x)] for f in (native, equivalent)))

    def decays(tx: Any) -> Any:
        return optax.chain(tx, optax.adamw(0.1, weight_decay=0.5))

    def frozen(tx: Any) -> bool:
        held = dict(zip(params, train(tx), strict=True))
        return np.asarray(held["a"]).tobytes() == np.asarray(params["a"]).tobytes()

    def not_frozen() -> None:
        mask = {"a": True, "b": False}
        assert not frozen(decays(optax.freeze(mask)))
        assert not frozen(decays(gx.freeze("a")))
        assert frozen(gx.jax.freeze(optax.adamw(0.1, weight_decay=0.5), "a"))
        assert frozen(optax.chain(optax.adamw(0.1, weight_decay=0.5), gx.freeze("a")))

    def selective() -> None:
        adamw = optax.adamw(0.1, weight_decay=0.5)
        native = optax.selective_transform(adamw, freeze_mask={"a": True, "b": False})
        assert_bits(train(native), train(gx.jax.freeze(adamw, "a")))

    def infinities() -> None:
        leaves = [F([NAN, INF, 1.0])]
        equal(one(optax.zero_nans(), leaves), [[0, INF, 1]])
        equal(one(gx.zero_nonfinite(), leaves), [[0, 0, 1]])

    def skipped() -> None:
        for most in (1, 100):
            catalogue.test_skipped_steps_as_in_optax("gradxform", most, "jitted", optax)

    def momentum_moves() -> None:
        """A skipped step returns zeros, and later transforms in the chain act on them."""
        tx = optax.chain(optax.apply_if_finite(optax.identity(), 3), optax.trace(0.5))
        state = tx.init(F([0.0]))
        for g, wanted in ((F([4.0]), 4.0), (F([NAN]), 2.0)):
            updates, state = tx.update(g, state)
            assert float(updates[0]) == wanted
        tx = gx.skip_nonfinite(gx.trace(0.5))
        state = tx.init(F([0.0]))
        for g, wanted in ((F([4.0]), 4.0), (F([NAN]), 0.0)):
            updates, state = tx.update(g, state)
            assert float(updates[0]) == wanted

    def large() -> None:
        catalogue.test_large_steps_are_skipped_as_in_optax("jitted", optax)

    def at_the_limit() -> None:
        leaves = F([3.0, 4.0])
        assert optax.skip_large_updates(leaves, 0, None, 25.0)[0]
        tx = gx.skip_large(gx.identity(), 5.0)
        assert bool(gx.has_updated(tx.update(leaves, tx.init(leaves))[1]))

    def accumulated() -> None:
        catalogue.test_accumulated_steps_as_in_optax(2, "gradxform", "jitted", optax)

    def nan_stays() -> None:
        catalogue.test_corners_that_optax_means_otherwise(optax)

    def every() -> None:
        """optax sums; gradxform averages."""
        assert_bits(train(optax.apply_every(2)), train(gx.chain(gx.accumulate(gx.identity(), 2), gx.scale(2.0))))

    def noises(stateless: bool = False) -> list[Any]:
        tx = optax.add_noise(0.01, 0.0, 0), gx.add_noise(0.1, 0)
        return [np.asarray(t.update(F([0] * 4000), t.init(F([0] * 4000)))[0]) for t in tx]

    def noisy() -> None:
        native, equivalent = noises()
        assert np.std(native) == pytest.approx(0.1, rel=0.05)
        assert np.std(equivalent) == pytest.approx(0.1, rel=0.05)

    def other_bits() -> None:
        assert not np.intersect1d(*noises()).size

    def first_average() -> None:
        catalogue.test_the_first_average_is_the_gradient_itself(optax)

    def schedules() -> None:
        for mode in catalogue.MODES:
            catalogue.test_schedules_of_optax_as_they_are("piecewise", mode, optax)

    def labels() -> None:
        tx = {"clip": optax.clip(0.5), "other": optax.sgd(0.1)}
        native = optax.partition(tx, {"a": "clip", "b": "other"})
        assert_bits(train(native), train(gx.partition({"a": gx.clip_value(0.5)}, default=optax.sgd(0.1))))
        assert_bits(train(optax.multi_transform(tx, {"a": "clip", "b": "other"})), train(native))

    def nothing_matches() -> None:
        with pytest.raises(ValueError, match="matches no path"):
            gx.masked(gx.scale(2.0), "c")(params)

    def own_function() -> None:
        def soft(g: Any) -> Any:
            return g / (1 + jnp.abs(g))

        native = optax.stateless_with_tree_map(lambda g, p: soft(g))
        assert_bits(train(native), train(gx.elementwise(soft)))
        native = optax.stateless(lambda g, p: jax.tree.map(lambda leaf: 0.5 * leaf, g))
        assert_bits(train(native), train(gx.transform(lambda view: view.scaled(0.5))))

    def injected() -> None:
        schedule = optax.linear_schedule(1.0, 3.0, 2)
        native = optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=schedule)
        equivalent = gx.clip_global_norm(schedule)
        for a, b in zip(train(native), train(equivalent), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)

    def measured() -> None:
        """optax's own ways to record a norm."""
        tx = optax.chain(optax.snapshot("n", optax.tree.norm), gx.measure(gx.clip_global_norm(1.0)))
        grads = jax.tree.map(lambda p: 3 * p, params)
        _, state = tx.update(grads, tx.init(params))
        found = gx.metrics(state)
        assert float(optax.tree.get(state, "n")) == pytest.approx(
            float(found["clip_global_norm/norm_before"]), rel=1e-6
        )
        tx = optax.monitor({"n": optax.tree.norm})
        _, state = tx.update(grads, tx.init(params))
        assert float(state.measurements["n"]) == pytest.approx(float(found["clip_global_norm/norm_before"]), rel=1e-6)

    def private() -> None:
        batch = {"w": jnp.float32(np.random.default_rng(0).standard_normal((8, 5)))}
        tx = optax.contrib.differentially_private_aggregate(1.0, 0.0, 0)
        found, _ = tx.update(batch, tx.init(None))
        total, _ = gx.per_example_clip_global_norm(batch, 1.0)
        np.testing.assert_allclose(found["w"], total["w"] / 8, rtol=1e-5, atol=1e-7)

    def works(*names: str) -> Check:
        def check() -> None:
            for name, kind in itertools.product(names, combinators.PAIRS):
                combinators.test_a_transform_trains_like_optax_in_a_combinator(name, kind)

        return check

    def extra() -> None:
        inner = gx.chain(gx.clip_global_norm(10.0), optax.scale_by_polyak(max_learning_rate=1.0))
        grads = jax.tree.map(lambda p: p + 1, params)
        for wrap, fails in ((gx.jax.as_optax, False), (lambda tx: tx, True)):
            tx = optax.chain(wrap(inner), optax.scale(-1.0))
            with pytest.raises(TypeError) if fails else contextlib.nullcontext():
                tx.update(grads, tx.init(params), params, value=jnp.float32(3.0))

    mask = {"a": True, "b": False}
    keep = "keep it: it accepts gradxform transforms"
    norms = eager(lambda g, c: [optax.tree.norm(g)]), eager(lambda g, c: [gx.global_norm(g)])
    everything = "skips and counts the same steps"
    return {
        "optax.clip": pair(optax.clip, gx.clip_value),
        "optax.clip_by_block_rms": pair(optax.clip_by_block_rms, gx.clip_rms),
        "optax.clip_by_global_norm": pair(optax.clip_by_global_norm, gx.clip_global_norm),
        "adaptive_grad_clip": Row(own={"within 8 ULP": adaptive, "optax has one of the three axis layouts": unsaid}),
        "unitwise_clip": Row(own={"within 8 ULP": units}),
        "per_example_global_norm_clip": Row(
            own={"within 4 ULP of the sum of magnitudes": examples, "hides infinity": poisoned}
        ),
        "per_example_layer_norm_clip": Row(
            own={"within 4 ULP of the sum of magnitudes": examples, "splits one limit over the layers": examples}
        ),
        "differentially_private_aggregate": Row(own={"mean of the clipped examples plus noise": private}),
        "normalize_by_update_norm": pair(
            optax.normalize_by_update_norm, lambda c: gx.chain(gx.normalize_global_norm(), gx.scale(c))
        ),
        "contrib.normalize": pair(lambda c: optax.contrib.normalize(), lambda c: gx.normalize_global_norm()),
        "centralize": Row(own={sums: of_catalogue("centralize")}),
        "scale_by_sign": pair(lambda c: optax.scale_by_sign(), lambda c: gx.sign()),
        "optax.scale": pair(optax.scale, gx.scale),
        "scale_by_learning_rate": pair(optax.scale_by_learning_rate, lambda c: gx.scale(-c)),
        "scale_by_schedule": Row(own={"bit-identical": schedules}),
        "scale_gradient": Row(own={"bit-identical": scaled}),
        "global_norm": Row(*norms),
        "zero_nans": Row(own={"keeps infinities": infinities}),
        "apply_if_finite": Row(own={everything: skipped, "momentum after it still advances": momentum_moves}),
        "skip_not_finite": Row(own={everything: skipped}),
        "skip_large_updates": Row(own={everything: large, "also skips a norm equal to the limit": at_the_limit}),
        "MultiSteps": Row(
            own={"bit-identical for whole numbers": accumulated, "NaN stays in the accumulator": nan_stays}
        ),
        "apply_every": Row(own={"sums where gradxform averages": every}),
        "add_noise": Row(own={"same strength: eta is a variance": noisy, "different random bits": other_bits}),
        "add_decayed_weights": Row(own={sums: of_catalogue("weights")}),
        "ema": Row(own={sums: of_catalogue("ema"), "debiasing error: 0.02 % at decay 0.9999": first_average}),
        "trace": Row(own={sums: of_catalogue("trace")}),
        "set_to_zero": pair(lambda c: optax.set_to_zero(), lambda c: gx.stop()),
        "freeze": Row(own={"does not freeze before adamw": not_frozen}),
        "selective_transform": Row(own={"bit-identical": selective}),
        "masked": Row(
            own={
                "bit-identical": alike(
                    lambda: optax.masked(optax.clip(0.5), mask), lambda: gx.masked(gx.clip_value(0.5), "a")
                ),
                "label trees instead of path patterns": nothing_matches,
            }
        ),
        "partition": Row(own={"bit-identical": labels, "label trees instead of path patterns": nothing_matches}),
        "stateless": Row(own={"bit-identical": own_function}),
        "identity": pair(lambda c: optax.identity(), lambda c: gx.identity()),
        "chain": Row(
            own={
                "bit-identical": alike(
                    lambda: optax.chain(optax.clip(1.0), optax.scale(-0.5)),
                    lambda: gx.chain(gx.clip_value(1.0), gx.scale(-0.5)),
                )
            }
        ),
        "inject_hyperparams": Row(own={keep: works("inject_hyperparams"), "a schedule does not need it": injected}),
        "snapshot": Row(own={keep: works("snapshot", "monitor"), "same norms": measured}),
        "conditionally_transform": Row(own={keep: works("conditionally_transform", "conditionally_mask")}),
        "flatten": Row(own={keep: works("flatten")}),
        "with_extra_args_support": Row(
            own={keep: works("with_extra_args_support"), "chain passes extra arguments only to its own type": extra}
        ),
    }


def jax() -> dict[str, Row]:
    jax = pytest.importorskip("jax")
    from jax.example_libraries import optimizers

    jnp, eager = jax.numpy, in_framework("jax")
    x, y = jnp.float32([1.0, -2.0, 0.5]), jnp.float32([3.0, 0.05, -4.0])

    def slope(function: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sum(function(x) * x * y))(x)

    def stopped() -> None:
        assert_bits(slope(jax.lax.stop_gradient), slope(gx.stop_gradient))

    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))

    def custom() -> None:
        assert_bits(slope(clipped), slope(gx.on_backward(gx.clip_value(0.1))))

    return {
        "jnp.clip": Row(
            eager(lambda g, c: [jnp.clip(leaf, -c, c) for leaf in g]), eager(lambda g, c: gx.clip_value(c)(g))
        ),
        "jax.lax.stop_gradient": Row(own={"bit-identical": stopped}),
        "jax.custom_vjp": Row(own={"bit-identical": custom}),
        "clip_grads": Row(eager(optimizers.clip_grads), eager(lambda g, c: gx.clip_global_norm(c)(g))),
        "l2_norm": Row(eager(lambda g, c: [optimizers.l2_norm(g)]), eager(lambda g, c: [gx.global_norm(g)])),
    }


def torch() -> dict[str, Row]:
    torch = pytest.importorskip("torch")
    eager, utils = in_framework("torch"), torch.nn.utils

    def parameters(gradients: Any) -> list[Any]:
        made = [torch.nn.Parameter(torch.zeros(leaf.shape, dtype=leaf.dtype)) for leaf in gradients]
        for parameter, gradient in zip(made, gradients, strict=True):
            parameter.grad = gradient
        return made

    def pair(clip: Any, tx: Any, **own: Check) -> Row:
        def native(g: Any, c: float) -> Any:
            held = parameters(g)
            clip(held, c)
            return [parameter.grad for parameter in held]

        def equivalent(g: Any, c: float) -> Any:
            held = parameters([leaf for leaf in g if leaf is not None])
            gx.torch.apply_(tx(c), held)
            return [parameter.grad for parameter in held]

        return Row(eager(native), eager(equivalent), {name.replace("_", " "): check for name, check in own.items()})

    def finite() -> None:
        """PyTorch raises for the norm; gradxform names the gradients."""
        held = parameters([torch.tensor([1.0]), torch.tensor([NAN])])
        with pytest.raises(RuntimeError, match="non-finite"):
            utils.clip_grad_norm_(held, 1.0, error_if_nonfinite=True)
        assert gx.nonfinite_paths({"a": held[0].grad, "b": held[1].grad}) == ["b"]

    def sparse() -> None:
        embedding = torch.nn.Embedding(4, 2, sparse=True)
        embedding(torch.tensor([1, 1])).sum().backward()
        with pytest.raises((NotImplementedError, RuntimeError)):
            utils.clip_grad_norm_(embedding.parameters(), 0.1)
        gx.torch.apply_(gx.clip_global_norm(0.1), embedding)
        assert float(gx.global_norm([embedding.weight.grad])) == pytest.approx(0.1)

    def tied() -> None:
        """Pass one parameter twice."""
        (held,) = parameters([torch.tensor([3.0, 4.0])])
        utils.clip_grad_value_([held, held], 10.0)
        utils.clip_grads_with_norm_([held, held], 1.0, torch.tensor(5.0))
        equal([held.grad], [[0.12, 0.16]])
        (held,) = parameters([torch.tensor([3.0, 4.0])])
        gx.torch.apply_(gx.clip_global_norm(1.0), [held, held])
        equal([held.grad], [[0.6, 0.8]])

    def gradient(change: Any) -> Any:
        x = torch.tensor([0.5, -2.0, 3.0], requires_grad=True)
        y = (change(x * 1.0) * torch.tensor([3.0, -0.05, 4.0])).sum()
        y.backward()
        return [y.detach(), x.grad]

    def hooked() -> None:
        def hook(x: Any) -> Any:
            x.register_hook(lambda g: g.clamp(-0.1, 0.1))
            return x

        assert_bits(gradient(hook), gradient(gx.on_backward(gx.clip_value(0.1))))

    def module_hook(before: bool) -> None:
        layer = torch.nn.Identity()
        if before:
            layer.register_full_backward_pre_hook(lambda m, above: tuple(g.clamp(-0.1, 0.1) for g in above))
        else:
            layer.register_full_backward_hook(lambda m, below, above: tuple(g.clamp(-0.1, 0.1) for g in below))
        assert_bits(gradient(layer), gradient(gx.torch.GradientTransform(gx.clip_value(0.1))))

    def full_hook() -> None:
        module_hook(before=False)
        module_hook(before=True)

    def network() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def train(prepare: Any, clip: Any = None, make: Any = torch.optim.SGD, **options: Any) -> Any:
        """The weights after four steps."""
        net = network()
        optimizer = make(net.named_parameters(), lr=0.1, **options)
        prepare(net, optimizer)
        x = torch.sin(torch.arange(36.0).reshape(4, 3, 3))
        for batch in x:
            optimizer.zero_grad()
            (10 * net(batch)).square().sum().backward()
            if clip:
                clip(net)
            optimizer.step()
        return [p.detach() for p in net.parameters()]

    def nothing(net: Any, optimizer: Any) -> None: ...

    def accumulated_hook() -> None:
        def hooks(net: Any, optimizer: Any) -> None:
            for p in net.parameters():
                p.register_post_accumulate_grad_hook(lambda p: utils.clip_grad_value_([p], 0.5))

        assert_bits(train(hooks), train(lambda net, optimizer: gx.torch.attach(optimizer, gx.clip_value(0.5))))

    def step_hook() -> None:
        def hook(net: Any, optimizer: Any) -> None:
            optimizer.register_step_pre_hook(lambda *_: utils.clip_grad_value_(net.parameters(), 0.5))

        assert_bits(train(hook), train(lambda net, optimizer: gx.torch.attach(optimizer, gx.clip_value(0.5))))

    def scaled(native: bool) -> Any:
        net, scaler = network(), torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
        if not native:
            gx.torch.attach(optimizer, gx.clip_value(0.5))
        for batch in torch.sin(torch.arange(36.0).reshape(4, 3, 3)):
            optimizer.zero_grad()
            scaler.scale((10 * net(batch)).square().sum()).backward()
            if native:
                scaler.unscale_(optimizer)
                utils.clip_grad_value_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        return [p.detach() for p in net.parameters()]

    def unscaled() -> None:
        assert_bits(scaled(native=True), scaled(native=False))

    def detached() -> None:
        assert_bits(gradient(lambda x: x.detach() * x), gradient(lambda x: gx.stop_gradient(x) * x))

    def frozen() -> None:
        options = {"make": torch.optim.AdamW, "weight_decay": 0.1}
        native = train(lambda net, optimizer: net[0].requires_grad_(False), **options)
        assert_bits(native, train(lambda net, optimizer: gx.torch.attach(optimizer, gx.freeze("0/*")), **options))
        assert_bits(native[:2], [p.detach() for p in network()[0].parameters()])

    def later() -> None:
        """requires_grad_(False) after backward leaves the old gradient in place."""
        for kept in (True, False):
            net = network()
            optimizer = torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
            net(torch.ones(1, 3)).sum().backward()
            if not kept:
                gx.torch.attach(optimizer, gx.freeze("0/*"))
            net[0].requires_grad_(not kept)
            before = net[0].weight.detach().clone()
            optimizer.step()
            assert torch.equal(net[0].weight, before) != kept

    def momentum() -> None:
        catalogue.test_momentum_as_in_torch(0.5, False, 0.25, torch)

    def large_norm_of(size: int = 38_597_376) -> None:
        g = torch.from_numpy(np.random.default_rng(0).standard_normal(size, dtype=np.float32))
        exact = np.sqrt(np.sum(np.square(g.numpy(), dtype=np.float64)))
        assert 1 - float(utils.get_total_norm([g])) / exact == pytest.approx(0.0027, abs=5e-5)
        assert max_ulp(gx.global_norm([g]).numpy(), F(exact)) <= 1

    off = "0.27 % too small for 38.6 million elements"
    clip_norm = pair(utils.clip_grad_norm_, gx.clip_global_norm)
    return {
        "clip_grad_norm_": clip_norm._replace(own={"refuses sparse": sparse}),
        "clip_grad_norm_(error_if_nonfinite=)": Row(own={"raises for the norm, gradxform names the gradients": finite}),
        "clip_grad_value_": pair(utils.clip_grad_value_, gx.clip_value),
        "clip_grads_with_norm_": pair(
            lambda held, c: utils.clip_grads_with_norm_(held, c, utils.get_total_norm([p.grad for p in held])),
            gx.clip_global_norm,
            scales_tied_parameters_twice=tied,
        ),
        "get_total_norm": Row(
            eager(lambda g, c: [utils.get_total_norm(g)]), eager(lambda g, c: [gx.global_norm(g)]), {off: large_norm_of}
        ),
        "Tensor.register_hook": Row(own={"bit-identical": hooked}),
        "register_full_backward_hook": Row(own={"bit-identical": full_hook}),
        "register_post_accumulate_grad_hook": Row(own={"bit-identical": accumulated_hook}),
        "register_step_pre_hook": Row(own={"bit-identical": step_hook}),
        "GradScaler.unscale_": Row(own={"bit-identical": unscaled}),
        "Tensor.detach": Row(own={"bit-identical": detached}),
        "requires_grad_(False)": Row(
            own={"bit-identical": frozen, "no effect after backward: the step still happens": later}
        ),
        "SGD(momentum=, weight_decay=)": Row(own={"bit-identical for whole numbers": momentum}),
    }


def trainers() -> dict[str, Row]:
    lightning, accelerate = pytest.importorskip("lightning"), pytest.importorskip("accelerate")
    import tempfile

    import test_torch_trainers as runs

    torch = runs.torch

    def with_lightning(tx: Any, **options: Any) -> Any:
        model = runs.module(lightning, attach="none")

        def configure_optimizers() -> Any:
            optimizer = torch.optim.SGD(model.net.named_parameters(), lr=0.1, momentum=0.9)
            if tx is not None:
                gx.torch.attach(optimizer, tx)
            return optimizer

        model.configure_optimizers = configure_optimizers
        with tempfile.TemporaryDirectory() as folder:
            runs.fit(lightning, model, Path(folder), 2, **options)
        return [p.detach() for p in model.net.parameters()]

    def by_norm() -> None:
        assert_bits(with_lightning(None, gradient_clip_val=0.5), with_lightning(gx.clip_global_norm(0.5, like="torch")))

    def by_value() -> None:
        options = {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"}
        assert_bits(with_lightning(None, **options), with_lightning(gx.clip_value(0.1)))

    def batches() -> None:
        options = {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"}
        native = with_lightning(None, accumulate_grad_batches=2, **options)
        assert_bits(native, with_lightning(gx.clip_value(0.1), accumulate_grad_batches=2))

    def with_accelerate(clip: Any, tx: Any) -> Any:
        accelerator = accelerate.Accelerator(cpu=True)
        net = runs.network()
        optimizer = torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
        net, optimizer = accelerator.prepare(net, optimizer)
        if tx is not None:
            gx.torch.attach(optimizer, tx)
        for batch in runs.batches():
            optimizer.zero_grad()
            accelerator.backward(runs.loss_of(net, batch))
            if clip:
                clip(accelerator, net.parameters())
            optimizer.step()
        return [p.detach() for p in net.parameters()]

    def accelerated() -> None:
        native = with_accelerate(lambda a, p: a.clip_grad_norm_(p, 0.5), None)
        assert_bits(native, with_accelerate(None, gx.clip_global_norm(0.5, like="torch")))

    def accelerated_values() -> None:
        native = with_accelerate(lambda a, p: a.clip_grad_value_(p, 0.1), None)
        assert_bits(native, with_accelerate(None, gx.clip_value(0.1)))

    like = 'bit-identical with like="torch"'
    return {
        "Trainer(gradient_clip_val=)": Row(own={like: by_norm}),
        'gradient_clip_algorithm="value"': Row(own={"bit-identical": by_value}),
        "accumulate_grad_batches=": Row(own={"keep it: transforms see the accumulated gradients": batches}),
        "Accelerator.clip_grad_norm_": Row(own={like: accelerated}),
        "Accelerator.clip_grad_value_": Row(own={"bit-identical": accelerated_values}),
    }


def mlx() -> dict[str, Row]:
    mx, clip = pytest.importorskip("mlx.core"), pytest.importorskip("mlx.optimizers").clip_grad_norm

    def native(function: Any) -> Side:
        return lambda leaves, c: [np.array(leaf) for leaf in function([mx.array(leaf) for leaf in leaves], c)]

    def parts() -> None:
        leaves = [np.complex64([3j]), np.complex64([4])]
        equal(native(lambda g, c: clip(g, c)[0])(leaves, 1.0), [[3j / 7**0.5], [4 / 7**0.5]])
        equal(gx.clip_global_norm(1.0)(leaves), [[0.6j], [0.8]])

    return {
        "clip_grad_norm": Row(
            native(lambda g, c: clip(g, c)[0]),
            lambda leaves, c: list(gx.clip_global_norm(c)(list(leaves))),
            {"squares complex numbers, not their magnitudes": parts},
        ),
        "mx.clip": Row(
            native(lambda g, c: [mx.clip(leaf, -c, c) for leaf in g]),
            lambda leaves, c: list(gx.clip_value(c)(list(leaves))),
        ),
    }


def paddle() -> dict[str, Row]:
    """Run Paddle in its own process: it conflicts with TensorFlow."""
    if importlib.util.find_spec("paddle") is None:
        pytest.skip("Paddle is not installed")

    def side(name: str) -> Side:
        def run(leaves: Leaves, c: float) -> list[Any]:
            code = (
                "import io, sys, numpy as np, paddle\n"
                "given = np.load(io.BytesIO(sys.stdin.buffer.read()))\n"
                "pairs = [(paddle.create_parameter([1], 'float32'), paddle.to_tensor(given[k])) for k in given.files]\n"
                f"found = [g.numpy() for _, g in paddle.nn.{name}({c!r})(pairs)]\n"
                "file = io.BytesIO(); np.savez(file, *found); sys.stdout.buffer.write(b'<<' + file.getvalue())\n"
            ).replace("(inf)", "(float('inf'))")
            file = io.BytesIO()
            np.savez(file, *leaves)
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code], input=file.getvalue(), capture_output=True, check=True
            )
            found = np.load(io.BytesIO(done.stdout.partition(b"<<")[2]))
            return [found[key].reshape(leaf.shape) for key, leaf in zip(found.files, leaves, strict=True)]

        return run

    def pair(name: str, tx: Any) -> Row:
        return Row(side(name), lambda leaves, c: list(tx(c)(list(leaves))))

    return {
        "ClipGradByValue": pair("ClipGradByValue", gx.clip_value),
        "ClipGradByNorm": pair("ClipGradByNorm", gx.clip_norm),
        "ClipGradByGlobalNorm": pair("ClipGradByGlobalNorm", gx.clip_global_norm),
    }


# --- the page --------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A row of the page: the native functions, the equivalents and the phrases."""

    section: str
    native: list[str]
    equivalents: list[str]
    phrases: list[str]


ROWS: dict[str, Callable[[], dict[str, Row]]] = {
    "TensorFlow": tensorflow,
    "Keras": keras,
    "optax": optax,
    "JAX": jax,
    "PyTorch": torch,
    "Lightning and Accelerate": trainers,
    "MLX": mlx,
    "Paddle": paddle,
}


OWNERS = ("minimize", "contrib", "jax.example_libraries")
"""Where the page says that a function is defined."""


def lines() -> Iterator[Line]:
    _, *found = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    for section, text in zip(found[::2], found[1::2], strict=True):
        _, _, *rows = re.findall(r"^\|(.+)\|$", text, re.MULTILINE)
        for row in rows:
            functions, differences = (cell.strip() for cell in row.split("|"))
            native, _, equivalents = functions.partition(" → ")
            names = [name for name in re.findall(r"`([^`]+)`", native) if name not in OWNERS]
            yield Line(section, names, re.findall(r"`([^`]+)`", equivalents), differences.split("; "))


LINES = list(lines())
CHECKS = [(line, phrase) for line in LINES for phrase in line.phrases]
of = functools.cache(lambda section: ROWS[section]())


def test_every_phrase_that_has_a_check_is_on_the_page() -> None:
    there = {phrase for line in LINES for phrase in line.phrases}
    assert {phrase for phrase in PHRASES if not phrase.startswith("within")} | NATIVE_ONLY <= there


def test_the_versions_are_those_that_the_tests_run_with() -> None:
    names = "TensorFlow|Keras|optax|JAX|PyTorch|Lightning|Accelerate|MLX"
    found = re.findall(rf"\b({names})\s([\d.]+\d)", PAGE.read_text())
    said = {"torch" if name == "PyTorch" else name.lower(): version for name, version in found}
    assert len(said) == len(names.split("|"))
    pinned = (PAGE.parents[2] / ".ci/constraints.txt").read_text().split()
    assert {f"{name}=={version}" for name, version in said.items()} <= set(pinned)
    assert WRITTEN_FOR.items() <= said.items()


def test_every_equivalent_exists() -> None:
    assert list(dict.fromkeys(line.section for line in LINES)) == list(ROWS)
    for line in LINES:
        for name in line.equivalents:
            assert callable(named(name)), line
        assert line.equivalents or any(phrase.startswith("keep it") for phrase in line.phrases), line


@pytest.mark.parametrize("section", ROWS)
def test_every_check_belongs_to_a_row(section: str) -> None:
    rows = of(section)
    own = {line.native[0]: line for line in LINES if line.section == section}
    assert set(own) == set(rows)
    for name, row in rows.items():
        assert set(row.own) <= set(own[name].phrases), name


@pytest.mark.filterwarnings("ignore")  # libraries warn about NaN, None and deprecations
@pytest.mark.parametrize(
    ("line", "phrase"), CHECKS, ids=[f"{line.section}-{line.native[0]}-{phrase}" for line, phrase in CHECKS]
)
def test_the_differences(line: Line, phrase: str) -> None:
    row = of(line.section)[line.native[0]]
    check = row.own[phrase] if phrase in row.own else functools.partial(PHRASES[phrase], row)
    called = calls(check)
    if phrase not in NATIVE_ONLY:
        if "jax" in sys.modules and any(not called & codes(name) for name in line.equivalents):
            sys.modules["jax"].clear_caches()  # a cached jit call would not run the Python function again
            called = calls(check)
        assert [name for name in line.equivalents if not called & codes(name)] == []


NATIVE_ONLY = {
    "a name can be registered only once",
    "only one of the three at a time",
    "label trees instead of path patterns",
    "keep it: it accepts gradxform transforms",
}
"""Phrases whose checks need not call the equivalent."""


def calls(check: Check) -> set[types.CodeType]:
    """The code objects of the functions that a check calls."""
    seen: set[types.CodeType] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: seen.add(frame.f_code))
    try:
        check()
    finally:
        sys.setprofile(before)
    return seen


def codes(name: str) -> set[types.CodeType]:
    """The code of a gradxform function, or of a class's methods."""
    found = inspect.unwrap(named(name))
    return {f.__code__ for f in (vars(found).values() if inspect.isclass(found) else [found]) if inspect.isfunction(f)}


def named(name: str) -> Any:
    """The object that a name on the page refers to."""
    return functools.reduce(getattr, re.sub(r"^gx\.|\(.*", "", name).split("."), gx)


# --- nothing is left out ---------------------------------------------------------------------------------------------

CLIPS = re.compile("clip|norm|grad|accumul|stop|scale|nan|moving|freez|zero|skip|Steps")
WRITTEN_FOR = {"tensorflow": "2.21.0", "keras": "3.15.1", "optax": "0.2.8", "torch": "2.13.0", "mlx": "0.32.4"}

NO_TRANSFORM = {
    "tensorflow": {
        "*GradientTape, tf.gradients, tf.UnconnectedGradients, tf.recompute_grad": "takes gradients",
        "tf.no_gradient, tf1.NoGradient": "says that an op has none",
        "*ragged_fill_empty_rows_grad, tf1.fake_quant_*": "the gradient of one op",
        "tf1.ConditionalAccumulatorBase": "the base of two that are there",
        "*.accumulate_n": "the sum of tensors",
        "tf1.*_normal, *_normal_initializer": "draws numbers",
        "tf.nn.*, *.l2_normalize": "of activations and their moments",
        "*.is_nan, *_no_nan, *.reduce_euclidean_norm": "a function of one tensor",
        "tf1.moving_average_variables": "lists variables",
        "tf.linalg.LinearOperator*, tf1.matrix_determinant": "of matrices",
        "tf1.train.*Hook, tf1.train.NanLossDuringTrainingError": "ends or watches a session",
        "tf.zeros*, *.zero_fraction, *.count_nonzero": "counts or makes zeros",
    },
    "keras": {
        "learning_rate, momentum, nesterov, name, kwargs": "the optimizer's own",
        "use_ema, ema_momentum, ema_overwrite_frequency": "an average of the weights",
    },
    "optax": {
        "scale_by_ad*, scale_by_amsgrad, scale_by_belief, scale_by_lion, scale_by_novograd": "an optimizer",
        "scale_by_rms, scale_by_radam, scale_by_rss, scale_by_sm3, scale_by_stddev, scale_by_yogi": "an optimizer",
        "scale_by_optimistic_gradient, scale_by_polyak, scale_by_factored_rms, scale_by_lbfgs": "an optimizer",
        "scale_by_distance_over_gradients, scale_by_backtracking_*, scale_by_zoom_*, polyak_sgd": "an optimizer",
        "contrib.scale_by_*, lookahead, contrib.sam, contrib.mechanize": "an optimizer",
        "scale_by_trust_ratio, scale_by_param_block_*": "the size of a step, by that of the parameters",
        "contrib.reduce_on_plateau": "the size of a step, by the loss",
        "keep_params_nonnegative": "a constraint of parameters",
        "inject_stateful_hyperparams": "deprecated, and is inject_hyperparams",
        "contrib.split_real_and_imaginary": "makes real numbers of complex ones, for what takes no other",
        "safe_norm, update_moment_per_elem_norm, multi_normal": "a helper of others",
        "value_and_grad_from_state": "takes gradients",
        "contrib.hutchinson_estimator_diag_hessian": "of second derivatives",
        "matrix_inverse_pth_root, sigmoid_binary_cross_entropy": "a helper of others",
        "update_moment, update_infinity_moment": "a helper of others",
        "contrib.schedule_free_eval_params": "of the weights",
    },
    "torch": {
        "clip_grad_norm": "deprecated, and is clip_grad_norm_",
        "remove_*, spectral_norm, weight_norm": "of weights",
        "register_forward_*, register_*state_dict_*": "not on the way back",
        "register_backward_hook": "deprecated for register_full_backward_hook",
        "register_step_post_hook, profile_hook_step, zero_grad": "no change of a gradient before a step",
        "scale, get_scale": "of the loss",
        "detach_": "detach in place",
    },
    "mlx": {
        "*_like, zeros, isnan, matrix_norm, grad, value_and_grad, nan_to_num, nan, count_nonzero": "not of gradients",
        "stop_gradient": "of MLX's arrays, which need a backend of their own",
        "average_gradients, Adagrad": "over processes, or an optimizer",
    },
}


def left_out(library: str, names: Sequence[str], sections: Sequence[str]) -> None:
    """Assert that every name is on the page or has a reason, and that every reason is used."""
    there = {name for line in LINES if line.section in sections for name in line.native}
    reasons = [pattern for key in NO_TRANSFORM[library] for pattern in key.split(", ")]
    found = {name: [pattern for pattern in reasons if fnmatch.fnmatchcase(name, pattern)] for name in names}
    assert [name for name, why in found.items() if not why and name not in there] == []
    assert set(reasons) - {pattern for why in found.values() for pattern in why} == set()


def public(prefix: str, place: Any) -> Iterator[str]:
    for name in dir(place):
        if name[0] != "_" and not inspect.ismodule(getattr(place, name)):
            yield prefix + name


def written_for(library: str) -> Any:
    found = pytest.importorskip(library)
    if found.__version__.partition("+")[0] != WRITTEN_FOR[library]:
        pytest.skip(f"lists what {library} {WRITTEN_FOR[library]} has")
    return found


def test_no_function_of_tensorflow_is_left_out() -> None:
    tf = written_for("tensorflow")
    places = {"tf.": tf, "tf1.": tf.compat.v1, "tf1.train.": tf.compat.v1.train}
    places |= {f"tf.{name}.": getattr(tf, name) for name in ("linalg", "math", "nn", "train")}
    words = re.compile(CLIPS.pattern.replace("|scale", ""), re.IGNORECASE)
    names = [name for prefix, place in places.items() for name in public(prefix, place) if words.search(name)]
    assert len(names) > 60
    names = [name for name in names if not name.startswith("tf1.") or name.replace("tf1.", "tf.") not in names]
    left_out("tensorflow", [name for name in names if "Optimizer" not in name], ["TensorFlow"])


def test_no_argument_of_keras_optimizers_is_left_out() -> None:
    keras = written_for("keras")
    arguments = inspect.signature(keras.optimizers.SGD).parameters
    there = {name for line in LINES for name in line.native}
    left_out("keras", [f"{name}=" if f"{name}=" in there else name for name in arguments], ["Keras"])
    assert [name for name in keras.optimizers.__dict__ if "Scale" in name] == ["LossScaleOptimizer"]


def test_no_transformation_of_optax_is_left_out() -> None:
    optax = written_for("optax")
    names = []
    for prefix, place in (("", optax), ("contrib.", optax.contrib), ("", optax.transforms)):
        for name in public("", place):
            value = getattr(place, name)
            if not (inspect.isfunction(value) or inspect.isclass(value)) or name.endswith(("State", "Info")):
                continue
            signature = inspect.signature(value)
            if "learning_rate" in signature.parameters and name != "scale_by_learning_rate":
                continue  # an optimizer
            said = signature.return_annotation
            unsaid = inspect.isfunction(value) and said is signature.empty
            if unsaid or "Transformation" in str(said) or CLIPS.search(name):
                names.append(prefix + name)
    assert len(names) > 80
    there = {f"optax.{name}" for name in names} & {name for line in LINES for name in line.native}
    names = [name.replace("contrib.diff", "diff") for name in names if f"optax.{name}" not in there]
    left_out("optax", names, ["optax"])


def test_no_function_of_torch_is_left_out() -> None:
    torch = written_for("torch")
    names = [*public("", torch.nn.utils), *public("", torch.nn.Module), *public("", torch.optim.Optimizer)]
    names += [name for name in public("", torch.amp.GradScaler) if "scale" in name]
    names += [name for name in public("", torch.Tensor) if "hook" in name or "detach" in name]
    names = [name for name in names if re.search("clip|norm|hook|detach|scale$|grad", name)]
    there = {
        "register_hook": "Tensor.register_hook",
        "detach": "Tensor.detach",
        "requires_grad_": "requires_grad_(False)",
    }
    left_out("torch", [there.get(name, name) for name in names], ["PyTorch"])


def test_no_function_of_mlx_is_left_out() -> None:
    mx = pytest.importorskip("mlx.core")
    if mx.__version__ != WRITTEN_FOR["mlx"]:
        pytest.skip("lists what MLX 0.32.4 has")
    import mlx.nn
    import mlx.optimizers

    names = [*public("", mx), *public("", mlx.optimizers), *public("", mlx.nn)]
    names = ["mx.clip" if name == "clip" else name for name in names if CLIPS.search(name)]
    left_out("mlx", names, ["MLX"])
