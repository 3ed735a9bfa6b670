"""The tables of function equivalents: each row calls both functions, which are equal or differ as it says.

A row of `docs/migrating/index.md` says how far the results are apart, and for which of `CASES` they differ.
"""

from __future__ import annotations

import functools
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import optree
import peers
import pytest
from support import INF, NAN, ROOT, array, rows, slow

import gradxform as gx
from gradxform.backend import lookup
from gradxform.testing import max_ulp

F = np.float32
Side = Callable[[Sequence[Any], float], Any]


class Clips(NamedTuple):
    """A native function and its equivalent, of gradients and a limit."""

    native: Side
    equivalent: Side


Results = Callable[[], tuple[Any, Any]]
"""Gives the results of a native function and of its equivalent."""


def clips(framework: str, native: Any, equivalent: Any) -> Clips:
    """Let functions of a framework's arrays take NumPy arrays."""

    def side(function: Any) -> Side:
        given = lookup.backend(framework).from_numpy
        return lambda leaves, c: function([leaf if leaf is None else given(leaf.copy()) for leaf in leaves], c)

    return Clips(side(native), side(equivalent))


def each(function: Any) -> Any:
    return lambda g, c: [function(leaf, c) for leaf in g]


def by(factory: Any) -> Any:
    """Clip by a gradxform transform."""
    return lambda g, c: factory(c)(g)


def of(transform: str, library: str) -> Clips:
    """A clip that `peers` has, and gradxform's."""
    tx, framework = (
        getattr(gx, transform),
        {"keras": "tensorflow", "optax": "jax", "mlx": "numpy"}.get(library, library),
    )
    return Clips(peers.find(transform, library), clips(framework, None, by(tx)).equivalent)


# --- cases -----------------------------------------------------------------------------------------------------------

CASES: dict[str, list[tuple[float, list[Any]]]] = {
    "1e30": [(1.0, [F([1e30]), F([3])])],
    "1e-8": [(1e-8, [F([3e-8, 4e-8])])],
    "inf": [(1.0, [F([INF, 1])])],
    "zeros": [(1.0, [F([0, 0])])],
    "limit 0": [(0.0, [F([3, 4])]), (0.0, [F([0, 0])])],
    "limit inf": [(INF, [F([3, 4])])],
    "float16": [(600.0, [np.float16([300]), np.float16([300])])],
    "mixed dtypes": [(1.0, [F([3]), np.float16([4])])],
    "None": [(1.0, [F([3, 4]), None])],
}
LIMITS = {"bit-identical": 0, "within 4 ULP": 4, "within 8 ULP": 8}
RTOL = 2e-3
"""Cases differ if results do by more: by NaN, infinity or zeros, or if the native function raises."""


def ordinary(seed: int, size: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [F(1.7 * size * rng.standard_normal(shape)) for shape in ((), (3,), (3, 2), (17, 23), (2, 2, 3, 4))]


def leaves(tree: Any) -> list[Any]:
    return list(map(array, optree.tree_leaves(tree)))


def ulp(native: Any, equivalent: Any) -> float:
    pairs = list(zip(leaves(native), leaves(equivalent), strict=True))
    assert all(a.dtype == b.dtype for a, b in pairs)
    return max(max_ulp(a, b) for a, b in pairs)


def distance(pair: Clips) -> float:
    """The largest distance for gradients of three sizes, clipped hard, slightly and not at all."""
    far = 0.0
    for seed, size in enumerate((1e-2, 1.0, 1e3)):
        g = ordinary(seed, size)
        norm = float(np.sqrt(sum(np.sum(np.float64(leaf) ** 2) for leaf in g)))
        for c in (0.05 * norm, 0.9 * norm, 50.0 * norm):
            far = max(far, ulp(pair.native(g, c), pair.equivalent(g, c)))
    return far


def differs(pair: Clips, case: str) -> bool:
    for c, g in CASES[case]:
        found = leaves(pair.equivalent(g, c))
        try:
            native = leaves(pair.native(g, c))
        except Exception:  # whatever the library raises
            return True
        for a, b in zip(native, found, strict=True):
            if not np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=RTOL, atol=0, equal_nan=True):
                return True
    return False


# --- rows ------------------------------------------------------------------------------------------------------------


def tensorflow() -> dict[str, Clips | Results]:
    tf = pytest.importorskip("tensorflow")
    tf1, pair = tf.compat.v1, functools.partial(clips, "tensorflow")

    def gradient(function: Any) -> Any:
        x = tf.constant([0.5, -2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(function(x) * x * [3.0, -0.05, 4.0])
        return y, tape.gradient(y, x)

    def axes(of: Any) -> Any:
        return [of(g, tuple(range(max(g.ndim - 1, 0))) or None) for g in map(tf.constant, ordinary(1)[1:])]

    def averages() -> Any:
        """TensorFlow starts at the first value, and does not debias."""
        g, average = tf.Variable([4.0, 8.0]), tf.train.ExponentialMovingAverage(0.5)
        process = gx.tensorflow.GradientProcessor(gx.ema(0.5), [g])
        for value in ([4.0, 8.0], [2.0, 0.0]):
            g.assign(value)
            average.apply([g])
            found = process([(tf.constant(value), g)])[0][0]
        return average.average(g), found

    def accumulated() -> Any:
        steps = [np.abs(ordinary(seed)[3]) for seed in range(4)]  # without cancellation
        with tf.Graph().as_default(), tf1.Session() as session:
            held = tf1.ConditionalAccumulator(tf.float32, steps[0].shape)
            for step in steps:
                session.run(held.apply_grad(tf.constant(step), local_step=1))
            native = session.run(held.take_grad(4))
        tx = gx.accumulate(gx.identity(), 4)
        state = tx.init(steps[0])
        for step in steps:
            found, state = tx.update(step, state)
        return native, found

    return {
        "tf.clip_by_value": pair(each(lambda g, c: tf.clip_by_value(g, -c, c)), by(gx.clip_value)),
        "tf.clip_by_norm": pair(each(tf.clip_by_norm), by(gx.clip_norm)),
        "tf.clip_by_norm(axes=)": lambda: (
            axes(lambda g, over: tf.clip_by_norm(g, 0.9, axes=over)),
            axes(lambda g, over: gx.clip_norm(0.9, axes=over)(g)),
        ),
        "tf.clip_by_global_norm": pair(lambda g, c: tf.clip_by_global_norm(g, c)[0], by(gx.clip_global_norm)),
        "tf1.clip_by_average_norm": pair(each(tf1.clip_by_average_norm), by(gx.clip_average_norm)),
        "tf.linalg.global_norm": pair(lambda g, c: tf.linalg.global_norm(g), lambda g, c: gx.global_norm(g)),
        "tf.norm": pair(each(lambda g, c: tf.norm(g)), lambda g, c: list(gx.norms(g).values())),
        "tf.linalg.normalize": pair(each(lambda g, c: tf.linalg.normalize(g)[0]), by(lambda c: gx.normalize_norm())),
        "tf.stop_gradient": lambda: (gradient(tf.stop_gradient), gradient(gx.stop_gradient)),
        "tf.grad_pass_through": lambda: (
            gradient(tf.grad_pass_through(tf.round)),
            gradient(gx.straight_through(tf.round)),
        ),
        "tf.train.ExponentialMovingAverage": averages,
        "tf1.ConditionalAccumulator": accumulated,
    }


def keras() -> dict[str, Clips | Results]:
    keras, tf = pytest.importorskip("keras"), pytest.importorskip("tensorflow")
    SGD, wrap = keras.optimizers.SGD, gx.keras.wrap

    def own(argument: str, tx: Any) -> Clips:
        return clips("tensorflow", lambda g, c: SGD(**{argument: c})._clip_gradients(g), by(tx))

    def train(optimizer: Any, steps: int = 4) -> Any:
        w = keras.Variable([0.0, 2.0, 4.0, 6.0])
        optimizer.build([w])
        for step in range(steps):
            optimizer.apply_gradients([(tf.constant([1.0, -2.0, 4.0, 0.5]) * (step + 1.0), w)])
        return w.numpy()

    def gradient(stop: Any) -> Any:
        x = tf.constant([1.0, -2.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = stop(x) * x
        return y, tape.gradient(y, x)

    return {
        "clipnorm=": own("clipnorm", gx.clip_norm),
        "global_clipnorm=": own("global_clipnorm", gx.clip_global_norm),
        "clipvalue=": own("clipvalue", gx.clip_value),
        "gradient_accumulation_steps=": lambda: (
            train(SGD(0.5, gradient_accumulation_steps=2)),
            train(wrap(SGD(0.5), gx.accumulate(gx.identity(), 2))),
        ),
        "weight_decay=": lambda: (
            train(SGD(0.5, 0.5, weight_decay=0.25)),
            train(wrap(SGD(0.5, 0.5), gx.add_decayed_weights(0.25))),
        ),
        "keras.ops.stop_gradient": lambda: (gradient(keras.ops.stop_gradient), gradient(gx.stop_gradient)),
    }


def optax() -> dict[str, Clips | Results]:
    jax, o = pytest.importorskip("jax"), pytest.importorskip("optax")
    jnp = jax.numpy
    start = {"a": jnp.float32([1.0, -2.0, 0.5, 3.0]), "b": jnp.float32([[0.25, 3.0], [2.0, -1.0]])}
    mask, batch = {"a": True, "b": False}, [np.abs(leaf) for leaf in (ordinary(0)[3], ordinary(1)[3])]

    def pair(native: Any, equivalent: Any) -> Clips:
        def one(make: Any) -> Any:
            return lambda g, c: jax.jit((tx := make(c)).update)(g, tx.init(g))[0]

        return clips("jax", one(native), one(equivalent))

    def train(tx: Any, bad: float = 1.0) -> Any:
        """The parameters after six steps on multiples of one half; one gradient of the third is multiplied."""
        params, state = start, tx.init(start)
        for step in range(6):
            grads = jax.tree.map(lambda p: jnp.round(p * 4 + step) / 2, start)  # noqa: B023
            grads["a"] *= bad if step == 2 else 1.0
            updates, state = jax.jit(tx.update)(grads, state, params)
            params = jax.tree.map(lambda p, u: p + u, params, updates)
        return params

    def alike(native: Any, equivalent: Any, **options: Any) -> Results:
        return lambda: (train(native, **options), train(equivalent, **options))

    def gradient(function: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(function(x) * x))(start["a"])

    def noise(tx: Any) -> Any:
        return tx.update(zeros := jnp.zeros(4000), tx.init(zeros))[0]

    def halved(g: Any, p: Any) -> Any:
        return jax.tree.map(lambda leaf: 0.5 * leaf, g)

    adamw, clipped = o.adamw(0.1, weight_decay=0.5), {"clip": o.clip(0.5), "other": o.sgd(0.5)}
    skipped = o.MultiSteps(o.sgd(0.5), 1, should_skip_update_fn=o.skip_not_finite)
    large = o.MultiSteps(
        o.sgd(0.5), 1, should_skip_update_fn=functools.partial(o.skip_large_updates, max_squared_norm=900)
    )
    private = o.contrib.differentially_private_aggregate(1.0, 0.0, 0)
    return {
        "optax.clip": pair(o.clip, gx.clip_value),
        "optax.clip_by_global_norm": pair(o.clip_by_global_norm, gx.clip_global_norm),
        "optax.clip_by_block_rms": pair(o.clip_by_block_rms, gx.clip_rms),
        "adaptive_grad_clip": alike(o.adaptive_grad_clip(0.5), gx.clip_adaptive(0.5, axes="keras")),
        "per_example_global_norm_clip": lambda: (
            o.per_example_global_norm_clip(batch, 5.0)[0],
            gx.per_example_clip_global_norm(batch, 5.0)[0],
        ),
        "per_example_layer_norm_clip": lambda: (
            o.per_example_layer_norm_clip(batch, 5.0)[0],
            gx.per_example_clip_norm(batch, 5.0 / 2**0.5)[0],
        ),
        "differentially_private_aggregate": lambda: (
            private.update(batch, private.init(None))[0],
            [leaf / F(len(batch[0])) for leaf in gx.per_example_clip_global_norm(batch, 1.0)[0]],
        ),
        "normalize_by_update_norm": pair(
            o.normalize_by_update_norm, lambda c: gx.chain(gx.normalize_global_norm(), gx.scale(c))
        ),
        "contrib.normalize": pair(lambda c: o.contrib.normalize(), lambda c: gx.normalize_global_norm()),
        "centralize": alike(o.centralize(), gx.centralize()),
        "scale_by_sign": pair(lambda c: o.scale_by_sign(), lambda c: gx.sign()),
        "optax.scale": pair(o.scale, gx.scale),
        "scale_by_learning_rate": pair(o.scale_by_learning_rate, lambda c: gx.scale(-c)),
        "scale_by_schedule": alike(
            o.scale_by_schedule(s := o.piecewise_constant_schedule(0.5, {2: 0.25})), gx.scale_by_schedule(s)
        ),
        "scale_gradient": lambda: (
            gradient(lambda x: o.scale_gradient(x, 0.3)),
            gradient(gx.on_backward(gx.scale(0.3))),
        ),
        "global_norm": clips("jax", lambda g, c: o.tree.norm(g), lambda g, c: gx.global_norm(g)),
        "zero_nans": pair(lambda c: o.zero_nans(), lambda c: gx.zero_nonfinite()),
        "apply_if_finite": alike(o.apply_if_finite(o.sgd(0.5), 9), gx.skip_nonfinite(o.sgd(0.5)), bad=INF),
        "skip_not_finite": alike(skipped, gx.skip_nonfinite(o.sgd(0.5)), bad=NAN),
        "skip_large_updates": alike(large, gx.skip_large(o.sgd(0.5), 30.0), bad=100.0),
        "MultiSteps": alike(o.MultiSteps(o.sgd(0.5), 2), gx.accumulate(o.sgd(0.5), 2)),
        "apply_every": alike(o.apply_every(2), gx.chain(gx.accumulate(gx.identity(), 2), gx.scale(2.0))),
        "add_noise": lambda: (noise(o.add_noise(0.01, 0.0, 0)), noise(gx.add_noise(0.1, 0))),
        "add_decayed_weights": alike(o.add_decayed_weights(0.25), gx.add_decayed_weights(0.25)),
        "ema": alike(o.ema(0.5, debias=False), gx.ema(0.5, debias=False)),
        "trace": alike(o.trace(0.5), gx.trace(0.5)),
        "set_to_zero": alike(o.set_to_zero(), gx.stop()),
        "freeze": alike(o.chain(o.freeze(mask), adamw), gx.jax.freeze(adamw, "a")),
        "selective_transform": alike(o.selective_transform(adamw, freeze_mask=mask), gx.jax.freeze(adamw, "a")),
        "masked": alike(o.masked(o.clip(0.5), mask), gx.masked(gx.clip_value(0.5), "a")),
        "partition": alike(
            o.partition(clipped, {"a": "clip", "b": "other"}),
            gx.partition({"a": gx.clip_value(0.5)}, default=o.sgd(0.5)),
        ),
        "stateless": alike(o.stateless(halved), gx.transform(lambda view: view.scaled(0.5))),
        "identity": alike(o.identity(), gx.identity()),
        "chain": alike(o.chain(o.clip(1.0), o.scale(-0.5)), gx.chain(gx.clip_value(1.0), gx.scale(-0.5))),
    }


def jax() -> dict[str, Clips | Results]:
    jax = pytest.importorskip("jax")
    from jax.example_libraries import optimizers

    jnp, pair = jax.numpy, functools.partial(clips, "jax")

    def gradient(function: Any) -> Any:
        x, y = jnp.float32([1.0, -2.0, 0.5]), jnp.float32([3.0, 0.05, -4.0])
        return jax.value_and_grad(lambda x: jnp.sum(function(x) * x * y))(x)

    clipped = jax.custom_vjp(lambda x: x)
    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))
    return {
        "jnp.clip": pair(each(lambda g, c: jnp.clip(g, -c, c)), by(gx.clip_value)),
        "jax.lax.stop_gradient": lambda: (gradient(jax.lax.stop_gradient), gradient(gx.stop_gradient)),
        "jax.custom_vjp": lambda: (gradient(clipped), gradient(gx.on_backward(gx.clip_value(0.1)))),
        "clip_grads": pair(optimizers.clip_grads, by(gx.clip_global_norm)),
        "l2_norm": pair(lambda g, c: optimizers.l2_norm(g), lambda g, c: gx.global_norm(g)),
    }


def torch() -> dict[str, Clips | Results]:
    torch = pytest.importorskip("torch")
    utils = torch.nn.utils

    def pair(clip: Any, tx: Any) -> Clips:
        def change(function: Any) -> Any:
            def run(g: Any, c: float) -> Any:
                held = [torch.nn.Parameter(torch.zeros_like(leaf)) for leaf in g if leaf is not None]
                for parameter, leaf in zip(held, [leaf for leaf in g if leaf is not None], strict=True):
                    parameter.grad = leaf
                function(held, c)
                return [parameter.grad for parameter in held]

            return run

        return clips("torch", change(clip), change(lambda held, c: gx.torch.apply_(tx(c), held)))

    def gradient(change: Any) -> Any:
        x = torch.tensor([0.5, -2.0, 3.0], requires_grad=True)
        y = (change(x * 1.0) * x * torch.tensor([3.0, -0.05, 4.0])).sum()
        y.backward()
        return y.detach(), x.grad

    def layer(name: str) -> Any:
        made = torch.nn.Identity()
        getattr(made, name)(lambda _, *given: tuple(g.clamp(-0.1, 0.1) for g in given[0]))
        return made

    def train(prepare: Any, make: Any = torch.optim.SGD, **options: Any) -> Any:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        optimizer = make(net.named_parameters(), lr=0.1, **options)
        prepare(net, optimizer)
        for batch in torch.sin(torch.arange(36.0).reshape(4, 3, 3)):
            optimizer.zero_grad()
            (10 * net(batch)).square().sum().backward()
            optimizer.step()
        return [p.detach() for p in net.parameters()]

    def attach(*txs: Any) -> Any:
        return lambda net, optimizer: gx.torch.attach(optimizer, gx.chain(*txs))

    def after_each(net: Any, optimizer: Any) -> None:
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(lambda p: utils.clip_grad_value_([p], 0.5))

    def before_step(net: Any, optimizer: Any) -> None:
        optimizer.register_step_pre_hook(lambda *_: utils.clip_grad_value_(net.parameters(), 0.5))

    def freeze(net: Any, optimizer: Any) -> None:
        net[0].requires_grad_(False)

    def nothing(net: Any, optimizer: Any) -> None: ...

    clipped, tx = gx.on_backward(gx.clip_value(0.1)), gx.torch.GradientTransform(gx.clip_value(0.1))
    adamw = {"make": torch.optim.AdamW, "weight_decay": 0.1}

    def hook(x: Any) -> Any:
        x.register_hook(lambda g: g.clamp(-0.1, 0.1))
        return x

    return {
        "clip_grad_norm_": pair(utils.clip_grad_norm_, gx.clip_global_norm),
        "clip_grad_value_": pair(utils.clip_grad_value_, gx.clip_value),
        "clip_grads_with_norm_": pair(
            lambda held, c: utils.clip_grads_with_norm_(held, c, utils.get_total_norm([p.grad for p in held])),
            gx.clip_global_norm,
        ),
        "get_total_norm": clips("torch", lambda g, c: utils.get_total_norm(g), lambda g, c: gx.global_norm(g)),
        "Tensor.register_hook": lambda: (gradient(hook), gradient(clipped)),
        "register_full_backward_hook": lambda: (gradient(layer("register_full_backward_hook")), gradient(tx)),
        "register_post_accumulate_grad_hook": lambda: (train(after_each), train(attach(gx.clip_value(0.5)))),
        "register_step_pre_hook": lambda: (train(before_step), train(attach(gx.clip_value(0.5)))),
        "Tensor.detach": lambda: (gradient(torch.detach), gradient(gx.stop_gradient)),
        "requires_grad_(False)": lambda: (train(freeze, **adamw), train(attach(gx.freeze("0/*")), **adamw)),
        "SGD(momentum=, weight_decay=)": lambda: (
            train(nothing, momentum=0.5, weight_decay=0.25),
            train(attach(gx.add_decayed_weights(0.25), gx.trace(0.5))),
        ),
    }


def trainers() -> dict[str, Clips | Results]:
    lightning, accelerate = pytest.importorskip("lightning"), pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    x, y = torch.sin(torch.arange(48.0).reshape(12, 4)), torch.cos(torch.arange(24.0).reshape(12, 2))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}

    class Module(lightning.LightningModule):
        def __init__(self, tx: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
            self.tx = tx

        def training_step(self, batch: Any, _: int) -> Any:
            return 10.0 * torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            made = torch.optim.SGD(self.net.named_parameters(), lr=0.1, momentum=0.9)
            gx.torch.attach(made, self.tx)
            return made

    def trainer(tx: Any, **options: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            options |= {"accelerator": "cpu", "default_root_dir": folder, "enable_checkpointing": False, **quiet}
            lightning.Trainer(max_epochs=2, **options).fit(model := Module(tx), data)
        return [p.detach() for p in model.net.parameters()]

    def accelerator(tx: Any, clip: str = "", *limit: float) -> Any:
        made, model = accelerate.Accelerator(cpu=True), Module(tx)
        net, held = made.prepare(model.net, model.configure_optimizers())
        for batch in data:
            held.zero_grad()
            made.backward(model.training_step(batch, 0))
            if clip:
                getattr(made, clip)(net.parameters(), *limit)
            held.step()
        return [p.detach() for p in net.parameters()]

    nothing, by_norm, by_value = gx.identity(), gx.clip_global_norm(0.5, like="torch"), gx.clip_value(0.1)
    options = {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"}
    return {
        "Trainer(gradient_clip_val=)": lambda: (trainer(nothing, gradient_clip_val=0.5), trainer(by_norm)),
        'gradient_clip_algorithm="value"': lambda: (trainer(nothing, **options), trainer(by_value)),
        "Accelerator.clip_grad_norm_": lambda: (accelerator(nothing, "clip_grad_norm_", 0.5), accelerator(by_norm)),
        "Accelerator.clip_grad_value_": lambda: (accelerator(nothing, "clip_grad_value_", 0.1), accelerator(by_value)),
    }


def mlx() -> dict[str, Clips | Results]:
    mx = pytest.importorskip("mlx.core")
    ours = clips("numpy", None, by(gx.clip_value)).equivalent
    return {
        "clip_grad_norm": of("clip_global_norm", "mlx"),
        "mx.clip": Clips(lambda g, c: [np.array(mx.clip(mx.array(leaf), -c, c)) for leaf in g], ours),
    }


def paddle() -> dict[str, Clips | Results]:
    pytest.importorskip("paddle")
    ours = clips("numpy", None, by(gx.clip_value)).equivalent
    return {
        "ClipGradByValue": Clips(peers._paddle("ClipGradByValue"), ours),
        "ClipGradByNorm": of("clip_norm", "paddle"),
        "ClipGradByGlobalNorm": of("clip_global_norm", "paddle"),
    }


SECTIONS: dict[str, Callable[[], dict[str, Clips | Results]]] = {
    "TensorFlow": tensorflow,
    "Keras": keras,
    "optax": optax,
    "JAX": jax,
    "PyTorch": torch,
    "Lightning and Accelerate": trainers,
    "MLX": mlx,
    "Paddle": paddle,
}


# --- the page --------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A row of the page."""

    section: str
    native: list[str]
    equivalents: list[str]
    apart: str
    differences: str


OWNERS = ("minimize", "contrib", "jax.example_libraries")
"""Where the page says that a function is defined."""


def lines() -> Iterator[Line]:
    _, *found = re.split(r"^## (.+)$", (ROOT / "docs/migrating/index.md").read_text(), flags=re.MULTILINE)
    for section, text in zip(found[::2], found[1::2], strict=True):
        for functions, apart, differences in rows(text, re.search(r"^\|.+ → gradxform \|.+\|$", text, re.MULTILINE)[0]):
            native, _, equivalents = (re.findall(r"`([^`]+)`", part) for part in functions.partition(" → "))
            yield Line(section, [name for name in native if name not in OWNERS], equivalents, apart, differences)


LINES = list(lines())
of_section = functools.cache(lambda section: SECTIONS[section]())


@pytest.mark.parametrize("section", SECTIONS)
def test_every_check_belongs_to_a_row(section: str) -> None:
    assert set(of_section(section)) <= {name for line in LINES if line.section == section for name in line.native}


@slow("calls every function of other libraries on the edge cases")
@pytest.mark.filterwarnings("ignore")  # libraries warn about NaN, None and deprecations
@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.section}-{line.native[0]}")
def test_both_functions_are_equal_or_differ(line: Line) -> None:
    for name in line.equivalents:
        assert callable(functools.reduce(getattr, re.sub(r"^gx\.|\(.*", "", name).split("."), gx)) or "schedule" in name
    checks = of_section(line.section)
    if line.apart.startswith("["):  # code of another page, which test_migration.py runs, or a doctest
        return
    assert line.native[0] in checks or line.apart == "keep it"
    for check in (checks[name] for name in line.native if name in checks):
        far = distance(check) if isinstance(check, Clips) else ulp(*check())
        assert far > 8 if line.apart == "differs" else far <= LIMITS[line.apart]
        if isinstance(check, Clips):
            listed = {case for case in CASES if f"`{case}`" in line.differences}
            found = {case for case in CASES if differs(check, case)}
            assert listed == (found & listed if line.section == "Paddle" else found)
