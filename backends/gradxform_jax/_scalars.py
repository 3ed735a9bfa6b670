"""Numbers of many leaves as scalars.

XLA compiles each access to a vector element separately, 25 ms each, but equal computations on scalars once. And
shard_map knows of each scalar whether it is replicated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradxform_jax import _private
from gradxform_jax._compiled import compiled, is_traced
from gradxform_jax._namespace import Namespace

MANY = 32
"""From so many leaves on."""


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

    def __getitem__(self, place: int | slice) -> Any:
        """One number, or some."""
        found = self.numbers[place]
        return Scalars(found) if isinstance(place, slice) else found

    @property
    def vector(self) -> Any:
        """The numbers as a vector."""
        return _stacked(self.numbers)

    def __jax_array__(self) -> Any:
        """Return the vector for `jnp.asarray`, which users call out of the library's scope."""
        with jax.enable_x64(True):
            return self.vector


@jax.jit
def _stacked(numbers: tuple[Any, ...]) -> Any:
    return jnp.stack(numbers)


def differ(leaves: Sequence[Any]) -> bool:
    """Whether shard_map knows some leaves to be replicated and others not: a vector would lose that."""
    return is_traced(leaves) and len(set(map(_private.varying, leaves))) > 1


@functools.partial(jax.jit, static_argnums=(0, 1))
def evaluated(formula: Callable[..., Any], static: tuple[tuple[str, Any], ...], operands: Sequence[Any]) -> Any:
    """Evaluate a formula of numbers and vectors in float64."""
    return formula(Namespace, *map(Namespace.float64, operands), **dict(static))


def by_number(formula: Callable[..., Any], operands: Sequence[Any], static: dict[str, Any]) -> Any:
    """Evaluate a formula that declares `by_number` for one leaf at a time."""
    count = next(len(x.numbers) for x in operands if isinstance(x, Scalars))
    index = static.get("index", range(count))
    places = [index] if isinstance(index, int) else index
    columns = [[_of_leaf(x, i) for i in places] for x in operands]
    kinds = [tuple((name, _known(name, static[name], i)) for name in sorted(static)) for i in places]
    found = _by_number(formula, columns, kinds)
    return found[0] if isinstance(index, int) else Scalars(tuple(found))


def _of_leaf(x: Any, i: int) -> Any:
    if isinstance(x, Scalars):
        return x.numbers[i]
    return x[i] if getattr(x, "ndim", 0) else x


def _known(name: str, value: Any, i: int) -> Any:
    """Return the part of a static argument that belongs to a leaf: tuples have one item per leaf."""
    if name == "index":
        return 0
    return (value[i],) if isinstance(value, tuple) else value


@functools.partial(compiled, each=("kinds",), columns="columns", static=("formula", "kinds"))
def _by_number(formula: Callable[..., Any], columns: Sequence[Sequence[Any]], kinds: Sequence[Any]) -> list[Any]:
    return [_one(formula, static, row) for static, *row in zip(kinds, *columns, strict=True)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _one(formula: Callable[..., Any], static: tuple[tuple[str, Any], ...], row: Sequence[Any]) -> Any:
    return jnp.reshape(evaluated(formula, static, row), ())
