"""A stand-in for a backend that notes what a rule asks of the kernels, for plans."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from gradxform.backend.protocol import Backend
from gradxform.backend.steady import steady_of
from gradxform.core.source import NARROW

Step = Callable[[list[Any]], None]
"""Appends its results to a list that begins with the leaves of a call; later steps find them there."""
_OWN_SUMS = ("float32", "complex64")
_NUMBERS = (int, float, type(None))


class Unplanned(Exception):
    """The rule asks for more than a plan holds."""


class Number:
    """Stands for a number or vector, whose value only a branch may depend on."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __getattr__(self, name: str) -> Any:
        """Nothing else is known."""
        raise Unplanned

    def __bool__(self) -> bool:
        """No plan depends on it."""
        raise Unplanned

    def __eq__(self, other: object) -> bool:
        """No plan depends on it."""
        raise Unplanned

    __hash__ = None  # type: ignore[assignment]


class Scalar(Number):
    """Stands for a hyperparameter, which is a 0-d array."""

    __slots__ = ()
    dtype, shape = "float64", ()


class Leaf(Number):
    """Stands for an array, of which the dtype is known, and the shape if the plan is for arrays of one shape."""

    __slots__ = ("_form", "dtype")

    def __init__(self, place: int, dtype: Any, form: Sequence[Any] = ()) -> None:
        """`form`: the shape as the only item; empty if unknown."""
        super().__init__(place)
        self.dtype, self._form = dtype, form

    @property
    def shape(self) -> Any:
        """The shape, if known."""
        for shape in self._form:
            return shape
        raise Unplanned

    def at(self, place: int) -> Leaf:
        """Another one with the same dtype and shape."""
        return Leaf(place, self.dtype, self._form)


class Recorder:
    """Stands in for a backend, and notes what its kernels are asked for."""

    def __init__(self, backend: Backend, given: int) -> None:
        self._backend, self.known = backend, given
        self.steps: list[Step] = []
        self.numbers: list[int] = []
        """The places of what is no leaf."""
        self.name, self.title = backend.name, backend.title
        self.types, self.variables = (Leaf,), ()

    # --- what is known of a tree -----------------------------------------------------------------------------------

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Flatten as the backend does, which has arrays of its own for leaves."""
        found, structure = optree.tree_flatten(tree, none_is_leaf=True)
        if not all([leaf is None or isinstance(leaf, Leaf) for leaf in found]):
            raise Unplanned
        arrays: list[Any] = [None if leaf is None else self._backend.from_numpy(np.zeros(())) for leaf in found]
        own = {id(array): leaf for array, leaf in zip(arrays, found, strict=True)}
        leaves, known = self._backend.flatten(structure.unflatten(arrays))
        return [None if leaf is None else own[id(leaf)] for leaf in leaves], known

    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """Rebuild a tree as the backend does."""
        return self._backend.unflatten(structure, leaves)

    def dtype(self, leaf: Leaf) -> str:
        """Name of a dtype."""
        return self._backend.dtype(leaf)

    def shape(self, leaf: Leaf) -> tuple[int, ...]:
        """Shape, if the plan is for arrays of one shape."""
        return tuple(leaf.shape)

    def count(self, leaf: Leaf, axes: tuple[int, ...] | None) -> float:
        """Number of elements, if the shape is known."""
        return float(math.prod(leaf.shape if axes is None else [leaf.shape[axis] for axis in axes]))

    def dense(self, leaves: Sequence[Leaf]) -> tuple[Sequence[Leaf], None]:
        """Leaves with a plan are dense."""
        return leaves, None

    def densify(self, leaf: Leaf) -> Leaf:
        """Leaves with a plan are dense."""
        return leaf

    # --- kernels ---------------------------------------------------------------------------------------------------

    def norms(self, leaves: Sequence[Leaf], ord: float) -> Number:
        """Note a kernel."""
        norms, picked = steady_of(self._backend.norms), _picker(leaves)
        return self._number(lambda known: known.append(norms(picked(known), ord)))

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Number:
        """Note a formula of numbers."""
        _check(formula, static)
        compute = functools.partial(steady_of(self._backend.compute), formula, **static)
        first, *others = map(reading, operands)
        if not any([isinstance(operand, Number) for operand in operands[1:]]):  # most, for which this is faster
            return self._number(lambda known: known.append(compute(first(known), *operands[1:])))
        return self._number(lambda known: known.append(compute(first(known), *[of(known) for of in others])))

    def stored(self, value: Any, dtype: str, like: Leaf) -> Leaf:
        """Note a conversion to an array."""
        stored, value_of, like_of = self._backend.stored, reading(value), reading(like)
        (new,) = self._leaves([like], lambda known: known.append(stored(value_of(known), dtype, like_of(known))))
        return new

    def multiply(self, leaves: Sequence[Leaf], factors: Any, inplace: bool) -> Sequence[Leaf]:
        """Note a product."""
        multiply, picked, factor = steady_of(self._backend.multiply), _picker(leaves), reading(factors)
        return self._leaves(leaves, lambda known: known.extend(multiply(picked(known), factor(known), inplace)))

    def clip(self, leaves: Sequence[Leaf], low: Any, high: Any, factors: Any, inplace: bool) -> Sequence[Leaf]:
        """Note a clip."""
        if any(self._backend.dtype(leaf) in NARROW for leaf in leaves):  # results may be float32
            raise Unplanned
        if not (isinstance(low, _NUMBERS) and isinstance(high, _NUMBERS)):  # the order of others is checked each time
            raise Unplanned
        clip, picked, factor = steady_of(self._backend.clip), _picker(leaves), reading(factors)
        return self._leaves(leaves, lambda known: known.extend(clip(picked(known), low, high, factor(known), inplace)))

    def zeros(self, leaves: Sequence[Leaf]) -> Sequence[Leaf]:
        """Note new zeros."""
        zeros, picked = self._backend.zeros, _picker(leaves)
        return self._leaves(leaves, lambda known: known.extend(zeros(picked(known))))

    def zeroed(self, leaves: Sequence[Leaf]) -> Sequence[Leaf]:
        """Note zeros in the place of arrays."""
        zeroed, picked = self._backend.zeroed, _picker(leaves)
        return self._leaves(leaves, lambda known: known.extend(zeroed(picked(known))))

    def copied(self, leaves: Sequence[Leaf]) -> Sequence[Leaf]:
        """Note copies."""
        copied, picked = self._backend.copied, _picker(leaves)
        return self._leaves(leaves, lambda known: known.extend(copied(picked(known))))

    def elementwise(
        self,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        **static: Any,
    ) -> Sequence[Leaf]:
        """Note a formula of elements."""
        return self._elementwise(None, formula, columns, numbers, factors, static)

    def elementwise_into(
        self,
        out: Sequence[Leaf],
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        **static: Any,
    ) -> Sequence[Leaf]:
        """Note a formula of elements that may be written into arrays."""
        return self._elementwise(out, formula, columns, numbers, factors, static)

    def _elementwise(
        self,
        out: Sequence[Leaf] | None,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None,
        static: dict[str, Any],
    ) -> Sequence[Leaf]:
        _check(formula, static)
        if not all([self._backend.dtype(leaf) in _OWN_SUMS for leaf in columns[0]]):  # else results have other dtypes
            raise Unplanned
        kernel, picked = steady_of(self._backend.elementwise), list(map(_picker, columns))
        number, factor = list(map(reading, numbers)), None if factors is None else list(map(reading, factors))
        into = None if out is None else _picker(out)
        writing = self._backend.elementwise_into

        def step(known: list[Any]) -> None:
            given = [picks(known) for picks in picked], [of(known) for of in number]
            by = None if factor is None else [of(known) for of in factor]
            whole = (formula, *given, by)
            known.extend(kernel(*whole, **static) if into is None else writing(into(known), *whole, **static))

        return self._leaves(columns[0], step)

    def copied_into(self, out: Sequence[Leaf], leaves: Sequence[Leaf]) -> Sequence[Leaf]:
        """Note copies into arrays."""
        copied, into, picked = self._backend.copied_into, _picker(out), _picker(leaves)
        return self._leaves(leaves, lambda known: known.extend(copied(into(known), picked(known))))

    def branch(self, condition: Number, outcomes: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
        """Note the steps of two outcomes: a run takes the first if the condition holds, else the second.

        Both give as many arrays of the same dtypes, or numbers.
        """
        before, numbers, first = self.steps, len(self.numbers), self.known
        found, taken = [], []
        for outcome in outcomes:
            self.steps, self.known = [], first
            found.append(outcome())
            taken.append((self.steps, list(map(reading, found[-1]))))
        self.steps, self.known = before, first
        del self.numbers[numbers:]
        yes, no = taken

        def step(known: list[Any]) -> None:
            steps, picked = yes if known[condition.place] else no
            own = list(known)
            for each in steps:
                each(own)
            known.extend([of(own) for of in picked])

        self.steps.append(step)
        return [self._either(*pair) for pair in zip(*found, strict=True)]

    def _either(self, yes: Any, no: Any) -> Any:
        """What stands for the value of either outcome."""
        place, self.known = self.known, self.known + 1
        if isinstance(yes, Leaf) and isinstance(no, Leaf) and yes.dtype == no.dtype:
            return yes.at(place)
        if isinstance(yes, Leaf) or isinstance(no, Leaf):
            raise Unplanned
        self.numbers.append(place)
        return Number(place)

    def __getattr__(self, name: str) -> Any:
        """No plan holds what else a rule may ask for."""
        raise Unplanned

    def _number(self, step: Step) -> Number:
        self.steps.append(step)
        self.numbers.append(self.known)
        self.known += 1
        return Number(self.numbers[-1])

    def _leaves(self, like: Sequence[Leaf], step: Step) -> Sequence[Leaf]:
        if like:
            self.steps.append(step)
        first = self.known
        self.known += len(like)
        return [leaf.at(first + i) for i, leaf in enumerate(like)]


def places(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function that picks what stands at some places."""
    first = places[0] if places else 0
    if places == list(range(first, first + len(places))):
        return operator.itemgetter(slice(first, first + len(places)))
    return lambda known: [known[place] for place in places]


def _picker(leaves: Sequence[Number]) -> Callable[[list[Any]], Sequence[Any]]:
    return places([leaf.place for leaf in leaves])


def reading(value: Any) -> Callable[[list[Any]], Any]:
    """Return a function that finds the value of a placeholder or a number among what is known."""
    if isinstance(value, Number):
        return operator.itemgetter(value.place)
    if isinstance(value, _NUMBERS):
        return lambda known: value
    raise Unplanned


def _check(formula: Callable[..., Any], static: dict[str, Any]) -> None:
    """Refuse formulas that hold placeholders, or functions that a rule has made."""
    cells = getattr(formula, "__closure__", None) or ()
    if any([isinstance(value, Number) for value in (*static.values(), *(cell.cell_contents for cell in cells))]):
        raise Unplanned
