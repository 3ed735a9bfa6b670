"""Keep TensorFlow's AutoGraph from rewriting functions that `tf.function` traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def unconverted(function: F) -> F:
    """Mark a function as unconverted: it has no condition on a tensor, and conversion takes time."""
    vars(function)["autograph_info__"] = {}
    return function
