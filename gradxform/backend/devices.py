"""What a framework must bring for numbers that several devices have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array


class Devices:
    """A backend of one device: what stands here refuses. See `gradxform.across`."""

    title: Any

    def check_axis(self, axis: Any, leaves: Sequence[Array], paths: Callable[[], Sequence[str]]) -> None:
        """Refuse an axis that is not there, and leaves that do not fit it.

        Raises:
            TypeError: what is no axis of this framework.
            ValueError: an axis that is not there, or that this process is not on; says what to do.
        """
        raise TypeError(f"across: {self.title} has one device, and no axis {axis!r}; leave across(...) out here")

    def all_gather(self, numbers: Array, axis: Any, like: Array | None) -> Array:
        """The float64 numbers of all devices along an axis, which is the first one of the result.

        By one collective, the same bits on every device, NaN and infinities among them. They are of a tree with such a
        leaf, which tells where it lies, or without one.
        """
        raise NotImplementedError(f"{self.title} gathers nothing along {axis!r}")

    def axis_index(self, axis: Any) -> Any:
        """The place of this device along an axis: a number, or an array of it."""
        raise NotImplementedError(f"{self.title} has no places along {axis!r}")
