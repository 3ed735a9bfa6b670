"""Edge cases of the kernels outside the table, in every framework."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest
from support import FRAMEWORKS, array, f32, tensors

import gradxform as gx
from gradxform.backend import lookup


@pytest.mark.parametrize("ord", [41.0, 1500.0])
def test_a_norm_of_a_very_large_order(framework: str, ord: float) -> None:
    leaf = f32(1.9, 1.5, 1.0)
    found = gx.global_norm(tensors(framework, {"a": leaf}), ord=ord)
    largest = float(leaf[0])
    wanted = largest * float(np.sum((leaf / np.float64(largest)) ** ord)) ** (1 / ord)
    assert float(array(found)) == pytest.approx(wanted, rel=2e-7)


@pytest.mark.parametrize("ord", [1.0, 3.0, math.inf])
def test_an_infinite_number_beside_nan_is_infinite(framework: str, ord: float) -> None:
    leaf = np.array([complex(math.inf, math.nan), 1 + 1j], np.complex64)
    assert float(array(gx.global_norm(tensors(framework, {"a": leaf}), ord=ord))) == math.inf


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("numpy", "torch", "tensorflow")])
def test_error_feedback_around_a_transform_that_narrows(framework: str) -> None:
    class Narrow:
        def init(self, params: Any) -> Any:
            return ()

        def update(self, updates: Any, state: Any, params: Any = None) -> Any:
            return tensors(framework, [array(leaf).astype(np.float32) for leaf in updates]), state

    tx, gradient = gx.error_feedback(Narrow()), np.array([1.0 + 2.0**-30, 0.1])
    given = tensors(framework, [gradient])
    (error,) = map(array, tx.update(given, tx.init(given))[1].error)
    wanted = gradient - gradient.astype(np.float32)
    np.testing.assert_allclose(error, wanted, rtol=1e-7, atol=0.0)


# --- NumPy -----------------------------------------------------------------------------------------------------------


def test_the_other_order_of_bytes_is_computed_in_its_own_precision() -> None:
    big = np.array([1e200, 2e200], ">f8")
    for make, wanted in ((gx.clip_global_norm(1e199), 1e199 / 5**0.5), (gx.scale(0.3), 0.3e200)):
        out = make([big])[0]
        assert out.dtype.name == "float64"
        assert float(out[0]) == pytest.approx(wanted, rel=1e-15)
    for leaf in (big, np.array([1e30, 2e30], ">f4")):  # arithmetic returns the machine's byte order
        for found in gx.clip_norm(1.0)([leaf] * 20):
            np.testing.assert_allclose(found.astype(np.float64), [0.2**0.5, 0.8**0.5], rtol=1e-7)
        np.testing.assert_allclose(gx.clip_norm(1.0, axes=0)([leaf])[0], [0.2**0.5, 0.8**0.5], rtol=1e-7)
        many = np.linspace(-1, 2, 20).astype(leaf.dtype)
        np.testing.assert_array_equal(gx.top_k(0.2)([many])[0], np.where(many > 1.5, many, 0))
    pairs = np.array([3 + 4j], ">c16")
    assert gx.clip_norm(1.0)([pairs])[0].dtype.name == "complex128"


class Sub(np.ndarray):
    pass


def test_a_function_of_ones_own_is_given_copies_of_the_leaves_types() -> None:
    seen: list[Any] = []
    tree = [np.float32(2.0), f32(1, 2).view(Sub), np.asfortranarray(np.ones((2, 3), np.float32))]
    gx.elementwise(lambda leaf: seen.append(leaf) or leaf)(tree)
    assert [type(leaf) for leaf in seen] == [np.float32, Sub, np.ndarray]
    assert all(leaf is not given for leaf, given in zip(seen, tree, strict=True))


# --- JAX -------------------------------------------------------------------------------------------------------------


def test_a_sign_has_the_dtype_of_a_weakly_typed_leaf(jnp: Any) -> None:
    leaf = jnp.asarray(3.0) * 1.0
    assert gx.sign()(leaf).dtype == leaf.dtype


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def test_float64_gradients_on_another_device(torch: Any) -> None:
    tree = {name: torch.ones(3, device="meta", dtype=torch.float64) for name in "ab"}
    for tx in (
        gx.chain(gx.freeze("a"), gx.clip_global_norm(1.0)),
        gx.masked(gx.clip_global_norm(1.0), {"a": True, "b": False}),
        gx.chain(gx.scale(2.0), gx.clip_norm(1.0), gx.clip_rms(1.0)),
    ):
        assert all(leaf.device.type == "meta" for leaf in tx(tree).values())


def test_no_leaf_goes_to_another_device(torch: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    moved: list[int] = []

    class Moves(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            if "_to_copy" in str(function) and args[0].device != out.device:
                moved.append(out.numel())
            return out

    with Moves():
        gx.norms({"a": torch.ones(3, device="meta"), "b": torch.ones(100, 100)})
    assert set(moved) <= {1}


@pytest.mark.parametrize("ord", [2.0, 3.0])
@pytest.mark.parametrize("framework", [name for name in ("torch", "tensorflow") if name in FRAMEWORKS])
def test_the_derivative_of_a_norm_that_is_nan_is_nan(framework: str, ord: float) -> None:
    leaf = f32(3, math.nan, 4)
    if framework == "torch":
        x = lookup.backend("torch").from_numpy(leaf).requires_grad_()
        gx.norms({"a": x}, ord=ord)["a"].backward()
        found = x.grad.numpy()
    else:
        tf = pytest.importorskip("tensorflow")
        x = tf.Variable(leaf)
        with tf.GradientTape() as tape:
            norm = gx.norms({"a": x}, ord=ord)["a"]
        found = tape.gradient(norm, x).numpy()
    assert np.isnan(found).all()


# --- TensorFlow ------------------------------------------------------------------------------------------------------


def test_a_number_without_a_shape_leaves_a_gradient_its_own(tf: Any) -> None:
    with tf.Graph().as_default():
        number = tf.compat.v1.placeholder(tf.float32)
        x = tf.compat.v1.placeholder(tf.float32, [2, 3])
        out, _ = gx.add_decayed_weights(number).update({"a": x}, None, {"a": x})
        assert out["a"].shape == (2, 3)


def test_what_goes_through_on_backward_is_not_kept_for_it(tf: Any) -> None:
    x = tf.Variable([3.0, 4.0])
    with tf.GradientTape():
        hidden = x * 2.0
        alive = weakref.ref(hidden)
        y = gx.on_backward(gx.clip_norm(1.0))(hidden)
        _ = y + 1.0
        del hidden, y
        gc.collect()
        assert alive() is None
