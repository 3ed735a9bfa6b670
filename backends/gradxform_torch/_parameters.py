"""Transforms in place on the gradients of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gradxform import GradientTransformation, _flat
from gradxform._foreign import as_transformation
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
    tx = as_transformation("torch.apply_", tx)
    if tx.stateful and state is None:
        raise TypeError(
            f"{tx!r} keeps a state: call state = tx.init(...) first, then state = apply_(tx, parameters, state)"
        )
    named = list(_named(named_parameters))
    gradients: list[torch.Tensor | None] = []
    owners: dict[int, list[torch.Tensor]] = {}
    for _, parameter in named:
        gradient = parameter.grad
        sharing = owners.setdefault(id(gradient), [])
        gradients.append(None if sharing else gradient)  # one that parameters share is transformed once
        sharing.append(parameter)
    structure = backend.flatten(gradients)[1]
    view = _flat.from_leaves(
        backend, gradients, structure, lambda: [name.replace(".", "/") for name, _ in named], inplace=True
    )
    if view is None:
        return state
    with torch.no_grad():
        view, state = tx.rule(view, state, Context([parameter for _, parameter in named], {}))
        skipped = view.skipped()
        for i, (old, new) in enumerate(zip(gradients, view.results(), strict=True)):
            if i in skipped:
                for parameter in owners[id(old)]:
                    parameter.grad = None
            elif new is not old:
                _write(owners[id(old)], new)
    return state


def _write(parameters: list[torch.Tensor], new: torch.Tensor) -> None:
    """A new gradient into the memory of the old one, which these parameters share, where that can be written to."""
    old = parameters[0].grad
    if old is not None and old.layout == new.layout == torch.strided and backend.is_writable(old):
        old.copy_(new)
        return
    for parameter in parameters:
        parameter.grad = new


def attach(optimizer: torch.optim.Optimizer, tx: GradientTransformation) -> torch.utils.hooks.RemovableHandle:
    """Transform the gradients of an optimizer's parameters before each of its steps.

    Args:
        optimizer: any `torch.optim` optimizer. A path is the parameter's name if the optimizer was built from named
            parameters, else its number over all groups.
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
    tx = as_transformation("torch.attach", tx)
    if tx.stateful:
        raise TypeError(
            f"torch.attach takes a stateless transformation, and {tx!r} keeps a state; use torch.apply_ before step()"
        )

    def transform(stepped: torch.optim.Optimizer) -> None:
        named: list[tuple[str, torch.Tensor]] = []
        for group in stepped.param_groups:
            names = group.get("param_names") or [str(len(named) + i) for i in range(len(group["params"]))]
            named += zip(names, group["params"], strict=True)
        apply_(tx, named)

    def before_step(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            transform(stepped)
            return None

        def transformed() -> Any:  # the closure computes the gradients, inside of the step
            with torch.enable_grad():
                loss = closure()
            transform(stepped)
            return loss

        return (args[0],), {**kwargs, "closure": transformed}

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
