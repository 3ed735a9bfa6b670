"""Convert between NumPy's longdouble and pairs of float64.

On x86-64 except Windows, longdouble has more precision and range than float64, and is ten times as fast as a pair.
Elsewhere it is float64 or emulated in software, and NumPy arrays use pairs too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import BITS

WIDER = np.finfo(np.longdouble).nmant == 63
"""Whether longdouble is the 80-bit format of x86."""


def pair(value: Any) -> Any:
    """Convert NumPy's longdouble numbers to pairs; return others unchanged."""
    if getattr(value, "dtype", None) != np.longdouble or value.dtype == np.float64:
        return value
    exponent = np.where(np.isfinite(value), np.rint(np.frexp(value)[1] / BITS), 0.0)
    if np.any(exponent):
        value = np.ldexp(value, (-BITS * exponent).astype(np.int32))
    high = value.astype(np.float64)
    return Pair(high, (value - high).astype(np.float64), exponent if np.any(exponent) else None)


def unpaired(value: Pair) -> Any:
    """Convert a pair of NumPy arrays to longdouble."""
    found = value.high.astype(np.longdouble) + value.low
    if value.exponent is None:
        return found
    return np.ldexp(found, (BITS * np.maximum(value.exponent, -20.0)).astype(np.int32))
