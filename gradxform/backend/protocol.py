"""The backend interface between transforms and the arrays of a framework, with defaults."""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from gradxform.backend.along import Along
from gradxform.backend.devices import Devices
from gradxform.backend.writing import Writing
from gradxform.numerics import Array, dtype_name, elementwise, norms, rescale, sums
from gradxform.numerics.elementwise import Formula

Backward = Callable[[list[Array], list[Array]], tuple[list[Array] | None, list[Array] | None]]
"""Maps the incoming gradients of the first list, and the second list, to gradients of both (None: no gradient)."""


class Backend(Along, Devices, Writing, abc.ABC):
    """A framework. Ten members are required; the others have defaults over `xp`, which a backend may override.

    A *vector* is a float64 array with one number per leaf, or a 0-d one for all leaves. Kernels take lists of dense
    leaves, so that a framework can fuse them; under tracing they never read a value.
    """

    variables: tuple[type, ...] = ()
    """The array types that are variables."""

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
        """The framework's functions under the names in formulas; see the README of this folder."""

    @property
    @abc.abstractmethod
    def module(self) -> ModuleType:
        """The framework's module with functions under NumPy's names, for users."""

    @abc.abstractmethod
    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Return leaves (including None) and structure by the framework's tree engine; structures support ``==``."""

    @abc.abstractmethod
    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """Rebuild the tree."""

    @abc.abstractmethod
    def paths(self, tree: Any) -> list[str]:
        """Return the path of each leaf of `flatten`, keys joined by "/"."""

    @abc.abstractmethod
    def from_numpy(self, array: Any) -> Array:
        """Convert a NumPy array to this framework, with the same dtype."""

    @abc.abstractmethod
    def to_numpy(self, leaf: Array) -> Any:
        """Convert a leaf to NumPy, with the same dtype."""

    @abc.abstractmethod
    def custom_backward(self, first: Sequence[Array], second: Sequence[Array], backward: Backward) -> list[Array]:
        """Return the first arrays unchanged; `backward` computes the gradients of both lists."""

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The context for kernels: 64-bit types enabled, a stream, warnings disabled."""
        return contextlib.nullcontext()

    def trace(self) -> Any:
        """What traces now, such as a branch of `lax.cond` or `tf.cond`: arrays made there end with it."""
        return None

    def namespace_of(self, array: Array) -> Any:
        """The namespace that creates arrays on the device of another one."""
        return self.xp

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Compile a function; None if the framework has no compiler."""
        return None

    @property
    def title(self) -> str:
        """The framework's name in text."""
        return self.name

    def adopt(self, leaf: Any) -> Array:
        """Convert a NumPy array or a Python number to this framework."""
        return self.xp.asarray(leaf)

    def dtype(self, leaf: Array) -> str:
        """Return the name of a leaf's dtype: "float32", "bfloat16", "complex64", "float0"."""
        return dtype_name(leaf)

    def shape(self, leaf: Array) -> tuple[int | None, ...] | None:
        """Return the static shape; None for unknown dimensions or an unknown rank."""
        return tuple(leaf.shape)

    def count(self, leaf: Array, axes: tuple[int, ...] | None) -> Any:
        """Return the number of elements over some or all axes: a Python float if known."""
        return float(math.prod(leaf.shape if axes is None else [leaf.shape[axis] for axis in axes]))

    def dense(
        self, leaves: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Callable[[Array], Array] | None] | None]:
        """Return dense values (duplicates summed) and functions that make values sparse again (None: dense)."""
        return leaves, None

    def densify(self, leaf: Array) -> Array:
        """Convert a sparse leaf to a dense array of its full shape."""
        return leaf

    def sparse(self, leaf: Array) -> Callable[[Array], Array] | None:
        """Return a function that makes a dense gradient sparse, element by element; None if optimizers take none."""
        return None

    def alongside(self, arrays: Sequence[Array], leaves: Sequence[Array]) -> Sequence[Array]:
        """Reshard arrays to match the leaves. Default: unchanged."""
        return arrays

    def placed(self, array: Any, like: Array) -> Array:
        """`from_numpy` on the device, or with the sharding, of another array."""
        return self.from_numpy(array)

    def stored(self, value: Any, dtype: str, like: Array) -> Array:
        """Convert a number, a NumPy array or a vector to a dtype, on the device of another array."""
        with self.scope():
            xp = self.namespace_of(like)
            return xp.cast(xp.float64(value), dtype)

    def cast(self, leaf: Array, like: Array) -> Array:
        """Round a leaf to the dtype of another."""
        with self.scope():
            return self.as_given(like, self.namespace_of(like).cast(leaf, dtype_name(like)))

    def number(self, given: Any) -> Any:
        """Return an array hyperparameter with its required shape."""
        return given

    def as_given(self, leaf: Array, new: Array) -> Array:
        """Convert new values to the kind of a leaf: scalar or array, weakly typed or not."""
        return new

    def copied(self, leaves: Sequence[Array]) -> list[Array]:
        """Copy leaves that could be overwritten."""
        return [self.xp.copy(leaf) for leaf in leaves]

    def zeros(self, leaves: Sequence[Array]) -> list[Array]:
        """Return new zeros with the leaves' shapes, dtypes and devices."""
        return [self.xp.zeros_like(leaf) for leaf in leaves]

    # --- kernels -------------------------------------------------------------------------------------------------

    def norms(self, leaves: Sequence[Array], ord: float) -> Array:
        """Return the leaves' norms as a vector.

        An override may return its own format, if its other kernels and `compute` accept it.
        """
        with self.scope():
            return norms.norms(self.namespace_of, leaves, ord)

    def norm_over(self, leaf: Array, axes: tuple[int, ...], ord: float) -> Array:
        """Return float64 norms over some axes of one leaf, with keepdims."""
        with self.scope():
            return norms.norm(self.namespace_of(leaf), leaf, axes, ord)

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Array:
        """Sum a real leaf times broadcasting weights over some axes: float64, with keepdims."""
        with self.scope():
            return sums.sum_over(self.namespace_of(leaf), leaf, axes, weights)

    def multiply(self, leaves: Sequence[Array], factors: Array, inplace: bool) -> list[Array]:
        """Multiply each leaf by its factor and round once; a factor of one changes nothing."""
        with self.scope():
            spaces = [self.namespace_of(leaf) for leaf in leaves]
            if isinstance(factors, (int, float)):
                made = [rescale.times(xp, leaf, factors) for xp, leaf in zip(spaces, leaves, strict=True)]
            else:
                factor = spaces[0].float64(factors)
                vectors = factor, *map(spaces[0].materialize, rescale.in_steps(spaces[0], factor))
                made = []
                for i, (xp, leaf) in enumerate(zip(spaces, leaves, strict=True)):
                    own, *steps = [xp.float64(xp.take(x, i) if len(x.shape) else x) for x in vectors]
                    made.append(rescale.times(xp, leaf, own, steps))
            return [self.as_given(leaf, new) for leaf, new in zip(leaves, made, strict=True)]

    def multiply_over(self, leaf: Array, factor: Array, inplace: bool) -> Array:
        """Multiply one leaf by a broadcasting float64 array, like `multiply`."""
        with self.scope():
            xp = self.namespace_of(leaf)
            return self.as_given(leaf, rescale.times(xp, leaf, xp.float64(factor)))

    def divide(self, function: str, leaves: Sequence[Array], divisors: Sequence[Array]) -> list[Array]:
        """Divide each leaf by a number or a broadcasting array, in its dtype; complex leaves by parts.

        Correctly rounded, unless the framework has a function of this name that divides differently.
        """
        with self.scope():
            found = []
            for leaf, divisor in zip(leaves, divisors, strict=True):
                xp = self.namespace_of(leaf)
                found.append(self.as_given(leaf, rescale.quotient(xp, leaf, xp.float64(divisor))))
            return found

    def clip(self, leaves: Sequence[Array], low: Any, high: Any, factors: Array | None, inplace: bool) -> list[Array]:
        """Return min(max(factor * leaf, low), high) with bounds in the leaf's dtype; NaN stays NaN; None is no bound.

        With factors, float16 and bfloat16 leaves may be returned in float32, not yet rounded: see `cast`.
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
        formula: Formula,
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """Compute `formula(xp, *elements, *numbers, **static)` for each row of the columns.

        With factors, the first column is multiplied by them.

        Computed in the dtype of the leaf's sums: float32, or float64 for float64 leaves. Complex leaves are computed by
        parts. The other columns broadcast to the first.
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
        """Compute a formula that selects and does not round, in the leaves' dtypes."""
        found = []
        with self.scope():
            for column in zip(*columns, strict=True):
                xp = self.namespace_of(column[0])
                made = formula(xp, *column, *(xp.float64(self.number(number)) for number in numbers))
                found.append(self.as_given(column[0], xp.cast(made, dtype_name(column[0]))))
        return found

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Compute `formula(xp, *operands, **static)` on vectors in float64.

        If the formula returns a tuple, so does this method.
        """
        with self.scope():
            xp = next((self.namespace_of(x) for x in operands if isinstance(x, self.types)), self.xp)
            return formula(xp, *(xp.float64(self.number(operand)) for operand in operands), **static)

    def peer_norm(
        self, function: str, leaves: Sequence[Array], ord: float, axes: tuple[int, ...] | None
    ) -> Array | None:
        """Return the global norm of leaves, or norms over axes of one leaf, by one of the framework's own functions.

        In float64. None for a function of another framework, and where the function cannot be reproduced.
        """
        return None

    def on_backward(
        self, leaves: Sequence[Array], numbers: Sequence[Array], function: Callable[[list[Array], list[Array]], Any]
    ) -> list[Array]:
        """Return the leaves unchanged; their gradients become `function(gradients, numbers)`.

        The numbers are arrays for the function, and are not differentiated.
        """
        return self.custom_backward(leaves, numbers, lambda upstream, given: (function(upstream, given), None))

    def straight_through(self, values: Sequence[Array], leaves: Sequence[Array]) -> list[Array]:
        """Return the values; their gradients flow to the matching leaves of equal shape and dtype."""
        return self.custom_backward(values, leaves, lambda upstream, _: (None, upstream))

    def stop_gradient(self, leaf: Array) -> Array:
        """Return the leaf unchanged, without a gradient."""
        return self.xp.stop_gradient(leaf)
