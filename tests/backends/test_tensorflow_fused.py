"""Norms of large leaves by an op that XLA lacks: TensorFlow's optimizer chooses it where XLA does not compile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradxform as gx

tf = pytest.importorskip("tensorflow")
own = pytest.importorskip("gradxform_tensorflow.norms")
graph = pytest.importorskip("gradxform_tensorflow.running")
v1 = tf.compat.v1

SIZE = own._LARGE + 3 * own._ROW
LEAF = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
NORM = float(np.sqrt(np.sum(LEAF.astype(np.float64) ** 2)))


def norm(leaf: Any) -> Any:
    return gx.global_norm([leaf])


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


WAYS: dict[str, tuple[bool, Callable[[Any], Callable[[Any], Any]]]] = {
    "a function": (False, lambda folder: traced()),
    "a function in another": (False, lambda folder: tf.function(lambda leaf: traced()(leaf))),
    "a branch": (False, lambda folder: tf.function(lambda x: tf.cond(x[0] < 9, lambda: norm(x), lambda: 0.0))),
    "a session": (False, lambda folder: in_session),
    "under a tape": (False, lambda folder: under_tape),
    "a saved model": (False, saved),
    "XLA": (True, lambda folder: tf.function(norm, jit_compile=True)),
    "XLA, traced before": (True, lambda folder: by_xla(traced())),
    "XLA, a saved model": (True, lambda folder: by_xla(saved(folder))),
}


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make what XLA compiles double the norm."""

    def doubled(*leaves: Any) -> Any:
        return 4.0 * own._exactly(*leaves)

    monkeypatch.setattr(graph, "on_cpus", functools.partial(_with, graph.on_cpus, doubled))
    yield


def _with(on_cpus: Callable[..., Any], for_xla: Callable[..., Any], function: Any, _: Any, *leaves: Any) -> Any:
    return on_cpus(function, for_xla, *leaves)


@pytest.mark.parametrize("way", WAYS)
def test_the_norm_is_right_everywhere(way: str, tmp_path: Any) -> None:
    found = WAYS[way][1](tmp_path)(tf.constant(LEAF))
    assert abs(float(found) / NORM - 1) < 6e-8  # half a ULP of float32


@pytest.mark.parametrize("way", WAYS)
def test_only_xla_runs_without_the_op(way: str, tmp_path: Any, marked: None) -> None:
    by_xla, made = WAYS[way]
    assert float(made(tmp_path)(tf.constant(LEAF))) / NORM == pytest.approx(2.0 if by_xla else 1.0, rel=1e-3)


SIZES = (16_411, 67 * 9_931, 20_000, 65_536, 120_000, 640_000)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("value", [None, 1.7936546, 0.73, 2.9999, 0.5123])
def test_leaves_of_any_size(value: float | None, jit_compile: bool) -> None:
    """Rows of equal elements are all rounded alike."""
    rng = np.random.default_rng(1)
    leaves = [np.float32(rng.standard_normal(size) if value is None else np.full(size, value)) for size in SIZES]
    found = tf.function(own.norms, autograph=False, jit_compile=jit_compile)(list(map(tf.constant, leaves))).numpy()
    exact = np.array([np.sqrt(np.sum(leaf.astype(np.longdouble) ** 2)) for leaf in leaves])
    assert np.all(np.abs(found - exact) <= 0.5 * np.spacing(np.float32(exact)))


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


@pytest.mark.parametrize("size", [1e30, 1e-30, 0.0])
def test_one_heavy_row_and_squares_beyond_float32(size: float) -> None:
    leaf = np.float32(LEAF * 1e-3)
    leaf[100] = 1e3
    leaf = np.float32(leaf * np.float32(size))
    found = tf.function(own.norms, autograph=False)([tf.constant(leaf)]).numpy()[0]
    np.testing.assert_allclose(found, np.sqrt(np.sum(leaf.astype(np.float64) ** 2)), rtol=1e-12)
