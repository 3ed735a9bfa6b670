"""Transform the gradients of parameters in place."""

from __future__ import annotations

from typing import Any

import torch

from gradxform import GradientTransformation
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import extra_of
from gradxform.core.transform import Context
from gradxform.transforms.skipping import check_waits
from gradxform_torch.parameters import Parameters, named_in


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
    made = parameters.on_gradients(state, context, measured=return_norm)
    if not return_norm:
        return made.state
    norm = None if made.norm is None else made.norm()
    return (made.state, norm) if tx.stateful else norm
