"""`like=`: bit-identical in the library's own framework, and by its formula everywhere."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import peers
import pytest
from support import PEERS, arrays, call, parameter, slow, without_generated_code

import gradxform as gx
from gradxform.proof import parity
from gradxform.testing import max_ulp

LIKE = ("tensorflow", "keras", "optax", "torch", "mlx", "paddle")
TRANSFORMS = ("clip_norm", "clip_global_norm")
HOME = {"tensorflow": "tensorflow", "keras": "tensorflow", "optax": "jax", "torch": "torch"}
NEEDS = {"keras": "keras", "optax": "optax", "mlx": "mlx.core", "paddle": "paddle"}
SHAPES = ((3, 5), (37, 41), (), (301,))
DTYPES = ("float32", "float16", "bfloat16", "float64")
LIMITS = (0.1, 0.7, 5.0, 1000.0)
of_optax = slow(PEERS, like="optax")
LOSSY = np.where(np.arange(9000) < 64, 1.0, 2.0**-12).astype("float32")
"""A library that sums squares in float32 loses most of the small ones."""


def ordinary(dtype: Any, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape) * (0.1, 1.7)[seed % 2]).astype(dtype) for shape in SHAPES]


def whole(dtype: Any, seed: int) -> list[Any]:
    """Gradients whose sums of squares and norms are integers, so that every library's norm is exact."""
    rng = np.random.default_rng(seed)
    rows = [[3, 4, 0, 0], [2, -3, 6, 0], [1, 2, -2, 4], [-8], []]
    return [np.asarray(rng.permutation(row) * (seed % 3 + 1)).astype(dtype) for row in rows]


def distance(some: Any, others: Any) -> float:
    return max(max_ulp(np.asarray(a), np.asarray(b)) for a, b in zip(some, others, strict=True))


def clipped(tx: Any, framework: str, leaves: list[Any], compiled: bool = False) -> list[Any]:
    return arrays(call(framework, "compiled" if compiled else "eager", tx.__call__, leaves))


@of_optax
@slow(PEERS, mode="compiled")
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("like", HOME)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_bit_by_bit_in_its_own_framework(transform: str, like: str, dtype: str, mode: str) -> None:
    pytest.importorskip(NEEDS.get(like, HOME[like]))
    if (like, mode) == ("torch", "compiled"):
        pytest.skip("no value is read and no native norm taken under torch.compile")
    native = peers.find(transform, like, mode == "compiled")
    for seed, c in enumerate(LIMITS if mode == "eager" else LIMITS[:2]):
        leaves = [*ordinary(dtype, seed), *([LOSSY] if dtype == "float32" else [])]
        tx = getattr(gx, transform)(c, like=like)
        assert distance(clipped(tx, HOME[like], leaves, mode == "compiled"), native(leaves, c)) == 0, c


@of_optax
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("like", LIKE)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_bit_by_bit_wherever_the_librarys_norm_is_right(transform: str, like: str, dtype: str) -> None:
    """In NumPy, which has no norm function of the library."""
    pytest.importorskip(NEEDS.get(like, like))
    if (like, dtype) in NOT_THERE or (like, transform, dtype) in NOT_THERE:
        pytest.skip("the library has no such function")
    native = peers.find(transform, like, compiled=like == "optax")  # eager JAX does not round divisions correctly
    for seed in range(8 if like != "optax" else 2):
        leaves = whole(dtype, seed)
        for c in LIMITS:
            tx = getattr(gx, transform)(c, like=like)
            assert distance(clipped(tx, "numpy", leaves), native(leaves, c)) == 0, (seed, c)


NOT_THERE: set[tuple[str, ...]] = {
    ("mlx", "float64"),
    ("mlx", "bfloat16"),  # MLX does not accept NumPy arrays of ml_dtypes
    ("paddle", "float16"),
    ("paddle", "bfloat16"),
    ("paddle", "clip_norm", "float64"),
}


@slow(
    PEERS,
    lambda framework, mode, like, transform: (
        (like == "optax" or framework == "jax" or mode == "compiled")
        and (transform, framework, mode) != ("clip_global_norm", "jax", "compiled")
    ),
)
@pytest.mark.parametrize("like", LIKE)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_published_formula_in_every_framework(
    transform: str, like: str, framework: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (framework, mode) == ("torch", "compiled") and like not in ("torch", "optax"):
        pytest.skip("two libraries' formulas are enough for a compiler that takes its time")
    if (framework, mode) == ("torch", "compiled") and (transform, like) != ("clip_global_norm", "torch"):
        without_generated_code(monkeypatch)
    tx = getattr(gx, transform)(0.7, like=like)
    dtypes = ["float32", "float16"] if mode == "compiled" else DTYPES
    trees = {dtype: whole(dtype, 3) for dtype in dtypes}
    results = parity.run(tx, list(trees.values()), framework, mode)
    for (dtype, tree), result in zip(trees.items(), results, strict=True):
        assert not result.problem, f"{dtype}: {result.problem}"
        _, worst = parity.differences(result.leaves, parity.expected(tx, tree))
        # Compiled code may keep 16-bit numbers unrounded; eager JAX divides by multiplying with the inverse.
        allowed = 2 if (like, framework, mode) == ("optax", "jax", "eager") else mode == "compiled"
        assert worst is None or worst.ulp <= allowed, f"{dtype}: {worst}"


@of_optax
@pytest.mark.parametrize(
    "dtypes", [["float32"], ["float16"], ["bfloat16"], ["float32", "float16", "bfloat16"]], ids="-".join
)
@pytest.mark.parametrize("like", LIKE)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_formulas_roundings_in_numpy(transform: str, like: str, dtypes: list[str]) -> None:
    for seed, c in enumerate((0.01, 0.1, 0.3, 0.7, 1.0, 3.0)):
        tx, leaves = getattr(gx, transform)(c, like=like), [leaf for dtype in dtypes for leaf in ordinary(dtype, seed)]
        assert distance(clipped(tx, "numpy", leaves), list(parity.expected(tx, leaves).values())) == 0


@slow(PEERS, framework="jax")
@pytest.mark.parametrize("like", LIKE)
def test_the_norm_is_right_where_the_librarys_is_not(like: str, framework: str) -> None:
    for leaves in (
        [np.float32([1e30]), np.float32([3.0])],
        [np.float16([300]), np.float16([3])],
        [np.ones(10, ml_dtypes.bfloat16)] * 300,
    ):
        tx = gx.clip_global_norm(1.0, like=like)
        right = parity.expected(gx.clip_global_norm(1.0), leaves)
        assert distance(clipped(tx, framework, leaves), list(right.values())) <= 2


def test_the_formulas_compared_with_gradxform() -> None:
    def clip(like: str, c: float, *values: float, each: bool = False) -> Any:
        tx = (gx.clip_norm if each else gx.clip_global_norm)(c, like=like)
        return tx(np.float32(values)).tolist()

    nan = pytest.approx(float("nan"), nan_ok=True)
    for like in ("tensorflow", "keras", "paddle"):
        assert clip(like, float("inf"), 3, 4) == [nan, nan]
        assert clip(like, float("inf"), 3, 4, each=True) == [nan, nan]
        assert clip(like, 0.0, 0, 0) == ([0, 0] if like == "keras" else [nan, nan])
    assert clip("keras", 0.0, 3, 4) == clip("keras", 0.0, 3, 4, each=True) == [3, 4]
    for like in ("optax", "torch", "mlx"):
        assert clip(like, float("inf"), 3, 4) == [3, 4]
    assert clip("torch", 5.0, 3, 4) == [np.float32(2.9999993), np.float32(3.999999)]
    assert clip("mlx", 5.0, 3, 4) == [np.float32(2.9999995), np.float32(3.9999993)]
    assert clip("tensorflow", 1.0, np.inf, 1) == [nan, nan]
    assert clip("tensorflow", 1.0, np.inf, 1, each=True) == [nan, 0]
    assert clip("optax", 1.0, np.inf, 1) == [nan, 0]
    assert clip("paddle", 0.5, 0, 0, each=True) == [0, 0]


def test_tensorflows_axes(tf: Any) -> None:
    for axes in ((0,), (1,), (-1, 0)):
        leaf = ordinary("float32", 1)[1]
        (got,) = clipped(gx.clip_norm(0.7, axes=axes, like="tensorflow"), "tensorflow", [leaf])
        assert max_ulp(got, tf.clip_by_norm(tf.constant(leaf), 0.7, axes=list(axes)).numpy()) == 0
        (numpys,) = clipped(gx.clip_norm(0.7, axes=axes, like="tensorflow"), "numpy", [leaf])
        assert max_ulp(got, numpys) <= 4


@pytest.mark.parametrize("ord", [1, 3, float("inf")])
def test_torchs_orders(ord: float, torch: Any) -> None:
    leaves = ordinary("float32", 2)
    native: Any = peers.find("clip_global_norm", "torch")
    got = clipped(gx.clip_global_norm(0.7, ord=ord, like="torch"), "torch", leaves)
    assert distance(got, native(leaves, 0.7, norm_type=float(ord))) == 0
    tx = gx.clip_global_norm(0.7, ord=ord, like="torch")
    assert distance(clipped(tx, "numpy", leaves), list(parity.expected(tx, leaves).values())) == 0


def test_a_negative_limit_that_is_an_array_is_zero() -> None:
    for transform in TRANSFORMS:
        for like in ("torch", "optax", "mlx", "paddle", "tensorflow"):
            out = getattr(gx, transform)(np.asarray(-1.0), like=like)(np.float32([3, 4]))
            assert out.tolist() == [0, 0], like


def test_an_empty_gradient_has_no_infinity_norm_in_torch(torch: Any) -> None:
    for transform in TRANSFORMS:
        tx = getattr(gx, transform)(1.0, ord=float("inf"), like="torch")
        got = clipped(tx, "torch", [np.float32([3, 4]), np.zeros((0, 2), np.float32)])
        assert max_ulp(got[0], np.float32([0.75, 1])) <= 9


@pytest.mark.parametrize("like", ["optax", "torch"])
@slow(PEERS, dtype="float16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtypes_together_bit_by_bit_in_eager(dtype: str, like: str) -> None:
    pytest.importorskip(NEEDS.get(like, like))
    native = peers.find("clip_global_norm", like)
    for seed in range(6):
        leaves = [leaf.astype((dtype, "float32")[i % 2]) for i, leaf in enumerate(ordinary("float32", seed))]
        for c in (0.01, 0.7):
            for given in (leaves, [*leaves, LOSSY]):
                tx = gx.clip_global_norm(c, like=like)
                assert distance(clipped(tx, HOME[like], given), native(given, c)) == 0, (like, seed)


@slow(PEERS, framework="jax")
def test_complex_gradients_by_their_parts(framework: str) -> None:
    leaves = [np.complex64([3 + 4j, 0]), np.complex64([12j])]
    for like in LIKE:
        got = clipped(gx.clip_global_norm(1.0, like=like), framework, leaves)
        assert got[0][0] == pytest.approx((3 + 4j) / 13, rel=1e-6)
        assert got[1][0] == pytest.approx(12j / 13, rel=1e-6)


def test_in_a_chain_the_library_is_given_rounded_gradients() -> None:
    leaves = ordinary("float16", 0)
    tx = gx.chain(gx.scale(0.3), gx.clip_global_norm(0.7, like="torch"))
    first = gx.scale(0.3)(leaves)
    assert distance(tx(leaves), gx.clip_global_norm(0.7, like="torch")(first)) == 0


def test_a_scope_and_holes() -> None:
    tree = {"a": np.float32([3, 4]), "b": np.float32([6, 8]), "c": None}
    out = gx.masked(gx.clip_global_norm(1.0, like="optax"), "a")(tree)
    assert (out["b"].tolist(), out["c"]) == ([6, 8], None)
    assert out["a"] == pytest.approx(np.float32([0.6, 0.8]))
    for tx in (gx.clip_global_norm(1.0, like="tensorflow"), gx.clip_norm(1.0, like="tensorflow")):
        out = gx.chain(gx.freeze("b"), tx)(tree)
        assert out["b"].tolist() == [0, 0]
        assert out["a"] == pytest.approx(np.float32([0.6, 0.8]))
        assert gx.chain(gx.stop(), tx)(tree)["a"].tolist() == [0, 0]


@pytest.mark.parametrize("like", HOME)
def test_the_librarys_own_norm_is_over_the_scope(like: str) -> None:
    pytest.importorskip(NEEDS.get(like, HOME[like]))
    leaves = ordinary("float32", 1)
    alone = clipped(gx.clip_global_norm(1.0, like=like), HOME[like], leaves[1:])
    masked = clipped(gx.masked(gx.clip_global_norm(1.0, like=like), re.compile("[1-9]")), HOME[like], leaves)
    assert distance(masked[1:], alone) == 0
    assert masked[0].tobytes() == leaves[0].tobytes()


def test_in_place(torch: Any) -> None:
    leaves, given = ordinary("float32", 1), ordinary("float32", 1)
    gx.numpy.apply_(gx.clip_global_norm(0.7, like="optax"), given)
    assert distance(given, clipped(gx.clip_global_norm(0.7, like="optax"), "numpy", leaves)) == 0
    parameters = [parameter(torch.from_numpy(leaf)) for leaf in leaves]
    for like in ("torch", "optax"):
        wanted = clipped(gx.clip_global_norm(0.7, like=like), "torch", [p.grad.numpy().copy() for p in parameters])
        before = [p.grad for p in parameters]
        gx.torch.apply_(gx.clip_global_norm(0.7, like=like), parameters)
        assert distance([p.grad.numpy() for p in parameters], wanted) == 0
        assert all(p.grad is old for p, old in zip(parameters, before, strict=True))


@slow(PEERS, lambda like: like not in ("optax", "torch"))
@pytest.mark.parametrize("like", LIKE)
def test_derivatives(like: str, jax: Any) -> None:
    for transform in TRANSFORMS:
        tx = getattr(gx, transform)(1.0, like=like)
        for point in (np.float32([0, 0]), np.float32([0.3, 0.4]), np.float32([3, 4])):
            derivative = jax.grad(lambda x, tx=tx: tx(x).sum())(jax.numpy.asarray(point))
            right = jax.grad(lambda x, t=transform: getattr(gx, t)(1.0)(x).sum())(jax.numpy.asarray(point))
            assert np.asarray(derivative) == pytest.approx(np.asarray(right), abs=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gx.clip_norm(1.0, like="flax"), r"clip_norm: like .*'tensorflow'.*'flax'"),
        (lambda: gx.clip_global_norm(1.0, like=3), r"like .* 3"),
        (lambda: gx.clip_norm(1.0, like="torch", axes=0), r"clip_grad_norm_ .*axes=\(0,\)"),
        (lambda: gx.clip_global_norm(1.0, like="optax", ord=1), r"clip_by_global_norm .*ord=1.0"),
    ],
)
def test_what_a_library_does_not_have(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_integer_gradient_is_named() -> None:
    for transform in TRANSFORMS:
        with pytest.raises(TypeError, match="'w' has dtype int32"):
            getattr(gx, transform)(1.0, like="torch")({"w": np.int32([3])})
