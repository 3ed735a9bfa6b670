"""Derivatives through transforms in each framework: first, second, forward, in limits, and example by example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optree
import pytest
from support import FRAMEWORKS, XLA, array, assert_ulp, f32, in_mode, slow, tensors

import gradxform as gx
from gradxform.backend import lookup

WEIGHTS = np.array([1.0, 2.0, -0.5])
BEYOND = np.array([3.0, -4.0, 2.0])
TXS = {
    "clip_norm": gx.clip_norm(1.0),
    "clip_global_norm": gx.clip_global_norm(1.0),
    "clip_norm, ord 3": gx.clip_norm(1.0, ord=3),
    "clip_norm, ord 1": gx.clip_norm(1.0, ord=1),
    "clip_norm, ord inf": gx.clip_norm(1.0, ord=float("inf")),
    "clip_norm, axes": gx.clip_norm(1.0, axes=0),
    "clip_rms": gx.clip_rms(0.6),
    "clip_average_norm": gx.clip_average_norm(0.4),
    "chain": gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0), gx.scale(1.0)),
}
SMOOTH = ("clip_norm", "clip_global_norm", "clip_norm, ord 3", "clip_norm, axes")
DIFFERENTIATING = [name for name in FRAMEWORKS if name != "numpy"]
each = pytest.mark.parametrize("framework", DIFFERENTIATING)
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def wide(request: pytest.FixtureRequest) -> Iterator[None]:
    """64 bits in JAX."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("framework") == "jax":
        with pytest.importorskip("jax").enable_x64(True):
            yield
    else:
        yield


def weights_like(framework: str, x: Any) -> Any:
    return lookup.backend(framework).from_numpy(WEIGHTS.astype(lookup.backend(framework).dtype(x)))


def weighted(framework: str, tx: Function) -> Function:
    """A number: the weighted sum of the transformed gradient."""
    return lambda x: gx.xp(x).sum(weights_like(framework, x) * tx(x))


def slope(framework: str, function: Function, point: Any, order: int = 1) -> Any:
    """The derivative of a number at a NumPy array, or the second derivatives."""
    x = lookup.backend(framework).from_numpy(point)
    if framework == "jax":
        jax = pytest.importorskip("jax")
        first = jax.grad(function)
        return np.asarray((first if order == 1 else jax.jacrev(first))(x))
    if framework == "torch":
        torch = pytest.importorskip("torch")
        if order == 2:
            return torch.autograd.functional.hessian(function, x).numpy()
        return torch.autograd.grad(function(x.requires_grad_()), x)[0].numpy()
    tf = pytest.importorskip("tensorflow")
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = function(x)
        first = tape.gradient(found, x)
    if order == 1:
        return first.numpy()
    return outer.jacobian(first, x, unconnected_gradients="zero", experimental_use_pfor=False).numpy()


def near(of: Function, point: Any, h: float = 1e-6) -> Any:
    """Finite differences."""
    return np.array([(of(point + e) - of(point - e)) / (2 * h) for e in h * np.eye(len(point))])


@slow(
    XLA, lambda framework, name, dtype: framework == "jax" and dtype == "float32" and ("ord" in name or "axes" in name)
)
@each
@pytest.mark.parametrize("name", TXS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_within_the_limit_and_at_zero_the_derivative_is_one(name: str, dtype: str, framework: str) -> None:
    points = [
        [0.0, 0.0, 0.0],
        [0.15, 0.2, 0.05],
        *([[0.6, 0.8, 0.0]] if dtype == "float32" and "ord" not in name else ()),
    ]
    for point in points:
        found = slope(framework, weighted(framework, TXS[name]), np.array(point, dtype))
        assert (found.dtype, found.tolist()) == (dtype, WEIGHTS.tolist())


@each
@pytest.mark.parametrize("name", TXS)
def test_derivatives_against_finite_differences(name: str, framework: str) -> None:
    exact = slope(framework, weighted(framework, TXS[name]), BEYOND)
    np.testing.assert_allclose(exact, near(lambda x: WEIGHTS @ np.asarray(TXS[name](x)), BEYOND), rtol=0, atol=1e-9)
    for size in (1e30, 1e150):
        far = slope(framework, weighted(framework, TXS[name]), BEYOND * size) * size
        np.testing.assert_allclose(far, exact, rtol=1e-12, atol=1e-14)


@slow(XLA, lambda framework, name, point: framework == "jax" and (point, name) != ("beyond", "clip_global_norm"))
@slow(XLA, framework="tensorflow", name="clip_global_norm")
@each
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("point", ["zero", "beyond"])
def test_second_derivatives_against_finite_differences(name: str, point: str, framework: str) -> None:
    of, at = weighted(framework, TXS[name]), BEYOND * (point == "beyond")
    wanted = near(lambda x: slope(framework, of, x), at)
    np.testing.assert_allclose(slope(framework, of, at, order=2), wanted.T, rtol=0, atol=1e-9)


@each
@pytest.mark.parametrize("name", TXS)
@pytest.mark.parametrize("point", ["zero", "beyond"])
def test_forward_mode(name: str, point: str, framework: str) -> None:
    direction, at = np.array([0.5, 2.0, -1.0]), BEYOND * (point == "beyond")
    of = weighted(framework, TXS[name])
    x, along = tensors(framework, [at, direction])
    if framework == "jax":
        found = pytest.importorskip("jax").jvp(of, (x,), (along,))[1]
    elif framework == "tensorflow":
        with pytest.importorskip("tensorflow").autodiff.ForwardAccumulator(x, along) as forward:
            found = of(x)
        found = forward.jvp(found)
    else:
        forward_ad = pytest.importorskip("torch.autograd.forward_ad")
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(of(forward_ad.make_dual(x, along))).tangent
    np.testing.assert_allclose(array(found), slope(framework, of, at) @ direction, rtol=0, atol=1e-12)


@each
def test_the_derivative_in_the_limit(framework: str) -> None:
    clipped = tensors(framework, f32(3, 4))
    for limit, wanted in ((2.0, 1.4), (9.0, 0.0))[: 1 + (framework == "jax")]:  # the others have none within the limit
        found = slope(framework, lambda c: gx.xp(clipped).sum(gx.clip_norm(c)(clipped)), np.float32(limit))
        assert_ulp(found, np.float32(wanted))


@each
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [1.0, 2.0])
def test_the_derivative_in_a_factor(number: float, compiled: bool, framework: str) -> None:
    """Also where it is exactly one, which changes no bits of the leaves."""
    given = [f32(3, 4, 1e-40), f32(-1)]
    leaves = tensors(framework, given)

    def total(c: Any) -> Any:
        first, second = gx.scale(c)(leaves)
        return gx.xp(first).sum(first) + gx.xp(second).sum(second)

    of = in_mode(framework, "compiled" if compiled else "eager", total)
    assert_ulp(slope(framework, of, np.float32(number)), np.float32(6))
    scaled = in_mode(framework, "compiled" if compiled else "eager", lambda c: gx.scale(c)(leaves))
    for leaf, new in zip(given, scaled(tensors(framework, np.float32(number))), strict=True):
        assert number != 1 or array(new).tobytes() == leaf.tobytes()


@each
@pytest.mark.parametrize("name", [name for name in TXS if name != "chain"])
def test_the_derivative_of_a_complex_gradient(name: str, framework: str) -> None:
    """What lies on the limit does not move with its size."""
    leaf, of = tensors(framework, np.complex128([3j, 4j])), TXS[name]

    def imaginary(x: Any) -> Any:
        xp = gx.xp(leaf)
        return xp.sum(xp.imag(of(leaf * (x + 0j if framework != "tensorflow" else xp.asarray(x, xp.complex128)))))

    assert slope(framework, imaginary, np.float64(0.1)).tolist() == 7.0
    assert abs(float(slope(framework, imaginary, np.float64(2.0)))) < 1e-6


@pytest.mark.parametrize("framework", [name for name in DIFFERENTIATING if name != "tensorflow"])
@pytest.mark.parametrize("name", TXS)
def test_vmap_transforms_each_example_by_itself(name: str, framework: str) -> None:
    vmap = pytest.importorskip("jax").vmap if framework == "jax" else pytest.importorskip("torch").func.vmap
    batch = tensors(framework, {"w": f32([3, 4], [0.3, 0.4], [0, 0]), "b": f32([0.1], [30], [0])})
    together = vmap(TXS[name])(batch)
    for i in range(3):
        one = TXS[name](optree.tree_map(lambda leaf, i=i: leaf[i], batch))
        assert_ulp(optree.tree_map(lambda leaf, i=i: leaf[i], together), one, 0 if framework == "jax" else 1)
    clipped = vmap(lambda c: gx.clip_norm(c)(batch["w"][0]))(tensors(framework, f32(0, 1, 9)))
    assert_ulp(clipped, f32([0, 0], [0.6, 0.8], [3, 4]))
