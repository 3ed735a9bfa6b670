"""Transform the gradients of parameters in place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from gradxform import GradientTransformation
from gradxform.backend.errors import instead, short
from gradxform.core import align
from gradxform.core import state as stateful
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import Holder
from gradxform.core.norm import Norm
from gradxform.core.transform import Context
from gradxform.core.tree import Tree
from gradxform.numerics import formulas
from gradxform.transforms.accumulating import check_waits
from gradxform_torch import _private
from gradxform_torch._readable import DEVICE, TENSORS, place_of
from gradxform_torch._shards import is_writable
from gradxform_torch._writing import Named, clear, gradients_of, write
from gradxform_torch.dtensor import backend

NormBefore = Callable[[], torch.Tensor]


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
    return started(tx, all_named("torch.init", tx, named_parameters))


def started(tx: GradientTransformation, named: Named) -> Any:
    """Initial state for named parameters."""
    return holder_of(tx, named).init([parameter.detach() for _, parameter in named])


def apply_(
    tx: GradientTransformation,
    named_parameters: Any,
    state: Any = None,
    *,
    return_norm: bool = False,
    flush: bool = False,
) -> Any:
    """Transform the gradients of parameters in place.

    Args:
        tx: A transform.
        named_parameters: ``model.named_parameters()`` or a dict of them, a module, or parameters without names. Each
            ``.grad`` is None, or a dense, sparse COO or distributed tensor of floating or complex dtype. A gradient's
            path is its parameter's name with "/" for ".", or the parameter's index. A parameter given twice is
            transformed once.
        state: State of a stateful transform, from `gradxform.torch.init` or the last call.
        return_norm: Whether to also return the norm before the transform, as `clip_grad_norm_` does: a 0-d tensor, of
            order 2 or the `ord` of the first `clip_global_norm`. Stopped gradients do not count. It needs no host sync.
            Clips by norm need no extra pass over the gradients; other transforms need one.
        flush: Whether to apply what an unfinished window of `accumulate` holds, as `gradxform.flush` does. It replaces
            the gradients.

    Returns:
        The new state; a stateless transform returns `state`. With `return_norm`, the norm if the transform is
        stateless, else a tuple of new state and norm. The norm is None without gradients, and along axes of
        `across` if no norm over all devices is computed.

        The gradient of a stopped parameter becomes None, so that optimizers skip it. An expanded gradient, which is not
        writable, is replaced.

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
    named = named_parameters if _are_pairs(named_parameters) else all_named("torch.apply_", tx, named_parameters)
    if named and all(_cannot_have_gradient(parameter) for _, parameter in named):
        raise TypeError(
            "torch.apply_: no tensor has a .grad, so these are no parameters: write gx.torch.apply_(tx, model), or "
            "gradients = tx(gradients) for the gradients themselves"
        )
    if flush:
        check_waits("torch.apply_", tx)
        clear(named)
    new, norm_before = transformed(tx, named, state, measured=return_norm, flushes=flush)
    if not return_norm:
        return new
    norm = None if norm_before is None else norm_before()
    return (new, norm) if tx.stateful else norm


def transformed(
    tx: GradientTransformation,
    named: Named,
    state: Any,
    scale: Any = None,
    found_inf: Any = None,
    owned: bool = False,
    measured: bool = False,
    flushes: bool = False,
) -> tuple[Any, NormBefore | None]:
    """Transform the gradients of named parameters; return the new state and the norm before.

    An owned state is overwritten. With a scale, gradients are first divided by the loss scaler's scale; if the scaler
    found an infinity, the state stays, since there will be no step. The norm is None if the transform does not measure
    every gradient and no norm is requested.
    """
    gradients, holder = gradients_of(named), holder_of(tx, named)
    given = holder.view(gradients, inplace=True)
    if given is None:
        return state, None
    if tx.stateful:
        align.check_state(given, state)
    with torch.no_grad():
        if scale is not None:
            given = given.scaled(backend.compute(formulas.quotient, 1.0, scale))
        if measured:
            given.norms()  # which are kept for the transformation
        context = Context(holder.by_key(holder.variables), {}, owned and found_inf is None, flushes=flushes)
        view, new = tx.rule(given, state, context)
        norm = norm_before(given, view, tx)
        if found_inf is not None and tx.stateful:
            new = stateful.either(view, backend.compute(formulas.is_zero, found_inf), new, state)
        write(named, gradients, view.results(), view.skipped(), owned)
        return in_place(state, new) if owned and tx.stateful else new, norm


def norm_before(given: Tree, left: Tree, tx: GradientTransformation) -> NormBefore | None:
    """The input gradients' norm, if the transform measured it; along axes, over all devices."""
    known = given.norm_before(left, along=bool(tx.traits.axes)) if given.leaves else None
    if known is None:
        return None
    return functools.partial(_stored, known, given.leaves[0].device)


def _stored(known: Callable[[], Norm], device: torch.device) -> torch.Tensor:
    """A norm as a tensor."""
    norm = known()
    value, dtype = norm.value, torch.float32 if norm.single is True else torch.float64
    if isinstance(value, torch.Tensor):
        return value.to(device, dtype, copy=True)
    return torch.tensor(float(value), dtype=dtype, device=device)


def in_place(state: Any, new: Any) -> Any:
    """Write a new state into the old one's memory on an accelerator, where the next CUDA graph replay reads it."""
    before, structure = backend.flatten(state)
    after = backend.flatten(new)[0]
    pairs = [(i, *both) for i, both in enumerate(zip(before, after, strict=True)) if _is_moved(*both)]
    if not pairs:
        return new
    memory = {_private.storage_of(old) for _, old, _ in pairs}
    values = [found.clone() if _private.storage_of(found) in memory else found for _, _, found in pairs]
    _private.foreach_copy_([old for _, old, _ in pairs], values)
    for i, old, _ in pairs:
        after[i] = old
    return backend.unflatten(structure, after)


def _is_moved(old: Any, new: Any) -> bool:
    """Whether a new accelerator tensor has replaced a similar one."""
    both = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and old is not new
    alike = both and (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    return alike and place_of([old, new]) == DEVICE and is_writable(old)


def paths_of(named: Named) -> list[str]:
    """Paths of named parameters."""
    return [name.replace(".", "/") for name, _ in named]


def holder_of(tx: GradientTransformation, named: Named) -> Holder:
    """Named parameters, by path."""
    return Holder(tx, backend, paths_of(named), [parameter for _, parameter in named])


def all_named(what: str, tx: GradientTransformation, given: Any) -> Named:
    """All parameters with their names; none at all only along axes, where other processes have some."""
    named = list(_named(what, given))
    if not named and not tx.traits.axes:
        raise ValueError(
            f"{what}: there are no parameters in {short(given)}; an iterator such as model.parameters() is used up "
            "after one pass: give the model, or a list"
        )
    return named


def _named(what: str, given: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(given, torch.nn.Module):
        given = given.named_parameters()
    if isinstance(given, torch.Tensor):
        given = [given]
    if isinstance(given, Mapping):
        given = list(given.items())
    if not isinstance(given, Iterable):
        hint = "; call it" if inspect.ismethod(given) else instead(given)
        raise TypeError(f"{what} takes named parameters, a module or parameters, got {short(given)}{hint}")
    for i, item in enumerate(given):
        yield (str(i), item) if isinstance(item, torch.Tensor) else _pair(what, i, item)


def _are_pairs(given: Any) -> bool:
    """Whether these are a list of names and parameters, as `_named` gives them."""
    if type(given) is not list or not given:
        return False
    for item in given:
        if type(item) is not tuple or len(item) != 2 or type(item[0]) is not str:
            return False
        if type(item[1]) not in TENSORS and not isinstance(item[1], torch.Tensor):
            return False
    return True


def _cannot_have_gradient(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no gradient and is no parameter; a frozen one is."""
    return tensor.grad is None and not (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter))


def _pair(what: str, i: int, item: Any) -> tuple[str, torch.Tensor]:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], torch.Tensor):
        return item
    hint = "; of an optimizer's groups, write gx.torch.attach(optimizer, tx)" if isinstance(item, dict) else ""
    raise TypeError(f"{what}: item {i} is neither a parameter nor a (name, parameter) pair: {short(item)}{hint}")
