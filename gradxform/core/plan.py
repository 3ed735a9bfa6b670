"""What a transformation does with trees of one structure, worked out once and repeated.

The rule runs once on placeholders. A recorder stands in for the backend and notes each kernel as a step; the plan is
the list of steps. Kernels see the arrays of each call, so a plan fixes only what the core decides: which kernels run,
on which leaves, in which order. That follows from structure, dtypes and constant hyperparameters alone; with a state,
from shapes too. Schedules are called at each run, and where a rule chooses between two outcomes by a number, the plan
has the steps of both. A rule that asks the backend for anything else has no plan and runs
as usual.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import optree

from gradxform.backend.lookup import first_leaf, kind_of
from gradxform.backend.protocol import Backend
from gradxform.core.flat import Flat, Norm
from gradxform.core.recorder import Leaf, Recorder, Step, Unplanned, places, reading
from gradxform.core.source import DOUBLE, INEXACT, Source

_KEPT = 256
_STEADY = (int, float, type(None), str, re.Pattern)
_Pick = Callable[[list[Any]], Sequence[Any]]


class Plan(NamedTuple):
    """What is done with the leaves of trees of one structure, and with those of a state."""

    steps: Sequence[Step]
    result: _Pick
    """Picks the transformed leaves among what is known in the end."""
    kept: _Pick
    """Picks the leaves of the new state."""
    state: Any
    """The structure of the new state."""
    norm_of: Callable[[list[Any]], Callable[[], Norm]] | None
    """Keeps the numbers of a run, and returns a function for the norm before the transform; None if there is none."""
    skipped: frozenset[int]
    """The stopped leaves, for adapters that can skip a parameter."""

    def known(self, given: Sequence[Any]) -> list[Any]:
        """Run the steps on the leaves, and those of the state."""
        known = list(given)
        _run(self.steps, known)
        return known

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return the transformed leaves, of a stateless transformation."""
        return self.result(self.known(leaves))

    def new_state(self, known: list[Any]) -> Any:
        """The new state."""
        return optree.tree_unflatten(self.state, self.kept(known))


def updated(tx: Any, tree: Any, state: Any) -> Any:
    """Transform a tree and a state by their plan; NotImplemented if there is none."""
    backend = kind_of(first_leaf(tree))
    found = None if backend is None else backend.planned(tree)
    if backend is None or found is None:
        return NotImplemented
    leaves, structure, signature = found
    ready = ready_plan(tx, backend, structure, signature, leaves, state)
    if ready is None:
        return NotImplemented
    plan, given = ready
    known = plan.known(given)
    return backend.unflatten(structure, plan.result(known)), plan.new_state(known) if tx.start else state


def ready_plan(
    tx: Any,
    backend: Backend,
    structure: Hashable,
    signature: tuple[Any, ...],
    leaves: Sequence[Any],
    state: Any,
    inplace: bool = False,
    owned: bool = False,
) -> tuple[Plan, Sequence[Any]] | None:
    """Return a plan and what it runs on, which includes the leaves of a state; None if there is none."""
    if tx.start is None:
        plan = plan_of(tx, backend, structure, signature, inplace)
        return None if plan is None else (plan, leaves)
    if not _has_steady_rule(tx):  # a state of another library may not hash
        return None
    kept, held = optree.tree_flatten(state, none_is_leaf=True)
    kinds = backend.signature(kept) if kept else ()
    if kinds is None:
        return None
    shapes = tuple([None if leaf is None else leaf.shape for leaf in (*leaves, *kept)])
    plan = plan_of(tx, backend, structure, signature, inplace, (held, kinds, shapes, owned))
    return None if plan is None else (plan, [*leaves, *kept])


@functools.lru_cache(_KEPT)
def plan_of(
    tx: Any,
    backend: Backend,
    structure: Hashable,
    signature: tuple[Any, ...],
    inplace: bool = False,
    state: tuple[Any, ...] = (),
) -> Plan | None:
    """Return the plan for trees of a structure; None if there is none.

    Args:
        tx: a transformation.
        backend: owns the leaves.
        structure: of the tree, as the backend's `unflatten` takes it.
        signature: the dtype of each leaf, or None where the tree has None.
        inplace: whether leaves may be overwritten.
        state: of a stateful transformation, the structure and the dtypes of its state, the shapes of the leaves and of
            the state, and whether the state may be overwritten.
    """
    if tx.stateful is not bool(state) or not _has_steady_rule(tx):
        return None
    try:
        return _record(tx, backend, structure, signature, inplace, state)
    except (Unplanned, AttributeError, TypeError, ValueError):  # a user's error is raised again by the usual way
        return None


@functools.lru_cache(_KEPT)
def _has_steady_rule(tx: Any) -> bool:
    return _steady(tx, type(tx))


def _steady(value: Any, transformation: type) -> bool:
    """Whether a hyperparameter never changes, and a rule's decisions depend on nothing else."""
    if isinstance(value, transformation):
        tx: Any = value
        own = {*map(id, tx.schedules)}  # each run calls schedules
        given = [argument for _, argument in tx.arguments if type(argument) is not bool and id(argument) not in own]
        return tx.name not in ("", "across") and all(_steady(argument, transformation) for argument in given)
    if isinstance(value, Mapping):  # the rules of a partition; a mask of bools could be changed
        return all(_steady(k, transformation) and isinstance(v, transformation) and _steady(v, transformation)
                   for k, v in value.items())  # fmt: skip
    if isinstance(value, (list, tuple)):
        return all(_steady(part, transformation) for part in value)
    return type(value) in _STEADY


class _Context:
    """Stands for the other arguments of `update`; a rule that asks for the parameters has no plan."""

    extra: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, owned: bool) -> None:
        self.owned = owned

    @property
    def params(self) -> Any:
        raise Unplanned

    def _replace(self, owned: bool) -> _Context:
        return _Context(owned)


def _record(
    tx: Any, backend: Backend, structure: Any, signature: tuple[Any, ...], inplace: bool, state: tuple[Any, ...]
) -> Plan | None:
    held, dtypes, shapes, owned = state or (None, (), (), False)
    slots, before = _placeholders(signature, dtypes, shapes)
    kept = [i for i, dtype in enumerate(signature) if dtype is not None]
    leaves = tuple(slots[i] for i in kept)
    names = tuple(backend.dtype(leaf) for leaf in leaves)
    kinds = frozenset(names)
    if not kinds or not kinds <= INEXACT - DOUBLE:  # factors of float64 leaves may need several kernels
        return None
    recorder: Any = Recorder(backend, len(slots) + len(before))
    every, nothing = (True,) * len(kept), (False,) * len(kept)
    paths = functools.cache(lambda: backend.paths(backend.unflatten(structure, slots)))
    source = Source(recorder, structure, slots, kept, names, kinds, None, paths, every, nothing)
    given = Flat(source, leaves, None, nothing, every, every, nothing, every if inplace else nothing, {})
    view, new = tx.rule(given, optree.tree_unflatten(held, before) if state else None, _Context(owned))
    results = view.results()
    after, form = optree.tree_flatten(new, none_is_leaf=True) if state else ([], None)
    if not all([leaf is None or isinstance(leaf, Leaf) for leaf in after]):
        return None
    steps, norm_of = tuple(recorder.steps), _norm_before(recorder, given, view, backend)
    return Plan(steps, _picked(results, slots), _picked(after, before, len(slots)), form, norm_of,
                frozenset(view.skipped()))  # fmt: skip


def _placeholders(signature: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[Any]) -> tuple[list[Any], ...]:
    """What stands for the leaves of a tree, and for those of a state."""
    kinds = (*signature, *dtypes)
    forms: list[tuple[Any, ...]] = [(shape,) for shape in shapes] or [()] * len(kinds)
    pairs = enumerate(zip(kinds, forms, strict=True))
    found: list[Any] = [None if kind is None else Leaf(i, kind, form) for i, (kind, form) in pairs]
    return found[: len(signature)], found[len(signature) :]


def _picked(leaves: Sequence[Any], before: Sequence[Any], first: int = 0) -> _Pick:
    """Return a function that picks leaves among what is known; a None is where it was before."""
    nothing = [first + i for i, leaf in enumerate(before) if leaf is None]
    if sum(leaf is None for leaf in leaves) > len(nothing):
        raise Unplanned
    rest = iter(nothing)
    return places([next(rest) if leaf is None else leaf.place for leaf in leaves])


def _norm_before(recorder: Any, given: Flat, view: Flat, backend: Backend) -> Any:
    """Return a function that keeps the numbers of a run, and returns one for the norm of its gradients."""
    known_norm = given.known_norm(view.stopped)
    if known_norm is None:
        return None
    before, count, numbers = len(recorder.steps), recorder.known, tuple(recorder.numbers)
    norm = known_norm()
    steps, value_of = tuple(recorder.steps[before:]), reading(norm.value)

    def keeping(known: list[Any]) -> Callable[[], Norm]:
        kept = {place: known[place] for place in numbers}

        def computed() -> Norm:
            again = [kept.get(place) for place in range(count)]
            _run(steps, again)
            return norm._replace(value=value_of(again), backend=backend)

        return computed

    return keeping


def _run(steps: Sequence[Step], known: list[Any]) -> None:
    with np.errstate(all="ignore"):  # plans are for arrays that NumPy reads
        for step in steps:
            step(known)
