"""Check hyperparameters when a transform is built."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import numpy as np

from gradxform.backend.errors import instead, misplaced, short
from gradxform.backend.lookup import holds_arrays

_INF = float("inf")
Scalar = Annotated[Any, "may be a schedule"]
"""A Python number, or a 0-d array, tensor or variable of the framework that the transform runs in.

A factory argument with this annotation may also be a function of the step.
"""


def static(value: Any) -> bool:
    """Whether a number is known on the host, not in an array of a framework."""
    return isinstance(value, (bool, int, float, np.number))


def number(
    transform: str, name: str, value: Any, least: float = -_INF, most: float = _INF, *, hint: bool = True
) -> Scalar:
    """Check a hyperparameter that may be any number in a range, but not NaN; arrays are not read."""
    plain = isinstance(value, (int, float)) or misplaced(value) is not None  # a model of Keras has a dtype
    dtype = "" if plain else str(getattr(value, "dtype", ""))
    must = f"{transform}: {name} must be a real number or a 0-d array"
    if isinstance(value, (bool, type)) or not (static(value) or dtype) or "bool" in dtype or "complex" in dtype:
        what = f"dtype {dtype}" if dtype else f"type {type(value).__name__}"
        raise TypeError(f"{must}, got {short(value)} of {what}{_hint(transform, value) * hint}")
    if not static(value):
        shape = getattr(value, "shape", ())
        if shape is not None and getattr(shape, "rank", 0) is not None and len(shape):
            raise ValueError(f"{must}, got shape {tuple(shape)}{_hint(transform, value) * hint}")
        return value
    if not least <= value <= most:  # NaN is in no range
        allowed = f"be at least {least:g}" if most == _INF else f"be between {least:g} and {most:g}"
        raise ValueError(f"{transform}: {name} must {'not be NaN' if value != value else allowed}, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{transform}: {name} is an integer too large for float64") from None


def limit(transform: str, name: str, value: Any) -> Scalar:
    """Check a limit: not negative and not NaN; zero and infinity are allowed."""
    return number(transform, name, value, 0.0)


def unit_interval(transform: str, name: str, value: Any) -> Scalar:
    """Check a hyperparameter between 0 and 1."""
    return number(transform, name, value, 0.0, 1.0)


def _hint(transform: str, value: Any) -> str:
    """Suggest what to write instead, if known."""
    if holds_arrays(value):
        return f"; gradients come later: write tx = gx.{transform}(...), then tx(gradients)"
    return instead(value)


def integer(transform: str, name: str, value: Any, least: int | None = None) -> int:
    """Check an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{transform}: {name} must be an int, got {value!r} of type {type(value).__name__}")
    if least is not None and value < least:
        raise ValueError(f"{transform}: {name} must be at least {least}, got {value!r}")
    return int(value)


percent = functools.partial(number, least=0.0, most=100.0)
count, places = functools.partial(integer, least=0), functools.partial(integer, least=1)
"""Checks an int that is not negative; an int that is positive."""


def seed(transform: str, value: Any) -> tuple[int, int]:
    """Split a seed into two 32-bit words."""
    checked = integer(transform, "seed", value)
    if not -(2**63) <= checked < 2**64:
        raise ValueError(f"{transform}: seed must have at most 64 bits, got {value!r}")
    return (checked >> 32) & 0xFFFFFFFF, checked & 0xFFFFFFFF


def order(transform: str, value: Any) -> float:
    """Check the order of a norm; None means 2."""
    if value is None:
        return 2.0
    if not static(value) or isinstance(value, bool):
        what = f"{value!r} of type {type(value).__name__}"
        raise TypeError(f"{transform}: ord must be a Python number, such as 1 or float('inf'), got {what}")
    return number(transform, "ord", value, 1.0)


def axes(transform: str, value: Any) -> tuple[int, ...] | None:
    """Return the axes of a norm as a tuple; None means all."""
    if value is None:
        return None
    found = value if isinstance(value, (list, tuple)) else (value,)
    if not all(isinstance(axis, (int, np.integer)) and not isinstance(axis, bool) for axis in found):
        raise TypeError(f"{transform}: axes must be an int or a tuple of ints, got {value!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"{transform}: axes must be distinct, got {value!r}")
    return tuple(int(axis) for axis in found)


def bound(transform: str, name: str, value: Any) -> Any:
    """Check a bound of elements: a number except NaN, or an array."""
    return value if hasattr(value, "shape") and not static(value) else number(transform, name, value)
