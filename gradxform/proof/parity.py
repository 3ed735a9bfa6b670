"""Run a chain on the same gradients in every framework, eager and compiled, and compare with a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Place
from gradxform.proof.reference import references
from gradxform.proof.ulp import apart, budget

Leaves = dict[str, Any]
"""NumPy arrays by path."""


class Expected(Leaves):
    """The reference's results, and what sums allow."""

    def __init__(self, results: Leaves, terms: Leaves, cancelled: Mapping[str, float]) -> None:
        """`terms`: by how large a number each element is judged where it was summed; else zero.

        `cancelled`: how far terms exceed the largest value of a sum, by leaf.
        """
        super().__init__(results)
        self.terms, self.cancelled = terms, cancelled


Runner = Callable[..., tuple[list["Result"], Any]]


@dataclass(frozen=True)
class Difference:
    """One element that differs between two results."""

    path: str
    index: tuple[int, ...]
    got: Any
    wanted: Any
    ulp: float

    def __str__(self) -> str:
        """Path, index, both values and their distance."""
        place = f"{self.path or '(the only leaf)'}{list(self.index) if self.index else ''}"
        return f"{place}: {self.got!r}, not {self.wanted!r} ({self.ulp:g} ULP)"


@dataclass(frozen=True)
class Result:
    """The result of one framework and mode for one tree."""

    framework: str
    mode: str
    leaves: Leaves
    problem: str = ""
    """A problem with structure, dtypes, shapes or devices; then there are no leaves."""
    left_out: str = ""
    """Why it was left out; then there are no leaves."""

    @property
    def where(self) -> str:
        """Framework and mode."""
        return f"{self.framework} {self.mode}"


def named_leaves(tree: Any, backend: Backend | None = None) -> Leaves:
    """Return a tree's leaves as NumPy arrays by path, without None."""
    backend = backend or lookup.opened(tree)[0]
    if backend is None:
        return {}
    leaves = zip(backend.paths(tree), backend.flatten(tree)[0], strict=True)
    return {path: backend.to_numpy(leaf) for path, leaf in leaves if leaf is not None}


def run(
    tx: GradientTransformation, trees: Sequence[Any], framework: str, mode: str, place: Place | None = None
) -> list[Result]:
    """Run the first step on trees of NumPy arrays, which are also the parameters; return one result per tree.

    Trees of one structure share a compilation. Trees with dtypes that the place does not support are left out.
    """
    runners: dict[str, Runner] = {}
    results = []
    for tree in trees:
        if place is not None and (lacks := place.lacks(tree)):
            results.append(Result(framework, mode, {}, left_out=f"no {lacks} there"))
            continue
        structure = str([(path, leaf.dtype, leaf.shape) for path, leaf in named_leaves(tree).items()])
        step = runners.setdefault(structure, runner(tx, framework, mode, place))
        results.append(step([tree], tree)[0][0])
    return results


def modes_of(framework: str) -> tuple[str, ...]:
    """The modes of a framework."""
    return ("eager",) if lookup.backend(framework).compile(lambda: None) is None else ("eager", "compiled")


def runner(tx: GradientTransformation, framework: str, mode: str, place: Place | None = None) -> Runner:
    """Return a function that runs steps in one framework and mode; similar trees are compiled once.

    The runner takes the gradients of each step, the parameters and an optional initial state. It returns the results
    and the last state. Everything is at `place`, by default the framework's own device.
    """
    backend = lookup.backend(framework)
    place = place or Place("", "", backend.from_numpy)
    function = _step(tx, backend, mode)

    def run(steps: Sequence[Any], params: Any, state: Any = None) -> tuple[list[Result], Any]:
        with place.on():
            own = optree.tree_map(place.put, params)
            state, results = tx.init(own) if state is None else state, []
            for tree in steps:
                out, state = function(optree.tree_map(place.put, tree), state, own)
                results.append(_checked(backend, mode, tree, out, place))
        return results, state

    return run


def _step(tx: GradientTransformation, backend: Backend, mode: str) -> Callable[..., tuple[Any, Any]]:
    """Return the update, compiled if the mode requires it."""

    def one(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        return tx.update(updates, state, params, **beside(tx, params))

    return one if mode == "eager" else backend.compile(one) or one


def beside(tx: GradientTransformation, params: Any) -> dict[str, Any]:
    """The extra arguments of an update: the parameters serve as gradients where updates need them."""
    return {"gradients": params} if "gradients" in tx.traits.needs else {}


def _checked(backend: Backend, mode: str, tree: Any, out: Any, place: Place | None = None) -> Result:
    """Check structure, None, framework, device, dtypes and shapes of a result."""
    if optree.tree_structure(out) != optree.tree_structure(tree):
        return Result(backend.name, mode, {}, f"the structure became {optree.tree_structure(out)}")
    problems = []
    for path, leaf in zip(backend.paths(out), backend.flatten(out)[0], strict=True):
        if leaf is not None and lookup.owner(leaf) is not backend:
            problems.append(f"{path} became a {type(leaf).__name__}")
        elif leaf is not None and place is not None and not place.lies(leaf):
            problems.append(f"{path} is on {leaf.device}, not on {place.words}")
    leaves, given = {} if problems else named_leaves(out, backend), named_leaves(tree)
    for path, new in leaves.items():
        if (new.dtype, new.shape) != (given[path].dtype, given[path].shape):
            problems.append(f"{path} became {new.dtype} {new.shape}, from {given[path].dtype} {given[path].shape}")
    return Result(backend.name, mode, {}, problems[0]) if problems else Result(backend.name, mode, leaves)


def expected(tx: GradientTransformation, tree: Any) -> Expected:
    """Return the reference result for a tree of NumPy arrays."""
    return expected_steps(tx, [tree], tree)[0]


def expected_steps(tx: GradientTransformation, steps: Sequence[Any], params: Any) -> list[Expected]:
    """Return the reference results of consecutive steps."""
    named = [named_leaves(tree) for tree in steps]
    own = list(named_leaves(params).values())
    found = references(tx, [list(leaves.items()) for leaves in named], own)
    return [
        Expected(*(dict(zip(leaves, part, strict=True)) for part in step))
        for leaves, step in zip(named, found, strict=True)
    ]


def differences(got: Leaves, wanted: Leaves) -> tuple[Difference | None, Difference | None]:
    """Return the first and the largest difference of two results, or None."""
    found = {path: apart(got[path], right, term_of(wanted, path)) for path, right in wanted.items()}
    firsts = (difference(path, got[path], wanted[path], by, by > 0) for path, by in found.items())
    largest = larger(*(difference(path, got[path], wanted[path], by) for path, by in found.items()))
    return next(filter(None, firsts), None), largest


def beyond(got: Leaves, wanted: Leaves, terms: Mapping[str, Any], ulp: float, times: float = 1) -> Difference | None:
    """Return the largest difference beyond so many budgets; `terms` as `Expected` has them."""
    found = []
    for path, right in wanted.items():
        term = terms.get(path, 0.0)
        by = apart(got[path], right, term)
        by = np.where(by > times * budget(right.dtype, ulp, term != 0), by, 0.0)
        found.append(difference(path, got[path], right, by))
    return larger(*found)


def term_of(wanted: Leaves, path: str) -> Any:
    """Return what the reference says of the terms of a leaf; zero for other results."""
    return wanted.terms[path] if isinstance(wanted, Expected) else 0.0


def difference(path: str, got: Any, wanted: Any, distance: Any, by: Any = None) -> Difference | None:
    """Return the difference of two leaves where `by`, by default the distance, is largest; None without any."""
    if not np.any(distance):
        return None
    index = tuple(map(int, np.unravel_index(np.argmax(distance if by is None else by), np.shape(got))))
    return Difference(path, index, got[index].item(), wanted[index].item(), float(distance[index]))


def larger(*found: Difference | None) -> Difference | None:
    """Return the largest of some differences, the first of equal ones."""
    return max(filter(None, found), key=lambda difference: difference.ulp, default=None)
