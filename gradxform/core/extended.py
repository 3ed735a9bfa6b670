"""Convert factors and norms beyond float64's precision and range to numbers that a backend can use."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform.backend.host import namespace as host
from gradxform.backend.host.longdouble import pair
from gradxform.backend.protocol import Backend
from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import evaluate, in_base, in_base_powers, in_int32


def rounded(backend: Backend, value: Any, whole: bool = False) -> Any:
    """Round a pair or a NumPy longdouble to float64, or to the widest format of the backend.

    Whole numbers in a pair become int32.
    """
    if isinstance(value, Pair):
        value = backend.compute(in_int32 if whole else in_base, value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    with np.errstate(all="ignore"):
        return value.astype(np.float64)


def factors(backend: Backend, value: Any) -> list[Any]:
    """Split a factor that may exceed float64's range into float64 numbers to multiply by in turn."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = pair(value)
        if not isinstance(value, Pair) or value.exponent is None:
            return [rounded(backend, getattr(value, "high", value))]
        with np.errstate(all="ignore"):
            return list(evaluate(in_base_powers, host.Namespace, [value], {}))
    return list(backend.compute(in_base_powers, value)) if isinstance(value, Pair) else [value]
