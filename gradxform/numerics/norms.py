"""The shared norm: sums over existing axes, in float64, or in float64 pairs for 64-bit leaves.

The square of a float32 number fits float64, so the 2-norm of narrow leaves is a plain sum. Other orders, 64-bit
leaves, and all leaves without float64 are scaled by a unit near the largest element. No dimension is merged and no
leaf is concatenated (except without float64, on one device), and no value is read: a mesh sums what each device has,
and a compiler makes one pass.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.numerics import Array, dtype_name, is_complex
from gradxform.numerics.double_double import Number, Pair
from gradxform.numerics.elementary import power
from gradxform.numerics.exact import Exact
from gradxform.numerics.formats import FLOAT64, base
from gradxform.numerics.formulas import equal
from gradxform.numerics.packing import alike, matrix, pieces, vector
from gradxform.numerics.rows import finite, sum_along
from gradxform.numerics.sums import Axes, adder, in_units, length, root, split_squares, total, total_squares

_SHORT = {"float16", "bfloat16"}
"""Dtypes whose squares are exact in float32."""


class _Sum(NamedTuple):
    """The sum of powers whose root is the norm, its rounding error, and the unit of both."""

    high: Array
    low: Array | float
    unit: Array | None
    """None if the unit is 1."""


def norms(namespace_of: Callable[[Array], Any], leaves: Sequence[Array], ord: float) -> Array | Pair:
    """Return the leaves' norms as a vector, or as a pair of vectors if there is a 64-bit leaf.

    Each leaf is summed on its own device, given by `namespace_of`; the sums move to the device of the first leaf.
    """
    xp, spaces = namespace_of(leaves[0]), [namespace_of(leaf) for leaf in leaves]
    double = any(_is_paired(xp, leaf) for leaf in leaves)
    if all(base(space) is not FLOAT64 for space in spaces):
        return _rooted(xp, _together(xp, spaces, leaves, ord), ord, double)
    if double and ord == 2 and all(base(space) is FLOAT64 for space in spaces):
        return _rooted(xp, _squares(xp, spaces, leaves), ord, double)
    sums = [_sum(space, leaf, None, ord) for space, leaf in zip(spaces, leaves, strict=True)]
    high = xp.stack([found.high for found in sums])
    low = xp.stack([found.low for found in sums]) if double else 0.0
    units = [1.0 if found.unit is None else found.unit for found in sums]
    measured = any(found.unit is not None for found in sums)
    return _rooted(xp, _Sum(high, low, xp.stack(units) if measured else None), ord, double)


def _squares(xp: Any, spaces: Sequence[Any], leaves: Sequence[Array]) -> _Sum:
    """Sum squares in float64 pairs; operations on numbers are on those of all leaves at once, so that they are few."""
    both = list(zip(spaces, leaves, strict=True))
    paired = [_is_paired(space, leaf) for space, leaf in both]
    sizes = [_size(space, leaf) if pair else 1.0 for pair, (space, leaf) in zip(paired, both, strict=True)]
    unit = _unit(xp, xp.stack(sizes))
    inverses, split = 1.0 / unit, []
    for i, (space, leaf) in enumerate(both):
        parts, add = _parts(space, leaf), adder(space, None)
        if paired[i]:
            inverse = space.float64(xp.take(inverses, i))
            split.append(split_squares(space, [part * inverse for part in parts], add))
        else:
            plain = functools.reduce(operator.add, [add(part * part) for part in parts])
            split.append((plain, plain, 0.0 * xp.stop_gradient(plain)))
    high, low, _ = finite(xp, *map(xp.stack, zip(*split, strict=True)))
    return _Sum(high, low, unit)


def _size(xp: Any, leaf: Array) -> Array:
    """Return the size that determines the unit of a 2-norm."""
    return functools.reduce(functools.partial(_larger, xp), _sizes(xp, leaf, None, 2))


def _together(xp: Any, spaces: Sequence[Any], leaves: Sequence[Array], ord: float) -> _Sum:
    """Sum leaves in float32 pairs; small leaves of equal size together, as rows of a matrix."""
    groups = alike(leaves)
    matrices = [matrix(spaces[places[0]], [leaves[i] for i in places]) for places in groups]
    sums = [_of_rows(spaces[places[0]], rows, ord) for places, rows in zip(groups, matrices, strict=True)]

    def column(parts: Sequence[Any]) -> Array:
        return vector(xp, parts, groups)

    high = column([found.high for found in sums])
    if ord == math.inf:
        return _Sum(high, 0.0, None)
    return _Sum(high, column([found.low for found in sums]), column([found.unit for found in sums]))


def _of_rows(xp: Any, rows: Array, ord: float) -> _Sum:
    """Sum rows; long ones in pieces, since a sum needs memory for copies."""
    cut = pieces(rows)
    if len(cut) == 1 or ord == math.inf:
        return _sum(xp, rows, (1,), ord)
    sizes = _sizes(xp, rows, (1,), ord)
    found = [_sum(xp, piece, (1,), ord, sizes) for piece in cut]
    parts = [[xp.reshape(one, (-1,)) for one in some] for some in ([f.high for f in found], [f.low for f in found])]
    whole = sum_along(Number(xp, *map(xp.concat, parts)), 0)
    return _Sum(whole.high, whole.rest, found[0].unit)


def norm_over(xp: Any, leaf: Array, axes: Axes, ord: float) -> Array | Pair:
    """Return norms over some axes with keepdims; a pair for a 64-bit leaf."""
    return _rooted(xp, _sum(xp, leaf, axes, ord), ord, _is_paired(xp, leaf))


def _is_paired(xp: Any, leaf: Array) -> bool:
    """Whether the norm of a leaf is a pair."""
    return dtype_name(leaf) in base(xp).paired


def _sizes(xp: Any, leaf: Array, axes: Axes, ord: float) -> list[Array]:
    """Return the largest absolute values, which determine the unit; for complex 2-norms, of both parts."""
    still = xp.stop_gradient(leaf)
    if ord == 2:
        return [xp.max_over(xp.abs(part), axes) for part in _parts(xp, still)]
    return [_largest(xp, still, axes)]


def _sum(xp: Any, leaf: Array, axes: Axes, ord: float, sizes: list[Array] | None = None) -> _Sum:
    """Sum powers. `sizes`: the largest absolute values of the whole, if the leaf is a piece."""
    double, add = _is_paired(xp, leaf), adder(xp, axes)
    if ord == 2:
        parts = _parts(xp, leaf)
        if not double:
            squares = [add(part * part) for part in parts]
            return _Sum(squares[0] if len(squares) == 1 else squares[0] + squares[1], 0.0, None)
        sizes = _sizes(xp, leaf, axes, ord) if sizes is None else sizes
        unit = _unit(xp, sizes[0] if len(sizes) == 1 else _larger(xp, *sizes))
        inverse, short = 1.0 / unit, dtype_name(leaf) in _SHORT
        high, low, _ = total_squares(xp, [part * inverse for part in parts], add, short)
        return _Sum(_or_infinite(xp, high, [size * inverse for size in sizes]), low, unit)
    if ord == math.inf:
        return _Sum(_largest(xp, leaf, axes), 0.0, None)
    size = sizes_of(xp, leaf)
    if ord == 1 and not double:
        return _Sum(add(size), 0.0, None)
    (largest,) = _sizes(xp, leaf, axes, ord) if sizes is None else sizes
    unit = _unit(xp, largest) if ord == 1 else _within(xp, xp.where(_is_size(xp, largest), largest, 1.0))
    if base(xp) is not FLOAT64:
        size = Exact(xp).number(size)
        powers = size.times(1.0 / unit) if ord == 1 else power(size / unit, ord)
    else:
        powers = size * (1.0 / unit) if ord == 1 else (size / unit) ** ord
    if not double:
        return _Sum(add(powers), 0.0, unit)
    high, low, _ = total(xp, powers, add)
    return _Sum(_or_infinite(xp, high, [largest]), low, unit)


def _or_infinite(xp: Any, high: Array, sizes: Sequence[Array]) -> Array:
    """Make a sum infinite or NaN if a size is; float32 pairs alone would give NaN for infinity."""
    if base(xp) is FLOAT64:
        return high
    known = functools.reduce(operator.add, sizes)
    return xp.where(xp.isfinite(known), high, known)


def _largest(xp: Any, leaf: Array, axes: Axes) -> Array:
    """Return the largest absolute value, in the leaf's dtype if real, so that a compiler keeps no wider copy."""
    if not is_complex(leaf):
        return xp.float64(xp.max_over(xp.abs(leaf), axes))
    size = sizes_of(xp, leaf)
    return xp.max_over(getattr(size, "high", size), axes)


def _rooted(xp: Any, sums: _Sum, ord: float, double: bool) -> Array | Pair:
    """Compute the norms from the sums."""
    high = sums.high
    if not double:
        norm = high if ord in (1, math.inf) else safe_root(xp, high, ord)
        return norm if sums.unit is None else norm * sums.unit
    if ord == 2:
        found = root(xp, Pair(high, sums.low + xp.zeros_like(high)))
    else:
        found = Pair(high, sums.low + xp.zeros_like(high))
        if ord not in (1, math.inf):
            found = _root_of_pair(xp, found, ord)
    unit = 1.0 if sums.unit is None else sums.unit
    return in_units(xp, found, unit + xp.zeros_like(xp.stop_gradient(high)), ord in (1, 2))


def safe_root(xp: Any, total: Array, ord: float) -> Array:
    """Return a root; zero, with derivative zero, if the total is zero."""
    zero = equal(total, 0.0)
    safe = xp.where(zero, 1.0, total)
    if ord == 2:
        return xp.where(zero, total, xp.sqrt(safe))
    root = safe ** (1.0 / ord)
    near, right = xp.stop_gradient(root), xp.stop_gradient(safe)
    rest = near * (right / near**ord - 1.0) / ord  # one Newton step, since 1 / ord is rounded
    return xp.where(zero, total, root + xp.where(xp.isfinite(rest), rest, 0.0))


def _root_of_pair(xp: Any, total: Pair, ord: float) -> Pair:
    """Return a root of any order; for float64 pairs in float64."""
    if base(xp) is FLOAT64:
        rooted = safe_root(xp, total.high, ord)
        return Pair(rooted, xp.zeros_like(rooted))
    found = power(Number(xp, total.high, total.low), 1.0 / ord)
    return Pair(found.high, found.rest)


def sizes_of(xp: Any, leaf: Array) -> Array | Number:
    """Return the absolute values of a leaf in the base format; of complex leaves in pairs if it is float32."""
    parts = _parts(xp, leaf)
    if len(parts) == 1:
        return xp.abs(parts[0])
    infinite = (xp.abs(parts[0]) >= math.inf) | (xp.abs(parts[1]) >= math.inf)  # even if the other part is NaN, as in C
    if not _is_paired(xp, leaf):
        return xp.where(infinite, math.inf, safe_root(xp, parts[0] * parts[0] + parts[1] * parts[1], 2))
    unit = _unit(xp, _larger(xp, *(xp.abs(xp.stop_gradient(part)) for part in parts)))
    real, imag = (part * (1.0 / unit) for part in parts)
    if base(xp) is not FLOAT64:
        exact = Exact(xp)
        both = [exact.number(part) for part in (real, imag)]
        return exact.where(infinite, math.inf, exact.root(both[0] * both[0] + both[1] * both[1]).times(unit))
    return xp.where(infinite, math.inf, length(xp, safe_root(xp, real * real + imag * imag, 2) * unit, unit, parts))


def _unit(xp: Any, largest: Array) -> Array:
    """Return a power of two near the largest size. Its inverse is normal: XLA may multiply by it, and flushes."""
    return _within(xp, xp.power_of_two(largest))


def _within(xp: Any, unit: Array) -> Array:
    form = base(xp)
    unit = xp.where(unit > form.most, form.most, unit)
    return xp.where(unit < form.least, form.least, unit)


def _is_size(xp: Any, largest: Array) -> Array:
    return (largest > 0.0) & xp.isfinite(largest)


def _larger(xp: Any, one: Array, other: Array) -> Array:
    """Return the larger of two, or NaN if the first is NaN; NaN in the second does not matter to a unit."""
    return xp.where(other > one, other, one)


def _parts(xp: Any, leaf: Array) -> list[Array]:
    """Return the real and imaginary parts in the base format."""
    parts: list[Callable[[Array], Array]] = [xp.real, xp.imag]
    return [xp.float64(part(leaf)) for part in parts] if is_complex(leaf) else [xp.float64(leaf)]
