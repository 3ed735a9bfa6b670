"""Choose between NumPy and the framework for arrays that NumPy can read in place."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import elements, namespace
from gradxform.backend.protocol import Axes, Backend
from gradxform.numerics import Array, norms, ranking, sums
from gradxform.numerics.elementwise import Formula

_NUMBERS = {float, int, np.ndarray}
_FEW = 1 << 13
"""Below so many elements, NumPy norms over axes take half the time of eager TensorFlow, for float64 a tenth."""


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
        out: Sequence[Array] | None = None,
        **static: Any,
    ) -> list[Any]:
        """Apply a formula to the elements of each leaf."""
        each_factor = [None] * len(columns[0]) if factors is None else factors
        if not self._all_readable([*itertools.chain(*columns), *numbers, *each_factor]):
            return super().elementwise(formula, columns, numbers, factors, **static)
        *seen, given, by = [list(map(self._seen, some)) for some in (*columns, numbers, each_factor)]
        return list(map(self.taken, elements.of_leaves(formula, seen, given, by, static)))

    def each(
        self,
        formula: Callable[..., Array],
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
        out: Sequence[Array] | None = None,
    ) -> list[Array]:
        """Apply a formula that selects to the elements of each leaf, in their dtypes; NumPy if one has many."""
        large = any([self.count(leaf, None) > elements.BLOCK for leaf in columns[0]])
        if not large or not self._all_readable([*itertools.chain(*columns), *numbers]):
            return super().each(formula, columns, numbers)
        *seen, given = [list(map(self._seen, some)) for some in (*columns, numbers)]
        return list(map(self._taken_like, columns[0], elements.each(formula, seen, given)))

    def norms_over(self, leaves: Sequence[Array], axes: Axes, ord: float) -> Any:
        """Return norms over some axes; NumPy for few elements, since frameworks use threads for many."""
        count = self.count(leaves[0], None)
        if len(leaves) == 1 and isinstance(count, float) and count <= _FEW and self.readable(leaves):
            with np.errstate(all="ignore"):
                return norms.norm(namespace.Namespace, self.view(leaves[0]), axes[0], ord)
        return super().norms_over(leaves, axes, ord)

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Any:
        """Return sums over some axes."""
        if self._all_readable([leaf, weights]):
            with np.errstate(all="ignore"):
                return sums.sum_over(namespace.Namespace, self.view(leaf), axes, self._seen(weights))
        return super().sum_over(leaf, axes, weights)

    def largest(self, leaves: Sequence[Array], counts: Sequence[Any]) -> list[Array]:
        """Keep so many elements of each leaf."""
        if not self.readable(leaves):
            return super().largest(leaves, counts)
        found = [
            ranking.largest(namespace.Namespace, self.view(leaf), n) for leaf, n in zip(leaves, counts, strict=True)
        ]
        return list(map(self._taken_like, leaves, found))

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Evaluate a formula of numbers and vectors."""
        if self.readable(()) if _NUMBERS.issuperset(map(type, operands)) else self._all_readable(operands):
            return namespace.compute(formula, *map(self._seen, operands), **static)
        return super().compute(formula, *operands, **static)

    def _all_readable(self, operands: Sequence[Any]) -> bool:
        return self.readable([operand for operand in operands if isinstance(operand, self.types)])

    def _taken_like(self, leaf: Array, array: Any) -> Array:
        """Wrap a NumPy array in a leaf's dtype, and its kind."""
        new = self.taken(array)
        return self.as_given(leaf, new if self.dtype(leaf) == self.dtype(new) else self.cast([new], [leaf])[0])

    def _seen(self, operand: Any) -> Any:
        return self.view(operand) if isinstance(operand, self.types) else operand
