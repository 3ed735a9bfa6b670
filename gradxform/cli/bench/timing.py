"""Two ways of doing the same work: that they agree, how long they take, how much memory."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gradxform.cli.bench.task import Array, Side, Tree

TOLERANCE = 1e-5
"""The largest relative difference of two results for each transform of a chain, where norms are sums of few numbers.
Native functions round after each transform (1e-7), and PyTorch divides by the norm plus 1e-6."""
TOLERANCE_PER_ELEMENT = 2.0**-34
"""Added for each element of the largest leaf: sums in float32 lose digits as they grow. PyTorch's norm of 2.4 million
elements is off by 1.7e-5, that of 39 million by 9.5e-4 and more; np.linalg.norm's by 1.3e-4."""

_BLOCK = 1 << 20


class Effort(NamedTuple):
    """How long to go on with a pair."""

    seconds: float
    least: int
    """Repetitions of each side, whatever they take."""
    most: int


class Spread(NamedTuple):
    """A median between its quartiles."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Timing:
    """What was measured of one side."""

    seconds: Spread
    first: float
    """The seconds of the first call, in which a compiled side is traced and compiled."""
    memory: float | None
    """How far the memory in use rose above what it was before a call, in bytes; None where that is not known."""
    operations: int | None = None
    """What one call asks of the device; None where that is not known or was not asked for."""


@dataclass(frozen=True)
class Measured:
    """What was measured of a pair."""

    ours: Timing
    native: Timing
    ratio: Spread
    """Ours by native of each repetition: both are measured at nearly the same time."""
    repetitions: int
    difference: float
    """The largest relative difference of the two results."""


class Disagreement(RuntimeError):
    """Two sides that do not do the same work; there is nothing to time then."""


def measure(
    ours: Side, native: Side, tree: Tree, transforms: int, effort: Effort, memory: bool, cost: bool = False
) -> Measured:
    """Check that two sides agree on what so many transforms make of a tree, then time them in turn.

    Raises:
        Disagreement: results that differ by more than what float32 explains, or that are the gradients unchanged.
    """
    sides = (ours, native)
    firsts, (mine, other) = zip(*map(_first, sides), strict=True)
    difference = compare(mine, other, tree, transforms)
    for side in sides:
        _once(side)
    pairs = np.array(_in_turn(sides, effort))
    timings = [Timing(_spread(pairs[:, i]), firsts[i], *_taken(side, memory, cost)) for i, side in enumerate(sides)]
    return Measured(timings[0], timings[1], _spread(pairs[:, 0] / pairs[:, 1]), len(pairs), difference)


def floor(tree: Tree, effort: Effort) -> Spread:
    """The seconds that clipping by global norm must take: one read of all numbers, and one read and write.

    It is np.dot and np.multiply(out=), each once, on one contiguous array of the tree's size.
    """
    flat = np.concatenate([leaf.ravel() for leaf in tree.values()])

    def run() -> None:
        np.dot(flat, flat)
        np.multiply(flat, np.float32(-1.0), out=flat)

    side = Side(run, leaves=lambda _: [])
    _once(side)
    return _spread(np.array(_in_turn((side,), effort))[:, 0])


# --- time ------------------------------------------------------------------------------------------------------------


def _first(side: Side) -> tuple[float, list[Array]]:
    """The seconds and the result of the first call."""
    side.restore()
    start = time.perf_counter()
    result = side.run()
    seconds = time.perf_counter() - start
    return seconds, side.leaves(result)


def _once(side: Side) -> float:
    """The seconds of one call; the result is let go of afterwards."""
    side.restore()
    start = time.perf_counter()
    result = side.run()
    seconds = time.perf_counter() - start
    del result
    return seconds


def _in_turn(sides: Sequence[Side], effort: Effort) -> list[list[float]]:
    """The seconds of the sides, one after the other and again; as `timeit` does, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        rows: list[list[float]] = []
        end = time.perf_counter() + effort.seconds
        while len(rows) < effort.least or (len(rows) < effort.most and time.perf_counter() < end):
            rows.append([_once(side) for side in sides])
        return rows
    finally:
        gc.enable()


def _spread(values: Array) -> Spread:
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Spread(low, median, high)


# --- agreement -------------------------------------------------------------------------------------------------------


def compare(ours: Sequence[Array], native: Sequence[Array], tree: Tree, transforms: int) -> float:
    """The largest relative difference of two results, leaf by leaf.

    Raises:
        Disagreement: more than the tolerance, a missing leaf, or gradients that no one has touched.
    """
    if not len(ours) == len(native) == len(tree):
        raise Disagreement(f"{len(ours)} leaves and {len(native)} came out, of {len(tree)}")
    if all(np.array_equal(mine, given) for mine, given in zip(ours, tree.values(), strict=True)):
        raise Disagreement("the gradients are as they were: nothing was done")
    largest = max(leaf.size for leaf in tree.values())
    tolerance = transforms * (TOLERANCE + TOLERANCE_PER_ELEMENT * largest)
    worst = 0.0
    for path, mine, other in zip(tree, ours, native, strict=True):
        if (mine.shape, mine.dtype) != (other.shape, other.dtype):
            raise Disagreement(f"{path} is {mine.dtype} {mine.shape} on our side, {other.dtype} {other.shape} natively")
        difference = _relative(mine.ravel(), other.ravel())
        if not difference <= tolerance:
            raise Disagreement(f"{path} differs by {difference:.2g} of its value, which is more than {tolerance:.2g}")
        worst = max(worst, difference)
    return worst


def _relative(a: Array, b: Array) -> float:
    """The largest relative difference of two arrays' elements; NaN if there is one."""
    parts = [slice(start, start + _BLOCK) for start in range(0, a.size, _BLOCK)]
    tiny = np.finfo(np.float32).tiny
    return float(np.max([np.max(np.abs(a[p] - b[p]) / np.maximum(np.abs(b[p]), tiny)) for p in parts], initial=0.0))


# --- operations ------------------------------------------------------------------------------------------------------


def _taken(side: Side, memory: bool, cost: bool) -> tuple[float | None, int | None]:
    """The memory and the operations of a call: resident memory where it is known, else what the framework tells."""
    resident = memory_of(side) if memory else None
    if not cost:
        return resident, None
    side.restore()
    found = side.cost()
    return found.peak if resident is None else resident, found.operations


# --- memory ----------------------------------------------------------------------------------------------------------

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_SETTLED = 0.2
"""Seconds after which JAX, which frees results in threads of its own, is done with it."""


def memory_of(side: Side) -> float | None:
    """How far the process's resident memory rises during a call, result included, in bytes.

    Linux keeps the highest value, and sets it back on request; memory that is free but not given back would hide a
    rise, so it is given back first. None on other systems.
    """
    side.restore()
    gc.collect()
    time.sleep(_SETTLED)
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _RESET.write_text("5")
        before = _status("VmRSS")
        result = side.run()
        peak = _status("VmHWM")
    except (OSError, AttributeError, KeyError):
        return None
    del result
    return max(0.0, peak - before)


def _status(key: str) -> float:
    """An entry of the process's status, in bytes."""
    entries = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return float(entries[key].split()[0]) * 1024
