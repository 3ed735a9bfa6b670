"""Choose between NumPy and the framework for arrays that NumPy can read in place."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import elements, namespace
from gradxform.backend.host import norms as host_norms
from gradxform.backend.protocol import Backend
from gradxform.numerics import Array, norms, ranking, sums
from gradxform.numerics.elementwise import Formula

_NUMBERS = {float, int, np.ndarray}
_FEW = 1 << 13
"""Below so many elements, NumPy norms over axes take half the time of eager TensorFlow, for float64 a tenth."""


def elementwise(
    backend: Any,
    formula: Formula,
    columns: Sequence[Sequence[Array]],
    numbers: Sequence[Any],
    factors: Sequence[Any] | None = None,
    **static: Any,
) -> list[Any]:
    """Apply a formula to the elements of each leaf, all of which NumPy can read."""
    each_factor = [None] * len(columns[0]) if factors is None else factors
    *seen, given, by = [list(map(backend._seen, some)) for some in (*columns, numbers, each_factor)]
    return list(map(backend.taken, elements.of_leaves(formula, seen, given, by, static)))


class Readable(Backend):
    """A backend with arrays in host memory: NumPy computes on them without a copy.

    The results are Python floats and NumPy arrays, which the kernels accept like the framework's own.
    """

    @abc.abstractmethod
    def readable(self, arrays: Iterable[Array]) -> bool:
        """Whether values may be read: none is traced, on another device, or differentiated."""

    @abc.abstractmethod
    def view(self, array: Array) -> Any:
        """View an array's memory in NumPy, read-only; bfloat16 as float32."""

    def taken(self, array: Any) -> Array:
        """Wrap a NumPy array that nobody else holds."""
        return self.from_numpy(array)

    def elementwise(
        self,
        formula: Formula,
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """Apply a formula to the elements of each leaf."""
        each_factor = [None] * len(columns[0]) if factors is None else factors
        if self._all_readable([*itertools.chain(*columns), *numbers, *each_factor]):
            return elementwise(self, formula, columns, numbers, factors, **static)
        out = []
        for factor, *column in zip(each_factor, *columns, strict=True):
            one = None if factor is None else [factor]
            kernel = elementwise if self._all_readable([*column, *numbers, factor]) else Backend.elementwise
            out += kernel(self, formula, [[array] for array in column], numbers, one, **static)
        return out

    def each(
        self, formula: Callable[..., Array], columns: Sequence[Sequence[Array]], numbers: Sequence[Any]
    ) -> list[Array]:
        """Apply a formula that selects to the elements of each leaf, in their dtypes."""
        plain = super().each
        large = [i for i, leaf in enumerate(columns[0]) if self.count(leaf, None) > elements.BLOCK]
        if not large or not self._all_readable([*itertools.chain(*columns), *numbers]):
            return plain(formula, columns, numbers)
        out: list[Any] = [None] * len(columns[0])
        given = list(map(self._seen, numbers))
        small = sorted(set(range(len(out))).difference(large))
        for i, new in zip(
            small, plain(formula, [[column[i] for i in small] for column in columns], numbers), strict=True
        ):
            out[i] = new
        found = elements.each(formula, [[self._seen(column[i]) for i in large] for column in columns], given)
        for i, new in zip(large, map(self.taken, found), strict=True):
            leaf = columns[0][i]
            out[i] = self.as_given(leaf, new if self.dtype(leaf) == self.dtype(new) else self.cast(new, leaf))
        return out

    def norm_over(self, leaf: Array, axes: tuple[int, ...], ord: float) -> Any:
        """Return norms over some axes; NumPy for few elements, since frameworks use threads for many."""
        count = self.count(leaf, None)
        if isinstance(count, float) and count <= _FEW and self.readable([leaf]):
            with np.errstate(all="ignore"):
                return norms.norm(namespace.Namespace, self.view(leaf), axes, ord)
        return super().norm_over(leaf, axes, ord)

    def sizes(self, leaves: Sequence[Array]) -> Any:
        """Return the largest absolute values; nothing is rounded."""
        if self.readable(leaves):
            with np.errstate(all="ignore"):
                return host_norms.norms(list(map(self.view, leaves)), math.inf)
        return super().sizes(leaves)

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Any:
        """Return sums over some axes."""
        if self._all_readable([leaf, weights]):
            with np.errstate(all="ignore"):
                return sums.sum_over(namespace.Namespace, self.view(leaf), axes, self._seen(weights))
        return super().sum_over(leaf, axes, weights)

    def largest(self, leaves: Sequence[Array], counts: Sequence[Any]) -> list[Array]:
        """Keep so many elements of each leaf."""
        out = []
        for leaf, count in zip(leaves, counts, strict=True):
            if self.readable([leaf]):
                new = self.taken(ranking.largest(namespace.Namespace, self.view(leaf), count))
                out.append(new if self.dtype(leaf) == self.dtype(new) else self.cast(new, leaf))
            else:
                out += super().largest([leaf], [count])
        return out

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Evaluate a formula of numbers and vectors."""
        if self.readable(()) if _NUMBERS.issuperset(map(type, operands)) else self._all_readable(operands):
            return namespace.compute(formula, *map(self._seen, operands), **static)
        return super().compute(formula, *operands, **static)

    def _all_readable(self, operands: Sequence[Any]) -> bool:
        return self.readable([operand for operand in operands if isinstance(operand, self.types)])

    def _seen(self, operand: Any) -> Any:
        return self.view(operand) if isinstance(operand, self.types) else operand
