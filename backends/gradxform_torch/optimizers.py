"""PyTorch optimizers: their parameters, which steps count, and what a step adds to the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gradxform import GradientTransformation
from gradxform.core import state as stateful
from gradxform.core.holder import Holder, with_updates
from gradxform.core.tree import Tree
from gradxform.numerics import formulas
from gradxform.transforms.skipping import is_due
from gradxform_torch import _private
from gradxform_torch._readable import DEVICE, place_of
from gradxform_torch._shards import local
from gradxform_torch.apply_ import Named, NormBefore, holder_of, in_place, norm_before
from gradxform_torch.dtensor import backend


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside another one, such as Lightning's and Accelerate's wrappers; other objects unchanged."""
    inner = getattr(optimizer, "optimizer", None)
    both = isinstance(optimizer, torch.optim.Optimizer) and isinstance(inner, torch.optim.Optimizer)
    return unwrapped(inner) if both else optimizer


def named_of(optimizer: torch.optim.Optimizer) -> Named:
    """Parameters of all groups, with names or indices."""
    named: list[tuple[str, torch.Tensor]] = []
    for group in optimizer.param_groups:
        names = group.get("param_names") or [str(len(named) + i) for i in range(len(group["params"]))]
        named += zip(names, group["params"], strict=True)
    return named


def closure_of(args: Any, kwargs: Any) -> Any:
    """The closure among the arguments of a step, or None."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def is_for_show(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> bool:
    """Whether this is the step on zeros by which `torch.distributed.checkpoint` creates an optimizer's state."""
    if len(args) > 1 or kwargs != {"closure": None} or optimizer.state:
        return False
    if any(group.get("lr", 0.0) != 0.0 for group in optimizer.param_groups):
        return False
    gradients = [parameter.grad for _, parameter in named_of(optimizer) if parameter.grad is not None]
    return bool(gradients) and not any(gradient.is_sparse or gradient.any() for gradient in gradients)


# --- updates ---------------------------------------------------------------------------------------------------------


class Before(NamedTuple):
    """Parameters before a step."""

    holder: Holder
    named: Named
    old: list[torch.Tensor | None]
    """Copies of those that the transform may change or measure; None for the others."""


def copied(tx: GradientTransformation, named: Named, closure: bool, every: bool) -> Before:
    """Copy the parameters that a transform may change: those that have a gradient, or may get one from a closure."""
    holder, own = holder_of(tx, named), [p.detach() for _, p in named]
    reached = zip(holder.reached(own), named, strict=True)
    chosen = [(every or there) and (closure or p.grad is not None) for there, (_, p) in reached]
    with torch.no_grad():
        copies = iter(backend.copied([p for p, there in zip(own, chosen, strict=True) if there]))
    return Before(holder, named, [next(copies) if there else None for there in chosen])


def restore(before: Before) -> None:
    """Take a step back."""
    with torch.no_grad():
        for (_, parameter), old in zip(before.named, before.old, strict=True):
            if old is not None:
                parameter.copy_(old)


def moved(
    before: Before, state: Any, gradients: Sequence[Any], found_inf: Any, flushes: bool
) -> tuple[Any, NormBefore | None, Tree | None]:
    """Transform the updates of a step and write the parameters.

    Return the new state, the norm of all updates before the transform, if it is known, and the transformed updates, if
    there are some. The state is overwritten. With `found_inf` of a loss scaler above zero, the step has not happened,
    and it stays.
    """
    named, tx = before.named, before.holder.tx
    old = [p if q.grad is not None else None for p, (_, q) in zip(before.old, named, strict=True)]
    with torch.no_grad():
        new = [p.detach() for _, p in named]
        found = before.holder.added(old, new, state, gradients, owned=found_inf is None, flushes=flushes)
        if found is None:
            return state, None, None
        made, due = found.state, is_due(tx, found.state)
        whole = all(p is not None or q.grad is None for p, (_, q) in zip(old, named, strict=True))
        norm = norm_before(found.before, found.after, tx) if whole else None
        if found_inf is not None:
            goes_on = backend.compute(formulas.is_zero, found_inf)
            due = goes_on if due is True else due * goes_on
            made = stateful.either(found.before, goes_on, made, state) if tx.stateful else made
        after = found.after.settled()
        _write(named, old, after, due)
        return in_place(state, made) if tx.stateful else made, norm, after


def _write(named: Named, old: Sequence[Any], after: Tree, due: Any) -> None:
    """Write the parameters with their transformed updates; stopped ones are restored."""
    stopped, rows = after.skipped(), []
    if stopped:
        _private.foreach_copy_([local(named[i][1]) for i in stopped], [local(old[i]) for i in stopped])
    for leaf, slot, owned in zip(after.leaves, after.source.kept, after.owned, strict=True):
        if slot not in stopped:
            update, new = local(leaf), local(named[slot][1].detach())
            # Half precision has wider updates, which may be written if no state holds them.
            rows.append((update, new, local(old[slot]), update if owned and update.dtype != new.dtype else new))
    together = place_of([row[0] for row in rows]) == DEVICE
    for part in [rows] if together else [[row] for row in rows]:
        given, own, starts, out = map(list, zip(*part, strict=True))
        made = with_updates(backend, given, own, starts, due, out)
        left = [(p, q) for p, q in zip(own, made, strict=True) if p is not q]
        if left:
            _private.foreach_copy_([p for p, _ in left], [q for _, q in left])
