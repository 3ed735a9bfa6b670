"""The interface for combining numbers of several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array


class Devices:
    """A backend of a single device: these methods raise an error. See `gradxform.across`."""

    title: Any

    def check_axis(self, axis: Any, leaves: Sequence[Array], paths: Callable[[], Sequence[str]]) -> None:
        """Reject an unknown axis, and leaves that do not fit it.

        Raises:
            TypeError: not an axis of this framework.
            ValueError: an unknown axis, or one without this process; says what to do.
        """
        raise TypeError(f"across: {self.title} has one device, and no axis {axis!r}; leave across(...) out here")

    def all_gather(self, numbers: Array, axis: Any, like: Array | None) -> Array:
        """All-gather float64 numbers along a device axis; gathered devices lead in the result.

        One collective; every device gets the same bits, including NaN and infinity. `like` is a leaf of the tree and
        determines the device; None if there is no leaf.
        """
        raise NotImplementedError(f"{self.title} gathers nothing along {axis!r}")

    def axis_index(self, axis: Any) -> Any:
        """Return the index of this device along an axis, as a number or an array."""
        raise NotImplementedError(f"{self.title} has no places along {axis!r}")
