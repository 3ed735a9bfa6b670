"""What a run of the benchmark plans and finds: the values that its parts hand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradxform.cli.bench.task import CHAINS, TREES, Mode
from gradxform.cli.bench.timing import Effort, Measured, Spread
from gradxform.cli.demo.task import NAMES


def number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


class Plan(NamedTuple):
    """What is measured, and for how long."""

    trees: Sequence[str]
    chains: Sequence[int]
    effort: Effort
    longest_compiled: int
    """Of trees with more than 500 leaves, compiled modes are measured with chains up to this length."""

    def has(self, mode: Mode, leaves: int, chain: int) -> bool:
        """Whether a mode is measured on a tree; for norms of each of 2000 leaves, XLA takes minutes to compile."""
        return not mode.compiled or leaves <= 500 or chain <= self.longest_compiled


QUICK = Plan(("mlp", "many", "resnet50"), (1, 3), Effort(seconds=0.4, least=5, most=300), longest_compiled=0)
FULL = Plan(tuple(TREES), tuple(CHAINS), Effort(seconds=2.0, least=15, most=1000), longest_compiled=3)


@dataclass(frozen=True)
class Line:
    """One pair, measured."""

    framework: str
    mode: str
    beside: str
    """What gradxform was measured against, in words."""
    tree: str
    chain: int
    """The number of transforms."""
    measured: Measured

    @property
    def label(self) -> str:
        """Framework and mode as people write them."""
        return f"{NAMES[self.framework]} {self.mode}"


@dataclass(frozen=True)
class Measurements:
    """All that a run measured on one tree."""

    tree: str
    leaves: int
    elements: int
    floor: Spread
    """The seconds of one read, and one read and write, of as many numbers in one array."""
    lines: list[Line]

    @property
    def title(self) -> str:
        """The tree, its size and its floor in one line."""
        megabytes = 4 * self.elements / 1e6
        return f"{self.tree}: {self.leaves} leaves, {megabytes:.3g} MB, floor {number(self.floor.median * 1e3)} ms"
