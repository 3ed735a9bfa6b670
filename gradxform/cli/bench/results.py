"""A benchmark run: what to measure, what was measured, and its JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gradxform.cli.bench.timing import Effort, Measured, Spread
from gradxform.cli.bench.workloads import CHAINS, MUON, TREES, Chain, matrices
from gradxform.cli.frameworks import title
from gradxform.cli.frameworks.interface import Mode, transformation


class Plan(NamedTuple):
    """What to measure, and for how long."""

    trees: Sequence[str]
    chains: Sequence[Chain]
    effort: Effort
    longest_compiled: int
    """Longest chain for compiled modes on trees with more than 500 leaves."""

    def chains_of(self, tree: str) -> Sequence[Chain]:
        """The chains to measure on a tree: Muon takes matrices only."""
        return (MUON,) if tree == matrices.__name__ else self.chains

    def all_chains(self) -> list[Chain]:
        """The chains of all trees."""
        return list(dict.fromkeys(chain for tree in self.trees for chain in self.chains_of(tree)))

    def has(self, mode: Mode, leaves: int, chain: Chain) -> bool:
        """Whether to measure a mode on a tree. XLA takes minutes to compile norms of 2000 leaves."""
        return not mode.compiled or leaves <= 500 or len(CHAINS[chain]) <= self.longest_compiled


QUICK = Plan(
    ("mlp", "many", "resnet50", "matrices"), (1, 3), Effort(seconds=0.4, least=5, most=300), longest_compiled=0
)
FULL = Plan(tuple(TREES), (1, 3, 8), Effort(seconds=2.0, least=15, most=1000), longest_compiled=3)


@dataclass(frozen=True)
class Line(Measured):
    """The measurement of one pair, and what it is of."""

    framework: str
    mode: str
    beside: str
    """The native functions, in words."""
    tree: str
    chain: Chain

    @property
    def label(self) -> str:
        """Framework and mode for display."""
        return f"{title(self.framework)} {self.mode}"


@dataclass(frozen=True)
class Measurements:
    """All measurements of one tree."""

    tree: str
    leaves: int
    elements: int
    floor: Spread
    """Seconds of one read plus one read and write of the same numbers in one array."""
    lines: list[Line]

    @property
    def title(self) -> str:
        """Name, size and floor of the tree."""
        megabytes = 4 * self.elements / 1e6
        return f"{self.tree}: {self.leaves} leaves, {megabytes:.3g} MB, floor {number(self.floor.median * 1e3)} ms"


def number(value: float) -> str:
    """Format with three digits and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


def as_json(plan: Plan, results: Sequence[Measurements]) -> dict[str, Any]:
    """The measurements in `bench.json`."""
    return {
        "units": {"seconds": "s", "first": "s", "floor": "s", "memory": "bytes", "ratio": "gradxform / native"},
        "chains": {str(chain): repr(transformation(CHAINS[chain])) for chain in plan.all_chains()},
        "trees": {
            result.tree: {"leaves": result.leaves, "elements": result.elements, "floor": asdict(result.floor)}
            for result in results
        },
        "lines": [asdict(line) for result in results for line in result.lines],
    }
