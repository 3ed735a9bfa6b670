"""Transform the gradients of parameters in place, and what attached transforms share: named parameters and states."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from gradxform import GradientTransformation
from gradxform.backend.errors import instead, short
from gradxform.backend.protocol import Given, Row
from gradxform.core import state as stateful
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import Holder, Ran, extra_of, with_updates
from gradxform.core.leaves import once, put
from gradxform.core.norm import Norm
from gradxform.core.transform import Context
from gradxform.core.tree import Tree
from gradxform.numerics import formulas
from gradxform.transforms.skipping import check_waits, is_due
from gradxform_torch import foreach, private
from gradxform_torch.dtensor import is_writable, local
from gradxform_torch.kernels import backend
from gradxform_torch.readable import DEVICE, HOST, place_of

Named = Sequence[tuple[str, torch.Tensor]]
"""Parameters with their names."""
NormBefore = Callable[[], torch.Tensor]
"""Computes the norm before a transform as a new tensor, when it is asked for."""


def init(tx: GradientTransformation, named_parameters: Any) -> Any:
    """Return the initial state for `apply_`.

    Args:
        tx: A transform.
        named_parameters: As in `apply_`.

    Returns:
        A pytree of tensors on the parameters' devices, in dicts by path. `EmptyState()` for a stateless transform.

    Raises:
        TypeError: An item is not a parameter.
        ValueError: There are no parameters, as in an iterator that is used up; or a pattern matches no path.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> gx.torch.init(gx.trace(0.9), torch.nn.Linear(2, 1))
        TraceState(trace={'weight': tensor([[0., 0.]]), 'bias': tensor([0.])})

    References:
        ``optax.GradientTransformation.init``.
    """
    tx = as_transformation("torch.init", tx, named_parameters, "gx.torch.init(tx, model)")
    return Parameters(tx, named_in("torch.init", tx, named_parameters), named_parameters).first()


def apply_(
    tx: GradientTransformation,
    named_parameters: Any,
    state: Any = None,
    *,
    return_norm: bool = False,
    flush: bool = False,
    value: Any = None,
) -> Any:
    """Transform the gradients of parameters in place.

    Args:
        tx: A transform.
        named_parameters: ``model.named_parameters()`` or a dict of them, a module, or parameters without names. Each
            ``.grad`` is None, or a dense, sparse COO or distributed tensor of floating or complex dtype. A gradient's
            path is its parameter's name with "/" for ".", or the parameter's index. A parameter given twice is
            transformed once.
        state: State of a stateful transform, from `gradxform.torch.init` or the last call; its tensors may be
            overwritten. Pass a copy to keep it.
        return_norm: Whether to also return the norm before the transform, as `clip_grad_norm_` does: a 0-d tensor, of
            order 2 or the `ord` of the first `clip_global_norm`. Stopped gradients do not count. It needs no host sync.
            Clips by norm need no extra pass over the gradients; other transforms need one.
        flush: Whether to apply what an unfinished window of `accumulate` holds, as `gradxform.flush` does. It replaces
            the gradients.
        value: The loss, for transforms that need it: a number or a 0-d tensor.

    Returns:
        The new state; a stateless transform returns `state`. With `return_norm`, the norm if the transform is
        stateless, else a tuple of new state and norm. The norm is None without gradients, and along axes of
        `across` if no norm over all devices is computed.

        A skipped step leaves zeros: step the optimizer only ``if gx.has_updated(state)``. The gradient of a stopped
        parameter becomes None, so that optimizers skip it. An expanded gradient, which is not writable, is replaced.

    Raises:
        TypeError: An item is not a parameter, gradients are given instead of parameters, or a stateful transform gets
            no state.
        ValueError: There are no parameters, as in an iterator that is used up. Or the transform needs gradients beside
            updates, as `cautious` does; use ``attach(optimizer, tx, on="updates")``.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> layer(torch.tensor([[3.0, 4.0]])).backward()
        >>> gx.torch.apply_(gx.clip_global_norm(1.0), layer.named_parameters(), return_norm=True)
        tensor(5.)
        >>> layer.weight.grad
        tensor([[0.6000, 0.8000]])

    References:
        `torch.nn.utils.clip_grad_norm_`.
    """
    tx = as_transformation("torch.apply_", tx, named_parameters, "gx.torch.apply_(tx, model)")
    if tx.stateful and state is None:
        raise TypeError(
            f"{tx!r} keeps a state: call state = gx.torch.init(tx, parameters) first, then "
            "state = gx.torch.apply_(tx, parameters, state)"
        )
    if isinstance(state, bool):
        raise TypeError(f"torch.apply_: the state is {state}, a bool; write return_norm={state} by name")
    named = named_in("torch.apply_", tx, named_parameters)
    if named and not any(p.grad is not None or p.requires_grad or isinstance(p, torch.nn.Parameter) for _, p in named):
        raise TypeError(
            "torch.apply_: no tensor has a .grad, so these are no parameters: write gx.torch.apply_(tx, model), or "
            "gradients = tx(gradients) for the gradients themselves"
        )
    parameters = Parameters(tx, named, named_parameters)
    if flush:
        check_waits("torch.apply_", tx)
        parameters.clear()
    context = Context(parameters.by_key(parameters.variables), extra_of(value), owned=True, flushes=flush)
    ran = parameters.on_gradients(state, context, measured=return_norm)
    new = state if ran is None else ran.state
    if not return_norm:
        return new
    norm = parameters.norm_before(ran)
    found = None if norm is None else norm()
    return (new, found) if tx.stateful else found


# --- named parameters -------------------------------------------------------------------------------------------------


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

    def on_gradients(self, state: Any, context: Context, scale: Any = None, measured: bool = False) -> Ran | None:
        """Transform the gradients, first divided by a loss scaler's scale; measure their norms at least if asked.

        None if there are none.
        """
        gradients = once([parameter.grad for parameter in self.variables])  # parameters may share one
        view = self.view(gradients, inplace=True)
        if view is None:
            return None
        with torch.no_grad():
            if scale is not None:
                view = view.scaled(backend.compute(formulas.quotient, 1.0, scale))
            if measured:
                view.norms()  # which are kept for the transformation
            ran = self.run(view, state, context)
            _write(self.variables, gradients, ran.after, self.tx.stateful)
            return ran

    def copies(self, closure: bool, every: bool) -> list[torch.Tensor | None]:
        """Copies of the parameters that a transform may change: those that have a gradient, or a closure may give one.

        None for the others, unless every one is wanted.
        """
        own = [parameter.detach() for parameter in self.variables]
        reached = enumerate(zip(self.reached(own), self.variables, strict=True))
        chosen = [i for i, (there, p) in reached if (every or there) and (closure or p.grad is not None)]
        return put([None] * len(own), chosen, backend.copied([own[i] for i in chosen]))

    def on_updates(self, state: Any, context: Context, copies: Row, gradients: Row) -> Ran | None:
        """Transform what a step has added to the copies; an error takes the step back, as it leaves gradients alone.

        None if there is nothing.
        """
        new = [parameter.detach() for parameter in self.variables]
        old = [None if p.grad is None else before for before, p in zip(copies, self.variables, strict=True)]
        with torch.no_grad():
            try:
                ran = self.added(old, new, state, gradients, context)
                return ran and ran._replace(after=ran.after.settled())
            except Exception:
                for parameter, before in zip(new, copies, strict=True):
                    if before is not None:
                        parameter.copy_(before)
                raise

    def move(self, ran: Ran, copies: Row, found_inf: Any) -> None:
        """Write the parameters with their transformed updates, which may be overwritten; stopped ones are restored.

        All are, if the step is not due, or a loss scaler found an infinity.
        """
        after, stopped, own = ran.after, ran.after.skipped(), [p.detach() for p in self.variables]
        live = [(i, slot) for i, slot in enumerate(after.source.kept) if slot not in stopped]
        updates, new = [local(after.leaves[i]) for i, _ in live], [local(own[slot]) for _, slot in live]
        old, out, copied = [local(copies[slot]) for _, slot in live], list(new), [(copies[i], own[i]) for i in stopped]
        for k, (i, _) in enumerate(live):
            if i in after.owned and updates[k].dtype != new[k].dtype:  # wider than half precision, and no state's
                out[k] = updates[k]
        with torch.no_grad():
            due = is_due(self.tx, ran.state)
            if found_inf is not None:
                due = due * backend.compute(formulas.equal, found_inf, 0.0)
            made = with_updates(backend, updates, new, old, due, out) if live else []
            _copy(copied + [(x, parameter) for x, parameter in zip(made, new, strict=True) if x is not parameter])

    def norm_before(self, ran: Ran | None, copies: Given = None) -> NormBefore | None:
        """The norm before, if the transformation measured every gradient or update; along axes, over all devices.

        Without a copy, the update of a parameter is not known.
        """
        if ran is None or not ran.before.leaves:
            return None
        if any([p.grad is not None and copy is None for p, copy in zip(self.variables, copies or (), strict=False)]):
            return None
        known = ran.before.norm_before(ran.after, along=bool(self.tx.traits.axes))
        return None if known is None else functools.partial(_tensor_of, known, ran.before.leaves[0].device)


def _tensor_of(known: Callable[[], Norm], device: torch.device) -> torch.Tensor:
    """A norm as a new tensor."""
    found = known()
    dtype = torch.float32 if found.single is True else torch.float64
    return torch.asarray(found.value, dtype=dtype, device=device, copy=True)


def _write(parameters: Row, gradients: Row, after: Tree, kept: bool) -> None:
    """Write results into the gradients, or replace those that cannot be written, by copies if a state keeps them."""
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    replaced: dict[int, torch.Tensor | None] = {}
    stopped = after.skipped()
    for i, (old, new) in enumerate(zip(gradients, after.results(), strict=True)):
        if i in stopped:
            replaced[id(old)] = None
        elif new is not old and old.layout == new.layout == torch.strided and is_writable(old):
            written.append((new, old))
        elif new is not old:
            replaced[id(old)] = new.clone() if kept else new
    for parameter in parameters if replaced else ():
        parameter.grad = replaced.get(id(parameter.grad), parameter.grad)
    _copy(written)


def _copy(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the first tensor of each pair into the second one."""
    foreach.copied([local(given) for given, _ in pairs], [local(out) for _, out in pairs])


# --- states ----------------------------------------------------------------------------------------------------------


def next_state(ran: Ran, state: Any, found_inf: Any) -> Any:
    """The state after a step; the one before if a loss scaler found an infinity, since the step does not happen."""
    view, new = ran.before, ran.state
    if new is state:
        return new
    with torch.no_grad():
        if found_inf is not None:
            new = stateful.either(view, backend.compute(formulas.equal, found_inf, 0.0), new, state)
        return new if place_of(view.leaves) == HOST else in_place(state, new)


def in_place(state: Any, new: Any) -> Any:
    """Write a new state into the old one's memory on an accelerator, where the next CUDA graph replay reads it."""
    (before, structure), after = backend.flatten(state), backend.flatten(new)[0]
    moved = {i: old for i, old in enumerate(before) if _is_replaced(old, after[i])}
    memory = {private.storage_of(old) for old in moved.values()}
    values = [after[i].clone() if private.storage_of(after[i]) in memory else after[i] for i in moved]
    return backend.unflatten(structure, put(after, moved, foreach.copied(values, list(moved.values()))))


def _is_replaced(old: Any, new: Any) -> bool:
    """Whether a new accelerator tensor has replaced a similar one."""
    kind, other = [isinstance(x, torch.Tensor) and (x.shape, x.dtype, x.device) for x in (old, new)]
    return old is not new and kind == other and place_of([old, new]) == DEVICE and is_writable(old)


# --- names -----------------------------------------------------------------------------------------------------------


def named_in(what: str, tx: GradientTransformation, given: Any) -> Named:
    """All parameters with their names; none at all only along axes, where other processes have some."""
    items = given.named_parameters() if isinstance(given, torch.nn.Module) else given
    items = [items] if isinstance(items, torch.Tensor) else items.items() if isinstance(items, Mapping) else items
    if not isinstance(items, Iterable):
        hint = "; call it" if inspect.ismethod(given) else instead(given)
        raise TypeError(f"{what} takes named parameters, a module or parameters, got {short(given)}{hint}")
    named: list[tuple[str, torch.Tensor]] = []
    for i, item in enumerate(items):
        name, parameter = item if isinstance(item, tuple) and len(item) == 2 else (str(i), item)
        if not isinstance(name, str) or not isinstance(parameter, torch.Tensor):
            hint = "; of an optimizer's groups, write gx.torch.attach(optimizer, tx)" if isinstance(item, dict) else ""
            raise TypeError(
                f"{what}: item {i} is neither a parameter nor a (name, parameter) pair: {short(item)}{hint}"
            )
        named.append((name, parameter))
    if not named and not tx.traits.axes:
        raise ValueError(
            f"{what}: there are no parameters in {short(given)}; an iterator such as model.parameters() is used up "
            "after one pass: give the model, or a list"
        )
    return named


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
