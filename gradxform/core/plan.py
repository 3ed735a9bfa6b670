"""What a stateless transformation does with trees of one structure, worked out once and repeated.

The rule runs once on placeholders. A recorder stands in for the backend and notes each kernel as a step; the plan is
the list of steps. Kernels see the arrays of each call, so a plan fixes only what the core decides: which kernels run,
on which leaves, in which order. That follows from structure, dtypes and constant hyperparameters alone. A rule that
asks the backend for anything else has no plan and runs as usual.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend.lookup import first_leaf, kind_of
from gradxform.backend.protocol import Backend
from gradxform.backend.steady import steady_of
from gradxform.core.flat import Flat, Norm
from gradxform.core.source import DOUBLE, INEXACT, NARROW, Source


class Plan(NamedTuple):
    """What is done with the leaves of trees of one structure."""

    measured: Callable[[Sequence[Any]], tuple[Sequence[Any], Callable[[], Norm] | None]]
    """Maps leaves to the transformed leaves, and a function that returns the norm before the transform."""
    skipped: frozenset[int]
    """The stopped leaves, for adapters that can skip a parameter."""
    measures: bool
    """Whether it gives the norm."""

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return the transformed leaves."""
        return self.measured(leaves)[0]


_Step = Callable[[list[Any]], None]
"""Appends what it computes to what is known: first the leaves, then the results of the steps before."""
_KEPT = 256
_NUMBERS = (int, float, type(None))
_STEADY = (*_NUMBERS, str, re.Pattern)


def transformed(tx: Any, tree: Any) -> Any:
    """Transform a tree by its plan; NotImplemented if there is none."""
    backend = kind_of(first_leaf(tree))
    if backend is None:
        return NotImplemented
    found = backend.planned(tree)
    if found is None:
        return NotImplemented
    leaves, structure, signature = found
    plan = plan_of(tx, backend, structure, signature)
    return NotImplemented if plan is None else backend.unflatten(structure, plan.run(leaves))


@functools.lru_cache(_KEPT)
def plan_of(
    tx: Any, backend: Backend, structure: Hashable, signature: tuple[Any, ...], inplace: bool = False
) -> Plan | None:
    """Return the plan for trees of a structure; None if there is none.

    Args:
        tx: a stateless transformation.
        backend: owns the leaves.
        structure: of the tree, as the backend's `unflatten` takes it.
        signature: the dtype of each leaf, or None where the tree has None.
        inplace: whether leaves may be overwritten.
    """
    if not _steady(tx, type(tx)):
        return None
    try:
        return _record(tx, backend, structure, signature, inplace)
    except (_Unplanned, TypeError, ValueError):  # a user's error is raised again by the usual way
        return None


class _Unplanned(Exception):
    """The rule asks for more than a plan holds."""


def _steady(value: Any, transformation: type) -> bool:
    """Whether a hyperparameter never changes, and a rule's decisions depend on nothing else."""
    if isinstance(value, transformation):
        tx: Any = value
        if tx.stateful or tx.name in ("", "across"):
            return False
        return all(_steady(argument, transformation) for _, argument in tx.arguments)
    if isinstance(value, Mapping):  # the rules of a partition; a mask of bools could be changed
        return all(_steady(k, transformation) and isinstance(v, transformation) and _steady(v, transformation)
                   for k, v in value.items())  # fmt: skip
    if isinstance(value, (list, tuple)):
        return all(_steady(part, transformation) for part in value)
    return type(value) in _STEADY


class _Number:
    """Stands for a number or vector, whose value no plan may depend on."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __getattr__(self, name: str) -> Any:
        raise _Unplanned

    def __bool__(self) -> bool:
        raise _Unplanned

    def __eq__(self, other: object) -> bool:
        raise _Unplanned

    __hash__ = None  # type: ignore[assignment]


class _Leaf(_Number):
    """Stands for an array, of which the dtype is known."""

    __slots__ = ("dtype",)

    def __init__(self, place: int, dtype: Any) -> None:
        super().__init__(place)
        self.dtype = dtype


class _Recorder:
    """Stands in for a backend, and notes what its kernels are asked for."""

    def __init__(self, backend: Backend, leaves: int) -> None:
        self._backend, self.count = backend, leaves
        self.steps: list[_Step] = []
        self.numbers: list[int] = []
        """The places of what is no leaf."""
        self.name, self.types = backend.name, (_Leaf,)

    def norms(self, leaves: Sequence[_Leaf], ord: float) -> _Number:
        norms, picked = steady_of(self._backend.norms), _picker(leaves)
        return self._number(lambda known: known.append(norms(picked(known), ord)))

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> _Number:
        compute = functools.partial(steady_of(self._backend.compute), formula, **static)
        operand = list(map(_operand, operands))
        return self._number(lambda known: known.append(compute(*[of(known) for of in operand])))

    def multiply_in_turn(self, leaves: Sequence[_Leaf], factors: Sequence[Any], inplace: bool) -> Sequence[_Leaf]:
        if not factors:
            return leaves
        picked, operand = _picker(leaves), list(map(_operand, factors))
        if len(factors) == 1:
            multiply, (factor,) = steady_of(self._backend.multiply), operand
            return self._leaves(leaves, lambda known: known.extend(multiply(picked(known), factor(known), inplace)))
        in_turn = self._backend.multiply_in_turn
        return self._leaves(
            leaves, lambda known: known.extend(in_turn(picked(known), [of(known) for of in operand], inplace))
        )

    def clip(self, leaves: Sequence[_Leaf], low: Any, high: Any, factors: Any, inplace: bool) -> Sequence[_Leaf]:
        if any(self._backend.dtype(leaf) in NARROW for leaf in leaves):  # results may be float32
            raise _Unplanned
        clip, picked, factor = steady_of(self._backend.clip), _picker(leaves), _operand(factors)
        return self._leaves(leaves, lambda known: known.extend(clip(picked(known), low, high, factor(known), inplace)))

    def zeros(self, leaves: Sequence[_Leaf]) -> Sequence[_Leaf]:
        zeros, picked = self._backend.zeros, _picker(leaves)
        return self._leaves(leaves, lambda known: known.extend(zeros(picked(known))))

    def __getattr__(self, name: str) -> Any:
        raise _Unplanned

    def _number(self, step: _Step) -> _Number:
        self.steps.append(step)
        self.numbers.append(self.count)
        self.count += 1
        return _Number(self.numbers[-1])

    def _leaves(self, like: Sequence[_Leaf], step: _Step) -> Sequence[_Leaf]:
        if like:
            self.steps.append(step)
        first = self.count
        self.count += len(like)
        return [_Leaf(first + i, leaf.dtype) for i, leaf in enumerate(like)]


class _Context:
    """Stands for the other arguments of `update`; a rule that asks for the parameters has no plan."""

    extra: Mapping[str, Any] = MappingProxyType({})
    owned = False

    @property
    def params(self) -> Any:
        raise _Unplanned


def _operand(value: Any) -> Callable[[list[Any]], Any]:
    if isinstance(value, _Number):
        return operator.itemgetter(value.place)
    if isinstance(value, _NUMBERS):
        return lambda known: value
    raise _Unplanned


def _picker(leaves: Sequence[_Leaf]) -> Callable[[list[Any]], Sequence[Any]]:
    return _places([leaf.place for leaf in leaves])


def _places(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    first = places[0] if places else 0
    if places == list(range(first, first + len(places))):
        return operator.itemgetter(slice(first, first + len(places)))
    return lambda known: [known[place] for place in places]


def _record(tx: Any, backend: Backend, structure: Any, signature: tuple[Any, ...], inplace: bool) -> Plan | None:
    kept = [i for i, dtype in enumerate(signature) if dtype is not None]
    slots: list[Any] = [None if dtype is None else _Leaf(i, dtype) for i, dtype in enumerate(signature)]
    leaves = tuple(slots[i] for i in kept)
    dtypes = tuple(backend.dtype(leaf) for leaf in leaves)
    kinds = frozenset(dtypes)
    if not kinds or not kinds <= INEXACT - DOUBLE:  # factors of float64 leaves may need several kernels
        return None
    recorder: Any = _Recorder(backend, len(slots))
    every, nothing = (True,) * len(kept), (False,) * len(kept)
    paths = functools.cache(lambda: backend.paths(backend.unflatten(structure, slots)))
    source = Source(recorder, structure, slots, kept, dtypes, kinds, None, paths, every, nothing)
    given = Flat(source, leaves, None, nothing, every, every, nothing, every if inplace else nothing, {})
    view, _ = tx.rule(given, None, _Context())
    results = view.results()
    # None stands at its own place among the leaves.
    result = _places([i if leaf is None else leaf.place for i, leaf in enumerate(results)])
    steps, norm_of = tuple(recorder.steps), _norm_before(recorder, given, view, backend)

    def measured(leaves: Sequence[Any]) -> tuple[Sequence[Any], Callable[[], Norm] | None]:
        known = list(leaves)
        _run(steps, known)
        return result(known), None if norm_of is None else norm_of(known)

    return Plan(measured, frozenset(view.skipped()), norm_of is not None)


def _norm_before(recorder: Any, given: Flat, view: Flat, backend: Backend) -> Any:
    """Return a function that keeps the numbers of a run, and returns one for the norm of its gradients."""
    known_norm = given.known_norm(view.stopped)
    if known_norm is None:
        return None
    before, count, numbers = len(recorder.steps), recorder.count, tuple(recorder.numbers)
    norm = known_norm()
    steps = tuple(recorder.steps[before:])

    def keeping(known: list[Any]) -> Callable[[], Norm]:
        kept = {place: known[place] for place in numbers}

        def computed() -> Norm:
            again = [kept.get(place) for place in range(count)]
            _run(steps, again)
            return norm._replace(value=again[norm.value.place], backend=backend)

        return computed

    return keeping


def _run(steps: Sequence[_Step], known: list[Any]) -> None:
    with np.errstate(all="ignore"):  # plans are for arrays that NumPy reads
        for step in steps:
            step(known)
