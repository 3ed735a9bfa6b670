"""Collectives along named axes: in `shard_map`, `pmap` and `vmap`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_sum: Callable[[Any, Any], Any] = lax.psum
"""JAX declares no types for it."""


def check(axis: Any, leaves: Sequence[Any], paths: Callable[[], Sequence[str]]) -> None:
    """Refuse axes that are not mapped here.

    Raises:
        TypeError: The axis is not a name.
        ValueError: The axis is not mapped; the message lists mapped axes, and says what to do.
    """
    names = axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"across: in JAX, axis is the name of a mapped axis, or a tuple of names; got {axis!r}")
    for name in names:
        try:
            lax.axis_size(name)
        except NameError:
            raise ValueError(_message(name)) from None


def _message(name: str) -> str:
    mesh = jax.sharding.get_abstract_mesh()
    if name in mesh.axis_names:
        return (
            f"across: {name!r} is an axis of the mesh in use, but no code is mapped over it here. Under jit, norms of "
            "sharded arrays are those of the whole already: leave across out; or call it in jax.shard_map, over an "
            "axis that is manual there"
        )
    there = f"; the mesh in use has {', '.join(map(repr, mesh.axis_names))}" if mesh.axis_names else ""
    return (
        f"across: no axis {name!r} is mapped here{there}. Call the transformation in "
        f"jax.shard_map over a mesh that has {name!r}, or in jax.vmap(..., axis_name={name!r}); its init may be called "
        "anywhere"
    )


def all_gather(numbers: Any, axis: Any, like: Any) -> Any:
    """All-gather numbers, as a sum of rows that are zero on all other devices: exact in any order.

    shard_map knows that a sum is equal on all devices, but not that `lax.all_gather` is.
    """
    names = axis if isinstance(axis, tuple) else (axis,)
    with jax.enable_x64(True):
        count = math.prod(lax.axis_size(name) for name in names)
        here = jnp.arange(count) == lax.axis_index(axis)
        return _sum(jnp.where(here.reshape(count, *[1] * numbers.ndim), numbers, 0.0), axis)


axis_index: Callable[[Any], Any] = lax.axis_index
