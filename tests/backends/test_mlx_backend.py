"""MLX: traces, derivatives, training, and no float64; test_backend_conformance.py has the rows of the table."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import optree
import pytest
from entries import rows_of
from support import (
    DTYPES_ALIKE,
    FUSED,
    LARGE,
    assert_bits,
    assert_right,
    call,
    each_transform_once,
    shared_group,
    slow,
    tensors,
)
from trees import gradients

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity
from gradxform.proof.extended import number
from gradxform.proof.registry import DTYPES, ROWS, Row

mx = pytest.importorskip("mlx.core")
nn, optimizers = pytest.importorskip("mlx.nn"), pytest.importorskip("mlx.optimizers")

HERE = [dtype for dtype in DTYPES if dtype != "complex128"]  # missing in MLX


def dtypes_of(row: Row) -> list[str]:
    return [dtype for dtype in row.dtypes if dtype in HERE]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_no_value_is_read_while_a_function_is_traced(row: Row) -> None:
    """Trace in every dtype without running, to avoid the C++ compiler."""
    for dtype in dtypes_of(row):
        grads = tensors("mlx", gradients(dtype, matrix=row.matrix))

        def update(updates: Any, state: Any, params: Any) -> Any:
            return row.tx.update(updates, state, params, **parity.beside(row.tx, params))

        out, _ = mx.compile(update)(grads, row.tx.init(grads), grads)
        assert optree.tree_structure(out) == optree.tree_structure(grads)
        for new, old in zip(optree.tree_leaves(out), optree.tree_leaves(grads), strict=True):
            assert (new.dtype, new.shape) == (old.dtype, old.shape)


@slow(DTYPES_ALIKE, dtype="float64")
@slow(LARGE, ord=(1, 3))
@pytest.mark.parametrize("ord", [1, 2, 3, float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_norm_of_a_large_leaf(dtype: str, ord: float) -> None:
    leaf = np.random.default_rng(0).standard_normal(3_000_001).astype(dtype)
    size = np.abs(number(leaf))
    right = size.max() if ord == float("inf") else np.sum(size**ord) ** (1 / number(ord))
    backend = lookup.backend("mlx")
    found = backend.norms([backend.from_numpy(leaf)], ord)
    assert found.item() == pytest.approx(float(right), rel={"float32": 1e-9, "float64": 4e-15}[dtype], abs=0)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_subnormal_numbers_are_kept(mode: str) -> None:
    leaf = np.float32([1e-40, -3e-45, 1.0])
    cases = ((gx.scale(2.0), leaf * 2), (gx.clip_value(2.0), leaf), (gx.clip_norm(9.0), leaf))
    for tx, wanted in cases if mode == "eager" else cases[:1]:
        assert_bits(call("mlx", mode, tx.__call__, [leaf]), [wanted])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_formula_of_mlx_s_own_clipping_is_bit_for_bit_its_own(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        grads = tensors("mlx", [rng.standard_normal(n).astype(np.float32) for n in (7, 1001)])
        grads = [grad.astype(getattr(mx, dtype)) for grad in grads]
        assert_bits(gx.clip_global_norm(2.0, like="mlx")(grads), optimizers.clip_grad_norm(grads, 2.0)[0])


MAKES = [(gx.clip_norm, "eager"), (gx.clip_global_norm, "eager"), (gx.clip_norm, "compiled")]


@slow(FUSED, lambda make, mode: mode == "compiled")
@pytest.mark.parametrize(("make", "mode"), MAKES)
def test_the_derivative_is_one_at_zero_and_the_tangent_beyond(make: Any, mode: str) -> None:
    tx = make(1.0)
    slope = mx.grad(lambda x: mx.sum(tx(x)))
    slope = mx.compile(slope) if mode == "compiled" else slope
    for point, wanted in (((0, 0), (1, 1)), ((0.3, 0.4), (1, 1)), ((3, 4), (0.032, -0.024))):
        assert slope(mx.array(point, dtype=mx.float32)).tolist() == pytest.approx(wanted, rel=1e-5)
    assert slope(mx.array([3e30, 4e30])).tolist() == pytest.approx((0.032e-30, -0.024e-30), rel=1e-5, abs=0)


# --- training --------------------------------------------------------------------------------------------------------


WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    (lambda: optimizers.SGD(1.0), lambda: optimizers.SGD(1.0), TypeError, r"write gx\.mlx\.wrap\(optimizer, tx\)$"),
    (lambda: gx.clip_norm(1.0), lambda: optimizers.SGD(1.0), TypeError, r"swapped.*gx\.mlx\.wrap\(optimizer, tx\)"),
    (lambda: gx.mlx.wrap(optimizers.SGD(1.0), gx.identity()), gx.identity, TypeError, r"wrapped already.*chain"),
    (lambda: nn.Linear(1, 1), gx.identity, TypeError, "an optimizer of mlx.optimizers, got"),
]


@pytest.mark.parametrize(("optimizer", "tx", "kind", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_what_cannot_be_wrapped(optimizer: Any, tx: Any, kind: type[Exception], words: str) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(kind, match=words):
        gx.mlx.wrap(optimizer(), tx()).update(model, model.parameters())


def test_a_name_that_is_not_trainable() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model.layers[0].freeze()
    optimizer = gx.mlx.wrap(optimizers.SGD(1.0), gx.partition({"layers/0/*": gx.stop()}))
    with pytest.raises(ValueError, match=r"matches no path; .*'layers/0/(bias|weight)' is not trainable"):
        optimizer.update(model, model.trainable_parameters())
    gx.mlx.wrap(optimizers.SGD(1.0), gx.freeze("layers/1/bias")).update(model, model.trainable_parameters())


def test_a_group_of_several_optimizers_may_be_empty() -> None:
    model, wrapped = nn.Linear(1, 1), gx.mlx.wrap(optimizers.SGD(1.0), gx.clip_norm(1.0))
    optimizers.MultiOptimizer([wrapped, optimizers.SGD(1.0)], [lambda *_: False]).update(model, model.parameters())
    assert model.weight.item() == 0.0


def test_a_wrapped_optimizer_without_a_state_or_a_place() -> None:
    optimizer = gx.mlx.wrap(optimizers.SGD(0.5), gx.trace(0.5))
    optimizer.learning_rate = 1.0
    assert optimizer.gradient_transformation_state is None and repr(optimizer) == "<mlx.wrap: trace(0.5) in SGD>"
    with pytest.raises(ValueError, match=r"no state yet; call init\(model\.trainable_parameters\(\)\) first"):
        optimizer.gradient_transformation_state = gx.trace(0.5).init({})
    params = {"w": mx.array([4.0]), "b": [mx.array([2.0])]}
    for left in (2.0, -1.0):
        params |= optimizer.apply_gradients({"w": mx.array([2.0])}, params)
        assert params["w"].item() == left
    with pytest.raises(ValueError, match=r"wrapped\.optimizer\.state = "):
        optimizer.state = optimizers.SGD(1.0).state
    with pytest.raises(TypeError, match="loss, gradients = "):
        optimizer.update(None, (mx.array(1.0), params))
    with pytest.raises(ValueError, match=r"mlx\.wrap: the optimizer was not made for b\.0; call init again"):
        optimizer.apply_gradients(params, params)


# --- backward --------------------------------------------------------------------------------------------------------


def test_example_by_example_under_vmap() -> None:
    clip, w = gx.on_backward(gx.clip_norm(1.0)), mx.array([[30.0, 40.0], [0.3, 0.4]])
    slope = mx.grad(lambda x, w: mx.sum(clip(x) * w))
    for axes in ((0, 0), (None, 0)):
        x = mx.zeros((2, 2)) if axes[0] == 0 else mx.zeros(2)
        found = mx.vmap(slope, in_axes=axes)(x, w)
        assert np.array(found).tolist() == [pytest.approx([0.6, 0.8]), pytest.approx([0.3, 0.4])]


# --- the small print -------------------------------------------------------------------------------------------------


def test_an_array_is_never_written_to() -> None:
    def zeroed(g: Any) -> Any:
        g[0] = 0.0
        return g

    x = mx.array([3.0, 4.0])
    assert gx.elementwise(zeroed)([x])[0].tolist() == [0.0, 4.0]
    assert x.tolist() == [3.0, 4.0]


def test_what_mlx_has_not() -> None:
    with pytest.raises(TypeError, match="complex128"):
        lookup.backend("mlx").from_numpy(np.complex128([1j]))
    with pytest.raises(TypeError, match="clip_value"):
        gx.clip_value(1.0)([mx.array([1j])])


def test_complex_numbers_flow_back_and_no_derivative_goes_through_a_transform_of_them() -> None:
    clip, w = gx.on_backward(gx.clip_norm(1.0)), mx.array([3j, 4 + 0j])
    found = mx.grad(lambda x: mx.sum(mx.real(clip(x) * mx.conj(w))))(mx.zeros(2, mx.complex64))
    assert np.abs(np.abs(np.array(found)) - [0.6, 0.8]).max() < 1e-6
    with pytest.raises(ValueError, match="Not implemented for View"):
        mx.grad(lambda x: mx.sum(mx.abs(gx.clip_norm(1.0)([x])[0])))(w)


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate MLX on a GPU: no float64, on the caller's stream."""
    monkeypatch.setattr(importlib.import_module("gradxform_mlx.backend"), "on_gpu", lambda: True)
    monkeypatch.delattr(mx, "float64")


@pytest.mark.parametrize("row", each_transform_once(rows_of("without float64"), "MLX compiles eager loops, too"))
def test_right_numbers_without_float64(row: Row, without_float64: None) -> None:
    for dtype in ("float32", "complex64"):
        if dtype in row.dtypes:
            run = parity.runner(row.tx, "mlx", "eager")
            # judged as one that flushes
            assert_right(row, shared_group(row, dtype), "jax", "eager", run, float64=False)


def test_a_gpu_is_told_by_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = importlib.import_module("gradxform_mlx.backend")
    assert not backend.on_gpu()
    assert backend.backend.xp.widest == "float64"
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu, 0))
    assert backend.on_gpu()
    assert backend.backend.xp.widest == "float32"
