"""What the table, the picture and the page of `gradxform compare` show of each leaf."""

from __future__ import annotations

import math
from typing import NamedTuple

from gradxform.comparing.comparison import Comparison
from gradxform.comparing.mapping import Pair, named
from gradxform.comparing.measuring import Distance

HEADERS = ("leaf in A", "leaf in B", "norm in A", "B/A", "cosine", "relative", "ULP", "parts at")


class Row(NamedTuple):
    """A pair of leaves over all steps."""

    pair: Pair
    shown: Distance | None
    """Where the runs part; where they do not, at the step with the leaf's largest distance."""
    parts: int | None
    """The first step that rounding does not explain."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells under `HEADERS`."""
        a, b = named(self.pair.a), named(self.pair.b)
        layout = "; ".join(words for words in (self.pair.a.layout.words, self.pair.b.layout.words) if words)
        other = " ".join(part for part in ("" if a == b else b, f"({layout})" if layout else "") if part) or "the same"
        if self.shown is None:
            return a, other, "-", "-", "-", "-", "-", ""
        d = self.shown
        lost = d.nonfinite_a or d.nonfinite_b
        distances = "NaN" if lost else f"{d.relative:.1e}"
        when = "" if self.parts is None else str(self.parts)
        return a, other, f"{d.norm_a:.3g}", f"{d.ratio:.6g}", f"{d.cosine:.6f}", distances, _units(d.ulp), when


def _units(ulp: float) -> str:
    return f"{ulp:.0f}" if ulp < 1e5 else "inf" if math.isinf(ulp) else f"{ulp:.0e}"


def rows(found: Comparison) -> list[Row]:
    """One row for each pair, in the order of the network."""
    judged = found.judged[found.tree]
    first = {i: step for step, places in reversed(judged.bad.items()) for i in places}
    shown = found.worst() if judged.first is None else found.rows[found.tree][judged.first]
    return [Row(pair, d, first.get(i)) for i, (pair, d) in enumerate(zip(found.pairs, shown, strict=True))]


def title(found: Comparison) -> str:
    """What the rows show."""
    step = found.judged[found.tree].first
    if step is None:
        return f"{found.tree}, each leaf at the step where its distance is largest"
    return f"{found.tree} at step {step}, where the runs part"


def verdict(found: Comparison) -> str:
    """The result in one sentence."""
    judged = found.judged[found.tree]
    level = max(judged.levels.values(), default=0.0)
    steps = f"{len(found.steps)} step{'s' * (len(found.steps) != 1)}"
    if found.within:
        equal = not level and not (found.a.norms_only or found.b.norms_only)
        return f"Within: over {steps}, {f'the {found.tree} are equal in every element.' if equal else found.agreement}"
    at = f"from step {judged.first} on" if judged.first is not None else "in what precedes them"
    return f"Beyond: over {steps} the {found.tree} differ by up to {level:.1e}, {at}."
