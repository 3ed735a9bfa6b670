"""The identity with a custom backward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.backend.protocol import Backward


def same(first: Sequence[Any], second: Sequence[Any], backward: Backward) -> list[Any]:
    """Return the first arrays; a function computes what flows back to both lists."""
    return _same(backward, list(first), list(second))


# The second arrays are arguments, and not closed over, so that they may be tracers of any transformation around.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _same(backward: Backward, first: list[Any], second: list[Any]) -> list[Any]:
    return _together(first, second)


def _forward(backward: Backward, first: list[Any], second: list[Any]) -> tuple[list[Any], list[Any]]:
    return _together(first, second), second


def _together(leaves: list[Any], numbers: list[Any]) -> list[Any]:
    """Make each leaf depend on all arrays: under `vmap`, if one has a batch, all get one.

    Otherwise the gradient of a leaf without a batch would be summed over the batch before its transform.
    """
    if len(leaves) + len(numbers) == 1:
        return leaves
    first = [jnp.any(jnp.ravel(array)[:1] == 0) for array in (*leaves, *numbers)]
    either = functools.reduce(jnp.logical_or, first)
    return [lax.select(jnp.broadcast_to(either, leaf.shape), leaf, leaf) for leaf in leaves]


def _backward(backward: Backward, second: list[Any], upstream: list[Any]) -> Any:
    return backward(upstream, second)


_same.defvjp(_forward, _backward)


def straight_through(values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """Return the values, with the leaves' derivatives."""
    return list(map(_instead, values, leaves))


@jax.custom_jvp
def _instead(value: Any, leaf: Any) -> Any:
    return value


@_instead.defjvp
def _instead_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[0], tangents[1]
