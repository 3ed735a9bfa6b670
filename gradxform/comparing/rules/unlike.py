"""Rules for gradients that are not the same computation: other batches, other precision, another constant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.layouts import cosine
from gradxform.comparing.rounding import BY_NAME, magnitude, scaled

_MOST = 12
"""Steps that are held against each other in search of batches in another order."""
_OTHER = 0.4
"""How much nearer the gradients of another step must be."""
_SAMPLE = 1 << 14
_LARGE, _DIRECTED = 64, 0.7
"""Elements of a leaf from which a direction means something, and the cosine from which there is one."""
_ROUNDED = 32
"""Units above which a difference with a direction is not rounding, though its size could be."""
_KEPT = {"bfloat16": 16, "TF32": 13, "float16": 13}
"""The last bits of float32 that are zero in numbers of a coarser format."""


def data_order(e: Evidence) -> Iterator[Finding]:
    """The gradients of one step are those of another step in the other run."""
    steps = [step for step in e.steps if step in e.rows[e.tree]][:_MOST]
    if e.step is None or not e.values or len(steps) < 2 or not e.bad:
        return
    like = _likeness(e, steps)
    best = like.argmax(1)
    own = np.diagonal(like)
    others = [i for i in range(len(steps)) if best[i] != i and 1 - like[i, best[i]] < _OTHER * (1 - own[i])]
    if len(others) >= max(1, len(steps) // 3):
        first = others[0]
        text = (
            f"The batches come in another order: the gradients of step {steps[first]} in A are those of step "
            f"{steps[best[first]]} in B."
        )
        yield Finding("data_order", text, e.step, (), {"steps": len(others)})


def _likeness(e: Evidence, steps: list[int]) -> Any:
    """The cosine of the gradients of each step in A and each in B, of samples of all leaves together."""
    places = [i for i in e.significant if all(e.has(i, e.tree, step) for step in steps)]
    sides: tuple[list[Any], list[Any]] = ([], [])
    for step in steps:
        samples = [_samples(e.arrays(i, e.tree, step)) for i in places]
        for side, vectors in enumerate(sides):
            vectors.append(np.concatenate([pair[side] for pair in samples]) if samples else np.zeros(1))
    return np.array([[cosine(a, b) for b in sides[1]] for a in sides[0]])


def _samples(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return tuple(x.ravel()[:: max(1, x.size // _SAMPLE)] for x in pair)


def unrelated(e: Evidence) -> Iterator[Finding]:
    """Gradients that point elsewhere in most leaves, with norms that are equal in the mean."""
    if e.step is None:
        return
    whole = [e.distance(i) for i in e.significant]
    norms = np.sqrt(sum(d.norm_a**2 for d in whole) * sum(d.norm_b**2 for d in whole))
    together = sum(d.dot for d in whole) / norms if norms else 1.0
    steps = [s for s in e.rows[e.tree] if s in e.judged[e.tree].bad]
    ratio = float(np.exp(np.mean([np.log(e.total(s, "b") / e.total(s, "a")) for s in steps])))
    random = max(e.distance(i).relative for i in e.bad) > BY_NAME["bfloat16"].budget and not _is_directed(e, e.bad)
    if (together < 0.97 or random) and len(e.bad) > len(e.pairs) / 2 and 0.5 < ratio < 2:
        text = (
            f"The gradients of step {e.step} point elsewhere (cosine {number(together)}), and their norms are equal "
            f"in the mean (B/A {number(ratio)}): dropout or augmentation in one, or other batches."
        )
        yield Finding("unrelated", text, e.step, (), {"cosine": together, "ratio": ratio})


def precision(e: Evidence) -> Iterator[Finding]:
    """Differences of the size that a coarser arithmetic leaves, without a direction."""
    if e.step is None or not e.bad:
        return
    stored = [_format(e, side) for side in (0, 1)]
    mean = magnitude(e.row)
    fits = [
        name
        for name in ("TF32", "bfloat16")
        if all(scaled(e.distance(i), mean, BY_NAME[name]) <= BY_NAME[name].budget for i in e.bad)
    ]
    for side, own, other in (("A", stored[0], stored[1]), ("B", stored[1], stored[0])):
        if own and own != other and fits:
            text = f"{side} computes in {own}: its gradients are {own} numbers, and the differences are its rounding."
            yield Finding("precision", text, e.step, (), {"unit": BY_NAME[own].unit})
            return
    if fits and len(e.bad) > len(e.significant) / 2 and not _is_directed(e, e.bad):
        text = (
            f"The differences have the size of {fits[0]} rounding and no direction: one run computes in lower "
            "precision, in whole or in part."
        )
        yield Finding("precision", text, e.step, (), {"unit": BY_NAME[fits[0]].unit})


def _format(e: Evidence, side: int) -> str:
    """The coarser format that all gradients of a run are numbers of, though they are kept as float32."""
    if not e.values:
        return ""
    bits = 0
    for i in e.significant:
        sample = _samples(e.arrays(i))[side].astype(np.float32)
        bits |= int(np.bitwise_or.reduce(sample.view(np.uint32), initial=0))
    return next((name for name, zeros in _KEPT.items() if not bits & ((1 << zeros) - 1)), "") if bits else ""


def _direction(e: Evidence, places: list[int]) -> list[float]:
    """The cosines between differences and gradients of leaves: low for rounding, which has no direction."""
    large = [i for i in places if e.distance(i).size >= _LARGE] or places
    found = [0.0]
    for d in map(e.distance, large):
        if d.difference and d.norm_a:
            found.append(abs(d.dot - d.norm_a**2) / (d.norm_a * d.difference))
    return found


def _is_directed(e: Evidence, places: list[int]) -> bool:
    return max(_direction(e, places)) >= _DIRECTED


def constant(e: Evidence) -> Iterator[Finding]:
    """Small differences with a direction, of another size in each leaf: not rounding, and no common factor."""
    unit = e.judged[e.tree].arithmetic.unit
    places = e.bad or [i for i in e.significant if e.distance(i).relative > _ROUNDED * unit]
    if not places or e.tolerated or any(e.distance(i).nonfinite_a or e.distance(i).nonfinite_b for i in places):
        return
    largest, directions = max(e.distance(i).relative for i in places), _direction(e, places)
    if largest < 0.3 and _is_directed(e, places) and (e.bad or np.median(directions) >= _DIRECTED):
        text = (
            f"The gradients differ by up to {largest:.2g} in relative terms, and with a direction: another epsilon, "
            "another constant in the loss or a layer, or a variance over n in one and n - 1 in the other."
        )
        yield Finding(
            "constant", text, e.steps[0] if e.step is None else e.step, e.labels(places), {"relative": largest}
        )
