"""Transform what an optimizer's step adds to the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gradxform import GradientTransformation
from gradxform.core import state as stateful
from gradxform.core.holder import Holder, with_updates
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas
from gradxform.transforms.skipping import is_due
from gradxform_torch import _private
from gradxform_torch._parameters import NormBefore, holder_of, in_place, norm_before
from gradxform_torch._readable import DEVICE, place_of
from gradxform_torch._shards import local
from gradxform_torch._writing import Named
from gradxform_torch.dtensor import backend

_PART = 1 << 14
"""Elements at a time on a CPU."""


class Kept(NamedTuple):
    """Parameters before a step."""

    holder: Holder
    named: Named
    old: list[torch.Tensor | None]
    """Copies of those that the transform may change or measure; None for the others."""


class Moved(NamedTuple):
    """What a transform made of a step."""

    state: Any
    norm: NormBefore | None
    """The norm of all updates before the transform, if it is known."""
    after: Tree | None
    """The transformed updates; None if there are none."""


def kept(tx: GradientTransformation, named: Named, closure: bool, every: bool) -> Kept:
    """Copy the parameters that a transform may change: those that have a gradient, or may get one from a closure."""
    holder, own = holder_of(tx, named), [p.detach() for _, p in named]
    reached = [every or there for there in holder.reached(own)]
    chosen = [there and (closure or p.grad is not None) for there, (_, p) in zip(reached, named, strict=True)]
    with torch.no_grad():
        copies = iter(backend.copied([p for p, there in zip(own, chosen, strict=True) if there]))
    return Kept(holder, named, [next(copies) if there else None for there in chosen])


def moved(before: Kept, signs: Sequence[int], state: Any, found_inf: Any, flushes: bool = False) -> Moved:
    """Transform the updates of a step and write the parameters; return the new state.

    The state is overwritten. With `found_inf` of a loss scaler above zero, the step has not happened, and it stays.
    """
    named, tx = before.named, before.holder.tx
    old = [p if q.grad is not None else None for p, (_, q) in zip(before.old, named, strict=True)]
    signed: list[Any] = []
    with torch.no_grad():
        if "gradients" in tx.traits.needs:
            signed = [_signed(p.grad, sign) for (_, p), sign in zip(named, signs, strict=True)]
        new = [p.detach() for _, p in named]
        found = before.holder.added(old, new, state, signed, owned=found_inf is None, flushes=flushes)
        if found is None:
            return Moved(state, None, None)
        view, made, due = found.before, found.state, is_due(tx, found.state)
        whole = all(p is not None or q.grad is None for p, (_, q) in zip(old, named, strict=True))
        norm = norm_before(view, found.after, tx) if whole else None
        if found_inf is not None:
            goes_on = backend.compute(formulas.is_zero, found_inf)
            due = goes_on if due is True else backend.compute(_both, due, goes_on)
            made = stateful.either(view, goes_on, made, state) if tx.stateful else made
        after = found.after.settled()
        _write(named, old, after, due)
        return Moved(in_place(state, made) if tx.stateful else made, norm, after)


def restore(before: Kept) -> None:
    """Take a step back."""
    with torch.no_grad():
        for (_, parameter), old in zip(before.named, before.old, strict=True):
            if old is not None:
                parameter.copy_(old)


def _both(xp: Any, one: Array, other: Array) -> Array:
    return one * other


def _signed(gradient: torch.Tensor | None, sign: int) -> torch.Tensor | None:
    return gradient if gradient is None or sign > 0 else -gradient


def _write(named: Named, old: Sequence[Any], after: Tree, due: Any) -> None:
    """Write the parameters with their transformed updates; stopped ones are restored."""
    stopped, slots = after.skipped(), after.source.kept
    if stopped:
        _private.foreach_copy_([local(named[i][1]) for i in stopped], [local(old[i]) for i in stopped])
    on = [i for i, slot in enumerate(slots) if slot not in stopped]
    rows = [(local(after.leaves[i]), local(named[slots[i]][1].detach()), local(old[slots[i]])) for i in on]
    if place_of([update for update, _, _ in rows]) != DEVICE:
        for row in rows:
            for update, new, before in _pieces(row):
                new.copy_(with_updates(backend, [update], [new], [before], due)[0])
    elif rows:
        given, own, starts = (list(column) for column in zip(*rows, strict=True))
        # Half precision has wider updates, which may be written if no state holds them.
        out = [x if p.dtype != x.dtype and after.owned[i] else p for i, x, p in zip(on, given, own, strict=True)]
        made = with_updates(backend, given, own, starts, due, out)
        left = [(p, q) for p, q in zip(own, made, strict=True) if p is not q]
        if left:
            _private.foreach_copy_([p for p, _ in left], [q for _, q in left])


def _pieces(row: Sequence[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
    """Parts of tensors of one shape, so that what is computed between fits into a cache; whole if not contiguous."""
    if not all([x.is_contiguous() for x in row]) or row[0].numel() <= _PART:
        yield row
        return
    flat = [x.view(-1) for x in row]
    for start in range(0, flat[0].numel(), _PART):
        yield [x[start : start + _PART] for x in flat]
