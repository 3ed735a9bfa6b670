"""What adapters share: variables by path, a transformation's state for them, and updates that an optimizer adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend, Given, Row
from gradxform.core import align
from gradxform.core.leaves import Absent, put
from gradxform.core.transform import Context, GradientTransformation
from gradxform.core.tree import Tree
from gradxform.core.where import keys_of
from gradxform.numerics import Array, dtype_name

GRADIENTS, UPDATES = "gradients", "updates"


class Step(NamedTuple):
    """What a transformation made of the gradients of a step."""

    gradients: list[Any]
    """One per variable; zeros on a skipped step, None where there was none."""
    stopped: set[int]
    """Positions of the variables whose gradients were stopped."""
    state: Any


class Ran(NamedTuple):
    """What a transformation made of gradients, or of the updates that an optimizer has added."""

    before: Tree
    after: Tree
    state: Any


class Holder:
    """Variables by path, and the structure of a state whose arrays an adapter keeps by path.

    Sequences have one item per variable, in the order of the variables. Trees are dicts by key.
    """

    def __init__(
        self,
        tx: GradientTransformation,
        backend: Backend,
        paths: Row,
        variables: Row = (),
        sort: bool = False,
        absent: Absent = dict,
    ) -> None:
        """Keep them.

        Args:
            tx: the transformation.
            backend: the framework of the arrays.
            paths: of the variables.
            variables: if given, they can be chosen by identity.
            sort: whether dicts are in the order of their keys, so that a state is the same in every framework.
            absent: other names that the user may have in mind, and why they have no path.
        """
        self.tx, self.backend, self.paths, self.variables, self.absent = tx, backend, paths, variables, absent
        self.keys = keys_of(paths)
        places = [(key, place) for place, key in enumerate(self.keys)]
        self._order: list[int]
        """Where each item of a flattened dict is among the variables."""
        self._order, self._structure = backend.flatten(dict(sorted(places) if sort else places))
        self._form: Any = None
        self._places: list[str | None] = []

    def by_key(self, items: Sequence[Any]) -> dict[str, Any]:
        """Items of the variables as a tree."""
        return dict(zip(self._sorted(self.keys), self._sorted(items), strict=True))

    def view(self, arrays: Sequence[Any], inplace: bool = False) -> Tree | None:
        """View of one array per variable, possibly None.

        None if there are no arrays, except along axes of devices, where others wait for this one.
        """
        slots, owners = self._sorted(arrays), self._sorted(self.variables) if self.variables else None
        given = self.backend, slots, self._structure, lambda: self._sorted(self.paths)
        found = Tree.of(*given, inplace=inplace, owners=owners, absent=self.absent)
        return found if found.leaves or self.tx.traits.axes else None

    def positions(self, slots: Iterable[int]) -> list[int]:
        """The positions of the variables in some slots of a view."""
        return [self._order[slot] for slot in slots]

    def _sorted(self, items: Sequence[Any]) -> list[Any]:
        return list(map(items.__getitem__, self._order))

    def _unsorted(self, items: Sequence[Any]) -> list[Any]:
        return put(items, self._order, items)

    # --- steps ---------------------------------------------------------------------------------------------------

    def step(self, what: str, gradients: Row, state: Any, context: Context) -> Step:
        """Transform the gradients of a step; the context has one parameter per variable.

        Raises:
            ValueError: all variables have gradients, and all are stopped.
        """
        view = self.view(gradients)
        if view is None:
            return Step(list(gradients), set(), state)
        view, state = self.tx.rule(view, state, context._replace(params=self.by_key(context.params)))
        stopped = set(self.positions(view.skipped()))
        if len(stopped) == len(self.paths):
            raise ValueError(f"{what}: {self.tx!r} stops the gradients of all variables: {', '.join(self.paths)}")
        return Step(self._unsorted(view.results()), stopped, state)

    def reached(self, arrays: Sequence[Any]) -> list[bool]:
        """Which variables the transformation may change or measure."""
        view = self.view(arrays) if self.tx.traits.selections else None
        return [True] * len(self.paths) if view is None else self._unsorted(self.tx.reached(view))

    def added(self, old: Row, new: Row, state: Any, gradients: Row, context: Context) -> Ran | None:
        """Transform what an optimizer has added, new - old, except where `old` is None; None if that is nothing."""
        there = [i for i, value in enumerate(old) if value is not None]
        columns = [[values[i] for i in there] for values in (new, old)]
        found = self.backend.elementwise(_difference, columns, ()) if there else []
        view = self.view(put([None] * len(old), there, found), inplace=True)
        if view is None:
            return None
        extra = context.extra
        if "gradients" in self.tx.traits.needs:
            extra = {**extra, "gradients": None if context.flushes else self.by_key(gradients)}
        return self.run(view, state, context._replace(params=self.by_key(old), extra=extra, added=True))

    def run(self, view: Tree, state: Any, context: Context) -> Ran:
        """Transform a view, with a state that the user may have taken from elsewhere."""
        if self.tx.stateful:
            align.check_state(view, state)
        return Ran(view, *self.tx.rule(view, state, context))

    # --- states --------------------------------------------------------------------------------------------------

    def init(self, arrays: Sequence[Any]) -> Any:
        """The first state for arrays like the variables."""
        view = self.view(arrays)
        return self.tx.init({} if view is None else view)

    def init_like(self, likes: Sequence[tuple[Sequence[int], str]]) -> Any:
        """The first state, of NumPy arrays, for variables of known shapes and dtypes."""
        numpy = Holder(self.tx, lookup.backend("numpy"), self.paths, self.variables, sort=True, absent=self.absent)
        return numpy.init([np.zeros(tuple(shape), np.dtype(dtype)) for shape, dtype in likes])

    def start(self, first: Any) -> dict[str, Any]:
        """Keep the structure of a first state; return its arrays by path."""
        leaves, self._form = self.backend.flatten(first)
        paths = zip(leaves, self.backend.paths(first), strict=True)
        self._places = [None if leaf is None else path for leaf, path in paths]
        return self.arrays(first)

    def arrays(self, state: Any) -> dict[str, Array]:
        """The arrays of a state by path."""
        leaves = zip(self._places, self.backend.flatten(state)[0], strict=True)
        return {path: leaf for path, leaf in leaves if path is not None}

    def state(self, arrays: Mapping[str, Array]) -> Any:
        """The state with these arrays."""
        return self.backend.unflatten(self._form, [None if path is None else arrays[path] for path in self._places])


def extra_of(value: Any) -> dict[str, Any]:
    """The extra arguments of an update with a loss."""
    return {} if value is None else {"value": value}


# --- updates, which an optimizer adds to parameters ------------------------------------------------------------------


def check_place(transform: str, on: Any, tx: GradientTransformation) -> None:
    """Reject a place that is neither of the two, and the gradients for transforms of updates.

    Raises:
        ValueError: names both, or what to write.
    """
    if not isinstance(on, str) or on not in (GRADIENTS, UPDATES):
        raise ValueError(f"{transform}: on must be 'gradients', or 'updates' of parameters, got {on!r}")
    if on == GRADIENTS and "gradients" in tx.traits.needs:
        raise ValueError(f"{transform}: {tx!r} compares updates with their gradients; write on='updates'")


def with_updates(backend: Backend, updates: Row, new: Row, old: Row, due: Any, out: Given = None) -> list[Array]:
    """Return parameters with other updates, in the dtypes of the updates; they may be written into `out`.

    An element whose update is still new - old is the new one, and one whose update is zero the old one, bit for bit.
    Others are old + update, rounded once. If the step is not due, all are the old ones.
    """
    return backend.each(_moved, [updates, new, old], [] if due is True else [due], out)


def _difference(xp: Any, new: Array, old: Array) -> Array:
    return xp.where(new == old, xp.zeros_like(new), new - old)  # an infinite parameter may stay


def _moved(xp: Any, update: Array, new: Array, old: Array, *due: Array) -> Array:
    after, before = (xp.cast(x, dtype_name(update)) for x in (new, old))
    changed = xp.where(update == 0.0, before, before + update)
    moved = xp.where(update == after - before, after, changed)
    return xp.where(due[0] > 0.0, moved, before) if due else moved
