"""Shared by the reference implementations: a leaf in extended precision, sums, norms, limits and rounding.

Every value has a `term` beside it: how far off sums in the leaf's own arithmetic may be, as the size of a number whose
last `SUMS` bits are unsure. A sum adds the size of its largest term to the terms of what it sums; a factor multiplies
it. After one sum of exact numbers it is the size of the largest term; in an average with decay d it is the decayed sum
of the largest terms of all steps, so that it grows to 1 / (1 - d) times one of them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gradxform.proof.extended import Complex, each, narrowed, number, size, where, zeros
from gradxform.proof.ulp import DOUBLE, SUMS

_SINGLE = ("float16", "bfloat16", "float32", "complex64")
_AS_SINGLE = 2.0**30 * SUMS / DOUBLE  # an ULP is up to twice as large beside some numbers as beside others
"""Times the size of a float64 number: the term of one whose error is `SUMS` ULP of float32."""


class Sum(NamedTuple):
    """A value with the term beside it; both have two parts if the value is complex."""

    value: Any
    term: Any = 0.0


@dataclass
class Leaf:
    """One gradient in a chain."""

    path: str
    dtype: Any
    shape: tuple[int, ...]
    value: Any
    stopped: bool = False
    param: Any = None
    term: Any = 0.0
    """Zero where it was never summed."""
    cancelled: float = 1.0
    """The largest term relative to the largest value, over the sums of this step."""

    def become(self, new: Sum) -> None:
        """Take the value and the term of a sum."""
        self.value, self.term = new

    def chosen(self, condition: Any, other: Any = 0) -> None:
        """Replace the value with an exact number where a condition does not hold."""
        self.value, self.term = where(condition, self.value, other), where(condition, self.term, 0.0)

    @functools.cached_property
    def is_single(self) -> bool:
        """Whether sums of this leaf are float32."""
        return self.dtype.name in _SINGLE

    @property
    def _kind(self) -> Any:
        """The dtype of sums."""
        return np.dtype(np.float32 if self.is_single else np.float64)

    @property
    def unit(self) -> float:
        """The distance of 1 to the next number in the dtype of sums."""
        return float(np.finfo(self._kind).eps)

    @property
    def _budget(self) -> int:
        return SUMS if self.is_single else DOUBLE

    def axes(self, given: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Input and output axes: by name, by number, or by the leaf's path, or a function of its path and values."""
        if isinstance(given, Mapping):
            given = next(found for pattern, found in given.items() if matches(pattern, self.path))
        given, rank = given(self.path, self.rounded()) if callable(given) else given, len(self.shape)
        if isinstance(given, (list, tuple)) and given and isinstance(given[0], (list, tuple)):
            inputs, outputs = (tuple(axis % rank for axis in side) for side in given)
            return inputs, outputs
        named = {None: range(1, rank), "torch": range(1, rank), "keras": range(rank - 1)}
        some: Any = named[given] if given is None or isinstance(given, str) else given
        inputs = tuple(axis % rank for axis in (some if hasattr(some, "__iter__") else (some,)))
        return inputs, tuple(axis for axis in range(rank) if axis not in inputs)

    def rounded(self) -> Any:
        """The value in the leaf's own dtype."""
        return narrowed(_flushed(self.value, self.dtype), self.dtype)

    def terms(self) -> Any:
        """The finite terms, as numbers of float64."""
        most = float(np.finfo(np.float64).max)
        real, imag = (self.term.real, self.term.imag) if isinstance(self.term, Complex) else (self.term, self.term)
        found = np.empty(self.shape, np.complex128 if self.dtype.kind == "c" else np.float64)
        found.real = np.nan_to_num(real, nan=0.0, posinf=most)
        if self.dtype.kind == "c":
            found.imag = np.nan_to_num(imag, nan=0.0, posinf=most)
        return found

    def nothing(self) -> Sum:
        """Zeros: a sum before its first term."""
        return Sum(zeros(self.value))

    def summed(self, *parts: Leaf | Sum, least: Any = 0.0, further: float = 0.0, rounds: bool = True) -> Sum:
        """Add, and round to the dtype of the leaf's sums unless what follows is one computation with it.

        `least` is the size of the largest term if it is none of the parts, and `further` the ULP that its steps add.
        """
        kind = self._kind
        value, term, largest = _flushed(parts[0].value, kind), parts[0].term, each(_sizes, parts[0].value)
        for part in parts[1:]:
            value, term = each(np.add, value, _flushed(part.value, kind)), each(np.add, term, part.term)
            largest = each(lambda one, other: np.maximum(one, _sizes(other)), largest, part.value)
        largest = each(lambda one: np.maximum(one, least) * (1 + further / self._budget), largest)
        unit = float(np.finfo(kind).tiny)  # numbers below have its ULP
        whole = each(lambda part, own: part + np.maximum(own, unit), term, largest)
        found = Sum(self._kept(value, largest, rounds), whole)
        most, terms = (float(np.max(_sizes(size(x)), initial=0.0)) for x in found)
        if terms > self.cancelled * most and terms > unit * 2.0**24:
            self.cancelled = terms / most if most else math.inf
        return found

    def limit(
        self, norm: Any, max_norm: Any, single: bool, by_slices: bool = False, order: float = 2, unsure: float = 0.0
    ) -> None:
        """Multiply by min(1, c / n); if slices have separate factors, the result is rounded to the dtype of sums.

        `unsure` is the term of a factor of one. A norm of another order than 1, 2 and infinity has 16 ULP.
        """
        factor = coefficient(norm, max_norm, single)
        unsure = unsure if order in (1, 2, math.inf) else max(unsure, DOUBLE / self._budget)
        value, term = _vanished(each(np.multiply, self.value, _in_range(factor))), _scaled(self.term, factor)
        if unsure:
            term = each(lambda part, own: own + _sizes(part) * unsure * (factor != 1), value, term)
        self.become(Sum(value, term))
        if by_slices and np.any(factor != 1):
            held = self.kept(self.value)
            least, sizes = np.finfo(self._kind).smallest_normal, size(held)
            self.value = where(np.isfinite(sizes) & (sizes >= least) & (_APPLIED[-1].rng is None), self.value, held)

    def in_single(self, sizes: Any) -> Any:
        """The term of numbers that are computed in float32, whatever the dtype."""
        return sizes if self.is_single else sizes * _AS_SINGLE

    def kept(self, value: Any, rounds: bool = True) -> Any:
        """Round a value to the dtype of the leaf's sums, through float64; `rounds` is False where it may stay."""
        if not rounds and _APPLIED[-1].rng is None:
            return value
        return self._kept(value, each(lambda part: _sizes(part) * (0.5 if self.is_single else 1.0), value))

    def _kept(self, value: Any, term: Any, rounds: bool = True) -> Any:
        if _APPLIED[-1].rng is not None:
            unit = self._budget * (2.0**-24 if self.is_single else 2.0**-53)
            value = each(lambda part, size: part + number(size * unit * _random(part)), value, term)
        if not rounds:
            return _flushed(value, self._kind)
        wide = (lambda part: np.asarray(part).astype(np.float64)) if self.is_single else (lambda part: part)
        return each(lambda part: stored(wide(part), self._kind), value)


def matches(pattern: str, path: str) -> bool:
    """Whether a glob chooses a whole path: ``**`` for any number of keys, ``*`` and ``?`` within one.

    A dot is part of a key, or stands between keys.
    """
    written, dotted = ([text.replace(dot, "/").split("/") for text in (pattern, path)] for dot in ("/", "."))
    return _follow(*written) or _follow(*dotted)


def _follow(pattern: Sequence[str], keys: Sequence[str]) -> bool:
    if pattern and pattern[0] == "**":
        return any(_follow(pattern[1:], keys[start:]) for start in range(len(keys) + 1))
    if not pattern or not keys:
        return not pattern and not keys
    key = re.escape(pattern[0]).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(key, keys[0]) is not None and _follow(pattern[1:], keys[1:])


def extended(leaf: Any) -> Any:
    """Convert a leaf to extended precision; keep integers."""
    array = np.asarray(leaf)
    return array if array.dtype.kind in "iub" else _flushed(number(array), array.dtype)


def norm_of(values: Sequence[Any], ord: float) -> Any:
    """Return the global norm of several arrays."""
    sizes = np.concatenate([number(size(value)).ravel() for value in values] or [np.zeros(0)])
    if sizes.size == 0:
        return number(0)
    largest = sizes.max()
    if not 0 < largest < np.inf or ord == math.inf:
        return largest
    return largest * ((sizes / largest) ** ord).sum() ** (1 / number(ord))


def coefficient(norm: Any, max_norm: Any, single: bool) -> Any:
    """Return min(1, c / n), with n and c compared in the accumulation dtype."""
    limit = np.float32(max_norm)
    kind = np.float32 if single and np.all((0 < limit) & (limit < math.inf)) else np.float64
    factor = np.where(np.isfinite(norm), max_norm / np.where(norm == 0, 1, number(norm)), np.nan)
    factor = np.where(np.abs(factor) < 2.0**-1074, 0 * factor, factor)  # factors are float64 numbers
    within = (narrowed(norm, kind) <= narrowed(max_norm, kind)) | (max_norm == math.inf)
    return np.where(within, number(1), _moved(factor, 2.0**-50 if single else DOUBLE * 2.0**-53))


def limit_all(
    leaves: Sequence[Leaf], norm: Any, max_norm: Any, only: Sequence[Leaf] | None = None, order: float = 2
) -> None:
    """Multiply leaves, or only some of them, by min(1, c / n) of their common norm.

    Beside narrower leaves, a float64 leaf has a factor whose error is that of their part of the norm in float32.
    """
    narrow = [leaf.value for leaf in leaves if leaf.is_single]
    single = len(narrow) == len(leaves)
    part = float(norm_of(narrow, 2) / norm) if narrow and 0 < norm < np.inf else 0.0
    for leaf in leaves if only is None else only:
        leaf.limit(norm, max_norm, single, order=order, unsure=0.0 if leaf.is_single else part * _AS_SINGLE / SUMS)


def times(value: Any, factor: Any) -> Any:
    """Multiply by a real factor; complex values by parts, to avoid infinity times zero."""
    return _vanished(each(np.multiply, value, _in_range(_moved(number(factor), 2.0**-50))))


def _in_range(factor: Any) -> Any:
    size, kind = np.abs(factor), _APPLIED[-1]
    factor = np.where(kind.overflowing & (size > 1e300), np.sign(factor) * np.inf, factor)
    return np.where(kind.vanishing & (size < 1e-300), 0 * factor, factor)


def by(one: Leaf | Sum, factor: Any) -> Sum:
    """Multiply by a real factor."""
    return Sum(times(one.value, factor), _scaled(one.term, factor))


def stored(x: Any, kind: Any) -> Any:
    """Round a number to a state's dtype."""
    return extended(narrowed(x, kind))


def _sizes(part: Any) -> Any:
    """The sizes of real numbers in float64; zero for those that are not finite."""
    found = np.abs(np.asarray(part).astype(np.float64))
    return np.where(np.isfinite(found), found, 0.0)


def _scaled(term: Any, factor: Any) -> Any:
    sizes = np.abs(np.asarray(factor).astype(np.float64))
    return each(lambda part: np.where(np.asarray(part) == 0, 0.0, part * sizes), term)


class Perturbation(NamedTuple):
    """What changes results, to find ill-conditioned ones."""

    rng: Any = None
    """Draws by how much of their budgets sums change."""
    flushing: bool = False
    """Whether subnormal numbers become zero."""
    vanishing: bool = False
    """Whether factors below 1e-300, and products that a float64 factor may lose, become zero."""
    overflowing: bool = False
    """Whether factors beyond 1e300 become infinite."""
    met: list[bool] | None = None
    """Gets an item when a leaf or a state comes to have subnormal numbers."""


_APPLIED = [Perturbation()]


@contextlib.contextmanager
def perturbed(by: Perturbation) -> Iterator[None]:
    """In this context, results are perturbed."""
    _APPLIED.append(by)
    try:
        yield
    finally:
        _APPLIED.pop()


def _random(part: Any) -> Any:
    return _APPLIED[-1].rng.uniform(-1, 1, np.shape(part))


def _moved(value: Any, unit: float) -> Any:
    if _APPLIED[-1].rng is None:
        return value
    return each(lambda part: part * (1 + number(unit * _random(part))), value)


def _vanished(value: Any) -> Any:
    return each(lambda part: np.where(np.abs(part) < 1e-300, 0, part), value) if _APPLIED[-1].vanishing else value


def _flushed(value: Any, dtype: Any) -> Any:
    """Flush subnormal numbers of a dtype; bfloat16 has the range of float32, in which float16 is computed."""
    flushing, met = _APPLIED[-1].flushing and dtype.name != "float16", _APPLIED[-1].met
    if not flushing and met is None:
        return value
    least = np.finfo(np.float32 if dtype.name == "bfloat16" else dtype).tiny

    def one(part: Any) -> Any:
        low = np.abs(part) < least
        if met is not None and (low & (part != 0)).any():
            met.append(True)
        return np.where(low, 0, part) if flushing else part

    return each(one, value)
