"""Factors and norms of more than float64's precision and range, and what a backend makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform.backend.host import namespace as host
from gradxform.backend.host.longdouble import pair
from gradxform.backend.protocol import Backend
from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import evaluate, in_base, in_base_powers, in_int32


def rounded(backend: Backend, value: Any, whole: bool = False) -> Any:
    """A vector or a number in float64, or the widest format there is: of a pair, and of NumPy's longdouble.

    Whole numbers are in int32 if they were in a pair.
    """
    if isinstance(value, Pair):
        value = backend.compute(in_int32 if whole else in_base, value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    with np.errstate(all="ignore"):
        return value.astype(np.float64)


def factors(backend: Backend, value: Any) -> list[Any]:
    """What to multiply by, one after the other: float64 numbers, for a factor that may be out of their range."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = pair(value)
        if not isinstance(value, Pair) or value.exponent is None:
            return [rounded(backend, getattr(value, "high", value))]
        with np.errstate(all="ignore"):
            return list(evaluate(in_base_powers, host.Namespace, [value], {}))
    return list(backend.compute(in_base_powers, value)) if isinstance(value, Pair) else [value]
