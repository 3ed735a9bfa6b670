"""TensorFlow's part of the benchmark: tf.clip_by_global_norm and similar functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from gradxform.cli.bench.task import Array, Mode, Side, Step, Tree, transformation
from gradxform.proof.place import Place

Gradients = list[Any]
Work = Callable[[Gradients], Gradients]


def versions() -> dict[str, str]:
    """TensorFlow's version."""
    return {"tensorflow": tf.__version__}


def _eager(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    return _sides(steps, tree, place, lambda work: work)


def _graph(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    return _sides(steps, tree, place, lambda work: tf.function(work, autograph=False))


def _sides(steps: Sequence[Step], tree: Tree, place: Place, compiled: Callable[[Work], Work]) -> tuple[Side, Side]:
    grads = [place.put(leaf) for leaf in tree.values()]
    tx = transformation(steps, like="keras")

    def native(grads: Gradients) -> Gradients:
        for name, value in steps:
            grads = _NATIVE[name](grads, value)
        return grads

    def own(grads: Gradients) -> Gradients:  # as in a training step; of two arguments, tf.function takes 30 us more
        return tx(grads)

    return _side(compiled(own), grads, place), _side(compiled(native), grads, place)


def _side(work: Work, grads: Gradients, place: Place) -> Side:
    wait = tf.test.experimental.sync_devices if place.name != "cpu" else _is_there

    def run() -> Gradients:
        result = work(grads)
        wait()
        return result

    return Side(run, _values, cost=lambda: place.cost(work, grads))


def _is_there() -> None:
    """Wait for nothing: on the CPU, a returned tensor has its values."""


def _values(grads: Gradients) -> list[Array]:
    return [leaf.numpy() for leaf in grads]


def _clip_value(grads: Gradients, limit: float) -> Gradients:
    return [tf.clip_by_value(g, -limit, limit) for g in grads]


def _clip_norm(grads: Gradients, limit: float) -> Gradients:
    return [tf.clip_by_norm(g, limit) for g in grads]


def _clip_global_norm(grads: Gradients, limit: float) -> Gradients:
    clipped, _ = tf.clip_by_global_norm(grads, limit)
    return clipped


def _scale(grads: Gradients, factor: float) -> Gradients:
    return [g * factor for g in grads]


def _orthogonalize(grads: Gradients, steps: float) -> Gradients:
    muon = _muon()
    return [muon.zeropower_via_newtonschulz5(g, int(steps)) for g in grads]


@functools.cache
def _muon() -> Any:
    """Keras's optimizer, which makes variables, outside of the function that is traced.

    Raises:
        ImportError: this Keras has none, or computes in another framework.
    """
    from keras.config import backend
    from keras.optimizers import Muon

    if backend() != "tensorflow":
        raise ImportError(f"Keras computes in {backend()}")
    with tf.init_scope():
        return Muon()


_NATIVE: Mapping[str, Callable[[Gradients, float], Gradients]] = {
    "clip_value": _clip_value,
    "clip_norm": _clip_norm,
    "clip_global_norm": _clip_global_norm,
    "scale": _scale,
    "orthogonalize": _orthogonalize,
}

GIVES_MEMORY_BACK = False
"""TensorFlow's allocator keeps it."""
MODES = (
    Mode("eager", "tf.clip_by_*, Keras's Muon", _eager),
    Mode("graph", "tf.clip_by_*, Keras's Muon in tf.function", _graph, compiled=True),
)
