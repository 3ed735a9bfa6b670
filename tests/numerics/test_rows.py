"""The error bound of sums of float32 pairs, for hard rows and any order of addition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import ROOT
from without_float64 import Standard, of_the_standard, of_torch

from gradxform.numerics import norms, rows, sums
from gradxform.numerics.double_double import Number, Pair

BOUND = 2.0**-30
"""The error relative to the sum of absolute values; a 2-norm has half of it."""
COUNTS = (1, 4096, 4097, 3 * 4096 + 17, 1_000_003)
ROWS: dict[str, Callable[[int], Any]] = {
    "one heavy among small": lambda n: np.where(np.arange(n) == n // 3, 1.0, 3e-4),
    "a heavier one": lambda n: np.where(np.arange(n) == n - 1, 1e6, 1e-2),
    "constant": lambda n: np.full(n, 0.1),
    "all digits": lambda n: np.full(n, 2.0 - 2.0**-23),
    "alternating": lambda n: np.where(np.arange(n) % 2, 1.0 / 3.0, 1e-5),
    "falling": lambda n: 1.0 / (1.0 + np.arange(n)),
    "both signs": lambda n: (-1.0) ** np.arange(n) * (1.0 + np.arange(n) % 7 / 7.0),
    "1e38": lambda n: np.random.default_rng(0).uniform(-3e38, 3e38, n),
    "1e-38": lambda n: np.full(n, 1.3e-38),
    "normal": lambda n: np.random.default_rng(1).standard_normal(n),
}
ORDERS: dict[str, Callable[[Any], Any]] = {
    "first to last": lambda x: np.add.accumulate(x, -1, dtype=np.float32)[..., -1],
    "last to first": lambda x: np.add.accumulate(x[..., ::-1], -1, dtype=np.float32)[..., -1],
    "in pairs": lambda x: np.sum(x, -1, dtype=np.float32),
}


class Ordered(Standard):
    """The standard's functions on a device with its own order of addition."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = ORDERS[order]

    def sum_over(self, x: Any, axes: Any) -> Any:
        """Sum over one axis with keepdims."""
        (axis,) = axes
        last = np.moveaxis(np.asarray(x), axis, -1)
        return self.of(np.moveaxis(self.order(last)[..., None] if last.size else last.sum(-1, keepdims=True), -1, axis))


@pytest.fixture(params=ORDERS)
def xp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ordered:
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    of_the_standard(monkeypatch)
    return Ordered(request.param)


def value(found: Pair | Number) -> float:
    """The value of a pair; float64 has enough digits for the bound."""
    exponent = getattr(found, "exponent", None)
    high, low = (float(np.asarray(part).ravel()[0]) for part in (found.high, found.low))
    return math.ldexp(high + low, 0 if exponent is None else 72 * int(np.asarray(exponent).ravel()[0]))


@pytest.mark.parametrize("kind", ROWS)
def test_norms_and_sums_of_hard_rows(kind: str, xp: Ordered) -> None:
    for count in COUNTS:
        leaf = ROWS[kind](count).astype(np.float32)
        wide = leaf.astype(np.float64)
        sizes, squares = math.fsum(np.abs(wide)), math.fsum(wide * wide)
        with np.errstate(all="ignore"):
            two, one = (norms.norms(lambda _: xp, [xp.of(leaf)], ord) for ord in (2, 1))
            total = sums.sum_over(xp, xp.of(leaf), (0,), None)
        assert isinstance(two, Pair) and isinstance(one, Pair) and isinstance(total, Pair)
        assert abs(value(two) - math.sqrt(squares)) <= BOUND / 2 * math.sqrt(squares), count
        assert abs(value(one) - sizes) <= BOUND * sizes, count
        assert abs(value(total) - math.fsum(wide)) <= BOUND * sizes, count


@pytest.mark.parametrize("kind", ["normal", "falling", "both signs"])
def test_numbers_of_pairs_are_summed_with_their_low_parts(kind: str, xp: Ordered) -> None:
    high = ROWS[kind](50_000).astype(np.float32)
    low = (high * np.random.default_rng(2).uniform(-1.0, 1.0, high.size) * 2.0**-25).astype(np.float32)
    found = rows.sum_along(Number(xp, xp.of(high), xp.of(low)), 0)
    wanted = math.fsum([*high.astype(np.float64), *low.astype(np.float64)])
    assert abs(value(found) - wanted) <= BOUND * math.fsum(np.abs(high.astype(np.float64)))


@pytest.mark.parametrize("count", [1, 50, 5000])
def test_what_is_not_finite_zero_or_subnormal(count: int, xp: Ordered) -> None:
    def norm(last: float, rest: float = 1.0, ord: float = 2.0) -> float:
        leaf = np.full(count, rest, np.float32)
        leaf[-1] = last
        with np.errstate(all="ignore"):
            found = norms.norms(lambda _: xp, [xp.of(leaf)], ord)
        assert isinstance(found, Pair)
        return value(found)

    assert norm(math.inf) == norm(-math.inf) == math.inf
    for ord in (1.0, 2.5, 3.0, math.inf):
        assert norm(math.inf, ord=ord) == norm(-math.inf, ord=ord) == math.inf
        assert math.isnan(norm(math.nan, ord=ord))
    assert math.isnan(norm(math.nan))
    assert math.isnan(norm(math.nan, math.inf)) or count == 1
    assert norm(0.0, 0.0) == 0.0
    tiny = float(np.float32(1e-40))
    assert abs(norm(tiny, tiny) / (tiny * math.sqrt(count)) - 1.0) <= BOUND
    assert value(norms.norm_over(xp, xp.of(np.zeros((0, 3), np.float32)), (0,), 2)) == 0.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_squares_of_half_precision_are_exact(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    of_torch(monkeypatch)
    backend: Any = pytest.importorskip("gradxform_torch").backend
    for kind, scale in (("normal", 1.0), ("falling", 6e4), ("constant", 1e-7), ("both signs", 100.0)):
        leaf = torch.from_numpy(ROWS[kind](100_000) * scale).to(getattr(torch, dtype))
        wide = leaf.double().numpy()
        wanted = math.sqrt(math.fsum(wide * wide))
        assert abs(value(backend.norms([leaf], 2)) - wanted) <= BOUND / 2 * wanted


def test_derivatives_flow_through_the_lower_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extracted parts carry no derivative; the remainder does: for several rows and leaves, and a zero leaf."""
    torch: Any = pytest.importorskip("torch")
    of_torch(monkeypatch)
    backend: Any = pytest.importorskip("gradxform_torch").backend
    rng = np.random.default_rng(3)
    leaves = [torch.from_numpy(rng.standard_normal(n).astype(np.float32)) for n in (5, 5, 9000)] + [torch.zeros(5)]
    for ord, wanted in (
        (2, lambda x: x / x.norm()),
        (1, torch.sign),
        (3, lambda x: x.abs() * x / x.abs().pow(3).sum() ** (2 / 3)),
    ):
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        found = torch.autograd.grad(backend.norms(given, ord).high.sum(), given)
        units = [72.0 * float(e) for e in backend.norms(leaves, ord).exponent]
        for leaf, derivative, unit in zip(leaves[:3], found, units, strict=False):
            torch.testing.assert_close(derivative * 2.0**unit, wanted(leaf), rtol=1e-5, atol=1e-6)
        assert found[3].abs().max() == 0.0
