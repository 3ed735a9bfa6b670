"""Multiply leaves by known factors: leaves with the same factor together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform_tensorflow import _packing


def multiply(
    leaves: Sequence[Any], factors: Any, times: Callable[[float], Callable[[Any], Any]], packed: bool
) -> list[Any]:
    """Each leaf times its factor, by `times` of the factor; unchanged if the factor is one.

    If packed, small leaves are multiplied together.
    """
    out = list(leaves)
    alike: dict[tuple[float, float], list[int]] = {}
    for i, factor in enumerate(np.broadcast_to(np.asarray(factors, np.float64), (len(out),)).tolist()):
        if factor != 1:
            alike.setdefault((factor, math.copysign(1.0, factor)), []).append(i)  # tells 0.0 from -0.0
    for (factor, _), places in alike.items():
        scaled, rest = times(factor), set(places)
        for group in _packing.small(leaves, places).values() if packed else ():
            some = [leaves[i] for i in group]
            for i, leaf in zip(group, _packing.unpack(scaled(_packing.pack(some)), some), strict=True):
                out[i] = leaf
            rest.difference_update(group)
        for i in rest:
            out[i] = scaled(leaves[i])
    return out
