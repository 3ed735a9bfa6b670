"""A transformation before each step of an optimizer."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch

from gradxform import GradientTransformation
from gradxform._foreign import as_transformation
from gradxform.portable import matched
from gradxform_torch import backend
from gradxform_torch._parameters import Named, paths_of, started, transformed

_KEY = "gradient_transformation"
_attached: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[Attached]] = weakref.WeakKeyDictionary()


def attach(optimizer: torch.optim.Optimizer, tx: GradientTransformation) -> Attached:
    """Transform the gradients of an optimizer's parameters before each of its steps.

    The optimizer is left as it is but for hooks. Its ``state_dict()`` holds the state of the transformation, and
    ``load_state_dict`` restores it: a run goes on bit by bit, with Lightning's and Accelerate's checkpoints too. Under
    a `torch.amp.GradScaler` the transformation sees unscaled gradients, also where the optimizer unscales them itself
    (``fused=True``), and a step that the scaler skips leaves its state alone.

    Args:
        optimizer: any `torch.optim` optimizer, or one that Lightning or Accelerate has wrapped. A path is the
            parameter's name with "/" for "." if the optimizer was built from named parameters
            (``SGD(model.named_parameters())``), else its number over all groups. Parameters of groups that are added
            later are taken in.
        tx: a transformation. With a closure, its state moves on with each call of the closure.

    Returns:
        A handle. Its ``remove()`` takes the transformation off; as a context manager it does so on leaving. Its
        ``state`` can be read, and set to a state of the same transformation from anywhere, such as what
        `gradxform.to_numpy` gave.

    Raises:
        TypeError: what is no optimizer, or no transformation.
        ValueError: a pattern that matches no path; later, a ``state_dict`` with the state of another transformation.

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
    return Attached(_bare(optimizer), as_transformation("torch.attach", tx))


class Attached:
    """The handle of a transformation that is attached to an optimizer.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
        >>> with gx.torch.attach(optimizer, gx.trace(0.9)) as handle:
        ...     handle.state
        TraceState(trace={'0': tensor([0., 0.])})

    Source:
        `torch.utils.hooks.RemovableHandle`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, tx: GradientTransformation) -> None:
        """Registers the hooks."""
        self.tx = tx
        self._optimizer = weakref.ref(optimizer)
        self._paths: list[str] = []
        self._device: Any = None
        self._state = self._fresh(optimizer)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_state_dict_post_hook(self._after_saving),
            optimizer.register_load_state_dict_pre_hook(self._before_loading),
        ]
        _attached.setdefault(optimizer, []).append(self)

    @property
    def state(self) -> Any:
        """The state of the transformation now, a pytree of tensors; its trees are dicts by path."""
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        optimizer = self._optimizer()
        self._state = matched("torch.attach", state, self._state if optimizer is None else self._fresh(optimizer))

    def remove(self) -> None:
        """Take the transformation off the optimizer."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if optimizer is not None and self in _attached.get(optimizer, ()):
            _attached[optimizer].remove(self)

    def __enter__(self) -> Attached:
        """The handle itself."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Takes the transformation off."""
        self.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._transform(optimizer)
            return None

        def transformed_closure() -> Any:  # the closure computes the gradients, inside of the step
            with torch.enable_grad():
                loss = closure()
            self._transform(optimizer)
            return loss

        return (args[0],), {**kwargs, "closure": transformed_closure}

    def _transform(self, optimizer: Any) -> None:
        named = _named(optimizer)
        if self.tx.stateful and (paths_of(named), _device(named)) != (self._paths, self._device):
            self._take_in(optimizer)
        # An optimizer that unscales gradients itself is told by these two attributes, for the length of a step.
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        self._state = transformed(self.tx, named, self._state, scale, found_inf)
        if scale is not None:
            optimizer.grad_scale = None

    def _fresh(self, optimizer: torch.optim.Optimizer) -> Any:
        """The first state for the parameters that the optimizer has now, where they are now."""
        named = _named(optimizer)
        self._paths, self._device = paths_of(named), _device(named)
        return started(self.tx, named)

    def _take_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Parameters of groups that were added since, or another device that they have gone to."""
        fresh = self._fresh(optimizer)
        try:
            self._state = matched("torch.attach", _by_path(fresh) | _by_path(self._state), fresh)
        except ValueError as error:
            raise ValueError(
                f"torch.attach: {self.tx!r} has a table with a row for each parameter, and parameters were added "
                "since; attach it anew"
            ) from error

    def _after_saving(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        if self.tx.stateful:
            state_dict[self._key()] = _by_path(self._state)

    def _before_loading(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        if not self.tx.stateful:
            return
        if self._key() in state_dict:
            self._state = matched("torch.attach", state_dict[self._key()], self._fresh(optimizer))
        else:
            warnings.warn(
                f"torch.attach: the state_dict has no state of {self.tx!r}, which goes on with the state that it has",
                UserWarning,
                stacklevel=3,
            )

    def _key(self) -> str:
        """Its place in a state_dict, beside "state" and "param_groups": by its rank where there are several."""
        optimizer = self._optimizer()
        beside = [handle for handle in _attached.get(optimizer, ()) if handle.tx.stateful] if optimizer else [self]
        rank = beside.index(self)
        return f"{_KEY}_{rank}" if rank else _KEY


def _bare(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside of what Lightning or Accelerate made of it."""
    found = optimizer
    while not hasattr(found, "_optimizer_step_pre_hooks") and hasattr(found, "optimizer"):
        found = found.optimizer
    if not isinstance(found, torch.optim.Optimizer):
        raise TypeError(
            f"torch.attach: an optimizer of torch.optim is wanted, got {optimizer!r:.80} of type "
            f"{type(optimizer).__name__}"
        )
    return found


def _named(optimizer: torch.optim.Optimizer) -> Named:
    """The parameters of all groups, with their names or their numbers."""
    named: list[tuple[str, torch.Tensor]] = []
    for group in optimizer.param_groups:
        names = group.get("param_names") or [str(len(named) + i) for i in range(len(group["params"]))]
        named += zip(names, group["params"], strict=True)
    return named


def _device(named: Named) -> Any:
    """Where the parameters are, as far as the first one tells."""
    return named[0][1].device if named else None


def _by_path(state: Any) -> dict[str, torch.Tensor]:
    """The tensors of a state by their paths, as a state_dict holds them."""
    leaves = zip(backend.paths(state), backend.flatten(state)[0], strict=True)
    return {path: leaf for path, leaf in leaves if leaf is not None}
