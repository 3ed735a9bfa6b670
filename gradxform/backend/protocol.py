"""What a framework must bring, and all that follows from it: the door between the transforms and its arrays."""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from gradxform.backend.devices import Devices
from gradxform.backend.writing import Writing
from gradxform.numerics import Array, dtype_name, elementwise, norms, rescale, sums
from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import evaluate, in_base, in_int32

Backward = Callable[[list[Array], list[Array]], tuple[list[Array] | None, list[Array] | None]]
"""What flows back to two lists of arrays, None for nothing, of what comes to the first, and the second list."""


class Backend(Devices, Writing, abc.ABC):
    """A framework. Ten members must be written; the others have defaults over `xp`, which a backend may override.

    A *vector* is a float64 array with one number a leaf, or a 0-d one for all of them. Kernels take lists of dense
    leaves, so that a framework can use its fused form; under tracing none reads a value.
    """

    variables: tuple[type, ...] = ()
    """The types of those arrays that are variables."""

    # --- what must be written ------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the framework's top-level module."""

    @property
    @abc.abstractmethod
    def types(self) -> tuple[type, ...]:
        """The array types that belong to this framework."""

    @property
    @abc.abstractmethod
    def xp(self) -> Any:
        """The framework's functions under the names that formulas use; see the README of this folder."""

    @property
    @abc.abstractmethod
    def module(self) -> ModuleType:
        """The module of the framework's functions under NumPy's names, as far as it has them: for users."""

    @abc.abstractmethod
    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Leaves (None may be among them) and structure, by the framework's own tree engine; structures have ``==``."""

    @abc.abstractmethod
    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """The tree again."""

    @abc.abstractmethod
    def paths(self, tree: Any) -> list[str]:
        """One path a leaf of `flatten`, its keys joined by "/"."""

    @abc.abstractmethod
    def from_numpy(self, array: Any) -> Array:
        """An array of this framework with the values and the dtype of a NumPy array."""

    @abc.abstractmethod
    def to_numpy(self, leaf: Array) -> Any:
        """A NumPy array with the values and the dtype of a leaf."""

    @abc.abstractmethod
    def custom_backward(self, first: Sequence[Array], second: Sequence[Array], backward: Backward) -> list[Array]:
        """The first arrays as they are; `backward` makes what flows back to both lists."""

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """What kernels run in: 64-bit types switched on, a stream, warnings switched off."""
        return contextlib.nullcontext()

    def namespace_of(self, array: Array) -> Any:
        """The namespace, whose new arrays lie where another does."""
        return self.xp

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """The function under the framework's compiler; None if it has none."""
        return None

    @property
    def title(self) -> str:
        """The name of the framework as it is written in text."""
        return self.name

    def adopt(self, leaf: Any) -> Array:
        """A NumPy array or a Python number as an array of this framework."""
        return self.xp.asarray(leaf)

    def dtype(self, leaf: Array) -> str:
        """The name of a leaf's dtype: "float32", "bfloat16", "complex64", "float0"."""
        return dtype_name(leaf)

    def shape(self, leaf: Array) -> tuple[int | None, ...] | None:
        """The static shape; None for a dimension, or for all of it, that is unknown until run time."""
        return tuple(leaf.shape)

    def count(self, leaf: Array, axes: tuple[int, ...] | None) -> Any:
        """The number of elements over some axes, or of all: a Python float if it is known."""
        return float(math.prod(leaf.shape if axes is None else [leaf.shape[axis] for axis in axes]))

    def dense(
        self, leaves: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Callable[[Array], Array] | None] | None]:
        """The leaves' values, duplicates summed, and how to put new values back; None for a dense leaf, or for all."""
        return leaves, None

    def densify(self, leaf: Array) -> Array:
        """A sparse leaf, whole, as a dense one."""
        return leaf

    def alongside(self, arrays: Sequence[Array], leaves: Sequence[Array]) -> Sequence[Array]:
        """Arrays of the leaves' shapes, spread over devices as the leaves are, where that is the caller's affair."""
        return arrays

    def placed(self, array: Any, like: Array) -> Array:
        """`from_numpy`, where another array lies: on its device, or spread over devices as it is."""
        return self.from_numpy(array)

    def stored(self, value: Any, dtype: str, like: Array) -> Array:
        """A number, a pair, or a NumPy array or a vector of numbers, in a dtype, on the device of another array."""
        if isinstance(value, Pair):
            value = self.compute(in_int32 if "int" in dtype else in_base, value)
        with self.scope():
            xp = self.namespace_of(like)
            return xp.cast(xp.float64(value), dtype)

    def cast(self, leaf: Array, like: Array) -> Array:
        """A leaf rounded to the dtype of another."""
        with self.scope():
            return self.as_given(like, self.namespace_of(like).cast(leaf, dtype_name(like)))

    def number(self, given: Any) -> Any:
        """A hyperparameter that is an array, with the shape that it must have."""
        return given

    def as_given(self, leaf: Array, new: Array) -> Array:
        """New values for a leaf, of the kind that the leaf is: a scalar for a scalar, weakly typed as it is."""
        return new

    def copied(self, leaves: Sequence[Array]) -> list[Array]:
        """The leaves in memory of their own, if they could be written to."""
        return [self.xp.copy(leaf) for leaf in leaves]

    def zeros(self, leaves: Sequence[Array]) -> list[Array]:
        """Fresh zeros of the leaves' shapes, dtypes and devices."""
        return [self.xp.zeros_like(leaf) for leaf in leaves]

    # --- kernels -------------------------------------------------------------------------------------------------

    def norms(self, leaves: Sequence[Array], ord: float) -> Array | Pair:
        """The vector of the leaves' norms; a pair of vectors if a 64-bit leaf is among them.

        An override may return numbers in a form of its own, which its other kernels and `compute` take.
        """
        with self.scope():
            return norms.norms(self.namespace_of, leaves, ord)

    def norm_over(self, leaf: Array, axes: tuple[int, ...], ord: float) -> Array | Pair:
        """Norms over some axes of one leaf, float64, with the axes kept as ones."""
        with self.scope():
            return norms.norm_over(self.namespace_of(leaf), leaf, axes, ord)

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Array | Pair:
        """The sums of a real leaf, times weights that broadcast, over some axes: float64, the axes kept as ones."""
        with self.scope():
            return sums.sum_over(self.namespace_of(leaf), leaf, axes, weights)

    def multiply(self, leaves: Sequence[Array], factors: Array, inplace: bool) -> list[Array]:
        """Each leaf times its factor, rounded to the leaf's dtype once; a factor of one changes no bit."""
        with self.scope():
            found = []
            for i, leaf in enumerate(leaves):
                xp = self.namespace_of(leaf)
                if isinstance(factors, (int, float)):
                    new = rescale.by_number(xp, leaf, factors)
                else:
                    factor = xp.float64(factors)
                    new = rescale.times(xp, leaf, xp.take(factor, i) if len(factor.shape) else factor)
                found.append(self.as_given(leaf, new))
            return found

    def multiply_over(self, leaf: Array, factor: Array, inplace: bool) -> Array:
        """One leaf times a float64 array that broadcasts against it, under the rules of `multiply`."""
        with self.scope():
            xp = self.namespace_of(leaf)
            return self.as_given(leaf, rescale.times(xp, leaf, xp.float64(factor)))

    def divide(self, function: str, leaves: Sequence[Array], divisors: Sequence[Array]) -> list[Array]:
        """Each leaf divided by a number, or an array that broadcasts, in its dtype; complex ones by their parts.

        Correctly rounded, unless the framework has a function of this name that divides otherwise.
        """
        with self.scope():
            found = []
            for leaf, divisor in zip(leaves, divisors, strict=True):
                xp = self.namespace_of(leaf)
                found.append(self.as_given(leaf, rescale.quotient(xp, leaf, xp.float64(divisor))))
            return found

    def clip(self, leaves: Sequence[Array], low: Any, high: Any, factors: Array | None, inplace: bool) -> list[Array]:
        """min(max(factor * leaf, low), high), the bounds in the leaf's dtype; NaN stays NaN; None is no bound.

        With factors, float16 and bfloat16 leaves may come back in float32, not rounded yet: see `cast`.
        """
        with self.scope():
            scaled: Sequence[Array] = leaves
            if factors is not None:
                scaled = self.multiply(
                    [rescale.in_single(self.namespace_of(leaf), leaf) for leaf in leaves], factors, inplace
                )
            found = []
            for new, old in zip(scaled, leaves, strict=True):
                xp = self.namespace_of(old)
                bounds = (None if bound is None else xp.float64(bound) for bound in (low, high))
                found.append(self.as_given(new, rescale.between(xp, new, dtype_name(old), *bounds)))
            return found

    def elementwise(
        self,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """`formula(xp, *elements, *numbers, **static)` for each leaf of the first column, beside those of the others.

        With factors, the formula is given the leaf's elements times its factor.

        Computed in float64, with twice that precision for float64 leaves, and rounded once to the dtype that sums of
        the leaf are kept in: float32, or float64 for float64 leaves; complex leaves by their parts. The others are
        arrays that broadcast to the leaf.
        """
        each_factor = [None] * len(columns[0]) if factors is None else factors
        numbers = list(map(self.number, numbers))
        with self.scope():
            return [
                elementwise.of_leaf(formula, self.namespace_of(column[0]), column, numbers, factor, static)
                for factor, *column in zip(each_factor, *columns, strict=True)
            ]

    def each(
        self, formula: Callable[..., Array], columns: Sequence[Sequence[Array]], numbers: Sequence[Any]
    ) -> list[Array]:
        """The same in the leaves' own dtypes, for formulas that choose and do not round."""
        found = []
        with self.scope():
            for column in zip(*columns, strict=True):
                xp = self.namespace_of(column[0])
                made = formula(xp, *column, *(xp.float64(self.number(number)) for number in numbers))
                found.append(self.as_given(column[0], xp.cast(made, dtype_name(column[0]))))
        return found

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """`formula(xp, *operands, **static)` in float64: arithmetic on vectors, written with operators and `xp`.

        Of a formula that returns a tuple, a tuple.
        """
        with self.scope():
            parts = [part for operand in operands for part in (operand if isinstance(operand, Pair) else (operand,))]
            xp = next((self.namespace_of(part) for part in parts if isinstance(part, self.types)), self.xp)
            given = [elementwise.wide(xp, self.number(operand)) for operand in operands]
            return evaluate(formula, xp, given, static)

    def peer_norm(
        self, function: str, leaves: Sequence[Array], ord: float, axes: tuple[int, ...] | None
    ) -> Array | None:
        """The norm of leaves together, or over axes of one, as one of the framework's own functions computes it.

        In float64; None for a function of another framework, and where the function cannot be followed.
        """
        return None

    def on_backward(
        self, leaves: Sequence[Array], numbers: Sequence[Array], function: Callable[[list[Array], list[Array]], Any]
    ) -> list[Array]:
        """The leaves as they are; what flows back to them is `function(what flows back, numbers)`.

        The numbers are the arrays that the function computes with; no derivative is asked of them.
        """
        return self.custom_backward(leaves, numbers, lambda upstream, given: (function(upstream, given), None))

    def straight_through(self, values: Sequence[Array], leaves: Sequence[Array]) -> list[Array]:
        """The values as they are; what flows back to each flows to the leaf beside it, of its shape and dtype."""
        return self.custom_backward(values, leaves, lambda upstream, _: (None, upstream))

    def stop_gradient(self, leaf: Array) -> Array:
        """The leaf as it is, to which nothing flows back."""
        return self.xp.stop_gradient(leaf)
