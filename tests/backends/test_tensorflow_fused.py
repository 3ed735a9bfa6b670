"""Norms of large leaves by an op that XLA lacks: TensorFlow's optimizer chooses it where XLA does not compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradxform as gx
from gradxform.backend import lookup

tf = pytest.importorskip("tensorflow")
own = pytest.importorskip("gradxform_tensorflow.norms")
v1 = tf.compat.v1

SIZE = own._LARGE + 3 * own._ROW
LEAF = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
NORM = float(np.sqrt(np.sum(LEAF.astype(np.float64) ** 2)))


def norm(leaf: Any) -> Any:
    return gx.global_norm([leaf])


def norm_of_slice(leaf: Any) -> Any:
    found = lookup.backend("tensorflow").norms_over([tf.reshape(leaf, [1, -1])], [(1,)], 2.0)
    return tf.cast(found[0, 0], tf.float32)


def traced() -> Any:
    return tf.function(norm, input_signature=[tf.TensorSpec([SIZE])], autograph=False)


def saved(folder: Any) -> Any:
    module = tf.Module()
    module.norm = traced()
    tf.saved_model.save(module, str(folder))
    return tf.saved_model.load(str(folder)).norm


def by_xla(function: Any) -> Callable[[Any], Any]:
    """Compile a function that has been traced already."""
    function(tf.constant(LEAF))
    return tf.function(lambda leaf: function(leaf), jit_compile=True)


def in_session(leaf: Any) -> Any:
    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(tf.float32, [SIZE])
        return session.run(norm(given), {given: leaf.numpy()})


def under_tape(leaf: Any) -> Any:
    @tf.function
    def run(leaf: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(leaf)
            found = norm(leaf)
        return found, tape.gradient(found, leaf)

    found, derivative = run(leaf)
    np.testing.assert_allclose(derivative, LEAF / NORM, rtol=1e-6)
    return found


WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "a function": lambda folder: traced(),
    "a function in another": lambda folder: tf.function(lambda leaf: traced()(leaf)),
    "a branch": lambda folder: tf.function(lambda x: tf.cond(x[0] < 9, lambda: norm(x), lambda: 0.0)),
    "a session": lambda folder: in_session,
    "under a tape": lambda folder: under_tape,
    "a saved model": saved,
    "XLA": lambda folder: tf.function(norm, jit_compile=True),
    "XLA, traced before": lambda folder: by_xla(traced()),
    "XLA, a saved model": lambda folder: by_xla(saved(folder)),
}


@pytest.mark.parametrize("measured", [norm, norm_of_slice])
@pytest.mark.parametrize("way", WAYS)
def test_the_norm_is_right_everywhere(
    way: str, measured: Callable[[Any], Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "norm", measured)
    found = WAYS[way](tmp_path)(tf.constant(LEAF))
    assert abs(float(found) / NORM - 1) < 6e-8  # half a ULP of float32


@pytest.mark.parametrize("factor", [1e-30, 1e30, np.where(np.arange(SIZE) < 7, 6.18e6, 1.0)])
def test_slices_that_need_float64(factor: Any) -> None:
    leaf = (LEAF * factor).astype(np.float32)
    exact = np.sqrt(np.sum(leaf.astype(np.longdouble) ** 2))
    assert abs(float(tf.function(norm_of_slice)(leaf)) / exact - 1) < 6e-8


@pytest.mark.parametrize("sizes", [(20_000, 65_600), (65_600, 20_000), (640_000, 20_000, 3)])
def test_leaves_of_any_order_under_a_tape(sizes: tuple[int, ...]) -> None:
    leaves = [tf.ones(size) for size in sizes]
    for wrapped in (lambda f: f, tf.function):
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            norm = wrapped(gx.global_norm)(leaves)
        for derivative in tape.gradient(norm, leaves):
            np.testing.assert_allclose(derivative, sum(sizes) ** -0.5, rtol=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_norms_of_leaves_whose_rows_are_alike(share: float) -> None:
    norm = tf.function(lambda grads: gx.norms(grads)["w"], autograph=False)
    for seed in (*range(12), 24, 40, 42, 45):  # in rows of 256, the last four would be 1.1 to 1.9 ULP off
        rng = np.random.default_rng(seed)
        leaf = rng.standard_normal(131_072).astype(np.float32)
        leaf[: int(share * leaf.size)] = 3 * rng.standard_normal()
        exact = np.sqrt(np.sum(leaf.astype(np.longdouble) ** 2))
        found = norm({"w": tf.constant(leaf), "other": tf.constant(LEAF)}).numpy()
        assert abs(np.longdouble(found) - exact) <= np.spacing(np.float32(exact)), seed
