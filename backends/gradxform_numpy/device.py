"""Devices of NumPy: the CPU."""

from __future__ import annotations

import numpy as np

from gradxform.proof.place import Absent, Place


def find(name: str | None = None, index: int = 0) -> Place:
    """Return the CPU.

    Raises:
        Absent: Another device is requested.
    """
    if name not in (None, "cpu") or index:
        raise Absent("which runs on the CPU only")
    return Place("cpu", "cpu", np.asarray)
