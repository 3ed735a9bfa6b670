"""Rules for single leaves: scaled, moved, without a gradient, tied, missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradxform.comparing.constants import EXACT, PROVING
from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number, some
from gradxform.comparing.layouts import cosine
from gradxform.comparing.rules.moved import apart, moved
from gradxform.recording.reading import Recording


def no_gradient(e: Evidence) -> Iterator[Finding]:
    """A leaf whose gradient is zero or absent in one run alone."""
    for side, other in (("a", "b"), ("b", "a")):
        distances = {i: e.distance(i) for i in e.bad}
        zero = [
            i for i, d in distances.items() if not getattr(d, f"norm_{side}") and not getattr(d, f"nonfinite_{side}")
        ]
        if zero and len(zero) < len(e.pairs):
            names = some(e.labels(zero))
            text = f"No gradient reaches {names} in {side.upper()}: zeros there, and not in {other.upper()}: frozen?"
            yield Finding("frozen", text, e.at, e.labels(zero), {}, frozenset(zero))
        found = _absent(e, side, other)
        if found is not None:
            step, absent = found
            explains = frozenset(absent) if e.step in (None, step) else None  # what parts later follows from it
            names, since = some(e.labels(absent)), "" if step == e.steps[0] else f" from step {step} on"
            text = f"{side.upper()} has no gradient for {names}{since}, and {other.upper()} has: frozen, or not used?"
            yield Finding("frozen", text, step, e.labels(absent), {}, explains)


def _absent(e: Evidence, side: str, other: str) -> tuple[int, list[int]] | None:
    """The first step, up to where the runs part, at which one run alone lacks gradients, and the pairs."""
    for step, row in e.rows.get("gradients", {}).items():
        if e.step is not None and step > e.step:
            return None
        lacking = [i for i, d in enumerate(row) if d is None]
        absent = [i for i in lacking if _lacks(e, i, step, side) and not _lacks(e, i, step, other)]
        if absent:
            return step, absent
    return None


def _lacks(e: Evidence, i: int, step: int, side: str) -> bool:
    recording, view = (e.a, e.pairs[i].a) if side == "a" else (e.b, e.pairs[i].b)
    return view.path not in recording.shapes(step, "gradients")


def _alone(e: Evidence) -> Iterator[tuple[str, str, Recording, list[str]]]:
    """For each run, its name, that of the other, its recording and the leaves with a gradient that have no partner."""
    step = e.steps[0]
    for side, other, paths, recording in (("A", "B", e.alignment.alone_a, e.a), ("B", "A", e.alignment.alone_b, e.b)):
        there = recording.shapes(step, "gradients") if "gradients" in e.rows else {}
        yield side, other, recording, [path for path in paths if path in there]


def tied(e: Evidence) -> Iterator[Finding]:
    """A leaf whose gradient in one run is the sum of two in the other, which has it twice."""
    if not e.values or e.step is None or e.tree != "gradients":
        return
    for side, run, recording, paths in _alone(e):
        for path in (path for path in paths if path in recording.shapes(e.step, e.tree)):
            extra = np.asarray(recording.read(e.step, e.tree, path), np.float64)
            for i in e.bad:
                one, other = e.arrays(i) if side == "A" else e.arrays(i)[::-1]
                sums = [one + part for part in (extra, extra.T) if part.shape == one.shape]
                if any(apart(whole, other) <= max(e.limit, EXACT) for whole in sums):
                    names = f"{e.pairs[i].label} and {path}"
                    text = f"{names} are tied in {run}, whose gradient is the sum of the two in {side}."
                    yield Finding("tied", text, e.step, (e.pairs[i].label, path), {}, frozenset([i]))
                    return


def missing(e: Evidence) -> Iterator[Finding]:
    """Leaves with a gradient that one run does not have at all."""
    step = e.steps[0]
    unaligned: list[str] = []
    for side, other, recording, paths in _alone(e):
        there = [path for path in paths if path not in e.named and not is_second_bias(recording, step, path)]
        lacking = [path for path in there if path not in e.alignment.not_aligned]
        unaligned += [f"{path} in {side}" for path in there if path in e.alignment.not_aligned]
        if lacking:
            text = f"{other} has no leaf for {some(lacking)}, which {side} trains."
            yield Finding("missing", text, step, tuple(lacking))
    if unaligned:
        text = (
            f"{some(unaligned)} have no partner and were not compared: either they have other names or lie in "
            "another layout, which a map tells (--write-map, --map), or each run lacks what the other has."
        )
        leaves = tuple(path.rpartition(" in ")[0] for path in unaligned)
        yield Finding("unaligned", text, step, leaves, {}, frozenset(), is_certain=False)


def two_biases(e: Evidence) -> Iterator[Finding]:
    """PyTorch's recurrent layers, whose two biases move their sum twice as far as one bias moves."""
    if e.step is None or e.step == e.steps[0]:
        return
    for side, other, recording, paths in _alone(e):
        there = [path for path in paths if is_second_bias(recording, e.steps[0], path)]
        if there:
            text = (
                f"{side} trains two biases in its recurrent layers ({some(there)} is the second), and {other} one: "
                "their gradients are equal, and their sum moves twice as far. Freeze one of the two."
            )
            yield Finding("two_biases", text, e.step, tuple(there), is_certain=False)
            return


def is_second_bias(recording: Recording, step: int, path: str) -> bool:
    """Whether a leaf is one of the two biases of PyTorch's recurrent layers, which others have one of."""
    return "bias_ih" in path and path.replace("bias_ih", "bias_hh") in recording.shapes(step, "gradients")


def scaled(e: Evidence) -> Iterator[Finding]:
    """Single leaves that are a number times as large in B, and have elements enough to tell."""
    large = [i for i in e.bad if e.values and e.distance(i).size >= PROVING]
    factors = {i: e.factor(i)[0] for i in large if e.is_parallel(i) and e.factor(i)[0]}
    most = len(factors) > 2 and 2 * len(factors) > len(e.significant)
    for i, factor in factors.items():
        label, numbers, explains = e.pairs[i].label, {"factor": factor}, frozenset([i])
        if abs(factor + 1) < 1e-3:
            text = f"The gradient of {label} has the opposite sign in B."
            yield Finding("leaf_sign", text, e.at, (label,), numbers, explains)
        else:
            why = ", as most leaves have: a clip, a scale or a normalization of each?" if most else "."
            text = f"The gradient of {label} is {number(factor)} times as large in B: a factor of its own{why}"
            yield Finding("leaf_factor", text, e.at, (label,), numbers, explains, is_certain=not most)


def permuted(e: Evidence) -> Iterator[Finding]:
    """Leaves whose values stand in other places in B."""
    for i in e.bad if e.values else ():
        if abs(e.distance(i).ratio - 1) > max(e.limit, 1e-3) or abs(cosine(*e.arrays(i))) > 0.999:
            continue
        found = moved(*e.arrays(i), limit=max(e.limit, EXACT))
        if found is not None:
            label, text = e.pairs[i].label, f"The gradient of {e.pairs[i].label} in B is A's {found[1]}."
            yield Finding(found[0], text, e.at, (label,), {}, frozenset([i]))
