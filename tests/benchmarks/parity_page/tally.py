"""The results of all runs of one transform in one dtype, framework and mode."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradxform.proof.judge import Verdict


@dataclass
class Tally:
    """The results of all runs of one transform in one dtype, framework and mode."""

    cases: int = 0
    elements: int = 0
    ulp: float = 0.0
    """The largest distance among results without a failure."""
    case: str = ""
    """The run with the largest distance."""
    worst: str = ""
    """The element with the largest distance."""
    over: list[str] = field(default_factory=list)
    """Runs with distances over the budget, and the elements."""
    within: int = 0
    """The number of runs within the limit, whose results must be bit-identical to the input."""
    flushed: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)
    """The cases by kind of failure."""
    why: str = ""
    """The message of the first refusal."""

    def add(self, case: str, elements: int, verdict: Verdict) -> None:
        """Count one run."""
        self.cases += 1
        self.elements += elements
        self.flushed += verdict.flushed
        if verdict.wrong:
            self.wrong.setdefault(verdict.wrong, []).append(case)
            return
        if verdict.over is not None:
            self.over.append(f"{case}, {verdict.over}")
        if verdict.worst is not None and verdict.worst.ulp > self.ulp:
            self.ulp, self.case, self.worst = verdict.worst.ulp, case, str(verdict.worst)

    def refuse(self, case: str, elements: int, why: str) -> None:
        """Count a run without a result."""
        self.why = self.why or f" ({why})"
        self.add(case, elements, Verdict(wrong="refused"))


def merged(tallies: list[Tally]) -> Tally:
    """Merge tallies."""
    total = Tally()
    for tally in tallies:
        total.cases, total.elements = total.cases + tally.cases, total.elements + tally.elements
        total.flushed, total.within = total.flushed + tally.flushed, total.within + tally.within
        if tally.ulp > total.ulp:
            total.ulp, total.case, total.worst = tally.ulp, tally.case, tally.worst
        total.over += tally.over
        for wrong, cases in tally.wrong.items():
            total.wrong.setdefault(wrong, []).extend(cases)
    return total
