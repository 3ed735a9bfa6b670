"""Apply a transform before each optimizer step."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from gradxform import GradientTransformation
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import GRADIENTS, UPDATES, check_place
from gradxform.functions.convert import matched
from gradxform.transforms.accumulating import check_waits
from gradxform.transforms.skipping import is_due
from gradxform_torch._optimizers import bare, closure_of, device_of, is_for_show, is_optimizer, named_of, unwrapped
from gradxform_torch._parameters import NormBefore, all_named, paths_of, transformed
from gradxform_torch._private import is_inner_call
from gradxform_torch._recorded import Recorded
from gradxform_torch._saving import Held, Saving, attached, by_path, held, left_in
from gradxform_torch._updates import Kept, kept, moved, restore
from gradxform_torch._writing import Named, clear

if TYPE_CHECKING:
    from gradxform.recording.recorder import Recorder


def attach(
    optimizer: torch.optim.Optimizer, tx: GradientTransformation, *, on: str = GRADIENTS, names: Any = None
) -> Attached:
    """Transform gradients before each optimizer step, or the updates that the step adds to the parameters.

    Only hooks are added to the optimizer. Its ``state_dict()`` includes the transform's state. ``load_state_dict``
    restores it, before or after `attach`, bit by bit; Lightning and Accelerate checkpoints work too.

    Under a `torch.amp.GradScaler` the transform sees unscaled gradients, also with ``fused=True`` optimizers that
    unscale them internally. A step that the scaler skips keeps the transform's state. A step that the transform skips
    (`skip_nonfinite`, `skip_large`, `accumulate`, unless masked) sets gradients to None, at one host sync per step.

    With ``on="updates"`` the transform sees what the step has added, new minus old parameters, learning rate and weight
    decay included. Elements that it leaves unchanged are the optimizer's own, bit for bit; others are old parameter
    plus transformed update, rounded once. Stopped parameters and skipped steps keep every bit of the parameters, while
    the optimizer's own state advances. Nothing needs a host sync. Each step copies the parameters that the transform
    can change (`masked`, `partition` and `freeze` choose), and holds their updates while it runs.

    Args:
        optimizer: Any `torch.optim` optimizer, also as wrapped by Lightning or Accelerate. A path is the parameter's
            name with "/" for "." if the optimizer was built from named parameters (``SGD(model.named_parameters())``),
            otherwise its index over all groups. Parameter groups added later are included.
        tx: A transform. With a closure, its state advances with each call of the closure, on updates once per step.
        on: What to transform: "gradients" or "updates". Updates of half-precision parameters are float32. Transforms
            that need parameters get those before the step.
        names: Names for an optimizer whose groups hold bare parameters: the model, or its named parameters. They become
            ``param_names`` of its groups, as if it was built from named parameters.

    Returns:
        A handle. ``remove()``, or leaving it as a context manager, detaches the transform. ``state`` can be read, and
        set to a state of the same transform from any framework, such as a result of `gradxform.to_numpy`. ``norm`` is
        the norm of the last step's gradients or updates before the transform.

    Raises:
        TypeError: `optimizer` is not an optimizer, or `tx` is not a transform.
        ValueError: `on` is neither of the two, `names` lacks a parameter of the optimizer, a pattern matches no path
            yet (attach after ``add_param_group``), or a ``state_dict`` that was or will be loaded has another
            transform's state.

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
    check_place("torch.attach", on, tx)
    if names is not None:
        _name(bare(optimizer), all_named("torch.attach", tx, names))
    try:
        return Attached(bare(optimizer), tx, on)
    except ValueError as error:
        if "matches no path" in str(error):
            error.add_note("To choose parameters of a group that is added later, attach after add_param_group.")
        raise


def _name(optimizer: torch.optim.Optimizer, named: Named) -> None:
    """Name the parameters of groups that have no names, as PyTorch does if it gets named parameters."""
    names = {id(parameter): name for name, parameter in reversed(named)}
    unnamed = [group for group in optimizer.param_groups if not group.get("param_names")]
    for group in unnamed:
        for i, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise ValueError(
                    f"torch.attach: names lacks parameter {i} of a group, of shape {tuple(parameter.shape)}; give the "
                    "whole model"
                )
    for group in unnamed:
        group["param_names"] = [names[id(parameter)] for parameter in group["params"]]


class Attached(Saving):
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

    def __init__(self, optimizer: torch.optim.Optimizer, tx: GradientTransformation, on: str = GRADIENTS) -> None:
        """Register the hooks."""
        self.tx, self.on = tx, on
        self._optimizer = weakref.ref(optimizer)
        self._norm: NormBefore | None = None
        self._recorded: Recorded | None = None
        self._kept: Kept | None = None
        self._flushes = False
        self._held = self._found(optimizer)
        self._hooks = [*self._stepping(optimizer), *self._saving(optimizer)]
        attached.setdefault(optimizer, []).append(self)
        if tx.stateful:
            left_in(optimizer).pop(self._key(), None)

    @property
    def state(self) -> Any:
        """State of the transform, a pytree of tensors, in dicts by path.

        Each step may overwrite these tensors. Clone what you want to keep.
        """
        return self._held.state

    @state.setter
    def state(self, state: Any) -> None:
        optimizer = self._optimizer()
        fresh = self._held if optimizer is None else held(self.tx, optimizer)
        self._held = fresh._replace(state=matched("torch.attach", state, fresh.state))

    @property
    def norm(self) -> torch.Tensor | None:
        """The norm of the last step's gradients, or updates, before the transform; a new 0-d tensor.

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
        out to the optimizer; with ``on="updates"``, what is added to the parameters. A call of a closure counts as a
        step of gradients.

        Args:
            recorder: what to record with; steps that are not due cost nothing.
            start: the number of the next step.
        """
        self._recorded = Recorded(recorder, start)

    def flush(self) -> None:
        """Take a step with what an unfinished window of `accumulate` holds, such as the last batches of an epoch.

        It replaces the gradients, as in `gradxform.flush`. With ``on="updates"`` the held updates are applied, and the
        optimizer takes no step.

        Raises:
            TypeError: The transform has no `accumulate`.
            ValueError: The handle was removed.
        """
        check_waits("torch.attach", self.tx)
        optimizer = self._optimizer()
        if optimizer is None or self not in attached.get(optimizer, ()):
            raise ValueError("torch.attach: the handle is attached to nothing; flush before remove()")
        clear(named_of(optimizer))
        self._flushes = True
        try:
            if self.on == GRADIENTS:
                optimizer.step()
            else:
                self._before_updates(optimizer, (), {})
                self._after_updates(optimizer, (), {})
        finally:
            self._flushes = False

    def remove(self) -> None:
        """Detach the transform from the optimizer."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if optimizer is not None and self in attached.get(optimizer, ()):
            attached[optimizer].remove(self)

    def __repr__(self) -> str:
        """Show the transform and the optimizer."""
        optimizer = self._optimizer()
        if optimizer is None or self not in attached.get(optimizer, ()):
            return f"<torch.attach: {self.tx!r}, attached to nothing>"
        count, what = len(named_of(optimizer)), "updates of " * (self.on == UPDATES)
        whole = f"{what}{type(optimizer).__name__}, {count} parameter{'s' * (count != 1)}"
        return f"<torch.attach: {self.tx!r} on {whole}>"

    def __enter__(self) -> Attached:
        """Return the handle."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Detach the transform."""
        self.remove()

    def __getstate__(self) -> Any:
        """Copy the transform and its state; the copy is attached to nothing."""
        return self.tx, self._held.state, self.on

    def __setstate__(self, kept: Any) -> None:
        """Restore the copy; those of version 1.0 have no place."""
        self.tx, state, *rest = kept
        self.on = rest[0] if rest else GRADIENTS
        self._optimizer, self._hooks, self._norm, self._recorded = lambda: None, [], None, None
        self._flushes = False
        self._held = Held([], None, state)

    def _stepping(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        """Add the hooks around a step."""
        disable: Any = torch.compiler.disable
        if self.on == GRADIENTS:
            return [optimizer.register_step_pre_hook(disable(self._before_step))]
        before = optimizer.register_step_pre_hook(disable(self._before_updates))
        return [before, optimizer.register_step_post_hook(disable(self._after_updates))]

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if is_inner_call(optimizer) or is_for_show(optimizer, args, kwargs):
            return None
        closure = closure_of(args, kwargs)
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
        self._follow(optimizer, named)
        # An optimizer that unscales gradients itself is told by these two attributes, for the length of a step.
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if self._recorded is not None:
            self._recorded.before(named, scale)
        given = self.tx, named, self._held.state, scale, found_inf
        try:
            state, self._norm = transformed(*given, owned=True, flushes=self._flushes)
        except ValueError as error:
            if "tx.init(params)" in str(error):  # a parameter was replaced
                error.add_note("After attach, write handle.remove() and attach again: that starts a new state.")
            raise
        self._held = self._held._replace(state=state)
        if scale is not None:
            optimizer.grad_scale = None
        if self._recorded is not None:
            self._recorded.after(named)
        due = is_due(self.tx, state)
        if due is not True and not due:
            for _, parameter in named:  # zeros would move what has momentum or weight decay
                parameter.grad = None

    def _before_updates(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Copy the parameters; the closure, which the step calls, computes the gradients later."""
        if is_inner_call(optimizer):
            return
        self._kept = None
        if not is_for_show(optimizer, args, kwargs):
            named = named_of(optimizer)
            self._follow(optimizer, named)
            every = self._recorded is not None and self._recorded.is_due()
            self._kept = kept(self.tx, named, closure_of(args, kwargs) is not None, every)

    def _after_updates(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Transform what the step has added."""
        if self._kept is None or is_inner_call(optimizer):
            return
        before, self._kept = self._kept, None
        signs = [-1 if group.get("maximize") else 1 for group in optimizer.param_groups for _ in group["params"]]
        found_inf = getattr(optimizer, "found_inf", None)  # as in `_transform`
        if self._recorded is not None:
            self._recorded.before(before.named, getattr(optimizer, "grad_scale", None))
        try:
            made = moved(before, signs, self._held.state, found_inf, self._flushes)
        except Exception:  # as for gradients, what cannot be transformed is not applied
            restore(before)
            raise
        self._held, self._norm = self._held._replace(state=made.state), made.norm
        if self._recorded is not None:
            found = [None] * len(before.named) if made.after is None else made.after.results()
            self._recorded.after(before.named, found, before.old)

    def _follow(self, optimizer: torch.optim.Optimizer, named: Named) -> None:
        """Include parameter groups added since, and follow parameters to another device."""
        if not self.tx.stateful or (paths_of(named), device_of(named)) == self._held[:2]:
            return
        fresh = held(self.tx, optimizer)
        try:
            state = matched("torch.attach", by_path(fresh.state) | by_path(self._held.state), fresh.state)
        except ValueError as error:
            raise ValueError(
                f"torch.attach: {self.tx!r} has a table with a row for each parameter, and parameters were added "
                "since; attach it anew"
            ) from error
        self._held = fresh._replace(state=state)


def handles_of(optimizer: Any) -> list[Attached] | None:
    """Handles attached to an optimizer or to its inner one; None for other objects."""
    optimizer = unwrapped(optimizer)
    return list(attached.get(optimizer, ())) if isinstance(optimizer, torch.optim.Optimizer) else None


def paths_in(given: Any) -> list[str] | None:
    """Paths of the parameters of a module, an optimizer or an `attach` handle; None for other objects."""
    if isinstance(given, torch.nn.Module):
        return paths_of(list(given.named_parameters()))
    if isinstance(given, Attached):
        return given.paths
    return paths_of(named_of(bare(given))) if is_optimizer(given) else None
