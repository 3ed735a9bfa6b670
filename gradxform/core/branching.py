"""Two outcomes in a plan, of which each run computes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import and_, or_
from typing import Any

import optree

from gradxform.core.flat import Flat
from gradxform.core.recorder import Number, Unplanned
from gradxform.numerics import Array

Outcome = tuple[Flat, Any]
"""A view and a state."""


def branched(view: Flat, condition: Number, yes: Callable[[], Outcome], no: Callable[[], Outcome]) -> Outcome:
    """Note two outcomes of a view, which stop and reach the same leaves."""
    recorder: Any = view.backend
    before, found = dict(view.measured), list[Outcome]()

    def values(outcome: Callable[[], Outcome]) -> Sequence[Any]:
        out, state = outcome()
        if any(ord != 2 and leaf >= -1 and (ord, leaf) not in before for ord, leaf in view.measured):
            raise Unplanned  # the norm before the transform would be of another order
        view.measured.clear()  # what one outcome measures, the other may not
        view.measured.update(before)
        found.append((out, state))
        return [
            1.0 if out.factor is None else out.factor,
            *out.leaves,
            *(part for part in _parts(state)[0] if part is not None),
        ]

    factor, *arrays = recorder.branch(condition, [lambda: values(yes), lambda: values(no)])
    (out, state), (other, _) = found
    if out.source is not other.source or (out.scope, out.active, out.stopped) != (
        other.scope,
        other.active,
        other.stopped,
    ):
        raise Unplanned
    leaves, rest = arrays[: len(out.leaves)], iter(arrays[len(out.leaves) :])
    parts, structure = _parts(state)
    mask = out.source.mask
    due = mask(map(or_, out.due, other.due))
    # Of a leaf that one outcome leaves as it is, the norm is known then, and is that before the transform.
    same = any([leaf is own for each in (out, other) for leaf, own in zip(each.leaves, view.leaves, strict=True)])
    new = out._replace(
        leaves=tuple(leaves),
        factor=None if due is out.source.nothing else factor,
        due=due,
        owned=mask(map(and_, out.owned, other.owned)),
        measured=_Unknown() if same else {},
    )
    return new, optree.tree_unflatten(structure, [None if part is None else next(rest) for part in parts])


class _Unknown(dict[Any, Any]):
    """Norms of which it depends on the outcome whether they are known: no plan asks for them."""

    def _ask(self, *_: Any) -> Any:
        raise Unplanned

    get = setdefault = items = __getitem__ = __setitem__ = __contains__ = __iter__ = _ask


def zero_if(view: Flat, condition: Number, arrays: Sequence[Array]) -> Sequence[Array]:
    """Note zeros if a condition holds, else the arrays."""
    recorder: Any = view.backend
    found: Sequence[Array] = recorder.branch(condition, [lambda: recorder.zeros(arrays), lambda: arrays])
    return found


def _parts(state: Any) -> tuple[list[Any], Any]:
    return optree.tree_flatten(state, none_is_leaf=True)
