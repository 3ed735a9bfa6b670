"""Convert numbers and arrays of any dtype to the base format of a namespace."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform.numerics import dtype_name
from gradxform.numerics.double_double import Number, Pair
from gradxform.numerics.formats import FLOAT64, base


def wide(xp: Any, operand: Any) -> Any:
    """Convert a number or an array to the base format; to a pair if float32 cannot represent it; keep pairs."""
    form = base(xp)
    if isinstance(operand, Pair) or form is FLOAT64:
        return operand if isinstance(operand, Pair) else xp.float64(operand)
    if isinstance(operand, (int, float)):
        near, exponent = form.near_one(operand)
        high, low = map(xp.float64, form.split(near))
        return Pair(high, low, xp.float64(exponent) if exponent else None)
    if isinstance(operand, (np.ndarray, np.generic)):
        given: Any = operand
        high = given.astype(np.float32)
        return Pair(xp.float64(high), xp.float64((given - high).astype(np.float32)))
    if "int" in dtype_name(operand):
        whole = Number(xp, xp.float64(xp.shift_right(operand, 16)) * 2.0**16) + xp.float64(operand & 0xFFFF)
        return Pair(whole.high, whole.rest)
    return xp.float64(operand)


def constant(xp: Any, operand: Any) -> Any:
    """Convert an operand of elements; Python numbers stay, since float32 formulas need all of their digits."""
    if base(xp) is not FLOAT64 and isinstance(operand, (int, float)):
        return float(operand)
    return wide(xp, operand)
