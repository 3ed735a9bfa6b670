"""The identity with a backward pass of one's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

Backward = Callable[[list[Any], list[Any]], list[Any]]


def on_backward(leaves: Sequence[Any], numbers: Sequence[Any], function: Backward) -> list[Any]:
    """The arrays as they are; what flows back to them is a function of what flows back, and of numbers."""
    return _same(function, list(leaves), list(numbers))


# The numbers are arguments, and not closed over, so that they may be tracers of any transformation around.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _same(function: Backward, leaves: list[Any], numbers: list[Any]) -> list[Any]:
    return leaves


def _forward(function: Backward, leaves: list[Any], numbers: list[Any]) -> tuple[list[Any], list[Any]]:
    return leaves, numbers


def _backward(function: Backward, numbers: list[Any], upstream: list[Any]) -> tuple[list[Any], None]:
    return function(upstream, numbers), None


_same.defvjp(_forward, _backward)


def straight_through(values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """The values, whose derivatives are those of the leaves."""
    return list(map(_instead, values, leaves))


@jax.custom_jvp
def _instead(value: Any, leaf: Any) -> Any:
    return value


@_instead.defjvp
def _instead_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[0], tangents[1]
