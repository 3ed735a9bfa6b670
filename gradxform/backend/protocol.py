"""What a framework must bring: the door between the transforms and its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from gradxform.numerics import Array


class Backend(Protocol):
    """What a framework must bring: a module of functions with these names.

    A *vector* is a float64 array with one number a leaf, or a 0-d one for all of them. Primitives take
    lists of dense leaves, so that a framework can use its fused form; under tracing none reads a value.
    """

    name: str
    types: tuple[type, ...]
    """The array types that belong to this framework. A backend may name those of variables: `variables`."""

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Leaves (None may be among them) and structure, by the framework's own tree engine; structures have ``==``."""

    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """The tree again."""

    def paths(self, tree: Any) -> list[str]:
        """One path a leaf of `flatten`, its keys joined by "/"."""

    def adopt(self, leaf: Any) -> Array:
        """A NumPy array or a Python number as an array of this framework."""

    def dtype(self, leaf: Array) -> str:
        """The name of a leaf's dtype: "float32", "bfloat16", "complex64", "float0"."""

    def shape(self, leaf: Array) -> tuple[int | None, ...] | None:
        """The static shape; None for a dimension, or for all of it, that is unknown until run time."""

    def dense(
        self, leaves: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Callable[[Array], Array] | None] | None]:
        """The leaves' values, duplicates summed, and how to put new values back; None for a dense leaf, or for all."""

    def densify(self, leaf: Array) -> Array:
        """A sparse leaf, whole, as a dense one."""

    def norms(self, leaves: Sequence[Array], ord: float) -> Array:
        """The vector of the leaves' norms."""

    def norm_over(self, leaf: Array, axes: tuple[int, ...], ord: float) -> Array:
        """Norms over some axes of one leaf, float64, with the axes kept as ones."""

    def multiply(self, leaves: Sequence[Array], factors: Array, inplace: bool) -> list[Array]:
        """Each leaf times its factor, rounded to the leaf's dtype once; a factor of one changes no bit."""

    def multiply_over(self, leaf: Array, factor: Array, inplace: bool) -> Array:
        """One leaf times a float64 array that broadcasts against it, under the rules of `multiply`."""

    def divide(self, function: str, leaves: Sequence[Array], divisors: Sequence[Array]) -> list[Array]:
        """Each leaf divided by a number, or an array that broadcasts, in its dtype; complex ones by their parts.

        Correctly rounded, unless the framework has a function of this name that divides otherwise.
        """

    def peer_norm(
        self, function: str, leaves: Sequence[Array], ord: float, axes: tuple[int, ...] | None
    ) -> Array | None:
        """The norm of leaves together, or over axes of one, as one of the framework's own functions computes it.

        In float64; None for a function of another framework, and where the function cannot be followed.
        """

    def clip(self, leaves: Sequence[Array], low: Any, high: Any, factors: Array | None, inplace: bool) -> list[Array]:
        """min(max(factor * leaf, low), high), the bounds in the leaf's dtype; NaN stays NaN; None is no bound.

        With factors, float16 and bfloat16 leaves may come back in float32, not rounded yet: see `cast`.
        """

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

    def each(
        self, formula: Callable[..., Array], columns: Sequence[Sequence[Array]], numbers: Sequence[Any]
    ) -> list[Array]:
        """The same in the leaves' own dtypes, for formulas that choose and do not round."""

    def alongside(self, arrays: Sequence[Array], leaves: Sequence[Array]) -> Sequence[Array]:
        """Arrays of the leaves' shapes, spread over devices as the leaves are, where that is the caller's affair."""

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Array:
        """The sums of a real leaf, times weights that broadcast, over some axes: float64, the axes kept as ones."""

    def count(self, leaf: Array, axes: tuple[int, ...] | None) -> Any:
        """The number of elements over some axes, or of all: a Python float if it is known."""

    def copied(self, leaves: Sequence[Array]) -> list[Array]:
        """The leaves in memory of their own, if they could be written to."""

    def stored(self, value: Any, dtype: str, beside: Array) -> Array:
        """A number, or a NumPy array or a vector of them, as an array of a dtype on the device of another."""

    def namespace(self) -> ModuleType:
        """The framework's functions under NumPy's names, as far as it has them."""

    def cast(self, leaf: Array, like: Array) -> Array:
        """A leaf rounded to the dtype of another."""

    def zeros(self, leaves: Sequence[Array]) -> list[Array]:
        """Fresh zeros of the leaves' shapes, dtypes and devices."""

    def compute(self, formula: Callable[..., Array], *operands: Any, **static: Any) -> Array:
        """`formula(xp, *operands, **static)` in float64: arithmetic on vectors, written with operators and `xp`.

        Of a formula that returns a tuple, a tuple.
        """

    def on_backward(
        self, leaves: Sequence[Array], numbers: Sequence[Array], function: Callable[[list[Array], list[Array]], Any]
    ) -> list[Array]:
        """The leaves as they are; what flows back to them is `function(what flows back, numbers)`.

        The numbers are the arrays that the function computes with; no derivative is asked of them.
        """

    def stop_gradient(self, leaf: Array) -> Array:
        """The leaf as it is, to which nothing flows back."""

    def straight_through(self, values: Sequence[Array], leaves: Sequence[Array]) -> list[Array]:
        """The values as they are; what flows back to each flows to the leaf beside it, of its shape and dtype."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """The function under the framework's compiler; None if it has none."""

    def from_numpy(self, array: Any) -> Array:
        """An array of this framework with the values and the dtype of a NumPy array."""

    def placed(self, array: Any, like: Array) -> Array:
        """The same, where another array lies: on its device, or spread over devices as it is."""

    def to_numpy(self, leaf: Array) -> Any:
        """A NumPy array with the values and the dtype of a leaf."""
