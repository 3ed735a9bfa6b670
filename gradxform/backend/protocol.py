"""The backend interface between transforms and the arrays of a framework, with defaults."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

import optree

from gradxform.numerics import Array, dtype_name, elementwise, formulas, norms, ranking, subsets, widest
from gradxform.numerics.elementwise import Formula
from gradxform.numerics.matrices import Sides
from gradxform.numerics.matrices import of_leaf as matrices_of

Backward = Callable[[list[Array], list[Array]], tuple[list[Array] | None, list[Array] | None]]
"""Maps the incoming gradients of the first list, and the second list, to gradients of both (None: no gradient)."""
Axes = Sequence[tuple[int, ...]]
"""The axes of the slices, per leaf."""
Row = Sequence[Any]
"""An item for each leaf, or for each number of a formula."""
Given = Row | None
"""The same, if it is given."""
Columns = Sequence[Sequence[Array]]
"""The leaves, and the arrays beside them."""
Steps = Sequence[tuple[int, Mapping[int, Any]]]
"""Each step has the column to overwrite, and the weights of the columns to add up, None for one; without any, zeros.

The column after those given is temporary; one step writes it, and one reads it, as its last. Column 0 comes first in a
step that reads it, and a step that adds up several columns overwrites one of them, or the temporary one.
"""


class Devices(Protocol):
    """The functions that combine numbers of several devices; see `gradxform.across`."""

    def check(self, axis: Any, leaves: Sequence[Array], paths: Callable[[], Sequence[str]]) -> None:
        """Reject an unknown axis, and leaves that do not fit it.

        Raises:
            TypeError: not an axis of this framework.
            ValueError: an unknown axis, or one without this process; says what to do.
        """

    def all_gather(self, numbers: Array, axis: Any, like: Array | None) -> Array:
        """All-gather float64 numbers along a device axis; gathered devices lead in the result.

        One collective; every device gets the same bits, including NaN and infinity. `like` is a leaf of the tree and
        determines the device; None if there is no leaf.
        """

    def axis_index(self, axis: Any) -> Any:
        """Return the index of this device along an axis, as a number or an array."""


class Backend(abc.ABC):
    """A framework. Ten members are required; the others have defaults over `xp`, which a backend may override.

    A *vector* is a float64 array with one number per leaf, or a 0-d one for all leaves. Kernels take lists of dense
    leaves, so that a framework can fuse them; under tracing they never read a value.
    """

    variables: tuple[type, ...] = ()
    """The array types that are variables."""
    devices: Devices | None = None
    """How numbers of several devices are combined; None for a framework of one device."""

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
    def from_numpy(self, array: Any, like: Any = None) -> Array:
        """Convert a NumPy array to this framework, with the same dtype.

        If another array is given, a copy on its device, or with its sharding.
        """

    @abc.abstractmethod
    def to_numpy(self, leaf: Array) -> Any:
        """Convert a leaf to NumPy, with the same dtype."""

    @property
    @abc.abstractmethod
    def custom_backward(self) -> Callable[[Sequence[Array], Sequence[Array], Backward], list[Array]] | None:
        """A function that returns the first arrays unchanged, and computes the gradients of both lists by the third.

        None if the framework has no backward pass.
        """

    # --- services, with defaults ---------------------------------------------------------------------------------

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The context for kernels: 64-bit types enabled, a stream, warnings disabled."""
        return contextlib.nullcontext()

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

    def dtype(self, leaf: Array) -> str:
        """Return the name of a leaf's dtype: "float32", "bfloat16", "complex64", "float0"."""
        return dtype_name(leaf)

    def shape(self, leaf: Array) -> tuple[int | None, ...] | None:
        """Return the static shape; None for unknown dimensions or an unknown rank."""
        return tuple(leaf.shape)

    def count(self, leaf: Array, axes: tuple[int, ...] | None) -> Any:
        """Return the number of elements over some or all axes: a Python float if known."""
        return float(math.prod(leaf.shape if axes is None else [leaf.shape[axis] for axis in axes]))

    dense: Callable[..., tuple[Sequence[Array], Sequence[Callable[[Array], Array] | None] | None]] | None = None
    """`dense(leaves, whole=False)` returns dense values (duplicates summed) and functions that make them sparse again.

    Whole: dense arrays of the full shapes, which stay dense. The functions are None for dense leaves. None if the
    framework has no sparse gradients.
    """

    def sparse(self, leaf: Array) -> Callable[[Array], Array] | None:
        """Return a function that makes a dense gradient sparse, element by element; None if optimizers take none."""
        return None

    def alongside(self, arrays: Sequence[Array], leaves: Sequence[Array]) -> Sequence[Array]:
        """Reshard arrays to match the leaves. Default: unchanged."""
        return arrays

    def stored(self, value: Any, dtype: str, like: Array) -> Array:
        """Convert a number, a NumPy array or a vector to a dtype, on the device of another array."""
        with self.scope():
            xp = self.namespace_of(like)
            return xp.cast(xp.float64(value), dtype)

    def cast(self, leaves: Sequence[Array], likes: Sequence[Array]) -> list[Array]:
        """Round leaves to the dtypes of others with the same shapes."""
        return self.as_given(likes, self._of_each(lambda xp, like, x: xp.cast(x, dtype_name(like)), likes, leaves))

    def as_given(self, leaves: Sequence[Array], new: list[Array]) -> list[Array]:
        """Convert new values to the kinds of leaves: scalar or array, weakly typed or not."""
        return new

    def copied(self, leaves: Sequence[Array], out: Sequence[Array] | None = None) -> list[Array]:
        """Copy leaves that could be overwritten, possibly into other arrays."""
        return [self.xp.copy(leaf) for leaf in leaves]

    def zeros(self, leaves: Sequence[Array], inplace: bool = False) -> list[Array]:
        """Return zeros with the leaves' shapes, dtypes and devices; if `inplace`, possibly the leaves themselves."""
        return [self.xp.zeros_like(leaf) for leaf in leaves]

    # --- kernels -------------------------------------------------------------------------------------------------

    def norms(self, leaves: Sequence[Array], ord: float) -> Array:
        """Return the leaves' norms as a vector.

        An override may return its own format, if its other kernels and `compute` accept it.
        """
        with self.scope():
            each = [norms.norm(self.namespace_of(leaf), leaf, None, ord) for leaf in leaves]
            return self.namespace_of(leaves[0]).stack(each)  # which moves them to the device of the first leaf

    def groups(self, leaves: Sequence[Array]) -> Sequence[Sequence[int]]:
        """Return groups of positions of leaves for `norms_over` and `multiply_over`. Default: each leaf is one.

        Either all leaves of a group are float64 or none is.
        """
        return [[i] for i in range(len(leaves))]

    def norms_over(self, leaves: Row, axes: Axes, ord: float, of: tuple[Row, Axes] | None = None) -> Array:
        """Return the norms of slices of a group of leaves in float64: with keepdims, or of several leaves a vector.

        `of`: the leaf is numbers in this form, of these leaves and axes; their norms over more axes fit them.
        """
        ((leaf,), (over,)) = leaves, axes
        if of is not None:
            return self.compute(norms.norm, leaf, axes=over, ord=ord)
        with self.scope():
            return norms.norm(self.namespace_of(leaf), leaf, over, ord)

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Array:
        """Sum a real leaf times broadcasting weights over some axes: float64, with keepdims."""
        with self.scope():
            return norms.sum_over(self.namespace_of(leaf), leaf, axes, weights)

    def multiply(self, leaves: Sequence[Array], factors: Array, inplace: bool) -> list[Array]:
        """Multiply each leaf by its factor and round once; a factor of one changes nothing."""
        with self.scope():
            if isinstance(factors, (int, float)):
                return self._of_each(elementwise.times, leaves, [factors] * len(leaves))
            whole, steps = elementwise.split(self.namespace_of(leaves[0]), factors)

            def times(xp: Any, leaf: Array, i: int) -> Array:
                own, *rest = [xp.float64(xp.take(x, i) if len(x.shape) else x) for x in (whole, *steps)]
                return elementwise.times(xp, leaf, elementwise.Factor(own, rest))

            return self._of_each(times, leaves, range(len(leaves)))

    def multiply_over(self, leaves: Row, axes: Axes, factors: Array, inplace: Sequence[bool]) -> list[Array]:
        """Multiply slices of a group of leaves by factors in the form of `norms_over`, like `multiply`."""
        return self._of_each(lambda xp, leaf: elementwise.times(xp, leaf, xp.float64(factors)), leaves)

    def centered(self, leaves: Sequence[Array], axes: Axes, inplace: Sequence[bool]) -> list[Array]:
        """Subtract from real leaves their means over axes, rounded as in `elementwise`."""
        means = [self._mean_over(leaf, over) for leaf, over in zip(leaves, axes, strict=True)]
        return self.elementwise(formulas.difference, [leaves, means], ())

    def _mean_over(self, leaf: Array, axes: tuple[int, ...]) -> Array:
        """Return the means of one leaf; without float64, of a power of two of it, so that no sum overflows."""
        count, power = self.count(leaf, axes), None
        if isinstance(count, float) and widest(self.namespace_of(leaf)) == "float32":
            power = 0.5 ** int(count).bit_length()
        whole = self.sum_over(leaf, axes, power)
        return self.compute(formulas.quotient, whole, count if power is None else count * power)

    def inner_products(self, columns: Sequence[Sequence[Array]], factors: Sequence[Any] | None) -> list[Any]:
        """Return the inner products of real arrays i <= j of each column, by rows, added up over the columns.

        With factors, the arrays of a column are first multiplied by one number each.
        """
        found: list[list[Any]] = []
        for column in columns:
            given, axes = column, tuple(range(len(self.shape(column[0]) or ())))
            if factors is not None:
                given = [self.multiply([leaf], by, False)[0] for leaf, by in zip(column, factors, strict=True)]
            found.append([self.sum_over(one, axes, other) for one, other in pairs(given)])
        return [self.compute(subsets.total, *parts) for parts in zip(*found, strict=True)]

    def divide(self, function: str, leaves: Sequence[Array], divisors: Sequence[Array]) -> list[Array]:
        """Divide each leaf by a number or a broadcasting array, in its dtype; complex leaves by parts.

        Correctly rounded, unless the framework has a function of this name that divides differently.
        """
        return self._of_each(lambda xp, leaf, by: elementwise.quotient(xp, leaf, xp.float64(by)), leaves, divisors)

    def clip(self, leaves: Sequence[Array], low: Any, high: Any, factors: Array | None, inplace: bool) -> list[Array]:
        """Return min(max(factor * leaf, low), high) with bounds in the leaf's dtype; NaN stays NaN; one may be None.

        With factors, float16 and bfloat16 leaves may be returned in float32, not yet rounded: see `cast`.
        """

        def clipped(xp: Any, new: Array, old: Array) -> Array:
            bounds = (None if bound is None else xp.float64(bound) for bound in (low, high))
            return elementwise.between(xp, new, dtype_name(old), *bounds)

        with self.scope():
            if factors is None:
                return self._of_each(clipped, leaves, leaves)
            wide = [elementwise.in_single(self.namespace_of(leaf), leaf) for leaf in leaves]
            return self._of_each(clipped, self.multiply(wide, factors, inplace), leaves)

    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """Compute `formula(xp, *elements, *numbers, **static)` for each row of the columns.

        With factors, the first column is multiplied by them. The results may be written into `out`, which may be among
        the columns. The numbers of `weighted` are a weight for each column.

        A static `index` is a function of the namespace and the first element, for the indices of its elements in their
        leaf. A backend that computes on a part of a leaf passes another one.

        Computed in the dtype of the leaf's sums: float32, or float64 for float64 leaves. Complex leaves are computed by
        parts. The other columns broadcast to the first.
        """
        each_factor = [None] * len(columns[0]) if factors is None else factors

        def of_leaf(xp: Any, leaf: Array, factor: Any, *others: Array) -> Any:
            return elementwise.of_leaf(formula, xp, (leaf, *others), numbers, factor, static)

        return self._of_each(of_leaf, columns[0], each_factor, *columns[1:])

    def overwrite(self, columns: Columns, steps: Steps, factors: Any = None) -> bool:
        """Overwrite columns with weighted sums, step by step, on parts of the leaves that stay in the cache.

        With a factor, or a vector of one per leaf, column 0 is multiplied by it where a step reads it. False if the
        backend cannot; then nothing has changed.
        """
        return False

    def each(self, formula: Callable[..., Array], columns: Columns, numbers: Row, out: Given = None) -> list[Array]:
        """Compute a formula that selects and does not round, in the leaves' dtypes; possibly written into `out`."""

        def selected(xp: Any, leaf: Array, *others: Array) -> Array:
            return xp.cast(formula(xp, leaf, *others, *map(xp.float64, numbers)), dtype_name(leaf))

        return self.as_given(columns[0], self._of_each(selected, *columns))

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Compute `formula(xp, *operands, **static)` on vectors in float64.

        If the formula returns a tuple, so does this method. A `functools.partial` is the user's: it runs at each call,
        as it may read what changes.
        """
        with self.scope():
            xp = next((self.namespace_of(x) for x in operands if isinstance(x, self.types)), self.xp)
            return formula(xp, *map(xp.float64, operands), **static)

    def peer_norm(self, function: str, leaves: Row, ord: float, axes: tuple[int, ...] | None) -> Array | None:
        """Return the global norm of leaves, or norms over axes of one leaf, by one of the framework's own functions.

        In float64. None for a function of another framework, and where the function cannot be reproduced.
        """
        return None

    def of_matrices(
        self, formula: Callable[..., Array], leaves: Row, sides: Sequence[Sides], dtype: str | None, **static: Any
    ) -> list[Array]:
        """Compute `formula(xp, matrices, **static)` of each leaf's matrices, in a dtype or in the leaf's own.

        The matrices are in the last two axes. A leaf stacks them over the axes that are in neither of its two sides.
        """
        return self._of_each(lambda xp, leaf, own: matrices_of(formula, xp, leaf, own, dtype, static), leaves, sides)

    def largest(self, leaves: Sequence[Array], counts: Sequence[Any]) -> list[Array]:
        """Keep so many elements of the largest size in each leaf, and those of equal size; the others become zero."""
        return self._of_each(ranking.largest, leaves, counts)

    def _of_each(self, function: Callable[..., Array], *columns: Sequence[Any]) -> list[Array]:
        """Compute `function(xp, leaf, *others)` for each leaf and what is beside it."""
        with self.scope():
            return [function(self.namespace_of(leaf), leaf, *others) for leaf, *others in zip(*columns, strict=True)]

    def straight_through(self, values: Sequence[Array], leaves: Sequence[Array]) -> list[Array]:
        """Return the values; their gradients flow to the matching leaves of equal shape and dtype."""
        assert self.custom_backward is not None
        return self.custom_backward(values, leaves, lambda upstream, _: (None, upstream))


class Containers(Backend):
    """A backend whose trees are containers of Python and of optree; None is a leaf, so that it has a path."""

    flatten = staticmethod(functools.partial(optree.tree_flatten, none_is_leaf=True))
    unflatten: Any = staticmethod(optree.PyTreeSpec.unflatten)

    def paths(self, tree: Any) -> list[str]:
        """Return the path of each leaf."""
        entries = optree.tree_accessors(tree, none_is_leaf=True)
        return ["/".join([str(getattr(key, "field", key.entry)) for key in path]) for path in entries]


def pairs(items: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs i <= j, by rows."""
    return [(one, other) for i, one in enumerate(items) for other in items[i:]]


def places_of(keys: Iterable[Any]) -> dict[Any, list[int]]:
    """Return the positions of each key, in order."""
    found: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return found


def grouped(sizes: Sequence[int], keys: Row, large: float, most: float) -> list[list[int]]:
    """Group the positions of a key, up to `most` elements; what is `large`, or has the key None, is alone."""
    found: list[list[int]] = []
    rows = enumerate(zip(sizes, keys, strict=True))
    for places in places_of([i if key is None or size > large else key for i, (size, key) in rows]).values():
        free: float = -1
        for i in places:
            if sizes[i] > free:
                found.append([])
                free = most
            found[-1].append(i)
            free -= sizes[i]
    return found
