"""Transform the gradients of parameters in place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from gradxform import GradientTransformation
from gradxform.backend.errors import instead, short
from gradxform.backend.protocol import Row
from gradxform.core import state as stateful
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import Holder, Ran, extra_of
from gradxform.core.leaves import once
from gradxform.core.transform import Context
from gradxform.numerics import formulas
from gradxform.transforms.skipping import check_waits
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
    return first_state(holder_of(tx, named_in("torch.init", tx, named_parameters), named_parameters))


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
    if flush:
        check_waits("torch.apply_", tx)
        clear([parameter for _, parameter in named])
    holder = holder_of(tx, named, named_parameters)
    new, norm_before = transformed(holder, state, measured=return_norm, flushes=flush, value=value)
    if not return_norm:
        return new
    norm = None if norm_before is None else norm_before()
    return (new, norm) if tx.stateful else norm


# --- parameters ------------------------------------------------------------------------------------------------------


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


def holder_of(tx: GradientTransformation, named: Named, given: Any = None) -> Holder:
    """Named parameters, by path; those of a module, if it is given."""
    absent = functools.partial(_absent, given, named)
    return Holder(tx, backend, paths_of(named), [parameter for _, parameter in named], absent=absent)


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


def first_state(holder: Holder) -> Any:
    """The first state for parameters."""
    return holder.init([parameter.detach() for parameter in holder.variables])


# --- gradients -------------------------------------------------------------------------------------------------------


def transformed(
    holder: Holder,
    state: Any,
    scale: Any = None,
    found_inf: Any = None,
    fixed: bool = False,
    measured: bool = False,
    flushes: bool = False,
    value: Any = None,
) -> tuple[Any, NormBefore | None]:
    """Transform the gradients of parameters; return the new state and the norm before.

    The state is overwritten; if `fixed`, its memory stays, as in `next_state`. With a scale, gradients are first
    divided by the loss scaler's scale. The norm is None if the transform does not measure every gradient and no norm is
    requested.
    """
    gradients = once([parameter.grad for parameter in holder.variables])  # parameters may share one
    given = holder.view(gradients, inplace=True)
    if given is None:
        return state, None
    with torch.no_grad():
        if scale is not None:
            given = given.scaled(backend.compute(formulas.quotient, 1.0, scale))
        if measured:
            given.norms()  # which are kept for the transformation
        context = Context(holder.by_key(holder.variables), extra_of(value), found_inf is None, flushes=flushes)
        found = holder.run(given, state, context)
        norm = norm_before(holder, found)
        _write(holder.variables, gradients, found.after.results(), found.after.skipped(), holder.tx.stateful)
        return next_state(found, state, found_inf) if fixed and holder.tx.stateful else found.state, norm


def clear(parameters: Sequence[torch.Tensor]) -> None:
    """Replace the gradients by zeros, on which windows are flushed; frozen parameters have none."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None


def _write(parameters: Row, gradients: Row, results: Row, skipped: Collection[int], kept: bool) -> None:
    """Write results into the gradients, or replace those that cannot be written, by copies if a state keeps them."""
    written: list[torch.Tensor] = []
    new: list[torch.Tensor] = []
    replaced: dict[int, torch.Tensor | None] = {}
    for i, (old, result) in enumerate(zip(gradients, results, strict=True)):
        if old is None or (result is old and i not in skipped):
            continue
        if i not in skipped and old.layout == result.layout == torch.strided and is_writable(old):
            written.append(local(old))
            new.append(local(result))
        else:
            replaced[id(old)] = None if i in skipped else result.clone() if kept else result
    for parameter in parameters if replaced else ():
        if id(parameter.grad) in replaced:
            parameter.grad = replaced[id(parameter.grad)]
    foreach.copied(new, written)


# --- norms and states ------------------------------------------------------------------------------------------------


def norm_before(holder: Holder, ran: Ran) -> NormBefore | None:
    """The input's norm, if the transform measured it; along axes, over all devices."""
    leaves = ran.before.leaves
    known = ran.before.norm_before(ran.after, along=bool(holder.tx.traits.axes)) if leaves else None
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


def next_state(ran: Ran, state: Any, found_inf: Any) -> Any:
    """The state after a step; the one before if a loss scaler found an infinity, since the step does not happen."""
    new = ran.state
    if found_inf is not None:
        new = stateful.either(ran.before, backend.compute(formulas.equal, found_inf, 0.0), new, state)
    return new if place_of(ran.before.leaves) == HOST else in_place(state, new)


def in_place(state: Any, new: Any) -> Any:
    """Write a new state into the old one's memory on an accelerator, where the next CUDA graph replay reads it."""
    before, structure = backend.flatten(state)
    after = backend.flatten(new)[0]
    moved = {i: old for i, old in enumerate(before) if _is_replaced(old, after[i])}
    if not moved:
        return new
    memory = {private.storage_of(old) for old in moved.values()}
    values = [after[i].clone() if private.storage_of(after[i]) in memory else after[i] for i in moved]
    private.foreach_copy_(list(moved.values()), values)
    return backend.unflatten(structure, [moved.get(i, found) for i, found in enumerate(after)])


def _is_replaced(old: Any, new: Any) -> bool:
    """Whether a new accelerator tensor has replaced a similar one."""
    if old is new or not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)):
        return False
    alike = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    return alike and place_of([old, new]) == DEVICE and is_writable(old)
