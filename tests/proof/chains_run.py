"""Compare random chains in every framework with the reference: `python tests/proof/chains_run.py --cases 100000`."""

from __future__ import annotations

import argparse
import functools
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import chains
import ml_dtypes
import numpy as np
import optree
from chains import Structure, values

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity
from gradxform.proof.extended import number
from gradxform.proof.reference_leaf import Perturbation, perturbed
from gradxform.proof.ulp import DOUBLE, SUMS, apart, budget

Where = tuple[str, str]
SELDOM = {("jax", "eager"): 5, ("tensorflow", "eager"): 10}
"""The slowest modes run one case in so many."""
FLUSHING = ("jax", "tensorflow")
"""Frameworks whose kernels flush subnormal numbers to zero: they do not run where a leaf or a state comes to one.

Nor where a leaf is so small that its mean may be one, before factors that are still to be applied.
"""
_LOW = 32
"""Times the smallest normal number: the largest number of such a leaf."""
SHAKES = 6
FLUSHED = 5
"""Subnormal numbers that a result may have lost: one in each transform of a chain."""


class Count:
    """The counts of a run."""

    def __init__(self) -> None:
        """Start at zero."""
        self.cases = self.elements = self.unjudged = 0
        self.worst = 0.0


class Wrong(AssertionError):
    """A result over its budget."""


def check(structure: Structure, seeds: Sequence[int], modes: Sequence[Where], count: Count) -> None:
    """Compare one structure, with the values of each seed, with the reference in every framework and mode.

    Raises:
        Wrong: the first result over its budget, with everything needed to reproduce it.
    """
    tx = structure.tx
    runners = {where: parity.runner(tx, *where) for where in modes}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        steps = [values(structure.shapes, rng) for _ in range(structure.steps)]
        params = values(structure.shapes, rng)
        wanted = Wanted(tx, steps, params)
        here = [where for where in modes if seed % SELDOM.get(where, 1) == 0]
        here = [where for where in here if not (wanted.is_subnormal and where[0] in FLUSHING)]
        states = {}
        for where in here:
            try:
                results, states[where] = runners[where](steps, params)
            except Exception as error:
                error.add_note(_said(structure, seed, where, "", "raised"))
                raise
            _hold(structure, seed, where, results, wanted, count)
        first = gx.to_numpy(states[here[0]])
        flushed = functools.partial(_state_of_flushed, runners[here[0]], steps, params)
        for where in here[1:]:
            _hold_state(structure, seed, where, states[where], first, wanted, count, flushed)
        if not tx.stateful:
            _hold(structure, seed, ("numpy", "in place"), [_in_place(tx, steps[0], params)], wanted, count)
        begin, further = seed % len(here), 1 + seed // len(here) % max(1, len(here) - 1)
        moved = here[begin], here[(begin + further) % len(here)]
        _hold(structure, seed, moved[1], _moved(structure, moved, runners, steps, params), wanted, count, str(moved[0]))
        count.cases += 1


class Wanted:
    """The reference results, and how far they move when intermediate results change in their last bits."""

    def __init__(self, tx: gx.GradientTransformation, steps: Sequence[Any], params: Any) -> None:
        """Take the steps of one run."""
        self.given = tx, steps, params
        met: list[bool] = []
        with perturbed(Perturbation(met=met)):
            self.results = parity.expected_steps(*self.given)
        self.is_subnormal = bool(met) or any(_is_low(leaf) for step in steps for _, leaf in _leaves(step))
        self._others: dict[bool, list[Any]] = {}
        self._sizes = [{path: _most(leaf) for path, leaf in _leaves(step)} for step in steps]

    def lost(self, flushing: bool, path: str, right: Any) -> float:
        """The size of a number that may become zero: subnormal ones, or products with joined factors below 1e-300.

        A factor of the whole leaf may follow, which makes what was lost of a small gradient as much larger.
        """
        wide = right.real.dtype == np.float64
        least = min((sizes[path] for sizes in self._sizes if sizes[path]), default=1.0)
        flushed = FLUSHED * float(np.finfo(np.float64 if wide else np.float32).smallest_normal) if flushing else 0.0
        vanished = 1e-300 * max(max(sizes.values()) for sizes in self._sizes) if wide else 0.0
        return max(flushed * max(1.0, _most(right) / least), vanished)

    def others(self, flushing: bool) -> list[Any]:
        """The results with other rounding, or with flushed subnormal numbers."""
        if flushing not in self._others:
            found = []
            for seed in range(SHAKES):
                rng, some = np.random.default_rng(seed), seed % 2 == 0
                with perturbed(Perturbation(rng, flushing and some, some, not some)):
                    found.append(parity.expected_steps(*self.given))
            self._others[flushing] = found
        return self._others[flushing]

    def is_ill_conditioned(self, flushing: bool) -> bool:
        """Whether a result exceeds its budget once some last bits change or subnormal numbers are flushed."""
        return self._exceed(self.others(flushing))

    def moves(self) -> bool:
        """Whether a result exceeds its budget once subnormal numbers are flushed."""
        return self._exceed(self.others(flushing=True)[::2])  # the others change rounding and flush nothing

    def cancelled(self, path: str) -> float:
        """How far terms of a state's leaf exceed the largest value, at most; of all leaves if it is none of one."""
        steps = [step.cancelled for step in self.results]
        found = [step[leaf] for step in steps for leaf in step if path.endswith(f"/{leaf}") or path == leaf]
        return max(found or [most for step in steps for most in step.values()], default=1.0)

    def _exceed(self, runs: Sequence[list[Any]]) -> bool:
        return any(
            bool((apart(other[path], right, results.terms[path]) > _allowed(right, results.terms[path])).any())
            for others in runs
            for other, results in zip(others, self.results, strict=True)
            for path, right in results.items()
        )


def _is_low(leaf: Any) -> bool:
    return leaf.dtype != np.float16 and 0 < _most(leaf) < _LOW * float(ml_dtypes.finfo(leaf.dtype).smallest_normal)


def _most(leaf: Any) -> float:
    """The largest finite size."""
    return float(np.abs(leaf[np.isfinite(leaf)]).max(initial=0.0))


def _allowed(right: Any, term: Any) -> Any:
    """The budget of a rescaled leaf, or of each sum."""
    return budget(right.dtype, 2.0, term != 0)


def _state_of_flushed(run: Any, steps: Sequence[Any], params: Any) -> Any:
    """The last state of the run on arrays without subnormal numbers; results do not show it for frozen leaves."""
    return gx.to_numpy(run([optree.tree_map(_flushed, step) for step in steps], optree.tree_map(_flushed, params))[1])


def _flushed(leaf: Any) -> Any:
    if leaf.dtype.kind == "c":
        return (_flushed(leaf.real) + 1j * _flushed(leaf.imag)).astype(leaf.dtype)
    with np.errstate(all="ignore"):
        least = ml_dtypes.finfo(leaf.dtype).smallest_normal
        return np.where(np.abs(leaf) < least, leaf * 0, leaf).astype(leaf.dtype)


def _in_place(tx: gx.GradientTransformation, tree: Any, params: Any) -> parity.Result:
    given = optree.tree_map(np.copy, tree)
    gx.numpy.apply_(tx, given, params=params, **parity.beside(tx, params))
    return parity.Result("numpy", "in place", parity.named_leaves(given, lookup.backend("numpy")))


def _moved(
    structure: Structure, moved: tuple[Where, Where], runners: Any, steps: Sequence[Any], params: Any
) -> list[Any]:
    """The results of a run that starts in one framework and continues in another."""
    first, second = moved
    begun, state = runners[first](steps[: structure.moves], params)
    backend = lookup.backend(second[0])
    own = optree.tree_map(backend.from_numpy, params)
    state = gx.from_numpy(gx.to_numpy(state), like=structure.tx.init(own))
    return begun + runners[second](steps[structure.moves :], params, state)[0]


def _hold(
    structure: Structure, seed: int, where: Where, results: Any, wanted: Wanted, count: Count, moved: str = ""
) -> None:
    for step, (result, right) in enumerate(zip(results, wanted.results, strict=False)):
        if result.problem:
            raise Wrong(_said(structure, seed, where, moved, f"step {step}: {result.problem}"))
        for path, exact in right.items():
            for part in ("real", "imag") if exact.dtype.kind == "c" else ("",):
                leaves = result.leaves[path], exact, right.terms[path]
                got, good, term = (getattr(x, part) if part else x for x in leaves)
                distance, allowed = apart(got, good, term), _allowed(good, term)
                count.elements += got.size
                if not (distance > allowed).any():
                    count.worst = max(count.worst, float(distance.max(initial=0.0)))
                    continue
                flushing = any(name in f"{where} {moved}" for name in FLUSHING)
                others = [other[step][path] for other in wanted.others(flushing)]
                others = [getattr(other, part) if part else other for other in others]
                bad = (distance > allowed) & _is_far(got, good, term, others, wanted.lost(flushing, path, exact))
                count.unjudged += int(((distance > allowed) & ~bad).sum())
                if bad.any():
                    at = tuple(int(i) for i in np.argwhere(bad)[0])
                    said = f"step {step}, {path}{list(at)}: {got[at]!r}, not {good[at]!r}: {distance[at]:g} ULP"
                    raise Wrong(_said(structure, seed, where, moved, said))


def _is_far(got: Any, good: Any, term: Any, others: Sequence[Any], lost: float) -> Any:
    """Whether results are further off than an ill-conditioned result moves when a few last bits change.

    It may have lost a number of the size `lost`.
    """
    allowed = _allowed(good, term)
    near = np.min([apart(got, other, term) for other in others], axis=0)
    with np.errstate(all="ignore"):
        moved = [np.abs(number(other) - number(good)) for other in others]
        spread = np.max([np.where(np.isfinite(found), found, 0) for found in moved], axis=0)
        unit = np.abs(number(good)) * float(ml_dtypes.finfo(good.dtype).eps)
        within = np.abs(number(got) - number(good)) <= np.where(term > 0, 0, allowed) * unit + 2 * spread + lost
    return (near > allowed) & ~within


def _hold_state(
    structure: Structure,
    seed: int,
    where: Where,
    state: Any,
    first: Any,
    wanted: Wanted,
    count: Count,
    flushed: Callable[[], Any],
) -> None:
    """Compare a last state with another framework's: paths, dtypes, shapes, counters and flags.

    Other numbers agree to twice the budget of sums, of the largest number or term in their array. Not judged if
    subnormal numbers are flushed: counters that depend on them. Also not judged: numbers next to ill-conditioned
    results, and numbers that flushed values determine.
    """
    beside, own = dict(_leaves(first)), dict(_leaves(gx.to_numpy(state)))
    for (path, got), (other, right) in zip(own.items(), beside.items(), strict=True):
        same = path == other and (got.dtype, got.shape) == (right.dtype, right.shape)
        wrong = right.dtype.kind in "biu" and not np.array_equal(got, right)
        count.elements += got.size
        close = same and wrong and (_is_close_call(path, beside, own) or (where[0] in FLUSHING and wanted.moves()))
        if close:
            count.unjudged += got.size
        elif not same or wrong:
            said = (
                f"the state at {path!r} is {got!r:.80} of {got.dtype}, not {right!r:.80} of {right.dtype} at {other!r}"
            )
            raise Wrong(_said(structure, seed, where, "", said))
        # A rounding error is in the last bits of a sum, and a deviation is a difference from a mean.
        elif "lost" not in path.split("/") and not _agree(
            got,
            right,
            beside.get(path.replace("deviation", "average")),
            _is_single(path, structure),
            wanted.cancelled(path),
        ):
            flushes = where[0] in FLUSHING
            if not wanted.is_ill_conditioned(flushes) and not (
                flushes and _agree(got, dict(_leaves(flushed()))[path], 0)
            ):
                raise Wrong(
                    _said(structure, seed, where, "", f"the state at {path!r} is {got!r:.300}, not {right!r:.300}")
                )
            count.unjudged += got.size


def _is_close_call(path: str, *states: dict[str, Any]) -> bool:
    """Whether a flag compares two norms that differ only by a few last bits, in some states."""
    if not path.endswith("clipped"):
        return False
    norms = [[state[path.replace("clipped", name)] for name in ("norm_before", "norm_after")] for state in states]
    return all(_agree(b, a, a) for b, a in norms)


def _is_single(path: str, structure: Structure) -> bool:
    """Whether numbers of a state come from norms of results that are accurate to float32 only."""
    leaves = optree.tree_leaves(structure.shapes, is_leaf=lambda node: hasattr(node, "dtype"))
    name = path.rpartition("/")[2]
    return ("norm" in name or name in ("factor", "history", "average", "deviation")) and any(
        leaf.dtype not in ("float64", "complex128") for leaf in leaves
    )


def _agree(got: Any, right: Any, beside: Any, single: bool = False, cancelled: float = 1.0) -> bool:
    """Whether numbers of a state agree up to a few last bits of the largest, or of a term that is so much larger."""
    if right.dtype.kind in "biu":
        return True
    if right.dtype.kind == "c":
        return all(_agree(a, b, beside, single, cancelled) for a, b in ((got.real, right.real), (got.imag, right.imag)))
    finite = np.isfinite(right)
    if not np.array_equal(got[~finite], right[~finite], equal_nan=True):
        return False
    sizes = number(np.concatenate([np.abs(right[finite]), np.abs(got[finite]), np.ravel(np.abs(beside))]))
    largest = np.max(sizes[np.isfinite(sizes)], initial=0.0)
    kind = np.dtype(np.float32) if single else right.dtype
    info, units = ml_dtypes.finfo(kind), 2 * (DOUBLE if kind == np.float64 else SUMS)
    allowed = units * float(info.eps) * largest * min(cancelled, 1e300) + 8 * number(info.smallest_normal)
    return cancelled == math.inf or bool(np.all(np.abs(number(got[finite]) - number(right[finite])) <= allowed))


def _leaves(state: Any) -> list[tuple[str, Any]]:
    return [(path, np.asarray(leaf)) for path, leaf in parity.named_leaves(state, lookup.backend("numpy")).items()]


def _said(structure: Structure, seed: int, where: Where, moved: str, what: str) -> str:
    shapes = optree.tree_map(lambda leaf: (leaf.dtype, *leaf.shape), structure.shapes)
    begun = f", begun in {moved}, moved after step {structure.moves}" if moved else ""
    return (
        f"{'-'.join(where)}{begun}, {what}\n  {structure.expression}\n  {shapes}, {structure.steps} steps, seed {seed}"
    )


def everywhere(inductor: bool = False) -> list[Where]:
    """All frameworks and modes; torch.compile takes seconds per structure."""
    found = [(name, mode) for name in lookup.installed() for mode in parity.modes_of(name)]
    return [where for where in found if inductor or where != ("torch", "compiled")]


def main() -> int:
    """Run the command; 1 if a result is wrong, or more than 1 % are ill-conditioned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--each", type=int, default=50, help="cases of one structure")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inductor", type=int, default=0, help="one structure of so many under torch.compile as well")
    parser.add_argument("--only", help="frameworks, with commas between them")
    given = parser.parse_args()
    count, wrong, begun = Count(), 0, time.monotonic()
    warnings.simplefilter("ignore", gx.OrderWarning)
    rng = random.Random(given.seed)
    for place in range(max(1, given.cases // given.each)):
        structure = chains.structure(rng)
        modes = everywhere(bool(given.inductor) and place % given.inductor == 0)
        modes = [where for where in modes if not given.only or where[0] in given.only.split(",")]
        try:
            check(structure, range(place * given.each, (place + 1) * given.each), modes, count)
        except Exception as error:
            wrong += 1
            said = str(error) if isinstance(error, Wrong) else f"{error!r:.600}\n  {structure.expression}"
            print(f"--- {said}", flush=True)
    print(
        f"{count.cases} cases, {count.elements} elements, {wrong} structures wrong; worst {count.worst:g} ULP, "
        f"{count.unjudged} elements ill-conditioned; {(time.monotonic() - begun) / 60:.1f} min"
    )
    return 1 if wrong or count.unjudged > count.elements / 100 else 0


if __name__ == "__main__":
    sys.exit(main())
