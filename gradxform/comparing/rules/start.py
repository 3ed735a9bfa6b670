"""Rules for what comes before the gradients: other data, other initial parameters, values that are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gradxform.comparing.evidence import TREES, Evidence
from gradxform.comparing.findings import Finding, some
from gradxform.comparing.layouts import cosine
from gradxform.comparing.rounding import coarsest
from gradxform.comparing.rules.moved import moved

_COPIES = 64
"""Units that a copy of the parameters may be off, for instance by a cast."""
_TRAINED = 0.1
"""How far parameters may be apart at a first recorded step that is not step 0."""


def nonfinite(e: Evidence) -> Iterator[Finding]:
    """NaN or an infinity in one run that the other does not have, before the runs part otherwise."""
    yield from (found for found in _nonfinite(e) if e.step is None or found.step <= e.step)


def later_nonfinite(e: Evidence) -> Iterator[Finding]:
    """The same after the runs have parted: a remark."""
    yield from (replace(found, is_fault=False) for found in _nonfinite(e) if e.step is not None and found.step > e.step)


def _nonfinite(e: Evidence) -> Iterator[Finding]:
    for tree in (tree for tree in ("gradients", "updates", "parameters") if tree in e.rows):
        for step, row in e.rows[tree].items():
            for side, other in (("a", "b"), ("b", "a")):
                lost = [
                    i
                    for i, d in enumerate(row)
                    if d is not None and getattr(d, f"nonfinite_{side}") and not getattr(d, f"nonfinite_{other}")
                ]
                if lost:
                    last = e.pairs[lost[-1]].label
                    text = (
                        f"NaN or infinity begins in {side.upper()} at step {step}, in the {tree} of {len(lost)} of "
                        f"{len(row)} leaves; {other.upper()} is finite there. The one nearest to the loss is {last}."
                    )
                    yield Finding("nonfinite", text, step, e.labels(lost))
                    return


def data(e: Evidence) -> Iterator[Finding]:
    """Anything else that both recorded, such as a batch, and that differs at the first step."""
    step = e.steps[0]
    names = [n for n in e.a.names(step) if n in e.b.names(step) and n not in (*TREES, "loss", "mean_loss")]
    for name in names if e.values else ():
        shapes = [side.shapes(step, name) for side in (e.a, e.b)]
        for path in shapes[0].keys() & shapes[1].keys():
            one, other = (np.asarray(side.read(step, name, path), np.float64) for side in (e.a, e.b))
            if one.shape != other.shape or not np.allclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True):
                what = f"{name}/{path}" if path else name
                text = f"{what} differs at step {step} already: the runs see other data, or prepare it otherwise."
                yield Finding("data", text, step)
                return


def initial(e: Evidence) -> Iterator[Finding]:
    """Parameters that differ at the first step that was recorded."""
    rows, step = e.rows.get("parameters"), e.steps[0]
    if rows is None or e.step not in (None, step):  # they agreed long enough for the gradients to agree
        return
    unit = coarsest([*e.a.dtypes(step, "parameters").values(), *e.b.dtypes(step, "parameters").values()]).unit
    row = rows[step]
    limit = _COPIES * unit if step == 0 else _TRAINED
    bad = [i for i, d in enumerate(row) if d is not None and d.relative > limit]
    if not bad:
        return
    some_bad = some(e.labels(bad))
    weights = [i for i in bad if e.has(i, "parameters", step) and row[i].size > 1]  # type: ignore[union-attr]
    for i in weights:
        found = moved(*e.arrays(i, "parameters", step), limit=1e-3)
        if found is not None:
            _, words = found
            label = e.pairs[i].label
            text = (
                f"The initial parameters differ: {label} in B is A's {words}. {len(bad)} of {len(row)} leaves differ."
            )
            yield Finding("initial", text, step, e.labels(bad), {"leaves": len(bad)})
            return
    apart = [i for i in weights if abs(cosine(*e.arrays(i, "parameters", step))) < 0.5]
    why = ": other seeds or initializers, or weights that were not copied" if len(apart) > len(weights) / 2 else ""
    text = f"The initial parameters differ{why}, in {len(bad)} of {len(row)} leaves: {some_bad}."
    yield Finding("initial", text, step, e.labels(bad), {"leaves": len(bad)})
