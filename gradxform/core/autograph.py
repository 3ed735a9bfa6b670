"""A mark for TensorFlow's AutoGraph, which rewrites the Python that `tf.function` traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def unconverted(function: F) -> F:
    """A function that AutoGraph leaves alone: there is no tensor's condition in it, and rewriting only takes time."""
    vars(function)["autograph_info__"] = {}
    return function
