"""`orthogonalize`: singular values and vectors, axes and stacks, magnitudes, precision, and what it refuses."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from support import EAGER, MOST, array, call, slow, tensors

import gradxform as gx
from gradxform.proof import products
from gradxform.proof.judge import judge
from gradxform.proof.registry import ROWS, Row
from gradxform.transforms.orthogonalizing import KNOWN, polynomials

RNG = np.random.default_rng(0)
PLAIN = gx.orthogonalize(scale=None)


def off(found: Any, wanted: Any) -> float:
    """The norm of the difference, relative to the wanted matrix."""
    found, wanted = (np.asarray(x).astype(np.float64) for x in (found, wanted))
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def iterated(x: Any, coefficients: Any) -> Any:
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


# --- singular values -------------------------------------------------------------------------------------------------


@slow(EAGER, framework="jax", shape=((64, 64), (96, 32)))
@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (96, 32)], ids=str)
def test_the_polar_factor_by_svd(shape: tuple[int, int], framework: str) -> None:
    u, _, v = np.linalg.svd(RNG.standard_normal(shape), full_matrices=False)
    values = np.geomspace(1.0, 0.01, min(shape))
    gradient = ((u * values) @ v).astype(np.float32)
    (found,) = map(array, PLAIN(tensors(framework, [gradient])))
    inside = u.T @ found @ v.T  # diagonal: singular vectors stay
    assert np.abs(inside - np.diag(np.diag(inside))).max() < 1e-4
    assert 0.6 < np.diag(inside).min() < np.diag(inside).max() < 1.25
    for steps, far in ((5, 0.25), (8, 1e-2), (12, products.budget("polar_express", 12) * 2.0**-24)):
        (found,) = map(array, gx.orthogonalize(steps, "polar_express", scale=None)(tensors(framework, [gradient])))
        assert off(found, u @ v) < far, steps


def test_each_singular_value_goes_through_the_polynomials() -> None:
    values = np.array([3.0, 1.0, 0.3, 0.0])
    u, _, v = np.linalg.svd(RNG.standard_normal((4, 6)), full_matrices=False)
    for coefficients in ("jordan", "polar_express", (1.5, -0.5, 0.0), ((2.0, -1.5, 0.5), (1.875, -1.25, 0.375))):
        wanted = iterated(np.diag(values / np.linalg.norm(values)), polynomials(coefficients, 4))
        (found,) = gx.orthogonalize(4, coefficients, scale=None)([(u * values) @ v])
        np.testing.assert_allclose(u.T @ found @ v.T, wanted, atol=1e-13)


def test_polar_express_is_algorithm_1_of_its_paper() -> None:
    published = [  # before the safety factor of 1.01, which its last polynomial does not have
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    ]
    safe = [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in published] + [(1.875, -1.25, 0.375)] * 3
    x = RNG.standard_normal((7, 5))
    for steps in (1, 5, 7, 10):
        wanted = iterated(x / (np.linalg.norm(x) * 1.01), safe[:steps])
        assert off(gx.orthogonalize(steps, "polar_express", scale=None)([x])[0], wanted) < 1e-13, steps
    assert polynomials("jordan", 2) == ((3.4445, -4.7750, 2.0315),) * 2


# --- axes, stacks and scales -----------------------------------------------------------------------------------------


@slow(EAGER, framework="jax", mode="eager")
@pytest.mark.parametrize("make", [gx.orthogonalize, gx.normalize_neurons])
@pytest.mark.parametrize(("framework", "mode"), MOST)
def test_kernels_and_stacks_are_their_matrices(framework: str, mode: str, make: Any) -> None:
    def first(axes: Any, g: Any) -> Any:
        tx = make(axes=axes)
        return tx.update([g], tx.init([g]))[0][0]

    kernel = RNG.standard_normal((3, 2, 4, 5)).astype(np.float32)
    alone = {
        "keras": lambda x: x.reshape(1, 24, 5),
        "torch": lambda x: x.reshape(1, 3, 40).swapaxes(1, 2),
        ((1,), (3,)): lambda x: x.transpose(0, 2, 1, 3).reshape(12, 2, 5),
        ((3, 0), (-2,)): lambda x: x.transpose(1, 3, 0, 2).reshape(2, 15, 4),
    }
    for axes, matrices in alone.items():
        found = array(call(framework, mode, functools.partial(first, axes), kernel))
        assert (found.shape, found.dtype) == (kernel.shape, kernel.dtype)
        for new, matrix in zip(matrices(found), matrices(kernel), strict=True):
            assert off(new, first("keras", matrix)) < 1e-4, axes


@pytest.mark.parametrize(("framework", "mode"), MOST)
def test_zeros_of_neurons_stay_behind_a_factor_beyond_float32(framework: str, mode: str) -> None:
    tx, leaf = gx.chain(gx.scale(1e160), gx.normalize_neurons(), gx.scale(1e-160)), np.float32([[3.0, 0.0], [0.0, 0.4]])
    found = array(call(framework, mode, lambda g: tx.update([g], tx.init([g]))[0][0], leaf))
    assert found[0, 1] == found[1, 0] == 0.0


@pytest.mark.parametrize("axes", ["keras", "torch"])
def test_kernels_compile_whole_in_pytorch(axes: str) -> None:
    """Of axes that are merged; inductor is not asked, which takes seconds."""
    torch, shapes = pytest.importorskip("torch"), ((4, 3), (2, 3, 4, 5), (6, 3, 2))
    tree = tensors("torch", [RNG.standard_normal(shape).astype(np.float32) for shape in shapes])
    tx = gx.chain(gx.scale(0.5), gx.orthogonalize(axes=axes))
    torch.testing.assert_close(torch.compile(tx, backend="eager", fullgraph=True)(tree), tx(tree))


def test_scales_are_of_the_outputs_and_inputs() -> None:
    tall = RNG.standard_normal((8, 2))
    plain = PLAIN([tall])[0]
    for axes, shape in ((None, 2.0), ("torch", 2.0), ("keras", 1.0), ({"**": 0}, 1.0), (lambda *_: 0, 1.0)):
        np.testing.assert_allclose(gx.orthogonalize(axes=axes)([tall])[0], plain * shape, rtol=1e-11)
        np.testing.assert_allclose(gx.orthogonalize(scale="rms", axes=axes)([tall])[0], plain * 0.2 * 8**0.5, 1e-11)
    # Moonshot's scale: the root mean square of a full-rank update is 0.2, whatever the shape, up to the iteration
    square = gx.orthogonalize(12, "polar_express", scale="rms")([RNG.standard_normal((30, 70))])[0]
    assert abs(np.sqrt(np.mean(square**2)) - 0.2) < 1e-3


def test_matrices_without_elements(framework: str) -> None:
    tree = [np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32), np.ones((2, 2), np.float32)]
    for tx in (gx.orthogonalize(), gx.orthogonalize(axes="keras", scale="rms")):
        assert [array(leaf).shape for leaf in tx(tensors(framework, tree))] == [(0, 3), (3, 0), (2, 2)]


# --- magnitudes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("framework", "mode"), MOST)
def test_factors_cancel_but_for_their_sign(framework: str, mode: str) -> None:
    gradient = RNG.standard_normal((5, 7)).astype(np.float32)
    wanted = array(PLAIN(tensors(framework, [gradient]))[0])
    for factor in (1e30, 1e-30):
        found = call(framework, mode, lambda g: PLAIN([g])[0], gradient * np.float32(factor))
        assert off(array(found), wanted) < 1e-4, factor
    for factors in ((1e30, 1e30), (-1e-30, 1e-30), (-2.0,), (1e200, -1e-300)):
        tx = gx.chain(*map(gx.scale, factors), gx.clip_global_norm(1.0), PLAIN, gx.scale(3.0))
        found = call(framework, mode, lambda g, tx=tx: tx([g])[0], gradient)
        assert off(array(found), 3 * math.prod(map(np.sign, factors)) * wanted) < 1e-4, factors


@pytest.mark.parametrize(("framework", "mode"), MOST)
def test_zeros_stay_zero_and_what_is_not_finite_is_nan_for_its_matrix_only(framework: str, mode: str) -> None:
    stack = RNG.standard_normal((4, 3, 5)).astype(np.float32)
    stack[1], stack[2, 0, 0], stack[3, 1, 1] = 0.0, np.nan, -np.inf
    found = array(call(framework, mode, lambda g: gx.orthogonalize(axes=((1,), (2,)))([g])[0], stack))
    assert np.isfinite(found[:2]).all() and (found[1] == 0).all() and np.isnan(found[2:]).all()
    one = call(framework, mode, lambda g, h: PLAIN([g, h]), stack[2], stack[0])
    assert np.isnan(array(one[0])).all() and np.isfinite(array(one[1])).all()
    assert (array(call(framework, mode, lambda g: gx.chain(gx.scale(0.0), PLAIN)([g])[0], stack[0])) == 0).all()


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("framework", "mode"), MOST)
@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 8), ("float16", 11), ("float32", 24)])
def test_products_in_a_dtype(dtype: str, digits: int, framework: str, mode: str) -> None:
    pytest.importorskip("ml_dtypes")
    gradient = RNG.standard_normal((48, 64)).astype(np.float32)
    tx = gx.orthogonalize(dtype=dtype, scale=None)
    found = array(call(framework, mode, lambda g: tx([g])[0], gradient))
    exact = PLAIN([gradient.astype(np.float64)])[0]
    assert found.dtype == np.float32
    # A rounding error in the first matrix, of norm one, grows by the steepest slope; the result's norm is 48^0.5.
    assert 2.0 ** -(digits + 1) < off(found, exact) < 3.4445**5 / 48**0.5 * 2.0**-digits
    assert np.linalg.norm(found.astype(np.float64), 2) < 1.25
    rest = array(call(framework, mode, lambda g: tx([g])[0], gradient.astype(np.float64))) if framework != "mlx" else 0
    assert framework == "mlx" or rest.dtype == np.float64


def test_the_budget_is_what_rounding_errors_of_single_values_may_grow_to() -> None:
    rng, worst = np.random.default_rng(0), 0.0
    x, unit = rng.uniform(0, 1, 20_000), 2.0**-30
    exact, inexact = x, x + unit * rng.choice([-1, 1], x.shape)
    for a, b, c in KNOWN["jordan"] * 5:
        # the error of a product is as large as the largest singular value makes it, for small ones too
        rounding = unit * np.max(abs(a) * exact + abs(b) * exact**3 + abs(c) * exact**5)
        inexact = a * inexact + b * inexact**3 + c * inexact**5 + rounding * rng.choice([-1, 1], x.shape)
        exact = a * exact + b * exact**3 + c * exact**5
    worst = np.abs(inexact - exact).max() / unit
    bound = products.budget("jordan", 5)
    assert bound / 4 < worst < bound
    assert products.budget((1.0, 0.0, 0.0), 3) == 4.0  # the identity: one error from the start, one from each step


@pytest.mark.parametrize("error", [2.0**-11, 2.0**-8])
def test_a_budget_notices_products_in_less_than_float32(error: float) -> None:
    """TF32 has 11 bits, bfloat16 eight."""
    row = next(row for row in ROWS if row.products is not None)
    gradient = RNG.standard_normal((37, 41)).astype(np.float32)
    (wanted,) = gx.orthogonalize(axes="keras")([gradient])

    noisy = gradient * (1 + error * RNG.uniform(-1, 1, gradient.shape)).astype(np.float32)
    (found,) = gx.orthogonalize(axes="keras")([noisy])
    assert judge({"w": found}, {"w": wanted}, "numpy", row).over is not None
    assert judge({"w": wanted}, {"w": wanted}, "numpy", row) == judge({}, {}, "numpy", row)


def test_a_judge_of_products_counts_norms() -> None:
    row = Row("orthogonalize()", products=100.0)
    wanted = np.full((2, 2), 0.5, np.float32)
    near, far = (wanted + np.float32([[k * 2.0**-24, 0], [0, 0]]) for k in (64, 256))
    assert judge({"w": near}, {"w": wanted}, "numpy", row).worst.ulp == 64
    assert judge({"w": far}, {"w": wanted}, "numpy", row).over.ulp == 256
    for bad, words in ((np.nan, "NaN"), (np.inf, "infinity")):
        assert judge({"w": wanted * bad}, {"w": wanted}, "numpy", row).wrong == words
        assert judge({"w": wanted}, {"w": wanted * np.float32(bad)}, "numpy", row).wrong
    assert judge({"w": wanted}, {"w": wanted * 0}, "numpy", row).over is not None
    assert row.budget(np.float16) == 1 + 100 * 2.0**-13


# --- what it refuses -------------------------------------------------------------------------------------------------


def test_expressions_with_coefficients_of_ones_own() -> None:
    tx = gx.orthogonalize(2, ((2.0, -1.5, 0.5), (1.875, -1.25, 0.375)), axes=((0,), (1,)), dtype="float32")
    assert gx.parse(repr(tx)) == tx


def test_a_slice_of_each_matrix_is_refused(jax: Any) -> None:
    tx = gx.across(gx.orthogonalize(), "device", split="leaves")
    with pytest.raises(ValueError, match="a slice of 'w'"):
        jax.vmap(lambda g: tx({"w": g}), axis_name="device")(jax.numpy.ones((2, 3, 4)))
    tree = gx.across(gx.orthogonalize(), "device")
    found = jax.vmap(lambda g: tree({"w": g}), axis_name="device")(jax.numpy.ones((2, 3, 4)))["w"]
    assert off(np.asarray(found[1]), gx.orthogonalize()([np.ones((3, 4), np.float32)])[0]) < 1e-6
