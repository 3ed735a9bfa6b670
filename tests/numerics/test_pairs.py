"""Pairs of float64 numbers, which have twice its digits, and the cosine that noise is drawn with."""

from __future__ import annotations

from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any

import numpy as np
import pytest

from gradxform import _pairs as pairs
from gradxform import _threefry as threefry
from gradxform._host_elements import Block
from gradxform._pairs import Exact, Number, Pair

XP = Block(0)
"""NumPy's functions, in which pairs of numbers are computed as they are elsewhere."""
EXACT = Exact(XP)
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
        EXACT.number(pairs.root(XP, Pair(squares.high, squares.low))),
    ):
        for got, right in zip(exactly(found), exactly(squares), strict=True):
            assert abs(got * got - right) <= DIGITS * right
    odd = pairs.root(XP, np.array([0.0, np.inf, np.nan, 4.0]))
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


def test_functions_of_pairs() -> None:
    a = some_numbers(3, 7)
    signs = np.sign(a.high)
    assert exactly(EXACT.abs(a)) == list(map(abs, exactly(a)))
    assert not np.signbit(EXACT.abs(Number(XP, np.zeros(1))).high)
    assert exactly(EXACT.where(signs > 0, a, 0.5)) == [
        one if sign > 0 else Fraction(1, 2) for one, sign in zip(exactly(a), signs, strict=True)
    ]
    assert exactly(EXACT.take(a, (4, 2))) == [exactly(a)[4], exactly(a)[2]]
    assert exactly(EXACT.reshape(a, (7, 1))) == exactly(a) == exactly(EXACT.stop_gradient(a))
    assert EXACT.reshape(a, (7, 1)).shape == (7, 1)
    assert EXACT.max(a).high == a.high.max()
    assert EXACT.isfinite(Number(XP, np.array([1.0, np.inf, np.nan]))).tolist() == [True, False, False]
    assert EXACT.any(np.array([False, True])) and not EXACT.any(np.array([False]))
    assert EXACT.rounded(a, "float32").high.tolist() == a.high.astype(np.float32).astype(np.float64).tolist()
    assert EXACT.mask((True, False)).tolist() == [True, False]
    assert EXACT.stack([1.0, 2.0]).high.tolist() == [1.0, 2.0]
    both = EXACT.stack([Number(XP, np.array(1.0), np.array(1e-20)), 2.0])
    assert (both.high.tolist(), both.low.tolist()) == ([1.0, 2.0], [1e-20, 0.0])
    for count in range(1, 10):
        numbers = some_numbers(count, count, 3)
        assert abs(exactly(EXACT.sum(numbers))[0] - sum(exactly(numbers))) <= DIGITS * sum(map(abs, exactly(numbers)))


def test_sums_that_are_cut_have_twice_the_digits() -> None:
    def all_of(values: Any) -> Any:
        return np.sum(values, keepdims=True)

    a, b = some_numbers(5, 100, 20), some_numbers(6, 100, 20)
    x, y, z = list(map(Fraction, a.high.tolist())), list(map(Fraction, b.high.tolist())), exactly(b)
    for found, terms in (
        (pairs.total(XP, np.abs(a.high), all_of), list(map(abs, x))),
        (pairs.total_signed(XP, a.high, all_of), x),
        (pairs.total_squares(XP, [a.high, b.high], all_of), [one * one for one in (*x, *y)]),
        (pairs.total_products(XP, a.high, b.high, all_of), list(map(mul, x, y))),
        (pairs.total_products(XP, a.high, Pair(b.high, b.low), all_of), list(map(mul, x, z))),
    ):
        assert abs(exactly(found)[0] - sum(terms)) <= Fraction(1, 2**74) * sum(map(abs, terms))
        assert np.all(np.abs(found.low) <= np.spacing(np.abs(found.high)))
    with np.errstate(all="ignore"):
        huge = pairs.total(XP, np.array([1e308, 1e308]), all_of)
    assert (huge.high.tolist(), huge.low.tolist()) == ([np.inf], [0.0])


def test_absolute_values_are_rounded_once() -> None:
    parts = np.array([[3.0, 1.0, 0.0, 1e-5], [4.0, 1.0, 0.0, 1.0]])
    plain = np.hypot(*parts) * (1 + 2.0**-50)
    found = pairs.length(XP, plain, np.array([4.0, 1.0, 1.0, 1.0]), parts)
    wide = parts.astype(np.longdouble)
    assert found.tolist() == np.sqrt(wide[0] ** 2 + wide[1] ** 2).astype(np.float64).tolist()
    with np.errstate(all="ignore"):
        odd = pairs.length(XP, np.array([np.inf, np.nan]), np.ones(2), np.array([[np.inf, np.nan], [1.0, 1.0]]))
    np.testing.assert_array_equal(odd, [np.inf, np.nan])


def test_a_formula_is_computed_in_pairs_if_an_operand_is_one() -> None:
    def third(xp: Any, x: Any, *, by: float) -> Any:
        return x / by

    found = pairs.evaluate(third, XP, [Pair(np.array([1.0]), np.array([1e-20]))], {"by": 3.0})
    assert isinstance(found, Pair)
    assert abs(exactly(found)[0] - (1 + Fraction(1e-20)) / 3) <= DIGITS
    assert pairs.evaluate(third, XP, [np.array([1.0])], {"by": 3.0}).tolist() == [1.0 / 3.0]
    wide = np.array([1.0], np.longdouble) / 3
    assert abs(exactly(pairs.pair(wide))[0] * 3 - 1) <= Fraction(1, 2**60)
    assert pairs.rounded(pairs.pair(wide)).tolist() == pairs.rounded(wide).tolist() == [1.0 / 3.0]


def test_the_cosine_is_right_near_its_zeros() -> None:
    turns = np.concatenate([np.linspace(-0.5, 0.5, 101), *(at + np.logspace(-12, -2, 30) for at in (-0.25, 0.25, 0.0))])
    from_zero = turns.astype(np.longdouble) - np.where(turns < 0, -0.25, 0.25)  # exact, and small where the cosine is
    right = np.sin(2 * np.pi * from_zero) * np.where(turns < 0, 1, -1)
    error = np.abs(threefry._cosine(XP, turns) - right)
    assert np.all(error <= 2.0**-50 * np.abs(right))
