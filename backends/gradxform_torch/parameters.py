"""Named parameters by path, and what a transformation makes of their gradients, or of an optimizer's updates."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gradxform import GradientTransformation
from gradxform.backend.errors import instead, short
from gradxform.backend.protocol import Row
from gradxform.core import state as stateful
from gradxform.core.holder import Holder, Ran, with_updates
from gradxform.core.leaves import once, put
from gradxform.core.transform import Context
from gradxform.core.tree import Tree
from gradxform.numerics import formulas
from gradxform.transforms.skipping import is_due
from gradxform_torch import foreach, private
from gradxform_torch.dtensor import is_writable, local
from gradxform_torch.kernels import backend
from gradxform_torch.readable import DEVICE, HOST, place_of

Named = Sequence[tuple[str, torch.Tensor]]
"""Parameters with their names."""
NormBefore = Callable[[], torch.Tensor]
"""Computes the norm before a transform as a new tensor, when it is asked for."""


class Made(NamedTuple):
    """What a transformation made of a step."""

    state: Any
    before: Tree | None = None
    """The gradients or updates before, if there are some."""
    norm: NormBefore | None = None
    """The norm before, if the transformation measured every gradient or update."""
    results: Callable[[], Row] | None = None
    """The new ones, if there are some."""


class Parameters(Holder):
    """Named parameters, whose gradients or values a transformation overwrites, as it does its state."""

    def __init__(self, tx: GradientTransformation, named: Named, given: Any = None) -> None:
        """Keep them; absent names are those of a module, if it is given."""
        absent = functools.partial(_absent, given, named)
        super().__init__(tx, backend, paths_of(named), [parameter for _, parameter in named], absent=absent)

    def first(self) -> Any:
        """The first state."""
        return self.init([parameter.detach() for parameter in self.variables])

    def clear(self) -> None:
        """Replace the gradients by zeros, on which windows are flushed; frozen parameters have none."""
        for parameter in self.variables:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None

    def on_gradients(self, state: Any, context: Context, scale: Any = None, measured: bool = False) -> Made:
        """Transform the gradients, first divided by a loss scaler's scale; measure their norms at least if asked."""
        gradients = once([parameter.grad for parameter in self.variables])  # parameters may share one
        view = self.view(gradients, inplace=True)
        if view is None:
            return Made(state)
        with torch.no_grad():
            if scale is not None:
                view = view.scaled(backend.compute(formulas.quotient, 1.0, scale))
            if measured:
                view.norms()  # which are kept for the transformation
            ran = self.run(view, state, context)
            norm = self._norm_before(ran)
            _write(self.variables, gradients, ran.after.results(), ran.after.skipped(), self.tx.stateful)
            return Made(ran.state, view, norm, lambda: [p.grad for p in self.variables])

    def copies(self, closure: bool, every: bool) -> list[torch.Tensor | None]:
        """Copies of the parameters that a transform may change: those that have a gradient, or a closure may give one.

        None for the others, unless every one is wanted.
        """
        own = [parameter.detach() for parameter in self.variables]
        reached = enumerate(zip(self.reached(own), self.variables, strict=True))
        chosen = [i for i, (there, p) in reached if (every or there) and (closure or p.grad is not None)]
        return put([None] * len(own), chosen, backend.copied([own[i] for i in chosen]))

    def on_updates(self, state: Any, context: Context, copies: Row, gradients: Row, found_inf: Any = None) -> Made:
        """Transform what a step has added to the copies, and write the parameters; an error takes the step back."""
        new, grads = [p.detach() for p in self.variables], [p.grad for p in self.variables]
        old = [None if grad is None else before for before, grad in zip(copies, grads, strict=True)]
        with torch.no_grad():
            try:
                ran = self.added(old, new, state, gradients, context)
                if ran is None:
                    return Made(state)
                due = is_due(self.tx, ran.state)
                if found_inf is not None:
                    due = due * backend.compute(formulas.equal, found_inf, 0.0)
                whole = all([grad is None or before is not None for before, grad in zip(old, grads, strict=True)])
                norm, after = self._norm_before(ran) if whole else None, ran.after.settled()
                _move(new, old, after, due)
                return Made(ran.state, ran.before, norm, after.results)
            except Exception:  # as for gradients, what cannot be transformed is not applied
                for parameter, before in zip(new, copies, strict=True):
                    if before is not None:
                        parameter.copy_(before)
                raise

    def _norm_before(self, ran: Ran) -> NormBefore | None:
        """The input's norm, if the transform measured it; along axes, over all devices."""
        leaves = ran.before.leaves
        known = ran.before.norm_before(ran.after, along=bool(self.tx.traits.axes)) if leaves else None
        if known is None:
            return None
        device = leaves[0].device

        def norm() -> torch.Tensor:
            found = known()
            dtype = torch.float32 if found.single is True else torch.float64
            if isinstance(found.value, torch.Tensor):
                return found.value.to(device, dtype, copy=True)
            return torch.tensor(float(found.value), dtype=dtype, device=device)

        return norm


def _write(parameters: Row, gradients: Row, results: Row, skipped: Collection[int], kept: bool) -> None:
    """Write results into the gradients, or replace those that cannot be written, by copies if a state keeps them."""
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    replaced: dict[int, torch.Tensor | None] = {}
    for i, (old, result) in enumerate(zip(gradients, results, strict=True)):
        if i in skipped:
            replaced[id(old)] = None
        elif old is not None and result is not old:
            if old.layout == result.layout == torch.strided and is_writable(old):
                written.append((local(result), local(old)))
            else:
                replaced[id(old)] = result.clone() if kept else result
    for parameter in parameters if replaced else ():
        if id(parameter.grad) in replaced:
            parameter.grad = replaced[id(parameter.grad)]
    _copy(written)


def _move(new: Row, old: Row, after: Tree, due: Any) -> None:
    """Write the parameters with their transformed updates; stopped ones are restored."""
    stopped, rows = after.skipped(), []
    for i, (leaf, slot) in enumerate(zip(after.leaves, after.source.kept, strict=True)):
        if slot not in stopped:
            update, own = local(leaf), local(new[slot])
            # Half precision has wider updates, which may be written if no state holds them.
            out = update if i in after.owned and update.dtype != own.dtype else own
            rows.append((update, own, local(old[slot]), out))
    copied = [(local(old[slot]), local(new[slot])) for slot in stopped]
    if rows:
        updates, given, starts, out = map(list, zip(*rows, strict=True))
        made = with_updates(backend, updates, given, starts, due, out)
        copied += [(moved, own) for moved, own in zip(made, given, strict=True) if moved is not own]
    _copy(copied)


def _copy(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the first tensor of each pair into the second one."""
    foreach.copied([given for given, _ in pairs], [out for _, out in pairs])


# --- states ----------------------------------------------------------------------------------------------------------


def next_state(made: Made, state: Any, found_inf: Any) -> Any:
    """The state after a step; the one before if a loss scaler found an infinity, since the step does not happen."""
    view, new = made.before, made.state
    if view is None or new is state:
        return new
    with torch.no_grad():
        if found_inf is not None:
            new = stateful.either(view, backend.compute(formulas.equal, found_inf, 0.0), new, state)
        return new if place_of(view.leaves) == HOST else in_place(state, new)


def in_place(state: Any, new: Any) -> Any:
    """Write a new state into the old one's memory on an accelerator, where the next CUDA graph replay reads it."""
    before, structure = backend.flatten(state)
    after = backend.flatten(new)[0]
    moved = {i: old for i, old in enumerate(before) if _is_replaced(old, after[i])}
    if not moved:
        return new
    memory = {private.storage_of(old) for old in moved.values()}
    values = [after[i].clone() if private.storage_of(after[i]) in memory else after[i] for i in moved]
    foreach.copied(values, list(moved.values()))
    return backend.unflatten(structure, [moved.get(i, found) for i, found in enumerate(after)])


def _is_replaced(old: Any, new: Any) -> bool:
    """Whether a new accelerator tensor has replaced a similar one."""
    if old is new or not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)):
        return False
    alike = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    return alike and place_of([old, new]) == DEVICE and is_writable(old)


# --- names -----------------------------------------------------------------------------------------------------------


def named_in(what: str, tx: GradientTransformation, given: Any) -> Named:
    """All parameters with their names; none at all only along axes, where other processes have some."""
    items = given.named_parameters() if isinstance(given, torch.nn.Module) else given
    items = [items] if isinstance(items, torch.Tensor) else items.items() if isinstance(items, Mapping) else items
    if not isinstance(items, Iterable):
        hint = "; call it" if inspect.ismethod(given) else instead(given)
        raise TypeError(f"{what} takes named parameters, a module or parameters, got {short(given)}{hint}")
    named = [_pair(what, i, item) for i, item in enumerate(items)]
    if not named and not tx.traits.axes:
        raise ValueError(
            f"{what}: there are no parameters in {short(given)}; an iterator such as model.parameters() is used up "
            "after one pass: give the model, or a list"
        )
    return named


def _pair(what: str, i: int, item: Any) -> tuple[str, torch.Tensor]:
    if isinstance(item, torch.Tensor):
        return str(i), item
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], torch.Tensor):
        return item
    hint = "; of an optimizer's groups, write gx.torch.attach(optimizer, tx)" if isinstance(item, dict) else ""
    raise TypeError(f"{what}: item {i} is neither a parameter nor a (name, parameter) pair: {short(item)}{hint}")


def paths_of(named: Named) -> list[str]:
    """Paths of named parameters."""
    return [name.replace(".", "/") for name, _ in named]


def _absent(given: Any, named: Named) -> dict[str, str]:
    """Names of a module's parameters that have no path, and why."""
    own, found = {id(parameter): name for name, parameter in reversed(named)}, {}
    every = given.named_parameters(remove_duplicate=False) if isinstance(given, torch.nn.Module) else ()
    for name, parameter in every:
        frozen, other = "" if parameter.requires_grad else "does not require gradients and ", own.get(id(parameter))
        if other != name:
            why = f"{frozen}is not in the optimizer" if other is None else f"is tied to {other.replace('.', '/')!r}"
            found[name.replace(".", "/")] = why
    return found
