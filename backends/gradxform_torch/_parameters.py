"""Transforms in place on the gradients of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gradxform import GradientTransformation, _flat
from gradxform._transformation import Context
from gradxform_torch import backend


def apply_(tx: GradientTransformation, named_parameters: Any, state: Any = None) -> Any:
    """Transform the gradients of parameters in place.

    Args:
        tx: the transformation.
        named_parameters: ``model.named_parameters()``, a module, or parameters without names; their ``.grad`` are
            dense or sparse COO tensors of floating or complex dtype, or None. A gradient's path is its parameter's
            name with "/" for "."; one without a name has its number. A parameter given twice is transformed once.
        state: the state of a stateful transformation: what ``tx.init(gradients)`` or the last call returned.

    Returns:
        The new state; `state` as it is for a stateless transformation. The gradient of a stopped parameter becomes
        None, so that optimizers skip it; an expanded gradient, which cannot be written to, is replaced.

    Raises:
        TypeError: an item that is no parameter, a stateful transformation without a state.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> layer(torch.tensor([[3.0, 4.0]])).backward()
        >>> gx.torch.apply_(gx.clip_norm(1.0), layer.named_parameters())
        >>> layer.weight.grad
        tensor([[0.6000, 0.8000]])

    Source:
        `torch.nn.utils.clip_grad_norm_`.
    """
    if tx.stateful and state is None:
        raise TypeError(
            f"{tx!r} keeps a state: call state = tx.init(...) first, then state = apply_(tx, parameters, state)"
        )
    named = list(_unique(_named(named_parameters)))
    names = [name.replace(".", "/") for name, _ in named]
    gradients = [parameter.grad for _, parameter in named]
    view = _flat.from_leaves(backend, gradients, gradients, lambda: names, inplace=True)
    if view is None:
        return state
    with torch.no_grad():
        view, state = tx.rule(view, state, Context([parameter for _, parameter in named], {}))
        skipped = view.skipped()
        for i, ((_, parameter), new) in enumerate(zip(named, view.results(), strict=True)):
            if i in skipped:
                parameter.grad = None
            elif new is not parameter.grad:
                _write(parameter, new)
    return state


def _write(parameter: torch.Tensor, new: torch.Tensor) -> None:
    """A new gradient into the memory of the old one where that can be written to."""
    old = parameter.grad
    if old is not None and old.layout == new.layout == torch.strided and backend.is_writable(old):
        old.copy_(new)
    else:
        parameter.grad = new


def attach(optimizer: torch.optim.Optimizer, tx: GradientTransformation) -> torch.utils.hooks.RemovableHandle:
    """Transform the gradients of an optimizer's parameters before each of its steps.

    Args:
        optimizer: any `torch.optim` optimizer; paths are the parameters' numbers in its groups.
        tx: a stateless transformation.

    Returns:
        A handle; its ``remove()`` takes the transformation off.

    Raises:
        TypeError: a stateful transformation.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([w], lr=1.0)
        >>> handle = gx.torch.attach(optimizer, gx.clip_norm(1.0))
        >>> w.grad = torch.tensor([3.0, 4.0])
        >>> optimizer.step()
        >>> w.data
        tensor([-0.6000, -0.8000])

    Source:
        `torch.optim.Optimizer.register_step_pre_hook`.
    """
    if tx.stateful:
        raise TypeError(
            f"torch.attach takes a stateless transformation, and {tx!r} keeps a state; use torch.apply_ before step()"
        )

    def before_step(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        apply_(tx, [parameter for group in stepped.param_groups for parameter in group["params"]])

    return optimizer.register_step_pre_hook(before_step)


def _named(given: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(given, torch.nn.Module):
        given = given.named_parameters()
    if isinstance(given, torch.Tensor):
        given = [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"torch.apply_ takes named parameters, a module or parameters, got {given!r}")
    for i, item in enumerate(given):
        name, parameter = (str(i), item) if isinstance(item, torch.Tensor) else _pair(i, item)
        yield name, parameter


def _pair(i: int, item: Any) -> tuple[str, torch.Tensor]:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], torch.Tensor):
        return item
    raise TypeError(f"torch.apply_: item {i} is neither a parameter nor a (name, parameter) pair: {item!r:.100}")


def _unique(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for name, parameter in named:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield name, parameter
