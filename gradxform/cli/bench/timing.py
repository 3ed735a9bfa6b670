"""Compare two sides that do the same work: agreement and time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gradxform.cli.bench.workloads import CHAINS, Chain, Step
from gradxform.cli.frameworks.interface import Array, Tree

TOLERANCE = 1e-5
"""Largest relative difference allowed per transform, for norms of few numbers.
Native functions round after each transform (1e-7), and PyTorch adds 1e-6 to norms."""
TOLERANCE_PER_ELEMENT = 2.0**-34
"""Added per element of the largest leaf: float32 sums lose digits as they grow. PyTorch's norm is off by 1.7e-5 for
2.4 million elements and by 2.7e-3 for 39 million; np.linalg.norm by 1.3e-4."""
TOLERANCE_OF_PRODUCTS = 0.03
"""Largest distance of an orthogonalized matrix, relative to its norm. Native functions multiply in bfloat16, or as the
device does it fastest; in tests/transforms they agree to 0.017 with bfloat16, to 1e-5 with float32."""


@dataclass(frozen=True)
class Side:
    """One implementation of the work."""

    run: Callable[[], Any]
    """Do the work and wait for the result; this is timed."""
    leaves: Callable[[Any], list[Array]]
    """The result as NumPy arrays in the order of the tree."""
    restore: Callable[[], Any] = lambda: None
    """Restore the input before each run; not timed."""


class Effort(NamedTuple):
    """How long to repeat a pair."""

    seconds: float
    least: int
    """Least repetitions of each side."""
    most: int


class Disagreement(RuntimeError):
    """The two sides give different results, so timing them is meaningless."""


def measure(sides: Sequence[Side], tree: Tree, effort: Effort, chain: Chain) -> dict[str, Any]:
    """Check that two sides, gradxform and the native one, agree on a chain, then time them in turn.

    Returns:
        For each side, the quartiles of its `seconds`, and the seconds of its `first` call, including tracing and
        compilation. Beside them the quartiles of the `ratio` of gradxform to native per repetition, both run at nearly
        the same time, the `repetitions`, and the largest relative `difference` of the two results.

    Raises:
        Disagreement: results differ by more than float32 rounding explains, or equal the input.
    """
    (own, result), (other, native) = map(timed, sides)
    difference = compare(sides[0].leaves(result), sides[1].leaves(native), tree, CHAINS[chain])
    del result, native
    for side in sides:
        timed(side)
    pairs, found = in_turn(sides, effort), {}
    for name, seconds, first in zip(("gradxform", "native"), pairs.T, (own, other), strict=True):
        found[name] = {"seconds": _spread(seconds), "first": first}
    ratio = _spread(pairs[:, 0] / pairs[:, 1])
    return {**found, "ratio": ratio, "repetitions": len(pairs), "difference": difference}


def floor(tree: Tree, effort: Effort) -> dict[str, float]:
    """Time one read plus one read and write of all numbers, the least that a global-norm clip needs.

    This is one np.dot and one np.multiply(out=) on a contiguous array of the same size.
    """
    flat = np.concatenate([leaf.ravel() for leaf in tree.values()])

    def run() -> None:
        np.dot(flat, flat)
        np.multiply(flat, np.float32(-1.0), out=flat)

    side = Side(run, list)
    timed(side)
    return _spread(in_turn([side], effort)[:, 0])


# --- time ------------------------------------------------------------------------------------------------------------


def timed(side: Side) -> tuple[float, Any]:
    """Return the seconds of one call, without freeing the result, and the result."""
    side.restore()
    start = time.perf_counter()
    result = side.run()
    return time.perf_counter() - start, result


def in_turn(sides: Sequence[Side], effort: Effort) -> Array:
    """Time the sides alternately, with the garbage collector off, as `timeit` does: a row for each repetition."""
    gc.collect()
    gc.disable()
    try:
        rows: list[list[float]] = []
        end = time.perf_counter() + effort.seconds
        while len(rows) < effort.least or (len(rows) < effort.most and time.perf_counter() < end):
            rows.append([timed(side)[0] for side in sides])
        return np.array(rows)
    finally:
        gc.enable()


def _spread(values: Array) -> dict[str, float]:
    """A median and its quartiles."""
    return dict(zip(("low", "median", "high"), np.quantile(values, (0.25, 0.5, 0.75)).tolist(), strict=True))


# --- agreement -------------------------------------------------------------------------------------------------------


def compare(result: Sequence[Array], native: Sequence[Array], tree: Tree, steps: Sequence[Step]) -> float:
    """Return the largest relative difference of two results: of elements, or of matrices after matrix products.

    Raises:
        Disagreement: a difference above the tolerance, a missing leaf, or gradients left unchanged.
    """
    if not len(result) == len(native) == len(tree):
        raise Disagreement(f"{len(tree)} leaves became {len(result)} in gradxform and {len(native)} natively")
    if all(np.array_equal(leaf, given) for leaf, given in zip(result, tree.values(), strict=True)):
        raise Disagreement("the gradients did not change")
    largest = max(leaf.size for leaf in tree.values())
    products = any(step.name == "orthogonalize" for step in steps)
    tolerance = TOLERANCE_OF_PRODUCTS if products else len(steps) * (TOLERANCE + TOLERANCE_PER_ELEMENT * largest)
    worst = 0.0
    for path, own, other in zip(tree, result, native, strict=True):
        if (own.shape, own.dtype) != (other.shape, other.dtype):
            raise Disagreement(f"{path} is {own.dtype} {own.shape} in gradxform, {other.dtype} {other.shape} natively")
        if products:
            difference = float(np.linalg.norm(own - other) / np.linalg.norm(other))
        else:
            size = np.maximum(np.abs(other), np.finfo(np.float32).tiny)
            difference = float(np.max(np.abs(own - other) / size, initial=0.0))
        if not difference <= tolerance:
            raise Disagreement(f"{path}: relative difference {difference:.2g} exceeds {tolerance:.2g}")
        worst = max(worst, difference)
    return worst
