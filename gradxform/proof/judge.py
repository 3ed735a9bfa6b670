"""Compare a result with the reference: a distance, or a failure in words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gradxform.proof.gradients import RANGES
from gradxform.proof.parity import Difference, Leaves, difference, larger, term_of
from gradxform.proof.registry import COMPLEX, Row
from gradxform.proof.ulp import apart, ulps

_FLUSHING = ("jax", "tensorflow")
"""Frameworks whose kernels flush subnormal results to zero, except in float16."""
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Bits of a mantissa."""
_SENSE = 64
"""Up to this distance, nothing is wrongly NaN or zero: bfloat16 has 128 numbers per power of two."""


class Verdict(NamedTuple):
    """The result of one tree."""

    worst: Difference | None = None
    over: Difference | None = None
    """The largest distance over the budget of its dtype."""
    wrong: str = ""
    """NaN, infinity or zero where the reference has a number, or vice versa."""
    flushed: int = 0
    """Results lost to flushed subnormal numbers; not measured in ULP."""

    def and_then(self, other: Verdict) -> Verdict:
        """Combine the verdicts on two trees."""
        worst, over = (larger(*pair) for pair in zip(self[:2], other[:2], strict=True))
        return Verdict(worst, over, self.wrong or other.wrong, self.flushed + other.flushed)


@np.errstate(all="ignore")
def judge(got: Leaves, wanted: Leaves, framework: str, row: Row) -> Verdict:
    """Compare one result with the reference and the budgets of its row.

    Sums are measured in ULP of the largest term. Some kernels flush subnormal intermediate results; `Row.part` says
    how small these are.
    """
    if row.products is not None:
        return _judge_products(got, wanted, row)
    verdict = Verdict()
    for path, right in wanted.items():
        for name, found, exact, term in _parts(path, right.dtype, got[path], right, term_of(wanted, path)):
            if (found.dtype, found.shape, found.tobytes()) == (exact.dtype, exact.shape, exact.tobytes()):
                continue
            distance = apart(found, exact, term)
            lost = _lost(found, exact, distance, row.part, framework in _FLUSHING and exact.dtype.name != "float16")
            distance = np.where(lost, 0.0, distance)
            beyond = np.where(distance > row.budget(right.dtype, term > 0), distance, 0.0)
            worst, over = (difference(name, found, exact, by) for by in (distance, beyond))
            wrong = _in_words(found, exact, distance) if worst is not None and worst.ulp > _SENSE else ""
            verdict = verdict.and_then(Verdict(worst, over, wrong, int(lost.sum())))
    return verdict


def _judge_products(got: Leaves, wanted: Leaves, row: Row) -> Verdict:
    """Compare norms: of the difference from the reference, and of the reference."""
    verdict = Verdict()
    for path, right in wanted.items():
        found, exact = (leaf.astype(np.float64) for leaf in (got[path], right))
        known, apart = np.isfinite(exact), np.abs(found - exact)
        if (np.isfinite(found) != known).any():
            return verdict._replace(wrong=_in_words(got[path], right, ulps(got[path], right)) or "infinity")
        norm, error = (float(np.linalg.norm(part[known])) for part in (exact, apart))
        units = error / norm * 2.0 ** _DIGITS[right.dtype.name] if norm else math.inf
        if worst := difference(path, got[path], right, np.where(known, apart, 0.0)):
            worst = dataclasses.replace(worst, ulp=units)
            verdict = verdict.and_then(Verdict(worst, worst if units > row.budget(right.dtype) else None))
    return verdict


def _lost(found: Any, exact: Any, distance: Any, part: float, flushing: bool) -> Any:
    """Elements that became zero or lost bits because an intermediate number was subnormal."""
    least, off = _smallest(exact), np.abs(found - exact)
    lost = (part < 1) & (off > 0) & (off * part <= 4 * 2.0 ** (-1074 if exact.dtype == np.float64 else -149))
    if flushing:
        lost |= (found == 0) | ((part < 1) & (distance > 1) & (off <= least))
    return lost & (exact != 0) & (np.abs(exact) <= least / exact.dtype.type(part))


def _parts(path: str, dtype: Any, *leaves: Any) -> Iterator[tuple[Any, ...]]:
    """Return real leaves, or both parts of complex ones."""
    if dtype.name in COMPLEX:
        yield f"{path}.real", *(leaf.real for leaf in leaves)
        yield f"{path}.imag", *(leaf.imag for leaf in leaves)
    else:
        yield path, *leaves


def _in_words(got: Any, wanted: Any, distance: Any) -> str:
    """Describe the failure if the distance is not meaningful."""
    if (np.isnan(got) & ~np.isnan(wanted)).any():
        return "NaN"
    if np.isinf(distance).any():
        return "hides NaN" if np.isnan(wanted).any() else "infinity"
    if ((got == 0) & (np.abs(wanted) > _smallest(wanted))).any():
        return "zeros"
    return ""


def _smallest(x: Any) -> Any:
    """The smallest normal number of a dtype."""
    return x.dtype.type(2.0 ** RANGES[x.dtype.name][0])
