"""TensorFlow on an accelerator, simulated on CPUs: the graph of each transform, and values read in eager mode.

Graphs are traced as if an accelerator were visible. Eager tensors count as tensors on an accelerator, and reads of
their values are counted.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trees
from devices import transforms, update
from support import GRAPHS, NAN, TRACES, XLA, assert_right, f32, shared_group, slow

import gradxform as gx
from gradxform.proof import parity
from gradxform.proof.registry import Row
from gradxform.testing import max_ulp

tf = pytest.importorskip("tensorflow")
from tensorflow.python.framework import ops  # noqa: E402
from tensorflow_counts import copies, graphs, kinds, operations, tree  # noqa: E402

from gradxform_tensorflow import running  # noqa: E402

CLIP = gx.clip_global_norm(1.0)
TRANSFORMS = transforms("accelerator", "*s", tf.tanh) | {"scale(1e-40)": gx.scale(1e-40)}
AGAIN = "traces each graph once more, in another dtype"
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "Switch", "Merge")
LOOPS = {"top_k": {"While", "StatelessWhile"}}
"""One loop over the bits of a number, for all leaves of a dtype."""
JOINS = ("Concat", "ConcatV2", "DynamicStitch", "ParallelConcat")


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that all tensors are on an accelerator."""
    monkeypatch.setattr(running, "has_only_cpus", lambda: False)
    monkeypatch.setattr(running, "readable", lambda tensors: False)
    monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: True)


@slow(AGAIN, dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_no_branch_no_join_and_no_copy_in_float64(name: str, dtype: str, accelerator: None) -> None:
    found = operations(TRANSFORMS[name], tree(2, (160, 130), dtype))
    assert kinds(found).intersection(BRANCHES + JOINS) <= LOOPS.get(TRANSFORMS[name].name, set())
    assert copies(found, 160 * 130) == set()


def test_what_is_looked_for_can_be_seen() -> None:
    def step(grads: Any) -> Any:
        joined = tf.concat([tf.reshape(leaf, [-1]) for leaf in grads.values()], 0)
        return tf.cond(joined[0] > 0, lambda: tf.cast(joined, tf.float64), lambda: tf.zeros_like(joined, tf.float64))

    found = [operation for graph in graphs(step, tree(2, (8,), "float32")) for operation in graph.get_operations()]
    assert {"StatelessIf", "ConcatV2"} <= kinds(found)
    assert "Cast" in copies(found, 16)


def test_xla_compiles_nothing_of_unknown_shape(accelerator: None) -> None:
    """Otherwise each number of rows would compile again."""
    unknown = tf.TensorSpec([None, 4], tf.float32)
    for tx in (gx.add_decayed_weights(0.1), gx.clip_norm(1.0), gx.clip_norm(0.1, axes=0), gx.centralize(axes=0)):
        step = tf.function(lambda leaf, tx=tx: tx([leaf], params=[leaf]), autograph=False)
        library = step.get_concrete_function(unknown).graph.as_graph_def().library.function
        assert not any(function.attr["_XlaMustCompile"].b for function in library), tx
        leaf = np.ones((3, 4), np.float32)
        assert max_ulp(step(tf.constant(leaf))[0].numpy(), tx([leaf], params=[leaf])[0]) <= 2


@slow(AGAIN, dtype="bfloat16")
@slow(GRAPHS, tx=(CLIP, gx.clip_value(0.5)))
@pytest.mark.parametrize(("tx", "most"), [(gx.clip_norm(1.0), 0), (CLIP, 0), (gx.clip_value(0.5), 1), (gx.ema(0.9), 0)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operations_for_each_of_many_leaves(tx: Any, most: int, dtype: str, accelerator: None) -> None:
    """The operations per tree are inputs, outputs, constants and calls of XLA clusters."""
    counts = [Counter(found.type for found in operations(tx, tree(n, (8,), dtype))) for n in (30, 130)]
    more = (counts[1] - counts[0]).total() - 200 * (1 + tx.stateful)
    assert more / 100 <= most + (tx.stateful and dtype != "float32"), counts[1] - counts[0]


@slow(AGAIN, dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tx", [CLIP, gx.clip_norm(0.1, axes=0), gx.add_decayed_weights(0.1), gx.scale(1e-40)])
def test_graphs_of_tensorflow_1(tx: Any, dtype: str, accelerator: None) -> None:
    """XLA compiles the heavy parts there too, so no leaf is written in float64."""
    given = np.random.default_rng(0).standard_normal((3, 160, 130)).astype(dtype)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        leaves = list(map(tf.compat.v1.placeholder, [dtype] * 3, [(160, 130)] * 3))
        found = session.run(tx(leaves, params=leaves), dict(zip(leaves, given, strict=True)))
        assert copies(graph.get_operations(), 160 * 130) == set()
    for leaf, wanted in zip(found, tx(list(given), params=list(given)), strict=True):
        assert max_ulp(_flushed(leaf), _flushed(wanted)) <= 2


# --- eager -----------------------------------------------------------------------------------------------------------

READS = ("numpy", "_numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__format__")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count reads of eager tensors' values."""
    found: list[str] = []
    for name in READS:
        kind = next(kind for kind in ops.EagerTensor.__mro__ if name in vars(kind))
        own = vars(kind)[name]

        def read(self: Any, *args: Any, own: Any = own, name: str = name, **kwargs: Any) -> Any:
            found.append(name)
            return own(self, *args, **kwargs)

        monkeypatch.setattr(kind, name, read)
    view = running.view

    def seen(tensor: Any) -> Any:
        found.append("view")
        return view(tensor)

    monkeypatch.setattr(running, "view", seen)
    return found


@slow(AGAIN, dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_eager_code_reads_nothing_from_an_accelerator(name: str, dtype: str, accelerator: None, reads: Any) -> None:
    tx, given = TRANSFORMS[name], tree(6, (40, 5), dtype)
    state = tx.init(given)
    for _ in range(2):
        _, state = update(tx, given, state, given)
    assert reads == []


def test_reads_are_seen(reads: Any) -> None:
    found = tf.constant([1.0])
    assert bool(found > 0) and float(found[0]) == 1.0 and found.numpy()[0] == 1.0
    assert {"__bool__", "__float__", "numpy"} <= set(reads)
    CLIP([found])
    assert "view" in reads


# --- numbers ---------------------------------------------------------------------------------------------------------


@slow(TRACES, mode="compiled")
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("row", trees.first(), ids=str)
def test_right_numbers_on_an_accelerator(row: Row, mode: str, accelerator: None) -> None:
    assert_right(row, shared_group(row, "float32"), "tensorflow", mode)


LEAVES = {
    "normal": np.random.default_rng(0).standard_normal(50_000, dtype=np.float32),
    "one row is heavy": np.where(np.arange(50_000) // 100 == 7, 3e3, 1e-3).astype(np.float32),
    "squares overflow": np.full(50_000, 1e30, np.float32),
    "squares underflow": np.full(50_000, 1e-30, np.float32),
    "some of each": np.float32(10.0) ** np.linspace(-37, 37, 50_000, dtype=np.float32),
    "in half precision": np.random.default_rng(0).standard_normal(50_000).astype(np.float16) * np.float16(1000.0),
    "NaN": np.where(np.arange(50_000) == 7, np.float32(NAN), np.float32(1.0)),
    "infinite": np.where(np.arange(50_000) == 7, np.float32(np.inf), np.float32(1.0)),
}


@slow(XLA, lambda name: name != "normal")
@pytest.mark.parametrize("name", LEAVES)
def test_large_leaves_in_graphs_of_each_kind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [LEAVES[name], f32(3.0, 4.0), LEAVES["normal"][:20_001]]
    for tx in (gx.clip_norm(1e-3), gx.clip_global_norm(1.0)):
        on_cpu = tf.function(tx.__call__)
        compiled = tf.function(on_cpu, jit_compile=True)  # reuses the trace without XLA
        with monkeypatch.context() as patch:
            patch.setattr(running, "has_only_cpus", lambda: False)
            elsewhere = tf.function(tx.__call__)
            found = [run(list(map(tf.constant, given))) for run in (on_cpu, compiled, elsewhere)]
        for leaves in found:
            for leaf, wanted in zip(leaves, parity.expected(tx, given).values(), strict=True):
                assert max_ulp(_flushed(leaf.numpy()), _flushed(wanted)) <= 2, tx


def _flushed(leaf: Any) -> Any:
    """Without subnormal numbers, which TensorFlow flushes."""
    with np.errstate(invalid="ignore"):  # NumPy warns about NaN in bfloat16
        return np.where(np.abs(leaf) < ml_dtypes.finfo(leaf.dtype).tiny, np.zeros_like(leaf), leaf)


HARD = f32(math.inf, -math.inf, NAN, 0.0, -0.0, 1.0, 3e38, 1e-30)
EXTREME = [1e-300, -1e60, 1e300, 1e-76, 1e-60, -0.0]
FACTORS: dict[str, tuple[Any, Any]] = {
    **{f"scale({factor})": (gx.scale(factor), HARD) for factor in EXTREME},
    **{f"scale({factor}), a tensor": (gx.scale(tf.constant(np.array(factor))), HARD) for factor in EXTREME},
    **{
        f"scale({a}), scale({b})": (gx.chain(gx.scale(a), gx.scale(b)), HARD)
        for a, b in ((1e-30, 1e-30), (1e-300, 1e280), (1e60, 1e9))
    },
    "a subnormal factor": (gx.scale(1e-44), f32(1e38, 3e38, 0.0)),
    "small numbers": (gx.scale(1e42), f32(1e-30, 3e-30, 0.0)),
}


@slow(AGAIN, dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", FACTORS)
def test_infinity_and_zero_times_an_extreme_factor(name: str, dtype: str, accelerator: None) -> None:
    """In eager mode, traced, and compiled by XLA as what was traced without it."""
    tx, leaf = FACTORS[name][0], tf.cast(FACTORS[name][1], dtype)
    wanted = (tx if "tensor" not in name else gx.parse(name.partition(",")[0]))(leaf.numpy())
    scale = tf.function(tx.__call__, autograph=False)
    for run in (tx, scale, tf.function(scale, jit_compile=True)):
        found = run(leaf).numpy()
        assert max_ulp(_flushed(found), _flushed(wanted)) <= 2
        some = ~np.isnan(np.float64(wanted))
        np.testing.assert_array_equal(np.signbit(found[some]), np.signbit(wanted[some]))


@pytest.mark.parametrize("factor", [1e-30, -1e30])
@pytest.mark.parametrize("between", [lambda g: g, lambda g: 2.0 * g, tf.abs], ids=["nothing", "a product", "abs"])
def test_two_factors_are_no_constant_on_cpus_either(factor: float, between: Any) -> None:
    tx = gx.chain(gx.scale(factor), gx.elementwise(between), gx.scale(factor))
    leaf = f32(1e38, -3e37, 1e10, 0.0) if abs(factor) < 1 else f32(1e-37, -3e-30, 0.0)
    wanted = tf.cast(factor * between(tf.constant(leaf.astype(np.float64) * factor)), tf.float32).numpy()
    scale = tf.function(tx.__call__, autograph=False)
    for run in (tx, scale, tf.function(scale, jit_compile=True), tf.function(tx.__call__, jit_compile=True)):
        assert max_ulp(run(tf.constant(leaf)).numpy(), wanted) <= 2


@pytest.mark.parametrize("mode", ["eager", "function", "XLA"])
def test_the_factor_of_an_infinite_float64_norm(mode: str, accelerator: None) -> None:
    tx, leaf = gx.measure(gx.clip_value(1.0)), tf.constant([math.inf, 1.0], tf.float64)

    def measured(leaf: Any) -> Any:
        return gx.metrics(tx.update(leaf, tx.init(leaf))[1])["clip_value/factor"]

    run = measured if mode == "eager" else tf.function(measured, jit_compile=mode == "XLA")
    assert float(run(leaf)) == 0.0


def test_derivatives_through_what_xla_compiles(accelerator: None) -> None:
    tx, given = gx.chain(gx.clip_norm(1.0, axes=0), gx.add_decayed_weights(0.5)), tf.constant([[3.0], [4.0]])

    @tf.function
    def derivative(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tx(x, params=2.0 * x))
        return tape.gradient(total, x)

    np.testing.assert_allclose(derivative(given).numpy(), [[1 + 4 / 125], [1 - 3 / 125]], rtol=1e-6)
