"""NumPy's longdouble numbers as pairs of float64 ones, and back.

On x86-64, but for Windows, a longdouble has more precision and range than float64, and is ten times as fast as a pair.
Elsewhere it is float64 itself, or computed in software: there pairs are what NumPy's arrays get, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import BITS

WIDER = np.finfo(np.longdouble).nmant == 63
"""Whether longdouble is the 80-bit format of x86."""


def pair(value: Any) -> Any:
    """A number or an array of NumPy's longdouble as a pair; others as they are."""
    if getattr(value, "dtype", None) != np.longdouble or value.dtype == np.float64:
        return value
    exponent = np.where(np.isfinite(value), np.rint(np.frexp(value)[1] / BITS), 0.0)
    if np.any(exponent):
        value = np.ldexp(value, (-BITS * exponent).astype(np.int32))
    high = value.astype(np.float64)
    return Pair(high, (value - high).astype(np.float64), exponent if np.any(exponent) else None)


def unpaired(value: Pair) -> Any:
    """A pair of NumPy arrays as longdouble numbers."""
    found = value.high.astype(np.longdouble) + value.low
    if value.exponent is None:
        return found
    return np.ldexp(found, (BITS * np.maximum(value.exponent, -20.0)).astype(np.int32))
