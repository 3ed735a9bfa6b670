"""Clips of Keras and gradxform under MirroredStrategy on two logical CPUs; test_keras.py runs it in a subprocess."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import gradxform as gx
from gradxform_tensorflow import running

LIMIT = 0.25


def moved_by(optimizer: Any, **how: Any) -> float:
    """Return how far one step of fit moves a model's weights under the strategy."""
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(2)])
        model.compile(optimizer(), loss="mse", **how)
    start = model.get_weights()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 5)).astype(np.float32), rng.normal(size=(16, 2)).astype(np.float32) * 100
    x, y = np.concatenate([x, x]), np.concatenate([y, y])  # the replicas get equal gradients
    model.fit(x, y, batch_size=32, epochs=1, verbose=0, shuffle=False)
    both = zip(model.get_weights(), start, strict=True)
    return float(np.sqrt(sum(np.sum((new.astype(np.float64) - old) ** 2) for new, old in both)))


def steps(optimizer: Any, shares: list[list[float]]) -> list[float]:
    """Train a variable for three steps with different gradients in the replicas."""
    with strategy.scope():
        w = tf.Variable([0.0, 0.0], name="w")
        made = optimizer()
        made.build([w])

    @tf.function
    def step() -> None:
        def replica() -> None:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            made.apply_gradients([(tf.gather(tf.constant(shares), number), w)])

        strategy.run(replica)

    for _ in range(3):
        step()
    return list(map(float, w.numpy()))


def processed(tx: gx.GradientTransformation, way: Any, wrap: Any = tf.function, count: int = 2) -> list[float]:
    """Train a variable for some steps with a processor; return it and the number of the optimizer's steps."""
    with strategy.scope():
        w = tf.Variable([0.0, 0.0], name="w")
        made = opt.SGD(1.0, momentum=0.5)
        made.build([w])
        processor = gx.tensorflow.GradientProcessor(tx, [w])
    step = wrap(lambda: way(processor, made, w))
    for _ in range(count):
        step()
    return [*map(float, w.numpy()), int(made.iterations.numpy())]


def in_one_run(processor: Any, made: Any, w: Any) -> None:
    strategy.run(lambda: processor.apply_gradients(made, [(tf.constant([1.0, 2.0]), w)]))


def in_two_runs(processor: Any, made: Any, w: Any) -> None:
    """As the errors of steps that cannot be skipped say."""
    gradients = strategy.run(lambda: [gradient for gradient, _ in processor([(tf.constant([1.0, 2.0]), w)])])
    if gx.has_updated(processor):
        strategy.run(lambda own: made.apply_gradients(zip(own, [w], strict=True)), args=(gradients,))


def compiled(dtype: str) -> list[list[float]]:
    """Run a chain compiled by XLA in each replica; Keras's `jit_compile` does not run under this strategy."""
    tx = gx.chain(gx.clip_norm(5.0), gx.scale(0.5))
    clip = tf.function(lambda leaf: tx([leaf])[0], jit_compile=True)

    @tf.function
    def step() -> Any:
        def replica() -> Any:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return clip(tf.cast(tf.gather(tf.constant([[30.0, 40.0], [0.5, 0.25]]), number), dtype))

        return strategy.run(replica)

    return [own.numpy().tolist() for own in strategy.experimental_local_results(step())]


def refusal(train: Callable[[], Any]) -> str:
    """Return the error of a step under the strategy."""
    try:
        train()
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    only_cpus = running.has_only_cpus
    opt, clip = keras.optimizers, gx.clip_global_norm(LIMIT)
    found = {
        "replicas": strategy.num_replicas_in_sync,
        "native": moved_by(lambda: opt.SGD(1.0, global_clipnorm=LIMIT)),
        "gradxform": moved_by(lambda: gx.keras.wrap(opt.SGD(1.0), clip)),
        "gradxform, loss scaled": moved_by(lambda: gx.keras.wrap(opt.LossScaleOptimizer(opt.SGD(1.0)), clip)),
        "sum": steps(lambda: gx.keras.wrap(opt.SGD(1.0), gx.identity()), [[1.0, 2.0], [2.0, 2.0]]),
        "clipped": steps(lambda: gx.keras.wrap(opt.SGD(1.0), gx.clip_norm(5.0)), [[30.0, 1.0], [0.0, 39.0]]),
        "state": steps(lambda: gx.keras.wrap(opt.SGD(1.0), gx.trace(0.5)), [[1.0, 2.0], [2.0, 2.0]]),
    }
    updates = functools.partial(gx.keras.wrap, on="updates")
    found["updates"] = steps(lambda: updates(opt.SGD(1.0), gx.clip_norm(5.0)), [[30.0, 1.0], [0.0, 39.0]])
    found["updates, cautious"] = steps(lambda: updates(opt.SGD(1.0), gx.cautious()), [[3.0, 1.0], [-1.0, 2.0]])
    waiting = gx.accumulate(gx.identity(), 2)
    found["updates, accumulated"] = steps(lambda: updates(opt.SGD(1.0), waiting), [[1.0, 2.0], [2.0, 2.0]])
    scaled = functools.partial(opt.LossScaleOptimizer, initial_scale=4.0)
    for name, first in (("scaled", 4.0), ("scaled, skipped", float("inf"))):
        shares = [[first, 8.0], [8.0, 8.0]]
        found[name] = steps(lambda: gx.keras.wrap(scaled(opt.SGD(1.0)), gx.trace(0.5)), shares)
    found["compiled"] = [compiled(dtype) for dtype in ("float32", "float16", "bfloat16")]
    running.has_only_cpus = lambda: False
    found["compiled"] += [compiled(dtype) for dtype in ("float32", "float16", "bfloat16")]
    running.has_only_cpus = only_cpus
    skipping = gx.skip_nonfinite(gx.identity())
    found["refused"] = refusal(lambda: steps(lambda: gx.keras.wrap(opt.SGD(1.0), skipping), [[1.0, 2.0], [2.0, 2.0]]))
    found["in two runs"] = processed(waiting, in_two_runs, count=4)
    found["processor, eager"] = processed(waiting, in_one_run, lambda step: step)
    found["processor, compiled"] = processed(gx.trace(0.0), in_one_run)
    found["processor, refused"] = refusal(lambda: processed(waiting, in_one_run))
    print(json.dumps(found))
