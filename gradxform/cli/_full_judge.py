"""How far a result is from the reference, and in words where a distance says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gradxform._parity import Difference, Leaves
from gradxform._ulp import ulps
from gradxform.cli._full_values import PARTS, RANGES

_FLUSHING = ("jax", "tensorflow")
"""Their kernels turn subnormal results into zero, but for float16."""
_SENSE = 64
"""Up to this distance, nothing is NaN or zero that should not be: bfloat16 has 128 numbers to a power of two."""


class Verdict(NamedTuple):
    """What became of one tree."""

    worst: Difference | None = None
    narrow: float = 0.0
    """The largest distance in float16 and bfloat16 leaves, whose budget is a smaller one."""
    wrong: str = ""
    """NaN, infinity or zero where the reference has a number, or the other way round."""
    flushed: int = 0
    """Results that were lost because a number was subnormal; they are not measured in units in the last place."""


@dataclass
class Tally:
    """What became of all trees of one transform in one dtype, framework and mode."""

    cases: int = 0
    elements: int = 0
    ulp: float = 0.0
    """The largest distance where nothing is wrong."""
    case: str = ""
    """The tree it was in."""
    worst: str = ""
    """And the element."""
    narrow: float = 0.0
    """The largest distance in float16 and bfloat16 leaves where nothing is wrong."""
    within: int = 0
    """The cases of clips that were not due, whose results must be what was given, bit by bit."""
    flushed: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)
    """The cases by what was wrong in them."""
    why: str = ""
    """What was said when a result was first refused."""

    def add(self, case: str, elements: int, verdict: Verdict) -> None:
        """Count one tree."""
        self.cases += 1
        self.elements += elements
        self.flushed += verdict.flushed
        if verdict.wrong:
            self.wrong.setdefault(verdict.wrong, []).append(case)
            return
        self.narrow = max(self.narrow, verdict.narrow)
        if verdict.worst is not None and verdict.worst.ulp > self.ulp:
            self.ulp, self.case, self.worst = verdict.worst.ulp, case, str(verdict.worst)

    def refuse(self, case: str, elements: int, why: str) -> None:
        """Count a tree for which there was no result."""
        self.why = self.why or f" ({why})"
        self.add(case, elements, Verdict(wrong="refused"))


def merged(tallies: list[Tally]) -> Tally:
    """Several tallies as one."""
    total = Tally()
    for tally in tallies:
        total.cases, total.elements = total.cases + tally.cases, total.elements + tally.elements
        total.flushed, total.within = total.flushed + tally.flushed, total.within + tally.within
        if tally.ulp > total.ulp:
            total.ulp, total.case, total.worst = tally.ulp, tally.case, tally.worst
        for wrong, cases in tally.wrong.items():
            total.wrong.setdefault(wrong, []).extend(cases)
    return total


@np.errstate(all="ignore")
def judge(got: Leaves, wanted: Leaves, framework: str, kept: float = 1.0) -> Verdict:
    """Hold one result against the reference.

    Kept is the part of a gradient that a transform computes with on its way: where that is subnormal, it may be lost.
    """
    worst: Difference | None = None
    wrong, narrow, flushed = "", 0.0, 0
    for path, right in wanted.items():
        for name, ours, theirs in _parts(path, got[path], right):
            distance = ulps(ours, theirs)
            if framework in _FLUSHING and theirs.dtype.name != "float16":
                least = _smallest(theirs)
                lost = (ours == 0) | ((kept < 1) & (distance > 1) & (np.abs(ours - theirs) <= least))
                lost &= (theirs != 0) & (np.abs(theirs) <= least / theirs.dtype.type(kept))
                flushed += int(lost.sum())
                distance = np.where(lost, 0.0, distance)
            if distance.size and distance.max() > 0:
                found = _difference(name, ours, theirs, distance)
                worst = found if worst is None or found.ulp > worst.ulp else worst
                narrow = max(narrow, found.ulp) if theirs.dtype.itemsize == 2 else narrow
                wrong = wrong or (_in_words(ours, theirs, distance) if found.ulp > _SENSE else "")
    return Verdict(worst, narrow, wrong, flushed)


def _parts(path: str, got: Any, wanted: Any) -> Iterator[tuple[str, Any, Any]]:
    """A leaf, or the real and the imaginary part of a complex one."""
    if wanted.dtype.name in PARTS:
        yield f"{path}.real", got.real, wanted.real
        yield f"{path}.imag", got.imag, wanted.imag
    else:
        yield path, got, wanted


def _difference(path: str, got: Any, wanted: Any, distance: Any) -> Difference:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(distance)), np.shape(got)))
    return Difference(path, index, got[index].item(), wanted[index].item(), float(distance[index]))


def _in_words(got: Any, wanted: Any, distance: Any) -> str:
    """What is wrong where the distance is beyond sense."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    if (np.isnan(got) & ~np.isnan(wanted)).any():
        return "NaN"
    if np.isinf(distance).any():
        return "hides NaN" if np.isnan(wanted).any() else "infinity"
    if ((got == 0) & (np.abs(wanted) > _smallest(wanted))).any():
        return "zeros"
    return ""


def _smallest(x: Any) -> Any:
    """The smallest normal number of a dtype."""
    return x.dtype.type(2.0 ** RANGES[x.dtype.name].least)
