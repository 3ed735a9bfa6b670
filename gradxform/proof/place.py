"""Where a framework computes, and what a step costs there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import optree

from gradxform.backend.protocol import Backend


class Absent(LookupError):
    """A framework does not have the device that was asked for; the text says why."""


class Cost(NamedTuple):
    """What one step asks of a device; None where the framework does not tell."""

    operations: int | None = None
    """Launches of an eager step; operations of a compiled module or of a graph."""
    peak: int | None = None
    """Bytes in use above those of the arguments, results included."""
    accessed: int | None = None
    """Bytes read and written, as the compiler counts them."""


def _nothing_known(function: Callable[..., Any], *args: Any) -> Cost:
    return Cost()


@dataclass(frozen=True)
class Place:
    """A device of one framework."""

    name: str
    """Its kind: "cpu", "cuda"."""
    words: str
    """What it is, in the framework's words: "NVIDIA H100 (cuda:0)"."""
    put: Callable[[Any], Any]
    """A NumPy array as an array of the framework that lies there."""
    on: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """What code runs in, so that it runs there."""
    lies: Callable[[Any], bool] = lambda leaf: True
    """Whether an array lies there."""
    cost: Callable[..., Cost] = _nothing_known
    """`cost(function, *args)`: what a call of a function takes, eager or compiled by the framework."""
    without: tuple[str, ...] = ()
    """The dtypes that the device does not have."""

    def lacks(self, tree: Any) -> str:
        """The dtypes of a tree of NumPy arrays that are not there, in words; empty if all are."""
        found = {leaf.dtype.name for leaf in optree.tree_leaves(tree)} & set(self.without)
        return " and ".join(sorted(found))

    def __str__(self) -> str:
        """The device, and the dtypes that it does not have."""
        return f"{self.words}, no {' and no '.join(self.without)}" if self.without else self.words


def anywhere(backend: Backend) -> Place:
    """Where a framework puts arrays by itself."""
    return Place("", "", backend.from_numpy)
