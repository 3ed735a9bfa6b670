"""Rules for all gradients together: zeros, a factor, a sign."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gradxform.comparing.evidence import TREES, Evidence
from gradxform.comparing.findings import Finding, number

ALIKE = 2e-3
"""How far the factors of leaves may be apart that have one factor in common: another fault may be in them as well."""


def zero(e: Evidence) -> Iterator[Finding]:
    """All gradients of one run are zero."""
    if e.step is None:
        return
    for side, other in (("a", "b"), ("b", "a")):
        if not e.total(e.step, side) and not any(getattr(d, f"nonfinite_{side}") for d in e.row if d is not None):
            text = (
                f"All {e.tree} of {side.upper()} are zero at step {e.step}, and those of {other.upper()} are not: "
                "either no gradient reaches the parameters (a loss that is detached, a graph that is cut), or they are "
                "recorded when they are cleared already, or not yet computed."
            )
            yield Finding("zero", text, e.step)
            return


def factor(e: Evidence) -> Iterator[Finding]:
    """All gradients are one number times as large in B."""
    if not e.bad or not set(e.bad) >= set(e.significant) or not parallel(e, e.significant):
        return
    factors = [e.factor(i)[0] for i in e.significant]
    if spread(factors) > slack(e) or not factors[0]:
        return
    found = float(np.median(factors))
    if max(abs(factor - found) for factor in factors) > 0.1 * abs(found - 1):
        return  # another factor in each leaf
    assert e.step is not None
    if found < 0 and abs(found + 1) < slack(e):
        text = "All gradients have the opposite sign in B: one run ascends, or subtracts where the other adds."
        yield Finding("sign", text, e.step, (), {"factor": found})
        return
    large, times = ("B", abs(found)) if abs(found) > 1 else ("A", 1 / abs(found))
    yield Finding("factor", factor_words(e, found, large, times), e.step, (), {"factor": found})


def factor_words(e: Evidence, found: float, large: str, times: float) -> str:
    """A factor, and what the losses tell of it."""
    sign = " and of the opposite sign" if found < 0 else ""
    what = "norms of gradients" if not e.values else "gradients"
    begin = f"All {what} are {number(times)} times larger in {large}{sign}"
    one, other = e.losses.get(e.at, (float("nan"), float("nan")))
    loss = other / one if one else float("nan")
    whole, hint = round(times), _hint(e, times)
    summed = f"summed in one and averaged in the other{hint}" if whole > 1 and hint else "multiplied by a factor in one"
    scale = (
        "a loss scale that is not undone, gradients that are summed over microbatches or devices in one and averaged "
        "in the other, or all clipped together"
    )
    if abs(loss - found) <= slack(e) * abs(found):
        return f"{begin}, and so is the loss: it is {summed}."
    if abs(loss - 1) <= slack(e):
        return f"{begin}, and the losses are equal: either {scale}."
    if np.isfinite(loss):
        return (
            f"{begin}, and the loss {number(loss)} times: either it is reported otherwise than it is used, or {scale}."
        )
    return f"{begin}: either the loss is {summed}, or {scale}. Recorded losses would tell."


def _hint(e: Evidence, times: float) -> str:
    """What a whole number may be."""
    whole = round(times)
    if whole < 2 or abs(times - whole) > 1e-3 * whole:
        return ""
    sources = _sizes(e, whole)
    return f" ({whole} is {sources[0]})" if sources else f" ({whole} may be the batch, the sequence or the devices)"


def _sizes(e: Evidence, wanted: int) -> list[str]:
    """Recorded numbers and leading dimensions that are a number."""
    found = []
    for side in (e.a, e.b):
        for name in (name for name in side.names(e.steps[0]) if name not in (*TREES, "loss")):
            for path, shape in side.shapes(e.steps[0], name).items():
                if shape and shape[0] == wanted:
                    found.append(f"the first dimension of {name}")
                if not shape and e.values and float(side.read(e.steps[0], name, path)) == wanted:
                    found.append(name)
    return found


def parallel(e: Evidence, places: Sequence[int]) -> bool:
    """Whether all of these leaves are a number times those of the other run."""
    return bool(places) and all(map(e.is_parallel, places))


def slack(e: Evidence) -> float:
    """How far factors may be apart that are one."""
    return max(ALIKE, e.limit / 2)


def spread(values: Sequence[float]) -> float:
    """How far numbers are apart, relative to their middle."""
    middle = abs(float(np.median(values)))
    return (max(values) - min(values)) / middle if middle else float("inf")
