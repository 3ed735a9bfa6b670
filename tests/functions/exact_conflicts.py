"""Gradients of two conflicting tasks combined in 1500 decimal digits, from each paper's formula."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

Row = list[Decimal]
CONTEXT = decimal.Context(prec=1500, Emin=-99999, Emax=99999)


def _dot(one: Row, other: Row) -> Decimal:
    return sum((a * b for a, b in zip(one, other, strict=True)), Decimal(0))


def _sum(a: Decimal, one: Row, b: Decimal, other: Row) -> Row:
    return [a * x + b * y for x, y in zip(one, other, strict=True)]


def mgda(one: Row, other: Row) -> Row:
    """The point of the segment nearest to zero."""
    apart = _sum(Decimal(1), other, Decimal(-1), one)
    share = min(max(_dot(other, apart) / _dot(apart, apart), Decimal(0)), Decimal(1))
    return _sum(share, one, 1 - share, other)


def pcgrad(one: Row, other: Row) -> Row:
    """The sum of both gradients, each without its part against the other one."""
    product = min(_dot(one, other), Decimal(0))
    return _sum(1 - product / _dot(one, one), one, 1 - product / _dot(other, other), other)


def upgrad(one: Row, other: Row) -> Row:
    """The projection onto the dual cone of two gradients is the one of gradient surgery."""
    return [x / 2 for x in pcgrad(one, other)]


def cagrad(one: Row, other: Row, c: float = 0.5) -> Row:
    """The best direction within c |g_0| of the mean for the worst task, or the best with equal products for both."""
    mean = _sum(Decimal("0.5"), one, Decimal("0.5"), other)
    for worst, better in ((one, other), (other, one)):
        radius = Decimal(c) * (_dot(mean, mean) / _dot(worst, worst)).sqrt()
        found = _sum(Decimal(1), mean, radius, worst)
        if _dot(worst, found) <= _dot(better, found):
            return found
    apart = _sum(Decimal(1), one, Decimal(-1), other)
    near = -_dot(apart, mean) / _dot(apart, apart)
    along = _sum(Decimal(1), one, -_dot(one, apart) / _dot(apart, apart), apart)
    left = Decimal(c) * Decimal(c) * _dot(mean, mean) - near * near * _dot(apart, apart)
    return _sum(Decimal(1), _sum(Decimal(1), mean, near, apart), (left / _dot(along, along)).sqrt(), along)


FUNCTIONS: dict[str, Callable[..., Row]] = {"mgda": mgda, "cagrad": cagrad, "upgrad": upgrad, "pcgrad": pcgrad}


def combined(name: str, rows: Sequence[Any], *numbers: float) -> Row:
    """Combine two rows of numbers."""
    with decimal.localcontext(CONTEXT):
        return FUNCTIONS[name](*map(_row, rows), *numbers)


def lacking(found: Any, rows: Sequence[Any], floor: float) -> float:
    """Return by how much products with rows are below `floor` times the square of a vector, in units of both norms."""
    with decimal.localcontext(CONTEXT):
        vector, given = _row(found), list(map(_row, rows))
        square = _dot(vector, vector)
        lacks = [(Decimal(floor) * square - _dot(row, vector)) / (square * _dot(row, row)).sqrt() for row in given]
        return float(max(lacks))


def _row(numbers: Any) -> Row:
    return [Decimal(float(x)) for x in numbers]


def error(found: Any, right: Row, term: float = 0.0) -> float:
    """Return the largest error of a vector, relative to the norm of the right one, or of a term that is larger."""
    if not all(map(math.isfinite, found)):
        return math.inf
    with decimal.localcontext(CONTEXT):
        apart = max(abs(Decimal(float(x)) - y) for x, y in zip(found, right, strict=True))
        return float(apart / max(_dot(right, right).sqrt(), Decimal(term)))
