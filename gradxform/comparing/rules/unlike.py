"""Rules for differences that nothing predicts: what is seen, and what may cause it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gradxform.comparing.evidence import CLOSE, Evidence
from gradxform.comparing.findings import Finding, number, unequal
from gradxform.comparing.layouts import cosine
from gradxform.comparing.rounding import BY_NAME, scaled, stored_as
from gradxform.comparing.rules.start import batches

_MOST = 12
"""Steps that are compared in search of batches in another order."""
_OTHER = 0.4
"""How much nearer the gradients of another step must be."""
_SAMPLE = 1 << 14
_LARGE, _DIRECTED = 64, 0.7
"""Elements of a leaf from which a direction means something, and the cosine from which there is one."""


def data_order(e: Evidence) -> Iterator[Finding]:
    """The gradients of one step are nearest to those of another step in the other run."""
    steps = [step for step in e.steps if step in e.rows[e.tree]][:_MOST]
    if e.step is None or not e.values or len(steps) < 2 or not e.bad or any(True for _ in batches(e, e.step)):
        return
    like = _likeness(e, steps)
    best = like.argmax(1)
    own = np.diagonal(like)
    others = [i for i in range(len(steps)) if best[i] != i and 1 - like[i, best[i]] < _OTHER * (1 - own[i])]
    if len(others) >= max(1, len(steps) // 3):
        first = others[0]
        text = (
            "The batches seem to come in another order, or are others, or have other labels: the gradients of step "
            f"{steps[first]} in A are nearest to those of step {steps[best[first]]} in B (cosine "
            f"{number(like[first, best[first]])}, and {number(own[first])} with their own)."
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


def precision(e: Evidence) -> Iterator[Finding]:
    """Gradients whose bits are those of a coarser format; or at the first step, differences of such a size."""
    if e.step is None or not e.bad:
        return
    stored = [stored_as(e.row, side) for side in (0, 1)]
    fits = [
        name
        for name in ("TF32", "bfloat16")
        if all(scaled(e.distance(i), e.scale(e.tree, e.at).near[i]) <= BY_NAME[name].budget for i in e.bad)
    ]
    for side, own, other in (("A", stored[0], stored[1]), ("B", stored[1], stored[0])):
        if own and own != other and fits:
            text = (
                f"{side} computes in {own}: most of its gradients are {own} numbers, kept as float32. The differences "
                "have the size of its rounding."
            )
            yield Finding("precision", text, e.step, (), {"unit": BY_NAME[own].unit})
            return
    first = e.step == e.steps[0]
    if first and fits and e.values and len(e.bad) > len(e.significant) / 2 and not _is_directed(e, e.bad):
        which = "TF32 or float16" if fits[0] == "TF32" else fits[0]
        text = (
            f"The differences have the size of {which} rounding and no direction: either one run computes in lower "
            "precision, in whole or in part, or a part of the network differs a little (an approximate GELU, an "
            f"epsilon).{_words_of_losses(e)}"
        )
        yield Finding("precision", text, e.step, (), {"unit": BY_NAME[fits[0]].unit})


def constant(e: Evidence) -> Iterator[Finding]:
    """Small differences with a direction, of another size in each leaf: not rounding, and no common factor."""
    unit = e.judged[e.tree].arithmetic.unit
    places = e.bad or [i for i in e.significant if e.distance(i).relative > CLOSE * unit]
    if not places or not e.values or e.tolerated or any(e.distance(i).apart for i in places):
        return
    largest, directions = max(e.distance(i).relative for i in places), _direction(e, places)
    if largest < 0.3 and _is_directed(e, places) and (e.bad or np.median(directions) >= _DIRECTED):
        text = (
            f"The gradients differ by up to {largest:.2g} in relative terms, and with a direction: either another "
            "epsilon, another constant in the loss (such as label smoothing) or a layer, or a variance over n in one "
            f"and n - 1 in the other.{_words_of_time(e)}"
        )
        yield Finding("constant", text, e.at, e.labels(places), {"relative": largest})


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


def unrelated(e: Evidence) -> Iterator[Finding]:
    """Gradients that point elsewhere in most leaves."""
    if e.step is None or not e.values:
        return
    whole = [e.distance(i) for i in e.significant]
    norms = np.sqrt(sum(d.norm_a**2 for d in whole) * sum(d.norm_b**2 for d in whole))
    together = float(sum(d.dot for d in whole) / norms) if norms else 1.0
    ratio = e.total(e.step, "b") / max(e.total(e.step, "a"), 1e-300)
    if together < 0.97 and len(e.bad) > len(e.significant) / 2 and 0.5 < ratio < 2:
        recorded = any(True for _ in batches(e, e.step))  # and equal: `data` comes first
        random_ones = "dropout or augmentation in one" + ("" if recorded else ", or other batches or labels")
        text = (
            f"The gradients of step {e.step} point elsewhere (cosine {number(together)}), and their norms are alike "
            f"(B/A {number(ratio)}): either {random_ones}, or another computation (a mask, an axis of a softmax, an "
            f"activation, a layer in its other mode).{_words_of_time(e)}{_words_of_losses(e)}"
        )
        yield Finding("unrelated", text, e.step, (), {"cosine": together, "ratio": ratio})


def unknown(e: Evidence) -> Iterator[Finding]:
    """What no rule knows."""
    if e.step is None:
        return
    if e.tolerated:
        text = "The differences exceed the tolerance, and no rule knows their cause."
    else:
        text = "Rounding does not explain the differences, and no rule knows their cause."
    yield Finding("unknown", f"{text}{_words_of_time(e)}{_words_of_losses(e)}", e.step, e.labels(e.bad))


def _words_of_time(e: Evidence) -> str:
    """When it began."""
    if e.step in (None, e.steps[0]):
        return ""
    before = e.steps[e.steps.index(e.step) - 1]
    return (
        f" All agrees up to step {before}: either something changes then (a schedule, a phase of training, the data), "
        f"or the optimizers move the parameters otherwise after step {before}."
    )


def _words_of_losses(e: Evidence) -> str:
    """Where to look, by the losses."""
    if e.loss_tells(e.at) and e.loss_gap(e.at):
        one, other = unequal(*e.losses[e.at])
        return f" The losses differ too ({one} and {other}): look at the way forward, and the loss."
    if e.losses_agree(e.at):
        return " The losses agree: look at the way back, and at what is done to gradients before they are recorded."
    return ""
