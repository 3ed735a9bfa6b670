"""Compile kernels, each as one function of all leaves; and numbers of many leaves as scalars.

XLA compiles each access to a vector element separately, 25 ms each, but equal computations on scalars once. And
shard_map knows of each scalar whether it is replicated.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform_jax import private
from gradxform_jax.namespace import Namespace

_STATIC = ("formula", "function", "axes", "ord", "sides", "dtype")
"""Arguments of kernels that are part of the code, as keywords of formulas are."""
_NUMBERS = ("numbers", "factors", "low", "high")
_ROWS = 32
"""Numbers of a vector that are made scalars by one reduction."""
_PART = 128
"""Leaves of a part: few enough that a kernel compiles in a tenth of a second."""


def compiled(kernel: Callable[..., Any], each: Sequence[str] = ()) -> Callable[..., Any]:
    """Return a method of a backend that compiles once for each structure of its arguments.

    With `each`, the names of arguments with an item for each leaf, or columns of them, eager code computes many leaves
    some at a time: XLA compiles small kernels faster, and one for all parts that are alike.
    """
    names = list(inspect.signature(kernel).parameters)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def run(self: Any, static: tuple[tuple[str, Any], ...], given: dict[str, Any]) -> Any:
        return kernel(self, **dict(static), **given)

    @functools.wraps(kernel)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        given = dict(zip(names[1:], args, strict=False)) | named
        given |= {name: None for name in ("inplace", "out") if name in given}  # JAX writes into no array
        code = {name: given.pop(name) for name in sorted(given) if name in _STATIC or name not in names}
        static = tuple([(name, tuple(x) if isinstance(x, list) else x) for name, x in code.items()])
        given |= {name: strong(given[name]) for name in _NUMBERS if name in given}
        with private.Scope():
            first = given[each[0]] if each else []
            parts = parts_of(len(first[0]) if each[:1] == ("columns",) else len(first), given)
            if len(parts) < 2:
                return run(self, static, given)
            found: list[Any] = []
            for part in parts:
                some = {name: _of(given[name], part) for name in each if name in given}
                found += run(self, static, given | some)
            return found

    return call


def parts_of(count: int, given: Any) -> list[slice]:
    """Return the places of leaves that are computed together."""
    size = _PART if count >= 2 * _PART and not is_traced(given) else count or 1
    return [slice(start, start + size) for start in range(0, count, size)]


def _of(items: Any, part: slice) -> Any:
    """Return the items of some leaves; a number is for all."""
    if isinstance(items, (list, tuple)) and items and isinstance(items[0], (list, tuple)):
        return [column[part] for column in items]
    return items[part] if isinstance(items, (list, tuple)) or getattr(items, "ndim", 0) > 0 else items


def strong(given: Any) -> Any:
    """Return Python numbers, alone or in a list, in float64, and the values of variables.

    Weakly typed numbers would compile once more, and `jax.jit` takes no variables of Keras.
    """
    if isinstance(given, (list, tuple)):
        return [strong(item) for item in given]
    if type(given) in (int, float):
        return np.float64(given)
    if isinstance(given, jax.Array) or not hasattr(given, "__jax_array__") or not jax.tree_util.all_leaves([given]):
        return given
    return given.__jax_array__()


def is_traced(tree: Any) -> bool:
    """Whether a tree has a tracer."""
    return any([isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree)])


# --- numbers of many leaves ------------------------------------------------------------------------------------------


@functools.partial(jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Scalars:
    """A vector with one float64 number per leaf, as scalars."""

    numbers: tuple[Any, ...]

    ndim = 1

    @property
    def shape(self) -> tuple[int]:
        """The shape of the vector."""
        return (len(self.numbers),)

    def __getitem__(self, place: int | slice | tuple[int, ...]) -> Any:
        """One number, or some."""
        if isinstance(place, tuple):
            return Scalars(tuple([self.numbers[i] for i in place]))
        return Scalars(self.numbers[place]) if isinstance(place, slice) else self.numbers[place]

    def __jax_array__(self) -> Any:
        """Return the vector, also for `jnp.asarray`, which users call out of the library's scope."""
        with private.Scope():
            return _stacked(self.numbers)

    def __array__(self, *args: Any, **named: Any) -> Any:
        """Return the vector for `np.asarray`."""
        return np.asarray(self.__jax_array__(), *args, **named)

    def __str__(self) -> str:
        """Show the vector."""
        return str(self.__jax_array__())


@jax.jit
def _stacked(numbers: tuple[Any, ...]) -> Any:
    return jnp.stack(numbers)


def scalars(vector: Any) -> Any:
    """Return the numbers of a vector as scalars; what is no vector stays."""
    return Scalars(tuple(_separated(vector))) if isinstance(vector, (jax.Array, np.ndarray)) and vector.ndim else vector


@jax.custom_jvp
def _unstacked(vector: Any) -> list[Any]:
    """Return the numbers of a vector. XLA compiles a reduction with many results much faster than so many slices."""
    if private.varying(vector):
        return _sliced(vector)
    return lax.platform_dependent(vector, cpu=_summed, default=_sliced)


@_unstacked.defjvp
def _unstacked_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[list[Any], list[Any]]:
    return _unstacked(*primals), _sliced(*tangents)


_separated = jax.jit(_unstacked)


def _sliced(vector: Any) -> list[Any]:
    return [vector[i] for i in range(len(vector))]


def _summed(vector: Any) -> list[Any]:
    """Reduce rows with one number each, and minus zeros, a few at a time."""
    found: list[Any] = []
    place, zero = lax.iota(np.int32, len(vector)), vector.dtype.type(-0.0)
    for start in range(0, len(vector), _ROWS):
        rows = [jnp.where(place == i, vector, zero) for i in range(start, min(start + _ROWS, len(vector)))]
        found += lax.reduce(rows, [zero] * len(rows), _added, (0,))
    return found


def _added(some: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    return list(map(lax.add, some, others))


@functools.partial(jax.jit, static_argnums=(0, 1))
def evaluated(formula: Callable[..., Any], static: tuple[tuple[str, Any], ...], operands: Sequence[Any]) -> Any:
    """Evaluate a formula of numbers and vectors in float64."""
    return formula(Namespace, *map(Namespace.float64, operands), **dict(static))


def by_number(formula: Callable[..., Any], operands: Sequence[Any], static: dict[str, Any]) -> Scalars:
    """Evaluate a formula that declares `by_number` for one leaf at a time; static tuples have an item for each."""
    count = max([len(x.numbers) for x in operands if isinstance(x, Scalars)])
    columns = [x.numbers if isinstance(x, Scalars) else (x,) * count for x in operands]
    kinds = [
        tuple([(name, x[i : i + 1] if isinstance(x, tuple) else x) for name, x in sorted(static.items())])
        for i in range(count)
    ]
    found: list[Any] = []
    for part in parts_of(count, columns):
        found += _by_number(formula, tuple(kinds[part]), [column[part] for column in columns])
    return Scalars(tuple(found))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _by_number(formula: Callable[..., Any], kinds: Sequence[Any], columns: Sequence[Sequence[Any]]) -> list[Any]:
    rows = zip(kinds, *columns, strict=True)
    return [jnp.reshape(evaluated(formula, static, row), ()) for static, *row in rows]
