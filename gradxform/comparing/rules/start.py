"""Rules for what comes before the gradients: steps, data and parameters that differ, values that are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gradxform.comparing.evidence import TREES, Evidence
from gradxform.comparing.findings import Finding, number, some
from gradxform.comparing.layouts import conventional, cosine
from gradxform.comparing.rounding import coarsest
from gradxform.comparing.rules.moved import moved
from gradxform.recording.reading import Recording

_COPIES = 64
"""Units that a copy of the parameters may be off, for instance by a cast."""
_SURE = 0.9
"""How sure a pair must be that something is said of its parameters."""
_NEARER = 64.0
"""How many times nearer the parameters of another step must be."""
_MOST = 4
"""Steps by which recordings may be shifted, and steps that are compared then."""


def offset(e: Evidence) -> Iterator[Finding]:
    """Gradients of each step in A that are those of a later, or an earlier, step in B."""
    if e.step != e.steps[0] or not e.values or not e.bad:
        return
    for shift in (sign * by for by in range(1, _MOST + 1) for sign in (1, -1)):
        steps = [step for step in e.steps if step + shift in e.b.steps][:_MOST]
        if len(steps) > 1 and all(_equal(e, i, step, step + shift) for step in steps for i in e.bad):
            text = (
                f"The recordings count their steps otherwise: the {e.tree} of step {steps[0]} in A are those of step "
                f"{steps[0] + shift} in B, and so on for {len(steps)} steps. Number them alike to compare the rest."
            )
            yield Finding("offset", text, e.step, (), {"steps": shift})
            return


def _equal(e: Evidence, i: int, step: int, other: int) -> bool:
    """Whether a leaf of A is that of another step of B, to within rounding."""
    a, b = (
        np.asarray(view.layout.of(side.read(at, e.tree, view.path)), np.float64)
        if view.path in side.shapes(at, e.tree)
        else None
        for side, view, at in ((e.a, e.pairs[i].a, step), (e.b, e.pairs[i].b, other))
    )
    limit = e.judged[e.tree].arithmetic.budget
    if a is None or b is None:
        return False
    return float(np.linalg.norm(a - b)) <= limit * max(float(np.linalg.norm(a)), 1e-300)


def nonfinite(e: Evidence) -> Iterator[Finding]:
    """NaN or an infinity in one run that the other does not have, before the runs part otherwise."""
    yield from (found for found in _nonfinite(e) if e.step is None or found.step <= e.step)


def later_nonfinite(e: Evidence) -> Iterator[Finding]:
    """The same after the runs have parted: a remark."""
    yield from (replace(found, is_fault=False) for found in _nonfinite(e) if e.step is not None and found.step > e.step)


def _nonfinite(e: Evidence) -> Iterator[Finding]:
    steps = [(step, place, tree) for place, tree in enumerate(TREES) if tree in e.rows for step in e.rows[tree]]
    for step, _, tree in sorted(steps):
        row = e.rows[tree][step]
        lost = [i for i, d in enumerate(row) if d is not None and d.apart]
        if not lost:
            continue
        last, where = e.pairs[lost[-1]].label, f"in the {tree} of {len(lost)} of {len(row)} leaves"
        counts = {side: sum(getattr(d, f"nonfinite_{side}") for d in row if d is not None) for side in "ab"}
        for side, other in (("a", "b"), ("b", "a")):
            if not counts[other]:
                text = (
                    f"NaN or infinity begins in {side.upper()} at step {step}, {where}; {other.upper()} is finite "
                    f"there. The one nearest to the loss is {last}."
                )
                yield Finding("nonfinite", text, step, e.labels(lost))
                return
        text = (
            f"Both have NaN or infinity at step {step}, in other elements or of another kind: {counts['a']} in A and "
            f"{counts['b']} in B, {where}. The one nearest to the loss is {last}."
        )
        yield Finding("nonfinite", text, step, e.labels(lost))
        return


def data(e: Evidence) -> Iterator[Finding]:
    """Batches that both recorded, and that hold other values at the step where the runs part."""
    if e.step is None or not e.values:
        return
    for name, one, other in batches(e, e.step):
        if _same(one, other, e.limit):
            continue
        whole = one.dtype.kind in "iu" and other.dtype.kind in "iu"
        if whole:
            text = f"{name} differs at step {e.step}: the runs see other data, or in another order."
        else:
            text = (
                f"{name} differs at step {e.step}: if it goes into the network, the runs see other data or prepare it "
                "otherwise; if it comes out of it, the runs part before their gradients do."
            )
        yield Finding("data", text, e.step)
        return


def batches(e: Evidence, step: int) -> Iterator[tuple[str, Any, Any]]:
    """Arrays with a batch, recorded by both under one name; scalars such as a time or a rate are none."""
    names = [n for n in e.a.names(step) if n in e.b.names(step) and n not in (*TREES, "loss", "mean_loss")]
    for name in names:
        shapes: list[Any] = [side.shapes(step, name) for side in (e.a, e.b)]
        for path in shapes[0].keys() & shapes[1].keys():
            if shapes[0][path] and shapes[1][path]:
                one, other = _read(e.a, step, name, path), _read(e.b, step, name, path)
                yield f"{name}/{path}" if path else name, one, other


def _read(side: Recording, step: int, name: str, path: str) -> Any:
    return np.asarray(side.read(step, name, path))


def _same(one: Any, other: Any, limit: float) -> bool:
    """Whether two batches hold the same values: in any order and layout, or as numbers of classes and one-hot."""
    if abs(one.ndim - other.ndim) == 1:
        long, short = (one, other) if one.ndim > other.ndim else (other, one)
        if long.shape[:-1] == short.shape:
            return bool(np.array_equal(np.sort(long.argmax(-1), axis=None), np.sort(short, axis=None)))
    if one.size != other.size:
        return False
    one, other = (np.sort(np.asarray(x, np.float64), axis=None) for x in (one, other))
    largest = max(np.abs(one).max(initial=0.0), np.abs(other).max(initial=0.0))
    return np.allclose(one, other, rtol=0, atol=limit * largest, equal_nan=True)


def _late(e: Evidence) -> Finding | None:
    """Parameters of each step in one run that are those of the next step in the other, while the gradients agree."""
    if e.step is not None or len(e.steps) < 3 or not e.values:
        return None
    before, after = e.steps[:2], e.steps[1:3]
    for shift, run in (((after, before), "B"), ((before, after), "A")):
        rows = [e.apart("parameters", *steps) for steps in zip(*shift, strict=True)]
        own = e.apart("parameters", e.steps[0], e.steps[0])
        if max(rows) < own / _NEARER:
            text = (
                f"The gradients agree, and the parameters of {run} are those of the next recorded step in the other "
                f"run: {run} records its parameters after the optimizer's step, the other before it."
            )
            return Finding("late_parameters", text, e.steps[0])
    return None


def initial(e: Evidence) -> Iterator[Finding]:
    """Parameters that differ at the first step that was recorded."""
    rows, step = e.rows.get("parameters"), e.steps[0]
    if rows is None or e.step not in (None, step):  # they agreed long enough for the gradients to agree
        return
    unit = coarsest([*e.a.dtypes(step, "parameters").values(), *e.b.dtypes(step, "parameters").values()]).unit
    row = rows[step]
    if (late := _late(e)) is not None:
        yield late
        return
    sure = [i for i, pair in enumerate(e.pairs) if pair.sure >= _SURE]
    bad = [i for i in sure if (d := row[i]) is not None and d.relative > _COPIES * unit]
    if not bad or (e.step is None and step != 0):  # trained ones may have grown apart by as little as their gradients
        return
    what = "initial parameters" if step == 0 else f"parameters of step {step}, the first recorded,"
    weights = [i for i in bad if e.has(i, "parameters", step) and row[i].size > 1]  # type: ignore[union-attr]
    for i in weights:
        found = moved(*e.arrays(i, "parameters", step), limit=1e-3)
        if found is not None:
            text = (
                f"The {what} differ: {e.pairs[i].label} in B is A's {found[1]}. {len(bad)} of {len(row)} leaves differ."
            )
            yield Finding("initial", text, step, e.labels(bad), {"leaves": len(bad)})
            return
    apart = [i for i in weights if abs(cosine(*e.arrays(i, "parameters", step))) < 0.5]
    largest = max(row[i].relative for i in bad)  # type: ignore[union-attr]
    why = f" by up to {number(100 * largest)} %"
    if len(apart) > len(weights) / 2:
        why = ": other seeds or initializers, or weights that were not copied"
    text = f"The {what} differ{why}, in {len(bad)} of {len(row)} leaves: {some(e.labels(bad))}."
    yield Finding("initial", text, step, e.labels(bad), {"leaves": len(bad), "relative": largest})


def copied(e: Evidence) -> Iterator[Finding]:
    """Parameters that were copied without the transposition that others have, or of which no copies were found."""
    if e.step is None or e.step != e.steps[0] or "parameters" not in e.rows or not e.values:
        return
    row = e.rows["parameters"][e.step]
    unit = coarsest([*e.a.dtypes(e.step, "parameters").values(), *e.b.dtypes(e.step, "parameters").values()]).unit
    equal = [d is not None and d.relative <= _COPIES * unit for d in row]
    usual = {i: axes for i in range(len(row)) if equal[i] and (axes := _usual(e, i)) is not None}
    odd = [i for i, axes in usual.items() if i in e.bad and e.pairs[i].a.layout.axes != axes]
    if odd and any(e.pairs[i].a.layout.axes == axes for i, axes in usual.items()):
        names = some([e.pairs[i].b.path for i in odd])
        text = (
            f"{names} in B holds {some(e.labels(odd))} of A in another layout than other weights and kernels have: "
            "copied without a transposition, or with one too many?"
        )
        yield Finding("copied", text, e.step, e.labels(odd))
        return
    unsure = [i for i, pair in enumerate(e.pairs) if pair.sure < _SURE and not equal[i]]
    if 2 * len(unsure) > len(row):
        text = (
            f"Few parameters of A were found in B at step {e.step}: either other seeds or initializers, weights that "
            "were not copied, or leaves that are matched wrongly (a map tells: --write-map, --map)."
        )
        yield Finding("copied", text, e.step, e.labels(unsure))


def _usual(e: Evidence, i: int) -> tuple[int, ...] | None:
    """The axes of a weight in the order of a kernel, by the names of a pair; None if they are no such names."""
    a, b = e.pairs[i].a, e.pairs[i].b
    if a.layout.part or b.layout.part:
        return None
    shapes = (side.shapes(e.at, "parameters")[view.path] for side, view in ((e.a, a), (e.b, b)))
    layout = conventional(a.path, b.path, *shapes)
    return None if layout is None else layout.axes
