"""Reject unsuitable gradients of a flat view; errors name the path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradxform.core.source import INEXACT, Source
from gradxform.numerics import Array

FLOATING = "gradients must be floating-point or complex; cast it, or exclude it with masked(...) or None"
"""The advice for integers and bools."""


def dtypes(source: Source, places: Sequence[int], wanted: frozenset[str], why: str, transform: str = "") -> None:
    """Reject leaves whose dtype is not in `wanted`."""
    if source.kinds <= wanted:
        return
    for i in places:
        if source.dtypes[i] not in wanted:
            name = f"{transform}: " if transform else ""
            why = why if source.dtypes[i] in INEXACT else FLOATING
            raise TypeError(f"{name}the gradient at {source.path(i)!r} has dtype {source.dtypes[i]}; {why}")


def axes(source: Source, places: Sequence[int], leaves: Sequence[Array], axes: tuple[int, ...]) -> None:
    """Reject axes that a leaf does not have."""
    for i in places:
        shape = source.backend.shape(leaves[i])
        if shape is None:
            continue
        there = {axis % len(shape) for axis in axes if -len(shape) <= axis < len(shape)}
        if len(there) < len(axes):
            raise ValueError(
                f"axes {axes} are not {len(axes)} axes of the gradient at {source.path(i)!r}, whose shape is "
                f"{shape}; choose the gradients with masked(...)"
            )


def broadcast(source: Source, places: Sequence[int], leaves: Sequence[Array], name: str, bound: Any) -> None:
    """Reject a bound that would broadcast a leaf to a larger shape."""
    if bound is None or isinstance(bound, (int, float)):
        return
    given = getattr(bound, "shape", ())
    bound_shape = () if getattr(given, "rank", 0) is None else tuple(given)
    if not bound_shape:
        return
    for i in places:
        shape = source.backend.shape(leaves[i])
        if shape is not None and not _broadcasts(bound_shape, shape):
            raise ValueError(
                f"clip_value: {name} of shape {bound_shape} would broadcast the gradient at {source.path(i)!r} "
                f"of shape {shape} to a larger one; give a number, or a bound of the gradient's shape"
            )


def _broadcasts(given: tuple[int | None, ...], shape: tuple[int | None, ...]) -> bool:
    """Whether a shape broadcasts to another; unknown sizes count as equal."""
    matched = zip(reversed(given), reversed(shape), strict=False)
    return len(given) <= len(shape) and all(b in (1, s) or s is None or b is None for b, s in matched)
