"""Apply a transform before each optimizer step."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gradxform import GradientTransformation
from gradxform.core.foreign import as_transformation
from gradxform.functions.convert import matched
from gradxform.transforms.applied import is_due
from gradxform_torch._held import Held, by_path, held
from gradxform_torch._optimizers import bare, device_of, is_for_show, named_of, unwrapped
from gradxform_torch._parameters import NormBefore, paths_of, transformed
from gradxform_torch._private import is_inner_call
from gradxform_torch._recorded import Recorded

if TYPE_CHECKING:
    from gradxform.recording.recorder import Recorder

_KEY = "gradient_transformation"
_attached: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[Attached]] = weakref.WeakKeyDictionary()


def attach(optimizer: torch.optim.Optimizer, tx: GradientTransformation) -> Attached:
    """Transform the gradients of an optimizer's parameters before each step.

    Only hooks are added to the optimizer. Its ``state_dict()`` includes the transform's state. ``load_state_dict``
    restores it, before or after `attach`, bit by bit; Lightning and Accelerate checkpoints work too.

    Under a `torch.amp.GradScaler` the transform sees unscaled gradients, also with ``fused=True`` optimizers that
    unscale them internally. A step that the scaler skips keeps the transform's state. A step that the transform skips
    (`skip_nonfinite`, `skip_large`, `accumulate`, unless masked) sets gradients to None, at one host sync per step.

    Args:
        optimizer: Any `torch.optim` optimizer, also as wrapped by Lightning or Accelerate. A path is the parameter's
            name with "/" for "." if the optimizer was built from named parameters (``SGD(model.named_parameters())``),
            otherwise its index over all groups. Parameter groups added later are included.
        tx: A transform. With a closure, its state advances with each call of the closure.

    Returns:
        A handle. ``remove()``, or leaving it as a context manager, detaches the transform. ``state`` can be read, and
        set to a state of the same transform from any framework, such as a result of `gradxform.to_numpy`. ``norm`` is
        the norm of the last step's gradients before the transform.

    Raises:
        TypeError: `optimizer` is not an optimizer, or `tx` is not a transform.
        ValueError: A pattern matches no path yet (attach after ``add_param_group``), or a ``state_dict`` that was or
            will be loaded has another transform's state.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([w], lr=1.0)
        >>> handle = gx.torch.attach(optimizer, gx.clip_global_norm(1.0))
        >>> w.grad = torch.tensor([3.0, 4.0])
        >>> optimizer.step()
        >>> w.data, handle.norm
        (tensor([-0.6000, -0.8000]), tensor(5.))
        >>> handle
        <torch.attach: clip_global_norm(1.0) on SGD, 1 parameter>

    References:
        `torch.optim.Optimizer.register_step_pre_hook`.
    """
    tx = as_transformation("torch.attach", tx, optimizer, "gx.torch.attach(optimizer, tx)")
    try:
        return Attached(bare(optimizer), tx)
    except ValueError as error:
        if "matches no path" in str(error):
            error.add_note("To choose parameters of a group that is added later, attach after add_param_group.")
        raise


class Attached:
    """Handle of a transform that is attached to an optimizer.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
        >>> with gx.torch.attach(optimizer, gx.trace(0.9)) as handle:
        ...     handle.state
        TraceState(trace={'0': tensor([0., 0.])})

    References:
        `torch.utils.hooks.RemovableHandle`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, tx: GradientTransformation) -> None:
        """Register the hooks."""
        self.tx = tx
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = weakref.ref(optimizer)
        self._loaded: Held | None = None
        self._norm: NormBefore | None = None
        self._recorded: Recorded | None = None
        self._held = self._found(optimizer)
        self._hooks = [
            optimizer.register_step_pre_hook(torch.compiler.disable(self._before_step)),  # type: ignore[no-untyped-call]
            optimizer.register_state_dict_post_hook(self._after_saving),
            optimizer.register_load_state_dict_pre_hook(self._before_loading),
            optimizer.register_load_state_dict_post_hook(self._after_loading),
        ]
        _attached.setdefault(optimizer, []).append(self)
        if tx.stateful:
            _left(optimizer).pop(self._key(), None)

    def _found(self, optimizer: torch.optim.Optimizer) -> Held:
        """The initial state, or the state of a state_dict that the optimizer loaded earlier, kept in its groups."""
        fresh = held(self.tx, optimizer)
        rank = sum(handle.tx.stateful for handle in _attached.get(optimizer, ()))
        left = _left(optimizer).get(_key(rank)) if self.tx.stateful else None
        if left is None:
            return fresh
        try:
            return fresh._replace(state=matched("torch.attach", left, fresh.state))
        except (TypeError, ValueError) as error:
            why = str(error).removeprefix("torch.attach: ")
            raise ValueError(
                f"torch.attach: the optimizer has loaded a state_dict with a state that is not of {self.tx!r}: {why}. "
                "Attach the transformation of that run, or drop its state: "
                f"optimizer.param_groups[0].pop({_key(rank)!r})"
            ) from error

    @property
    def state(self) -> Any:
        """State of the transform, a pytree of tensors, in dicts by path.

        On an accelerator, each step overwrites these tensors. Clone what you want to keep.
        """
        return self._held.state

    @state.setter
    def state(self, state: Any) -> None:
        optimizer = self._optimizer()
        fresh = self._held if optimizer is None else held(self.tx, optimizer)
        self._held = fresh._replace(state=matched("torch.attach", state, fresh.state))

    @property
    def norm(self) -> torch.Tensor | None:
        """The norm of the last step's gradients before the transform; a new 0-d tensor.

        It costs no extra pass and no host sync. It is None before the first step, and where the transform does not
        measure every gradient (`clip_value`, `scale`, a masked clip). Stopped gradients do not count. The order is 2,
        or the `ord` of the first `clip_global_norm`.
        """
        return None if self._norm is None else self._norm()

    @property
    def paths(self) -> list[str]:
        """Current paths of the optimizer's parameters; of the state if the optimizer is gone."""
        optimizer = self._optimizer()
        return self._held.paths if optimizer is None else paths_of(named_of(optimizer))

    def record(self, recorder: Recorder, start: int = 0) -> None:
        """Record each step from now on, by what `gradxform.record` returned.

        A step has ``parameters`` before the step, ``gradients`` as they come in, and ``updates``, the gradients that go
        out to the optimizer. A call of a closure counts as a step.

        Args:
            recorder: what to record with; steps that are not due cost nothing.
            start: the number of the next step.
        """
        self._recorded = Recorded(recorder, start)

    def remove(self) -> None:
        """Detach the transform from the optimizer."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if optimizer is not None and self in _attached.get(optimizer, ()):
            _attached[optimizer].remove(self)

    def __repr__(self) -> str:
        """Show the transform and the optimizer."""
        optimizer = self._optimizer()
        if optimizer is None or self not in _attached.get(optimizer, ()):
            return f"<torch.attach: {self.tx!r}, attached to nothing>"
        count = len(named_of(optimizer))
        return f"<torch.attach: {self.tx!r} on {type(optimizer).__name__}, {count} parameter{'s' * (count != 1)}>"

    def __enter__(self) -> Attached:
        """Return the handle."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Detach the transform."""
        self.remove()

    def __getstate__(self) -> Any:
        """Copy the transform and its state; the copy is attached to nothing."""
        return self.tx, self._held.state

    def __setstate__(self, kept: Any) -> None:
        """Restore the copy."""
        self.tx, state = kept
        self._optimizer, self._hooks, self._loaded, self._norm, self._recorded = lambda: None, [], None, None, None
        self._held = Held([], None, state)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if is_inner_call(optimizer) or is_for_show(optimizer, args, kwargs):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._transform(optimizer)
            return None

        def transformed_closure() -> Any:  # the closure computes the gradients, inside of the step
            with torch.enable_grad():
                loss = closure()
            self._transform(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": transformed_closure}
        return (args[0], transformed_closure, *args[2:]), kwargs

    def _transform(self, optimizer: Any) -> None:
        named = named_of(optimizer)
        if self.tx.stateful and (paths_of(named), device_of(named)) != self._held[:2]:
            self._take_in(optimizer)
        # An optimizer that unscales gradients itself is told by these two attributes, for the length of a step.
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if self._recorded is not None:
            self._recorded.before(named, scale)
        state, self._norm = transformed(self.tx, named, self._held.state, scale, found_inf, owned=True)
        self._held = self._held._replace(state=state)
        if scale is not None:
            optimizer.grad_scale = None
        if self._recorded is not None:
            self._recorded.after(named)
        due = is_due(self.tx, state)
        if due is not True and not due:
            for _, parameter in named:  # zeros would move what has momentum or weight decay
                parameter.grad = None

    def _take_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Include parameter groups added since, and follow parameters to another device."""
        fresh = held(self.tx, optimizer)
        try:
            state = matched("torch.attach", by_path(fresh.state) | by_path(self._held.state), fresh.state)
        except ValueError as error:
            raise ValueError(
                f"torch.attach: {self.tx!r} has a table with a row for each parameter, and parameters were added "
                "since; attach it anew"
            ) from error
        self._held = fresh._replace(state=state)

    def _after_saving(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        if self.tx.stateful:
            state_dict[self._key()] = kept = by_path(self._held.state)
            if groups := state_dict["param_groups"]:  # where load_state_dict leaves what it does not know
                groups[0] = {**groups[0], self._key(): kept}

    def _before_loading(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        self._loaded = None
        if not self.tx.stateful:
            return
        groups = state_dict.get("param_groups") or [{}]
        given = state_dict.get(self._key(), groups[0].get(self._key()))
        if given is not None:
            fresh = held(self.tx, optimizer)
            self._loaded = fresh._replace(state=matched("torch.attach", given, fresh.state))
        else:
            warnings.warn(
                f"torch.attach: the state_dict has no state of {self.tx!r}, which goes on with the state that it has",
                UserWarning,
                stacklevel=3,
            )

    def _after_loading(self, optimizer: torch.optim.Optimizer) -> None:
        if self._loaded is not None:
            self._held, self._loaded = self._loaded, None
            _left(optimizer).pop(self._key(), None)

    def _key(self) -> str:
        """Key in a state_dict, beside "state" and "param_groups"; numbered if several transforms are attached."""
        optimizer = self._optimizer()
        handles = [handle for handle in _attached.get(optimizer, ()) if handle.tx.stateful] if optimizer else [self]
        return _key(handles.index(self) if self in handles else 0)


def _key(rank: int) -> str:
    return f"{_KEY}_{rank}" if rank else _KEY


def _left(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The parameter group in which a loaded state_dict left transforms' states."""
    groups = optimizer.param_groups
    return groups[0] if groups else {}


def handles_of(optimizer: Any) -> list[Attached] | None:
    """Handles attached to an optimizer or to its inner one; None for other objects."""
    optimizer = unwrapped(optimizer)
    return list(_attached.get(optimizer, ())) if isinstance(optimizer, torch.optim.Optimizer) else None
