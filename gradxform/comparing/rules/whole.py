"""Rules for all gradients together: a factor, a sign, a clip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from gradxform.comparing.evidence import TREES, Evidence
from gradxform.comparing.findings import Finding, number

_ALIKE = 2e-3
"""How far the factors of leaves may be apart that have one factor in common."""


def clip_global_norm(e: Evidence) -> Iterator[Finding]:
    """One norm of all gradients together that one run never exceeds, while the other does."""
    if not _parallel(e, e.bad) or _spread([e.factor(i)[0] for i in e.bad]) > _slack(e) or e.factor(e.bad[0])[0] <= 0:
        return
    assert e.step is not None
    for side, other in (("b", "a"), ("a", "b")):
        limit = e.total(e.step, side)
        over = [s for s in e.judged[e.tree].bad if e.total(s, other) > limit * 1.001]
        if over[:1] != [e.step]:
            continue
        same = all(abs(e.total(s, side) - limit) <= 1e-3 * limit for s in over)
        never_more = max(e.total(s, side) for s in e.rows[e.tree]) <= limit * 1.001
        varied = len(over) > 1 and _spread([e.total(s, other) / limit for s in over]) > _ALIKE
        if same and never_more and (varied or is_round(limit)):
            text = (
                f"{side.upper()} clips by the global norm, to {number(limit)}; {other.upper()} does not. At step "
                f"{e.step} the norm is {number(e.total(e.step, other))} in {other.upper()}."
            )
            yield Finding("clip_global_norm", text, e.step, (), {"limit": limit})
            return


def factor(e: Evidence) -> Iterator[Finding]:
    """All gradients are one number times as large in B."""
    if not e.bad or not set(e.bad) >= set(e.significant) or not _parallel(e, e.significant):
        return
    factors = [e.factor(i)[0] for i in e.significant]
    if _spread(factors) > _slack(e) or not factors[0]:
        return
    found = float(np.median(factors))
    if max(abs(factor - found) for factor in factors) > 0.1 * abs(found - 1):
        return  # another factor in each leaf
    assert e.step is not None
    if found < 0 and abs(found + 1) < 1e-3:
        text = "All gradients have the opposite sign in B: one run ascends, or subtracts where the other adds."
        yield Finding("sign", text, e.step, (), {"factor": found})
        return
    large, times = ("B", abs(found)) if abs(found) > 1 else ("A", 1 / abs(found))
    sign = " and of the opposite sign" if found < 0 else ""
    text = f"All gradients are {number(times)} times larger in {large}{sign}: {_why(e, times)}"
    yield Finding("factor", text, e.step, (), {"factor": found})


def _why(e: Evidence, times: float) -> str:
    """What is known of a number by which gradients differ."""
    whole = round(times)
    if whole < 2 or abs(times - whole) > 1e-3 * whole:
        return "a factor of the loss, or a scale that one run does not undo."
    sources = _sizes(e, whole)
    is_ = f" ({whole} is {sources[0]})" if sources else f" ({whole} may be the batch, the sequence or the devices)"
    return f"the loss is summed in one and averaged in the other{is_}."


def _sizes(e: Evidence, wanted: int) -> list[str]:
    """Recorded numbers and leading dimensions that are a number."""
    found = []
    for side in (e.a, e.b):
        for name in (name for name in side.names(e.steps[0]) if name not in TREES):
            for path, shape in side.shapes(e.steps[0], name).items():
                if shape and shape[0] == wanted:
                    found.append(f"the first dimension of {name}")
                if not shape and e.values and float(side.read(e.steps[0], name, path)) == wanted:
                    found.append(name)
    return found


def _parallel(e: Evidence, places: Sequence[int]) -> bool:
    """Whether all of these leaves are a number times those of the other run."""
    return bool(places) and all(map(e.is_parallel, places))


def _slack(e: Evidence) -> float:
    return max(_ALIKE, e.limit / 2)


def _spread(values: Sequence[float]) -> float:
    middle = abs(float(np.median(values)))
    return (max(values) - min(values)) / middle if middle else math.inf


def is_round(value: float) -> bool:
    """Whether a number has at most two significant digits, as limits have."""
    return math.isclose(float(f"{value:.1e}"), value, rel_tol=1e-4)
