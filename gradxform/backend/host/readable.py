"""Whether NumPy computes, or the framework: decided once, for arrays that NumPy may read where they lie."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import elements, longdouble, namespace
from gradxform.backend.protocol import Backend
from gradxform.numerics import Array, norms, sums
from gradxform.numerics.double_double import Pair

_FEW = 1 << 13
"""Elements, below which NumPy takes norms over axes in half the time of eager TensorFlow, a tenth for float64."""


class Readable(Backend):
    """A backend some of whose arrays lie in the memory of the host: NumPy computes on those, and nothing is copied.

    Numbers computed there are Python floats and NumPy's arrays, which the kernels take as well as the framework's own.
    """

    @abc.abstractmethod
    def readable(self, arrays: Iterable[Array]) -> bool:
        """Whether these have values that may be read: none is traced, on another device, or asked for a derivative."""

    @abc.abstractmethod
    def view(self, array: Array) -> Any:
        """An array's memory as NumPy's, not to be written to; bfloat16 in float32."""

    def taken(self, array: Any) -> Array:
        """An array of this framework, of one of NumPy's that nobody else holds."""
        return self.from_numpy(array)

    def elementwise(
        self,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's elements."""
        each_factor = [None] * len(columns[0]) if factors is None else factors
        given, out = None, []
        for factor, *column in zip(each_factor, *columns, strict=True):
            if self._all_readable([*column, *numbers, factor]):
                given = list(map(self._seen, numbers)) if given is None else given
                seen = elements.elementwise(formula, list(map(self._seen, column)), given, self._seen(factor), static)
                out.append(self.taken(seen))
            else:
                rows = [[array] for array in column]
                out += super().elementwise(formula, rows, numbers, None if factor is None else [factor], **static)
        return out

    def norm_over(self, leaf: Array, axes: tuple[int, ...], ord: float) -> Any:
        """Norms over some axes; of few elements, since the frameworks have threads for many."""
        count = self.count(leaf, None)
        if isinstance(count, float) and count <= _FEW and self.readable([leaf]):
            with np.errstate(all="ignore"):
                return norms.norm_over(namespace.Namespace, self.view(leaf), axes, ord)
        return super().norm_over(leaf, axes, ord)

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Any:
        """Sums over some axes."""
        if self._all_readable([leaf, weights]):
            with np.errstate(all="ignore"):
                return sums.sum_over(namespace.Namespace, self.view(leaf), axes, longdouble.pair(self._seen(weights)))
        return super().sum_over(leaf, axes, weights)

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """A formula of numbers and vectors."""
        if self._all_readable(operands):
            return namespace.compute(formula, *map(self._seen, operands), **static)
        return super().compute(formula, *operands, **static)

    def _all_readable(self, operands: Sequence[Any]) -> bool:
        parts = [part for operand in operands for part in (operand if isinstance(operand, Pair) else (operand,))]
        return self.readable([part for part in parts if isinstance(part, self.types)])

    def _seen(self, operand: Any) -> Any:
        if not isinstance(operand, Pair):
            return self.view(operand) if isinstance(operand, self.types) else operand
        return Pair(*(None if part is None else self._seen(part) for part in operand))
