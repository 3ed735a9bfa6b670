"""TensorFlow: its devices, tf.clip_by_* and Keras's Muon, and the demo's network trained in one tf.function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

import gradxform_tensorflow
from gradxform.cli.frameworks.interface import Clip, Mode, Task, chosen, each, native
from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Place
from gradxform_tensorflow import backend

# --- devices ---------------------------------------------------------------------------------------------------------


def find(name: str | None = None, index: int = 0) -> Place:
    """Return a device by name and number; by default, TensorFlow's default device.

    Raises:
        Absent: TensorFlow sees no such device.
    """
    listed = tf.config.list_logical_devices
    gpus = listed("GPU")
    devices = {"cpu": listed("CPU"), "tpu": listed("TPU"), "gpu": gpus, **dict.fromkeys(_made_for(), gpus)}
    found = chosen(devices, name or ("gpu" if gpus else "cpu"), index)
    kind, device = found.device_type, f"{found.device_type}:{index}"
    return Place(
        kind.lower(),
        _words(kind, index),
        backend.from_numpy,
        functools.partial(tf.device, device),
        lambda leaf: leaf.device.endswith(f":{device}"),
        wait=lambda result: kind == "CPU" or tf.test.experimental.sync_devices(),
    )


def _made_for() -> tuple[str, ...]:
    """Kinds of GPU that this TensorFlow build supports."""
    if sys.platform == "darwin":
        return ("metal", "mps")
    return ("rocm",) if tf.test.is_built_with_rocm() else ("cuda",) if tf.test.is_built_with_cuda() else ()


def _words(kind: str, index: int) -> str:
    if kind == "CPU":
        return "cpu" if index == 0 else f"cpu:{index}"
    physical = tf.config.list_physical_devices(kind)
    details = tf.config.experimental.get_device_details(physical[index]) if index < len(physical) else {}
    return f"{details.get('device_name', kind)} ({kind}:{index})"


# --- the benchmark ---------------------------------------------------------------------------------------------------


@functools.cache
def _muon() -> Any:
    """Keras's optimizer, which makes variables, outside of the function that is traced.

    Raises:
        ImportError: this Keras has none, or computes in another framework.
    """
    from keras.optimizers import Muon

    if (computing := keras.config.backend()) != "tensorflow":
        raise ImportError(f"Keras computes in {computing}")
    with tf.init_scope():
        return Muon()


NATIVE: dict[str, Callable[[Any, float], Any]] = {
    "clip_value": each(lambda g, limit: tf.clip_by_value(g, -limit, limit)),
    "clip_norm": each(tf.clip_by_norm),
    "clip_global_norm": lambda grads, limit: tf.clip_by_global_norm(grads, limit)[0],
    "scale": each(lambda g, factor: g * factor),
    "orthogonalize": each(lambda g, steps: _muon().zeropower_via_newtonschulz5(g, int(steps))),
}
_GRAPH = functools.partial(tf.function, autograph=False)
MODES = (
    Mode("eager", "tf.clip_by_*, Keras's Muon", NATIVE),
    Mode("graph", "tf.clip_by_*, Keras's Muon in tf.function", NATIVE, compile=_GRAPH),
)


# --- the demo --------------------------------------------------------------------------------------------------------


def train(task: Task, chain: Clip, put: Callable[[Any], Any]) -> Iterator[Any]:
    """Train with tf.GradientTape, Keras's SGD and the chain."""
    weights = {path: tf.Variable(put(weight), name=path) for path, weight in task.weights.items()}
    variables = list(weights.values())
    optimizer = keras.optimizers.SGD(task.learning_rate, task.momentum)
    optimizer.build(variables)

    @tf.function
    def step(images: Any, labels: Any) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, task.logits(weights, images))
            loss = tf.reduce_sum(losses)
        gradients = list(zip(tape.gradient(loss, variables), variables, strict=True))
        if isinstance(chain, GradientTransformation):
            updates = gradxform_tensorflow.apply(chain, gradients)
        else:
            updates = list(zip(native(MODES[0], chain, [g for g, _ in gradients]), variables, strict=True))
        optimizer.apply_gradients(updates)
        return loss, _by_path(gradients), _by_path(updates)

    for images, labels in task.batches:
        yield *step(put(images), put(labels)), weights


def _by_path(pairs: Any) -> dict[str, Any]:
    return {variable.name.removesuffix(":0"): gradient for gradient, variable in pairs}
