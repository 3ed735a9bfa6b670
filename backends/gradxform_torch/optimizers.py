"""PyTorch optimizers: their parameters, which steps count, and what a step adds to the parameters."""

from __future__ import annotations

from typing import Any

import torch

from gradxform.backend.protocol import Row
from gradxform.core.holder import Holder, extra_of, with_updates
from gradxform.core.leaves import put
from gradxform.core.transform import Context
from gradxform.core.tree import Tree
from gradxform.numerics import formulas
from gradxform.transforms.skipping import is_due
from gradxform_torch import foreach
from gradxform_torch.apply_ import Named, NormBefore, next_state, norm_before
from gradxform_torch.dtensor import local
from gradxform_torch.kernels import backend


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


def is_for_show(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> bool:
    """Whether this is the step on zeros by which `torch.distributed.checkpoint` creates an optimizer's state."""
    if len(args) > 1 or kwargs != {"closure": None} or optimizer.state:
        return False
    if any(group.get("lr", 0.0) != 0.0 for group in optimizer.param_groups):
        return False
    gradients = [parameter.grad for _, parameter in named_of(optimizer) if parameter.grad is not None]
    return bool(gradients) and not any(gradient.is_sparse or gradient.any() for gradient in gradients)


# --- updates ---------------------------------------------------------------------------------------------------------


def copied(holder: Holder, closure: bool, every: bool) -> list[torch.Tensor | None]:
    """Copies of the parameters that a transform may change: those that have a gradient, or may get one from a closure.

    None for the others, unless every one is wanted.
    """
    own = [p.detach() for p in holder.variables]
    reached = enumerate(zip(holder.reached(own), holder.variables, strict=True))
    chosen = [i for i, (there, p) in reached if (every or there) and (closure or p.grad is not None)]
    return put([None] * len(own), chosen, backend.copied([own[i] for i in chosen]))


def restore(holder: Holder, old: Row) -> None:
    """Take a step back."""
    with torch.no_grad():
        for parameter, before in zip(holder.variables, old, strict=True):
            if before is not None:
                parameter.copy_(before)


def moved(
    holder: Holder, old: Row, state: Any, gradients: Row, found_inf: Any, flushes: bool, value: Any = None
) -> tuple[Any, NormBefore | None, Tree | None]:
    """Transform the updates of a step and write the parameters.

    Return the new state, the norm of all updates before the transform, if it is known, and the transformed updates, if
    there are some. The state is overwritten, as in `next_state`.
    """
    parameters = holder.variables
    old = [before if p.grad is not None else None for before, p in zip(old, parameters, strict=True)]
    with torch.no_grad():
        new = [p.detach() for p in parameters]
        context = Context(old, extra_of(value), found_inf is None, flushes=flushes)
        found = holder.added(old, new, state, gradients, context)
        if found is None:
            return state, None, None
        due = is_due(holder.tx, found.state)
        if found_inf is not None:
            goes_on = backend.compute(formulas.equal, found_inf, 0.0)
            due = goes_on if due is True else due * goes_on
        whole = all(before is not None or p.grad is None for before, p in zip(old, parameters, strict=True))
        norm = norm_before(holder, found) if whole else None
        after = found.after.settled()
        _write(parameters, old, after, due)
        return next_state(found, state, found_inf), norm, after


def _write(parameters: Row, old: Row, after: Tree, due: Any) -> None:
    """Write the parameters with their transformed updates; stopped ones are restored."""
    stopped, rows = after.skipped(), []
    foreach.copied([local(old[i]) for i in stopped], [local(parameters[i]) for i in stopped])
    for i, (leaf, slot) in enumerate(zip(after.leaves, after.source.kept, strict=True)):
        if slot not in stopped:
            update, new = local(leaf), local(parameters[slot].detach())
            # Half precision has wider updates, which may be written if no state holds them.
            out = update if i in after.owned and update.dtype != new.dtype else new
            rows.append((update, new, local(old[slot]), out))
    if rows:
        given, own, starts, into = map(list, zip(*rows, strict=True))
        made = with_updates(backend, given, own, starts, due, into)
        left = [(q, p) for p, q in zip(own, made, strict=True) if p is not q]
        foreach.copied([q for q, _ in left], [p for _, p in left])
