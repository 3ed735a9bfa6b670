"""Devices of frameworks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optree


class Absent(LookupError):
    """A framework does not have the requested device; the text says why."""


@dataclass(frozen=True)
class Place:
    """A device of one framework."""

    name: str
    """Its kind: "cpu", "cuda"."""
    words: str
    """The framework's description: "NVIDIA H100 (cuda:0)"."""
    put: Callable[[Any], Any]
    """Convert a NumPy array to an array on this device."""
    on: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """A context in which code runs on this device."""
    lies: Callable[[Any], bool] = lambda leaf: True
    """Whether an array is on this device."""
    without: tuple[str, ...] = ()
    """The dtypes that the device does not support."""
    wait: Callable[[Any], Any] = lambda result: None
    """Wait for a result."""

    def lacks(self, tree: Any) -> str:
        """Name the unsupported dtypes of a tree of NumPy arrays; empty if there are none."""
        found = {leaf.dtype.name for leaf in optree.tree_leaves(tree)} & set(self.without)
        return " and ".join(sorted(found))

    def __str__(self) -> str:
        """The device and its unsupported dtypes."""
        return f"{self.words}, no {' and no '.join(self.without)}" if self.without else self.words
