"""What a comparison of two recordings consists of."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from gradxform.comparing.align.alignment import Alignment
from gradxform.comparing.findings import Finding
from gradxform.comparing.mapping import Pair
from gradxform.comparing.measuring import Distance
from gradxform.comparing.rounding import Judged, Row
from gradxform.recording.reading import Recording


@dataclass(eq=False)
class Comparison:
    """What `compare` returns.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import gradxform as gx
        >>> a, b = tempfile.mkdtemp(), tempfile.mkdtemp()
        >>> gx.record(a)(0, gradients={"w": np.float32([1.0, 2.0]), "b": np.float32([3.0])})
        >>> gx.record(b)(0, gradients={"w": np.float32([8.0, 16.0]), "b": np.float32([24.0])})
        >>> found = gx.compare(a, b)
        >>> found.within, found.findings[0].kind.value, round(found.findings[0].numbers["factor"], 6)
        (False, 'factor', 8.0)

    Source:
        Higham, Accuracy and stability of numerical algorithms, 2002.
    """

    a: Recording
    b: Recording
    steps: list[int]
    """The steps that both have."""
    alignment: Alignment
    rows: Mapping[str, Mapping[int, Row]]
    """The distance of each pair, by tree and step."""
    judged: Mapping[str, Judged]
    """What rounding explains, by tree."""
    findings: list[Finding]
    """The diagnosis, first things first."""
    tolerance: float | None = None
    """The largest relative distance that was allowed; None for what rounding explains."""

    @property
    def within(self) -> bool:
        """Whether rounding, or the tolerance, explains all differences."""
        return not any(finding.is_fault for finding in self.findings)

    @property
    def pairs(self) -> list[Pair]:
        """The leaves that belong together, in the order of the network."""
        return self.alignment.pairs

    @functools.cached_property
    def tree(self) -> str:
        """The tree in which the runs part first; the first of gradients, updates and parameters if they do not."""
        parted = {tree: judged.first for tree, judged in self.judged.items()}
        first = min((step for step in parted.values() if step is not None), default=None)
        return next(tree for tree, step in parted.items() if step == first)

    def is_noise(self, i: int, tree: str, step: int) -> bool:
        """Whether a leaf is missing at a step, or its values are rounding."""
        return math.isnan(self.judged[tree].scaled[step][i])

    def worst(self, tree: str | None = None) -> list[Distance | None]:
        """For each pair, its distance at the step where it is largest in relative terms."""
        columns = zip(*self.rows[tree or self.tree].values(), strict=True)
        return [max(column, key=lambda d: (d.relative, d.size)) for column in columns]

    def __str__(self) -> str:
        """The diagnosis in words."""
        agreement = f"{self.agreement[0].upper()}{self.agreement[1:]}"
        return "\n".join([*([agreement] if self.within else []), *map(str, self.findings)])

    @property
    def agreement(self) -> str:
        """How far the runs agree, in the words of a sentence."""
        judged, tree = self.judged[self.tree], self.tree
        until = f"before step {judged.first} all" if judged.first is not None else "all"
        before = [level for step, level in judged.levels.items() if judged.first is None or step < judged.first]
        level = f"at most {max(before, default=0.0):.1e}"
        if self.tolerance is not None:
            return f"{until} differences are within the tolerance of {self.tolerance:g}: {level}."
        if not before:
            count = len(judged.bad[self.steps[0]])
            return f"all differences at step {self.steps[0]} are rounding, but for {count} of {len(self.pairs)} leaves."
        what, end = "differences are rounding:", "; no gradients were compared" * (tree == "parameters")
        if self.a.norms_only or self.b.norms_only:
            what, end = f"norms of {tree} differ by", f"{end}; the values were not recorded"
        elif not any(before) and until == "all":
            return f"the {tree} are equal in every element{end}."
        return f"{until} {what} {level}, which {judged.arithmetic.name} explains{end}."
