"""Base format float32: functions of pairs, sums by rows, and cases outside the table."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import optree
import pytest
from support import ROOT, array, f32
from without_float64 import of_the_standard, of_torch

import gradxform as gx
from gradxform.backend.protocol import Backend
from gradxform.numerics import elementary, norms
from gradxform.numerics.blending import Blending
from gradxform.numerics.double_double import Number, Pair
from gradxform.numerics.ranged import Space, settled
from gradxform.proof import extended as oracle
from gradxform.proof.gradients import gradients
from gradxform.testing import max_ulp


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    return of_the_standard(monkeypatch)


def number(xp: Any, values: Any) -> Number:
    """Split float64 numbers into float32 pairs."""
    high = np.asarray(values).astype(np.float32)
    return Number(xp, xp.of(high), xp.of((values - high.astype(np.float64)).astype(np.float32)))


def right(found: Number) -> Any:
    """The value of a pair in extended precision."""
    return oracle.number(np.asarray(found.high)) + oracle.number(np.asarray(found.rest))


def off(found: Number, wanted: Any) -> float:
    """The largest relative error."""
    error = np.abs(right(found) - wanted)
    return float(np.max(np.where(wanted == 0, error, error / np.abs(np.where(wanted == 0, 1, wanted)))))


@pytest.mark.parametrize("name", ["log", "exp", "expm1", "sine", "cosine", "power", "root"])
def test_functions_of_pairs_of_float32_are_right_to_44_bits(name: str, backend: Backend) -> None:
    rng, xp = np.random.default_rng(0), backend.xp
    positive = number(xp, np.exp2(rng.uniform(-36, 36, 2000)) * rng.uniform(1, 2, 2000))
    near = number(xp, 1.0 + rng.uniform(-1e-3, 1e-3, 2000))
    angle = number(xp, rng.uniform(-math.pi / 4, math.pi / 4, 2000))
    some = number(xp, rng.uniform(-40, 40, 2000) * 2.0 ** -rng.integers(0, 30, 2000))
    unit = number(xp, rng.uniform(0.3, 1.0, 2000))
    with np.errstate(all="ignore"):
        cases: dict[str, list[tuple[Any, Any, Any]]] = {
            "log": [(positive, elementary.log, np.log), (near, elementary.log, np.log)],
            "exp": [(some, elementary.exp, np.exp)],
            "expm1": [(some, elementary.expm1, np.expm1)],
            "sine": [(angle, elementary.sine, np.sin)],
            "cosine": [(angle, elementary.cosine, np.cos)],
            "power": [
                (unit, lambda x, p=p: elementary.power(x, p), lambda x, p=p: x ** oracle.number(p))
                for p in (1.0, 2.0, 3.0, 2.5, 41.0)
            ],
            "root": [(positive, lambda x: elementary.power(x, 1 / 3), lambda x: x ** oracle.number(1 / 3))],
        }
        for x, function, exact in cases[name]:
            assert off(function(x), exact(right(x))) <= 2.0**-41


def test_functions_at_the_ends(backend: Backend) -> None:
    xp = backend.xp
    space = Space(xp)
    ends, known = (space.number(xp.of(f32(0.0, 1.0, end, math.nan, -1.0))) for end in (math.inf, 2.0))
    with np.errstate(all="ignore"):
        logarithms = space.log(known)
        np.testing.assert_array_equal(settled(logarithms), f32(-math.inf, 0.0, math.log(2.0), math.nan, math.nan))
        np.testing.assert_array_equal(settled(space.expm1(logarithms)), f32(-1.0, 0.0, 1.0, math.nan, math.nan))
        np.testing.assert_array_equal(settled(ends**2.5), f32(0.0, 1.0, math.inf, math.nan, 0.0))
    numbers = np.array([2.0**31 - 1, 2.0**24 + 1, -0.5, 2.0**40 + 3, -(2.0**31)])
    both = number(xp, numbers)
    whole = space.number(Pair(both.high, both.rest))
    assert right(space.floor(whole).pair).astype(np.float64).tolist()[:3] == [2.0**31 - 1, 2.0**24 + 1, -1.0]
    assert np.asarray(space.int32(space.floor(whole))).tolist() == [2**31 - 1, 2**24 + 1, -1, 3, -(2**31)]


@pytest.mark.parametrize(("first", "second"), [(1.0, 0.9), (0.9, 1 - 0.9), (0.9999, 1 - 0.9999), (0.0, 1.0)])
def test_a_blend_is_rounded_as_by_way_of_float64(first: float, second: float, backend: Backend) -> None:
    rng, xp = np.random.default_rng(1), backend.xp
    x, y = (rng.standard_normal(4000).astype(np.float32) for _ in range(2))
    space = Blending(xp)
    found = settled(space.blend(first, space.number(xp.of(x)), second, space.number(xp.of(y))))
    exact = (
        Fraction(first) * Fraction(float(a)) + Fraction(second) * Fraction(float(b)) for a, b in zip(x, y, strict=True)
    )
    assert np.asarray(found).tolist() == np.array([float(value) for value in exact]).astype(np.float32).tolist()


KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
    "lognormal": lambda rng, n: rng.lognormal(0.0, 6.0, n),
    "constant": lambda rng, n: np.full(n, 0.1),
    "one spike": lambda rng, n: np.where(np.arange(n) == n // 2, 1e6, 1e-2),
    "1e30": lambda rng, n: rng.standard_normal(n) * 1e30,
    "1e-30": lambda rng, n: rng.standard_normal(n) * 1e-30,
}


@pytest.mark.parametrize("ord", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_within_a_unit_of_float32(kind: str, ord: float, backend: Backend) -> None:
    rng = np.random.default_rng(2)
    for shape in ((1,), (63, 3), (64, 65), (100_003,), (17, 70, 70)):
        leaf = KINDS[kind](rng, math.prod(shape)).astype(np.float32).reshape(shape)
        with backend.scope():
            found = norms.norms(backend.namespace_of, [backend.from_numpy(leaf)], ord)
        high = math.ldexp(float(found.high[0]), 72 * int(found.exponent[0]))
        size = np.abs(oracle.number(leaf)).ravel()
        exact = (
            size.max()
            if ord == math.inf
            else np.sum((size / size.max()) ** oracle.number(ord)) ** (1 / oracle.number(ord)) * size.max()
        )
        assert max_ulp(np.float32(high), np.float32(float(exact))) <= 1, (shape, high, exact)


@pytest.mark.slow(reason="sums 38,597,376 elements in pairs, which takes half a minute")
def test_the_norm_of_gpt2s_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    leaf = np.random.default_rng(3).standard_normal((50257, 768), np.float32)
    exact = math.sqrt(float(np.sum(np.square(leaf, dtype=np.float64), dtype=np.longdouble)))
    with of_torch(monkeypatch):
        found = gx.global_norm({"w": torch.from_numpy(leaf)})
    assert max_ulp(array(found), np.float32(exact)) <= 1


def test_formulas_of_other_libraries_and_sums_per_example(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    tree = gradients("float32")
    names = ("tensorflow", "keras", "optax", "torch", "mlx", "paddle")
    clips = [clip(0.7, like=name) for clip in (gx.clip_norm, gx.clip_global_norm) for name in names]
    leaves = {"w": tree["a"]["w"], "v": tree["a"]["v"]}
    batch = np.random.default_rng(4).standard_normal((9, 5, 7)).astype(np.float32)
    wanted = [clip(leaves) for clip in clips]
    sums, clipped = gx.per_example_clip_norm({"w": batch}, 5.5)
    limit = gx.clip_value(np.float32(0.3))({"w": batch})
    schedule = gx.scale_by_schedule(lambda t: 1.0 / (3.0 + t))
    with of_torch(monkeypatch):
        own = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
        for clip, expected in zip(clips, wanted, strict=True):
            for name, leaf in clip(own).items():
                assert max_ulp(array(leaf), expected[name]) <= 2, (clip, name)
        found, number_clipped = gx.per_example_clip_norm({"w": torch.from_numpy(batch)}, 5.5)
        assert max_ulp(array(found["w"]), sums["w"]) <= 2
        assert optree.tree_map(int, number_clipped) == optree.tree_map(int, clipped)
        out = gx.clip_value(torch.tensor(0.3))({"w": torch.from_numpy(batch)})
        assert max_ulp(array(out["w"]), limit["w"]) == 0
        state = schedule.init(own)
        out, state = schedule.update(own, state)
        out, state = schedule.update(own, state)
        assert max_ulp(array(out["v"]), (leaves["v"] * 0.25).astype(np.float32)) <= 2
        assert array(state.count).tolist() == 2
