"""Double-double arithmetic, and the cosine for noise."""

from __future__ import annotations

import functools
import types
from fractions import Fraction
from operator import add, itemgetter, mul, sub, truediv
from typing import Any

import numpy as np
import pytest

from gradxform.backend.host import longdouble
from gradxform.backend.host.elements import Block
from gradxform.core import extended
from gradxform.numerics import random as threefry
from gradxform.numerics import sums
from gradxform.numerics.double_double import Number, Pair
from gradxform.numerics.exact import Exact
from gradxform.numerics.ranged import Ranged, Space, evaluate, powers, settled
from gradxform.proof import extended as oracle

XP = Block(0)
"""NumPy's functions, with the shared arithmetic of pairs."""
EXACT, SPACE = Exact(XP), Space(XP)
DIGITS = Fraction(1, 2**100)


def some_numbers(seed: int, count: int = 200, widest: int = 60) -> Number:
    rng = np.random.default_rng(seed)
    high = rng.standard_normal(count) * 2.0 ** rng.integers(-widest, widest, count)
    return Number(XP, high, high * 2.0**-54 * rng.uniform(-1.0, 1.0, count))


def exactly(number: Any) -> list[Fraction]:
    both = zip(np.ravel(number.high), np.ravel(np.broadcast_to(number.low, np.shape(number.high))), strict=True)
    return [Fraction(float(high)) + Fraction(float(low)) for high, low in both]


@pytest.mark.parametrize("plain", [False, True], ids=["pairs", "plain"])
def test_arithmetic_on_pairs_has_twice_the_digits(plain: bool) -> None:
    a, b = some_numbers(0), some_numbers(1)
    second = b.high if plain else b
    x, y = exactly(a), exactly(EXACT.number(second))
    size = [max(abs(one), abs(other)) for one, other in zip(x, y, strict=True)]
    for found, operator, to in (
        (a + second, add, size),
        (a - second, sub, size),
        (a * second, mul, None),
        (a / second, truediv, None),
    ):
        wanted = list(map(operator, x, y))
        for got, right, of in zip(exactly(found), wanted, to or map(abs, wanted), strict=True):
            assert abs(got - right) <= DIGITS * of
        assert np.all(np.abs(found.rest) <= np.spacing(np.abs(found.high)))
    assert exactly(2.0 - a) == exactly(Number(XP, np.full(200, 2.0)) - a)
    assert exactly(2.0 / a) == exactly(Number(XP, np.full(200, 2.0)) / a)
    assert exactly(2.0 * a) == exactly(a + a) == exactly(a * 2.0)
    assert exactly(2.0 + a) == exactly(a + 2.0)
    assert exactly(-a) == [-one for one in x]
    assert (a**3.0).high.tolist() == (a.high**3.0).tolist()


def test_roots_of_pairs() -> None:
    squares = EXACT.abs(some_numbers(2))
    for found in (
        EXACT.sqrt(squares),
        EXACT.root(squares),
        EXACT.number(sums.root(XP, Pair(squares.high, squares.low))),
    ):
        for got, right in zip(exactly(found), exactly(squares), strict=True):
            assert abs(got * got - right) <= DIGITS * right
    odd = sums.root(XP, np.array([0.0, np.inf, np.nan, 4.0]))
    np.testing.assert_array_equal(odd.high, [0.0, np.inf, np.nan, 2.0])
    np.testing.assert_array_equal(odd.low, [0.0] * 4)


def test_products_of_tiny_numbers_are_those_of_float64() -> None:
    tiny = np.array([2.0**-1000, 2.0**-899, 1.5 * 2.0**-900, 3.0])
    found = Number(XP, tiny) * Number(XP, np.full(4, 1.0 + 2.0**-52))
    assert found.high.tolist() == (tiny * (1.0 + 2.0**-52)).tolist()
    assert found.low[0] == 0.0


def test_pairs_are_compared_to_their_last_digit() -> None:
    one, more, other = (
        Number(XP, np.array([high]), np.array([low])) for high, low in ((1, 0), (1, 1e-20), (2, -1e-17))
    )
    for small, large in ((one, more), (more, other), (one, other), (-other, -one)):
        right = small < large, small <= large, large > small, large >= small
        wrong = large < small, large <= small, small > large, small >= large
        assert [bool(found[0]) for found in (*right, *wrong)] == [True] * 4 + [False] * 4
        assert [bool((small == large)[0]), bool((small != large)[0]), bool((small == small)[0])] == [False, True, True]
        assert [bool((small <= small)[0]), bool((small >= small)[0])] == [True, True]
        assert [bool((small < small)[0]), bool((small > small)[0])] == [False, False]


def test_sums_that_are_cut_have_twice_the_digits() -> None:
    def all_of(values: Any) -> Any:
        return np.sum(values, keepdims=True)

    a, b = some_numbers(5, 100, 20), some_numbers(6, 100, 20)
    x, y, z = list(map(Fraction, a.high.tolist())), list(map(Fraction, b.high.tolist())), exactly(b)
    for found, terms in (
        (sums.total(XP, np.abs(a.high), all_of), list(map(abs, x))),
        (sums.total_signed(XP, a.high, all_of), x),
        (sums.total_squares(XP, [a.high, b.high], all_of), [one * one for one in (*x, *y)]),
        (sums.total_products(XP, a.high, b.high, all_of), list(map(mul, x, y))),
        (sums.total_products(XP, a.high, Pair(b.high, b.low), all_of), list(map(mul, x, z))),
    ):
        assert abs(exactly(found)[0] - sum(terms)) <= Fraction(1, 2**74) * sum(map(abs, terms))
        assert np.all(np.abs(found.low) <= np.spacing(np.abs(found.high)))
    with np.errstate(all="ignore"):
        huge = sums.total(XP, np.array([1e308, 1e308]), all_of)
    assert (huge.high.tolist(), huge.low.tolist()) == ([np.inf], [0.0])


def test_absolute_values_are_rounded_once() -> None:
    parts = np.array([[3.0, 1.0, 0.0, 1e-5], [4.0, 1.0, 0.0, 1.0]])
    plain = np.hypot(*parts) * (1 + 2.0**-50)
    found = sums.length(XP, plain, np.array([4.0, 1.0, 1.0, 1.0]), parts)
    wide = oracle.number(parts)
    assert found.tolist() == oracle.narrowed(np.sqrt(wide[0] ** 2 + wide[1] ** 2), np.float64).tolist()
    with np.errstate(all="ignore"):
        odd = sums.length(XP, np.array([np.inf, np.nan]), np.ones(2), np.array([[np.inf, np.nan], [1.0, 1.0]]))
    np.testing.assert_array_equal(odd, [np.inf, np.nan])


def some_ranged(seed: int, widest: int) -> tuple[Ranged, list[Fraction]]:
    """Numbers with a range of exponents, and their values."""
    pair = some_numbers(seed, widest=300)
    exponent = np.random.default_rng(seed).integers(-widest // 600, widest // 600 + 1, 200).astype(float)
    values = [value * Fraction(2) ** (600 * int(power)) for value, power in zip(exactly(pair), exponent, strict=True)]
    return Ranged(XP, pair, exponent), values


def of(number: Ranged) -> list[Fraction]:
    units = np.broadcast_to(number.exponent, number.shape)
    both = zip(exactly(number.pair), units, strict=True)
    return [value * Fraction(2) ** (600 * int(unit)) if value else value for value, unit in both]


def test_arithmetic_with_exponents_neither_over_nor_underflows() -> None:
    (a, x), (b, y) = some_ranged(0, 6000), some_ranged(1, 6000)
    assert of(a) == x
    for found, operator, exact in ((a + b, add, max), (a - b, sub, max), (a * b, mul, None), (a / b, truediv, None)):
        for got, one, other in zip(of(found), x, y, strict=True):
            wanted = operator(one, other)
            assert abs(got - wanted) <= DIGITS * (abs(wanted) if exact is None else max(abs(one), abs(other)))
        size = np.abs(found.high[found.high != 0])
        assert np.all((size >= 2.0**-474) & (size <= 2.0**424))
    for got, right in zip(of(SPACE.sqrt(SPACE.abs(a))), map(abs, x), strict=True):
        assert abs(got * got - right) <= DIGITS * right
    assert (a < b).tolist() == [one < other for one, other in zip(x, y, strict=True)]
    assert (a <= a).all()
    assert (a == a).all()
    assert not (a != a).any()
    assert (SPACE.number(0.0) < SPACE.abs(a)).all()
    assert of(a + 0.0) == x
    assert abs(of(SPACE.max(a).parts(np.atleast_1d))[0] / max(x) - 1) <= Fraction(1, 2**52)
    total = SPACE.sum(SPACE.abs(a))
    assert abs(of(total.parts(np.atleast_1d))[0] - sum(map(abs, x))) <= DIGITS * sum(map(abs, x))


def test_numbers_with_exponents_beside_plain_ones() -> None:
    (a, x) = some_ranged(2, 1800)
    for number in (1e-300, 2.5, 1e300):
        exact = Fraction(number)
        for minus, over, one in zip(of(number - a), of(number / a), x, strict=True):
            assert abs(minus - (exact - one)) <= DIGITS * max(abs(one), exact)
            assert abs(over - exact / one) <= DIGITS * abs(exact / one)
        assert (a > number).tolist() == [one > exact for one in x]
        assert (a >= number).tolist() == [one >= exact for one in x]
    assert (a >= a).all()
    assert not (a > a).any()
    near = SPACE.number(np.array([1.5, 3.0]))
    assert settled(near**3.0).tolist() == [3.375, 27.0]
    both = SPACE.stack([a.parts(itemgetter(0)), 2.0, near.parts(itemgetter(1))])
    assert of(both) == [x[0], 2, 3]
    assert EXACT.stack([Number(XP, 1.0, 1e-20), 2.0]).low.tolist() == [1e-20, 0.0]
    assert EXACT.stack([1.0, 2.0]).high.tolist() == [1.0, 2.0]


@pytest.mark.skipif(not longdouble.WIDER, reason="longdouble is not wider than float64 here")
def test_pairs_of_longdouble() -> None:
    wide = np.array([1 / np.longdouble(3), 1e300, 0.0, -2.0], np.longdouble)
    far = wide * np.longdouble(2) ** 3000
    for numbers in (wide, far, wide * np.longdouble(2) ** -3000):
        assert longdouble.unpaired(longdouble.pair(numbers)).tolist() == numbers.tolist()
    for plain in (wide[:1], np.array([np.inf, np.nan], np.longdouble)):
        with np.errstate(all="ignore"):
            assert longdouble.pair(plain).exponent is None
    stub = types.SimpleNamespace(compute=lambda formula, value: evaluate(formula, XP, [value], {}))
    assert extended.rounded(stub, longdouble.pair(wide)).tolist() == wide.astype(np.float64).tolist()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_out_of_range_comes_back_where_a_result_is_in_it() -> None:
    tiny, huge = SPACE.number(np.array([1e-300])), SPACE.number(np.array([1e300]))
    assert settled(tiny * tiny).tolist() == settled(tiny * tiny * tiny).tolist() == [0.0]
    nothing = SPACE.number(np.array([0.0]))
    assert settled((nothing + tiny * tiny) * huge * huge).tolist() == pytest.approx([1.0], rel=1e-15)
    assert settled(huge * huge * -1.0).tolist() == [-np.inf]
    assert settled(tiny * tiny * tiny * huge * huge * 1e200).tolist() == pytest.approx([1e-100], rel=1e-15)
    for size, exponent, right in ((200, -3.0, 0.0), (-200, 3.0, np.inf)):
        assert settled(Ranged(XP, Number(XP, np.array([2.0**size])), np.array([exponent]))).tolist() == [right]
    for factor in (tiny * tiny, huge * huge, tiny * tiny * tiny, tiny * 0.5, huge * 2.0, tiny * tiny * tiny * tiny):
        (exact,) = of(factor)
        for gradient in (1e300, 1.5, 1e-290):
            wanted = exact * Fraction(gradient)
            found = functools.reduce(
                mul, (power.high if isinstance(power, Number) else power for power in powers(factor)), gradient
            )
            np.testing.assert_array_max_ulp(found, np.array([float(wanted) if wanted < 2**1024 else np.inf]), 1)
        assert [np.inf * power for power in powers(factor)[1:]] == [np.inf] * 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_that_are_not_finite_stay_so() -> None:
    odd = SPACE.number(np.array([np.inf, np.nan, 0.0]))
    np.testing.assert_array_equal(settled(odd), [np.inf, np.nan, 0.0])
    np.testing.assert_array_equal(settled(odd * 2.0), [np.inf, np.nan, 0.0])
    np.testing.assert_array_equal(settled(SPACE.max(SPACE.number(np.array([1e300, np.inf, 1.0])))), np.inf)
    assert SPACE.isfinite(odd).tolist() == [False, False, True]
    found = sums.in_units(XP, Pair(np.array([np.inf, 3.0]), np.zeros(2)), np.array([1.0, 2.0**1000]))
    assert found.high[0] == np.inf
    assert of(SPACE.number(found).parts(lambda part: part[1:])) == [3 * Fraction(2) ** 1000]


def test_the_cosine_is_right_near_its_zeros() -> None:
    turns = np.concatenate([np.linspace(-0.5, 0.5, 101), *(at + np.logspace(-12, -2, 30) for at in (-0.25, 0.25, 0.0))])
    from_zero = oracle.number(turns) - np.where(turns < 0, -0.25, 0.25)  # exact, and small near the cosine's zeros
    right = np.sin(2 * np.pi * from_zero) * np.where(turns < 0, 1, -1)
    error = np.abs(threefry._cosine(XP, turns) - right)
    assert np.all(error <= 2.0**-50 * np.abs(right))
