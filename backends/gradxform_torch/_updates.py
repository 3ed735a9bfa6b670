"""Transform what an optimizer's step adds to the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gradxform import GradientTransformation
from gradxform.core import align, updates
from gradxform.core import state as stateful
from gradxform.core.transform import Context
from gradxform.core.tree import Tree
from gradxform.core.where import keys_of
from gradxform.numerics import Array, formulas
from gradxform.transforms.skipping import is_due
from gradxform_torch import _private
from gradxform_torch._fused import on_device
from gradxform_torch._held import Held
from gradxform_torch._optimizers import closure_of, is_for_show, named_of
from gradxform_torch._parameters import NormBefore, in_place, norm_before, paths_of, view_of
from gradxform_torch._private import is_inner_call
from gradxform_torch._recorded import Recorded
from gradxform_torch._shards import local
from gradxform_torch._writing import Named
from gradxform_torch.dtensor import backend

_PART = 1 << 14
"""Elements at a time on a CPU."""


class Kept(NamedTuple):
    """Parameters before a step."""

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
    own = [p.detach() if closure or p.grad is not None else None for _, p in named]
    if tx.traits.selections and not every:
        view = _view(tx, named, [p.detach() for _, p in named])
        there = [False] * len(named) if view is None else tx.reached(view)
        own = [p if chosen else None for p, chosen in zip(own, there, strict=True)]
    with torch.no_grad():
        copies = iter(backend.copied([p for p in own if p is not None]))
    return Kept(named, [None if p is None else next(copies) for p in own])


def moved(tx: GradientTransformation, before: Kept, signs: Sequence[int], state: Any, found_inf: Any) -> Moved:
    """Transform the updates of a step and write the parameters; return the new state.

    The state is overwritten. With `found_inf` of a loss scaler above zero, the step has not happened, and it stays.
    """
    named, old = (
        before.named,
        [p if q.grad is not None else None for p, (_, q) in zip(before.old, before.named, strict=True)],
    )
    there = [i for i, p in enumerate(old) if p is not None]
    new = [named[i][1].detach() for i in there]
    with torch.no_grad():
        slots: list[Any] = [None] * len(named)
        for i, update in zip(there, updates.differences(backend, new, [old[i] for i in there]), strict=True):
            slots[i] = update
        view = _view(tx, named, slots)
        if view is None:
            return Moved(state, None, None)
        if tx.stateful:
            align.check_state(view, state)
        keys = keys_of(paths_of(named))
        extra = {}
        if "gradients" in tx.traits.needs:
            signed = [_signed(p.grad, sign) for (_, p), sign in zip(named, signs, strict=True)]
            extra["gradients"] = dict(zip(keys, signed, strict=True))
        context = Context(dict(zip(keys, old, strict=True)), extra, owned=found_inf is None, added=True)
        after, made = tx.rule(view, state, context)
        whole = all(p is not None or q.grad is None for p, (_, q) in zip(old, named, strict=True))
        norm = norm_before(view, after, tx) if whole else None
        due = is_due(tx, made)
        if found_inf is not None:
            goes_on = backend.compute(formulas.is_zero, found_inf)
            due = goes_on if due is True else backend.compute(_both, due, goes_on)
            made = stateful.either(view, goes_on, made, state) if tx.stateful else made
        after = after.settled()
        _write(named, old, after, due)
        return Moved(in_place(state, made) if tx.stateful else made, norm, after)


def _restore(before: Kept) -> None:
    """Take a step back."""
    with torch.no_grad():
        for (_, parameter), old in zip(before.named, before.old, strict=True):
            if old is not None:
                parameter.copy_(old)


def _both(xp: Any, one: Array, other: Array) -> Array:
    return one * other


def _signed(gradient: torch.Tensor | None, sign: int) -> torch.Tensor | None:
    return gradient if gradient is None or sign > 0 else -gradient


def _view(tx: GradientTransformation, named: Named, tensors: Sequence[torch.Tensor | None]) -> Tree | None:
    return view_of(named, keys_of(paths_of(named)), tensors, tx.traits.axes, inplace=True)


def _write(named: Named, old: Sequence[Any], after: Tree, due: Any) -> None:
    """Write the parameters with their transformed updates; stopped ones are restored."""
    stopped, slots = after.skipped(), after.source.kept
    if stopped:
        _private.foreach_copy_([local(named[i][1]) for i in stopped], [local(old[i]) for i in stopped])
    on = [i for i, slot in enumerate(slots) if slot not in stopped]
    rows = [(local(after.leaves[i]), local(named[slots[i]][1].detach()), local(old[slots[i]])) for i in on]
    if not on_device([update for update, _, _ in rows], narrow=True):
        for row in rows:
            for update, new, before in _pieces(row):
                new.copy_(updates.moved(backend, [update], [new], [before], due)[0])
    elif rows:
        given, own, starts = (list(column) for column in zip(*rows, strict=True))
        # Half precision has wider updates, which may be written if no state holds them.
        out = [x if p.dtype != x.dtype and after.owned[i] else p for i, x, p in zip(on, given, own, strict=True)]
        made = updates.moved(backend, given, own, starts, due, out)
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


class OnUpdates:
    """The part of a handle that transforms updates."""

    tx: GradientTransformation
    _held: Held
    _norm: NormBefore | None
    _recorded: Recorded | None
    _follow: Callable[[Any, Named], None]
    _kept: Kept | None = None

    def _before_updates(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Copy the parameters; the closure, which the step calls, computes the gradients later."""
        if is_inner_call(optimizer):
            return
        self._kept = None
        if not is_for_show(optimizer, args, kwargs):
            named = named_of(optimizer)
            self._follow(optimizer, named)
            every = self._recorded is not None and self._recorded.is_due()
            self._kept = kept(self.tx, named, closure_of(args, kwargs) is not None, every)

    def _after_updates(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Transform what the step has added."""
        if self._kept is None or is_inner_call(optimizer):
            return
        before, self._kept = self._kept, None
        signs = [-1 if group.get("maximize") else 1 for group in optimizer.param_groups for _ in group["params"]]
        found_inf = getattr(optimizer, "found_inf", None)  # as in `_transform`
        if self._recorded is not None:
            self._recorded.before(before.named, getattr(optimizer, "grad_scale", None))
        try:
            made = moved(self.tx, before, signs, self._held.state, found_inf)
        except Exception:  # as for gradients, what cannot be transformed is not applied
            _restore(before)
            raise
        self._held, self._norm = self._held._replace(state=made.state), made.norm
        if self._recorded is not None:
            found = [None] * len(before.named) if made.after is None else made.after.results()
            self._recorded.after(before.named, found, before.old)
