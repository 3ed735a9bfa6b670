"""Dtypes that other libraries compute in: per gradient, per tree, and across devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.core.flat import Flat
from gradxform.core.source import Mask
from gradxform.numerics import Array, formulas

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_REAL = {"complex64": "float32", "complex128": "float64"}


class Told(NamedTuple):
    """For each of `_DTYPES`, whether a device has such gradients; and the dtypes whose norm is computed in float32."""

    flags: list[Array]
    widens: tuple[str, ...]


Kinds = tuple[str, ...] | Told
"""Dtype to compute in, one dtype per leaf, or the dtypes gathered from all devices."""


def computed(view: Flat, formula: Callable[..., Array], *operands: Any, dtypes: Kinds, **static: Any) -> Array:
    """Compute a formula that rounds to dtypes."""
    if isinstance(dtypes, Told):
        static = {"rule": formula, "widens": dtypes.widens, "static": static}
        return view.backend.compute(_by_told, *operands, *dtypes.flags, **static)
    return view.backend.compute(formula, *operands, dtypes=dtypes, **static)


def rounded(view: Flat, numbers: Array, dtypes: Kinds) -> Array:
    """Round numbers to dtypes; the result is float64."""
    return computed(view, formulas.rounded, numbers, dtypes=dtypes)


def told(view: Flat, widens: tuple[str, ...]) -> Told:
    """Gather which dtypes the gradients of all devices have."""

    def has(dtype: str) -> Callable[[Mask], float]:
        real = [_REAL.get(own, own) for own in view.source.dtypes]
        return lambda mask: float(dtype in itertools.compress(real, mask))

    found = view.shared([(has(dtype), math.inf) for dtype in _DTYPES], view.groups).values
    return Told(found, widens)


def _by_told(
    xp: Any, *operands: Any, rule: Callable[..., Array], widens: tuple[str, ...], static: dict[str, Any]
) -> Array:
    """Compute a formula in the common dtype of all devices' gradients."""
    *given, half, brain, single, double = operands
    found = rule(xp, *given, dtypes=("float32",), **static)
    for dtype, alone in (("float16", half - brain - single), ("bfloat16", brain - half - single)):
        if dtype not in widens:
            found = xp.where(alone > 0.5, rule(xp, *given, dtypes=(dtype,), **static), found)
    return xp.where(double > 0.5, rule(xp, *given, dtypes=("float64",), **static), found)


def kinds(view: Flat, widens: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Dtype of each leaf, or the dtype in which a library computes its norm."""
    return tuple(kind([view.backend.dtype(leaf)], widens) for leaf in view.leaves)


def kind(dtypes: Sequence[str], widens: tuple[str, ...] = ()) -> str:
    """Dtype of the joint norm of several gradients."""
    real = {_REAL.get(dtype, dtype) for dtype in dtypes}
    if "float64" in real:
        return "float64"
    alone = real.pop() if len(real) == 1 else "float32"
    return "float32" if alone in widens else alone
