"""Check that bounds given as arrays are in order, where their values can be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.core import arguments
from gradxform.core.flat import Flat
from gradxform.numerics import Array


class Ordered:
    """Two bounds, at least one a 0-d array, compared as often as their values may change."""

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = low, high
        given = [bound for bound in (low, high) if bound is not None and not arguments.static(bound)]
        self._asked = low is not None and high is not None and bool(given) and all(map(_is_number, given))
        # Read constant values only once.
        self._once = all(lookup.owner(bound) is not None and not _may_change(bound) for bound in given)

    def check(self, view: Flat) -> None:
        """Refuse a lower bound above the upper one.

        Raises:
            ValueError: the lower bound is larger; the message gives both values.
        """
        if not self._asked:
            return
        found = view.backend.compute(_reversed, self.low, self.high)
        try:
            wrong = bool(found) if self._once or isinstance(found, (float, np.generic, np.ndarray)) else False
        except Exception:  # traced: no values
            return
        if wrong:
            raise ValueError(
                f"clip_value: low must not be above high, got low={self.low!r}, high={self.high!r}; swap them"
            )
        if self._once:
            self._asked = False


def _is_number(bound: Any) -> bool:
    shape = getattr(bound, "shape", ())
    return getattr(shape, "rank", 0) is not None and len(shape) == 0


def _may_change(bound: Any) -> bool:
    """Whether an array, or what holds it, is writable."""
    return isinstance(bound, np.ndarray) or hasattr(bound, "assign") or hasattr(bound, "copy_")


def _reversed(xp: Any, low: Array, high: Array) -> Array:
    return xp.where(low > high, 1.0, 0.0)
