"""`gx.compare`: two recordings are aligned, measured and diagnosed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from gradxform.comparing import mapping
from gradxform.comparing.align.alignment import align
from gradxform.comparing.comparison import TREES, Comparison, Evidence
from gradxform.comparing.findings import Finding, proven
from gradxform.comparing.mapping import Pair, module_of
from gradxform.comparing.measuring import ABSENT, Row, arithmetic_of, distances, judge, stored_as
from gradxform.comparing.rules.gradients import PROVEN
from gradxform.comparing.rules.optimizer import update
from gradxform.comparing.rules.preconditions import data, initial, nonfinite, shifted
from gradxform.comparing.rules.unexplained import LIKELY, dtypes, grown, losses, unrecorded, where
from gradxform.recording.reading import Recording

Progress = Callable[[int, int], None]


def compare(
    a: str | Path,
    b: str | Path,
    *,
    map: str | Path | Mapping[str, str] | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two recordings: where do two runs part, and why?

    Leaves are matched by equal paths, by a map, by the names and layouts of the frameworks, and else by shape and
    value. Differences that rounding explains, by their size and by how they grow over steps, are told from others. The
    command `gradxform compare` shows the same as a table, a picture and a page.

    Args:
        a: the folder of a recording that `record` made.
        b: the folder of another.
        map: which leaf of `a` is which of `b`, where names do not tell: a dict from paths, or from modules, or a TOML
            file as ``gradxform compare --write-map`` writes it.
        tolerance: the largest distance of a leaf that is allowed, relative to its norm, or to the usual norm in its
            module if that is larger. By default, what rounding explains.
        progress: called with the number of steps that are done, and of all.

    Returns:
        A `Comparison`.

    Raises:
        ValueError: a folder that is no recording, a file that is cut short or of another version, no step or no leaf
            in common, NaN everywhere, a map that does not fit.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import gradxform as gx
        >>> a, b = tempfile.mkdtemp(), tempfile.mkdtemp()
        >>> gradient = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
        >>> gx.record(a)(0, gradients={"0.weight": gradient})
        >>> gx.record(b)(0, gradients={"dense": {"kernel": -gradient.T}})
        >>> print(gx.compare(a, b, map={"0": "dense"}).findings[0])
        All gradients have the opposite sign in B: one run ascends, or subtracts where the other adds.

    Source:
        Higham, Accuracy and stability of numerical algorithms, 2002.
    """
    for name, folder in (("a", a), ("b", b)):
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(
                f"compare: {name} must be the folder of a recording, got {folder!r:.80} of type "
                f"{type(folder).__name__}; write compare('run_a', 'run_b')"
            )
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"compare: tolerance must be at least 0, got {tolerance!r}")
    try:
        found = _compared((Recording(a), Recording(b)), mapping.read(map), tolerance, progress)
        with np.errstate(all="ignore"):  # numbers whose squares overflow are explained by no rule
            found.findings += diagnose(found)
        return found
    except ValueError as error:
        raise ValueError(f"compare: {error}") from error


Sides = tuple[Recording, Recording]


def _compared(sides: Sides, given: mapping.Map, tolerance: float | None, progress: Progress | None) -> Evidence:
    a, b = sides
    there = set(b.steps)
    if not (steps := [step for step in a.steps if step in there]):
        ranges = (f"{name} has {side.steps[0]} to {side.steps[-1]}" for name, side in zip("AB", sides, strict=True))
        raise ValueError(f"the recordings have no step in common: {', '.join(ranges)}")
    names = [side.names(steps[0]) for side in sides]
    if not (trees := [tree for tree in TREES if all(tree in each for each in names)]):
        has = (f"{name} has {', '.join(each)}" for name, each in zip("AB", names, strict=True))
        raise ValueError(f"the recordings have neither {', '.join(TREES)} in common: {', '.join(has)}")
    alignment = align(a, b, steps, trees, given)
    modules = [module_of(pair.a.path) for pair in alignment.pairs]
    rows: dict[str, dict[int, Row]] = {tree: {} for tree in trees}
    losses: dict[int, tuple[float, float]] = {}
    for done, step in enumerate(steps):
        if progress is not None:
            progress(done, len(steps))
        for tree in trees:
            rows[tree][step] = _row(sides, alignment.pairs, tree, step, a.norms_only or b.norms_only)
        if all(side.shapes(step, "loss").get("") == () for side in sides):
            one, other = (float(np.ravel(side.read(step, "loss", ""))[0]) for side in sides)
            losses[step] = one, other
        if done and done + 1 < len(steps):  # the first and the last are read again
            a.close(step)
            b.close(step)
    judged = {}
    for tree in trees:
        _check_finite(rows[tree], tree)
        if tree != "parameters" or len(trees) == 1:
            kinds = [kind for side in sides for kind in side.dtypes(steps[0], tree).values()]
            arithmetic = arithmetic_of([stored_as(side, tree, steps[0]) for side in sides], kinds)
            judged[tree] = judge(rows[tree], arithmetic, tolerance, modules)
    return Evidence(a, b, steps, alignment, rows, judged, [], tolerance, losses)


def _row(sides: Sides, pairs: list[Pair], tree: str, step: int, norms: bool) -> Row:
    """The distance of each pair at a step; parts of leaves have no norms."""
    shapes, row = [side.shapes(step, tree) for side in sides], [ABSENT] * len(pairs)
    there = [i for i, pair in enumerate(pairs) if all(v.path in s for v, s in zip(pair.views, shapes, strict=True))]
    there = [i for i in there if not norms or not any(view.layout.part for view in pairs[i].views)]
    views = (zip(sides, pairs[i].views, strict=True) for i in there)
    arrays = ([view.of(side, step, tree, norms) for side, view in both] for both in views)
    for i, found in zip(there, distances(arrays), strict=True):
        row[i] = found
    return row


def _check_finite(rows: Mapping[int, Row], tree: str) -> None:
    there = [d for row in rows.values() for d in row if d.size]
    for place in (0, 1) if there else ():
        if all(d.nonfinite[place] == d.size for d in there):
            raise ValueError(f"the {tree} of {'AB'[place]} are NaN or infinite everywhere, at every step")


# --- the diagnosis: small rules in the order of their causes, each asked until the differences are explained ----------

Rule = Callable[[Evidence], Iterable[Finding]]
BEFORE = (shifted, nonfinite, data, initial, update)
"""What comes before a gradient differs; each of these explains all that follows."""
OF_ROUNDING: set[Rule] = {update, unrecorded, grown, losses, dtypes}
"""Rules that tell rounding from what is not; where a tolerance was given, it does."""


def diagnose(e: Evidence) -> list[Finding]:
    """What was found, first things first; empty where rounding explains all."""
    found = _first(e, *BEFORE) or list(_proven(e))
    if not any(finding.explains is None or finding.explains for finding in found):
        found = [*_first(e, *LIKELY), *found]
    if not any(finding.is_fault for finding in found):
        found += _first(e, losses)
    if e.step is not None and any(finding.is_fault for finding in found):
        found += where(e)
    return [*found, *nonfinite(e, later=True), *_first(e, dtypes)]


def _first(e: Evidence, *rules: Rule) -> list[Finding]:
    """What the first rule that finds something finds."""
    asked = (rule for rule in rules if e.tolerance is None or rule not in OF_ROUNDING)
    return next((made for rule in asked if (made := list(rule(e)))), [])


def _proven(e: Evidence) -> Iterator[Finding]:
    """Causes until all differences are explained; what they leave is told, and no second cause guessed."""
    left, known = set(e.bad), set[int]()
    for finding in (finding for rule in PROVEN if left or e.step is None for finding in rule(e)):
        if not finding.explains or not finding.explains <= known:
            yield finding
            left -= left if finding.explains is None else finding.explains
            known |= finding.explains or set()
    if left and known:
        text = f"{len(left)} more leaves differ at step {e.step}, which this does not explain: {e.some(sorted(left))}."
        yield proven("rest", text, e.at, e.labels(sorted(left)), is_fault=False)
