"""Apply a transform before each optimizer step."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradxform import GradientTransformation
from gradxform.backend.errors import wrong_type
from gradxform.backend.protocol import Given, Row
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import GRADIENTS, UPDATES, check_place, extra_of
from gradxform.core.transform import Context
from gradxform.functions.convert import matched, to_numpy
from gradxform.functions.inspecting import by_path
from gradxform.transforms.skipping import check_waits, is_due
from gradxform_torch.apply_ import Named, NormBefore, Parameters, named_in, next_state, paths_of
from gradxform_torch.kernels import backend
from gradxform_torch.private import is_inner_call

if TYPE_CHECKING:
    from gradxform.recording.recorder import Recorder

_KEYS = {GRADIENTS: "gradient_transformation", UPDATES: "gradient_transformation_on_updates"}
_attached: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[Attached]] = weakref.WeakKeyDictionary()
"""The handles of each optimizer, in the order of attachment."""


def attach(
    optimizer: torch.optim.Optimizer, tx: GradientTransformation, *, on: str = GRADIENTS, names: Any = None
) -> Attached:
    """Transform gradients before each optimizer step, or the updates that the step adds to the parameters.

    Only hooks are added to the optimizer. Its ``state_dict()`` includes the transform's state. ``load_state_dict``
    restores it, before or after `attach`, bit by bit; Lightning and Accelerate checkpoints work too.

    Under a `torch.amp.GradScaler` the transform sees unscaled gradients, also with ``fused=True`` optimizers that
    unscale them internally. A step that the scaler skips keeps the transform's state. A step that the transform skips
    (`skip_nonfinite` and its like, `accumulate`, unless masked) sets gradients to None, at one host sync per step.

    With ``on="updates"`` the transform sees what the step has added, new minus old parameters, learning rate and weight
    decay included. Elements that it leaves unchanged are the optimizer's own, bit for bit; others are old parameter
    plus transformed update, rounded once. Stopped parameters and skipped steps keep every bit of the parameters, while
    the optimizer's own state advances. Nothing needs a host sync. Each step copies the parameters that the transform
    can change (`masked`, `partition` and `freeze` choose), and holds their updates while it runs.

    A transform that needs the loss, as `skip_spikes` may, gets it from ``optimizer.step(value=loss)``, on gradients
    also from a closure.

    Args:
        optimizer: Any `torch.optim` optimizer, also as wrapped by Lightning or Accelerate. A path is the parameter's
            name with "/" for "." if the optimizer was built from named parameters (``SGD(model.named_parameters())``),
            otherwise its index over all groups. Parameter groups added later are included. Transforms that are
            attached to it already run first.
        tx: A transform. With a closure, its state advances with each call of the closure, on updates once per step.
        on: What to transform: "gradients" or "updates". Updates of half-precision parameters are float32. Transforms
            that need parameters get those before the step.
        names: Names for an optimizer whose groups hold bare parameters: the model, or its named parameters. They become
            ``param_names`` of its groups, as if it was built from named parameters. With the model, an error about a
            pattern says why a name has no path: it is tied to another, or not in the optimizer.

    Returns:
        A handle. ``remove()``, or leaving it as a context manager, detaches the transform. ``state`` can be read, and
        set to a state of the same transform from any framework, such as a result of `gradxform.to_numpy`. ``norm`` is
        the norm of the last step's gradients or updates before the transform.

    Raises:
        TypeError: `optimizer` is not an optimizer, or `tx` is not a transform.
        ValueError: `on` is neither of the two, `names` lacks a parameter of the optimizer, a pattern matches no path
            yet (attach after ``add_param_group``), or a ``state_dict`` that was or will be loaded has another
            transform's state.

    Warns:
        UserWarning: An equal transform is attached already, and both run.

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
    own = unwrapped(optimizer)
    if not isinstance(own, torch.optim.Optimizer):
        hint = "; hand in its optimizer" if hasattr(optimizer, "optimizer") else None
        raise wrong_type("torch.attach", "a torch.optim optimizer", optimizer, hint)
    if names is not None:
        _name(own, named_in("torch.attach", tx, names))
    if any(handle.tx == tx and handle.on == on for handle in _attached.get(own, ())):
        why = f"{tx!r} is attached already and runs twice from now on; write handle.remove() to replace it"
        warnings.warn(f"torch.attach: {why}", stacklevel=2)
    return Attached(own, tx, on, names)


def _name(optimizer: torch.optim.Optimizer, named: Named) -> None:
    """Name the parameters of groups that have no names, as PyTorch does if it gets named parameters."""
    names = {id(parameter): name for name, parameter in reversed(named)}
    unnamed = [group for group in optimizer.param_groups if not group.get("param_names")]
    lacks = [tuple(p.shape) for group in unnamed for p in group["params"] if id(p) not in names]
    if lacks:
        raise ValueError(f"torch.attach: names lacks a parameter of shape {lacks[0]}; give the whole model")
    for group in unnamed:
        group["param_names"] = [names[id(parameter)] for parameter in group["params"]]


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

    # A copy has these, since it is attached to nothing.
    _optimizer: Callable[[], torch.optim.Optimizer | None] = staticmethod(lambda: None)
    """The optimizer; None if it is gone or the handle was removed."""
    _hooks: Sequence[Any] = ()
    _place: Sequence[tuple[str, Any, Any]] = ()
    """Path, shape and device of each parameter that the state is for."""
    _norm: NormBefore | None = None
    _recorder: Recorder | None = None
    _before: tuple[Any, Parameters, Row] | None = None
    """The loss, the parameters, and copies of them before the step whose updates are transformed."""
    _flushes = False
    _count = 0
    """Number of the next step that is recorded."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, tx: GradientTransformation, on: str = GRADIENTS, names: Any = None
    ) -> None:
        """Find the state and register the hooks."""
        self.tx, self.on, self._optimizer = tx, on, weakref.ref(optimizer)
        parameters = Parameters(tx, named_of(optimizer), names)
        self._place, self._state = _place_of(parameters), parameters.first()
        self._load(optimizer)
        disable: Any = torch.compiler.disable
        self._hooks = [
            optimizer.register_step_pre_hook(disable(self._before_step)),
            optimizer.register_step_post_hook(disable(self._after_step)),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._check),
            optimizer.register_load_state_dict_post_hook(self._load),
        ]
        _attached.setdefault(optimizer, []).append(self)

    @property
    def state(self) -> Any:
        """State of the transform, a pytree of tensors, in dicts by path.

        Each step may overwrite these tensors. Clone what you want to keep.
        """
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        if (optimizer := self._optimizer()) is not None:
            self._parameters(optimizer)
        self._state = matched("torch.attach", state, self._state)

    @property
    def norm(self) -> torch.Tensor | None:
        """The norm of the last step's gradients, or updates, before the transform; a new 0-d tensor.

        It costs no extra pass and no host sync. It is None before the first step, and where the transform does not
        measure every gradient (`clip_value`, `scale`, a masked clip, or `accumulate`, whose clip measures the mean).
        Stopped gradients do not count. The order is 2, or the `ord` of the first `clip_global_norm`. ``apply_`` with
        ``return_norm=True`` measures what the transform does not, in one more pass.
        """
        return None if self._norm is None else self._norm()

    @property
    def paths(self) -> list[str]:
        """Current paths of the optimizer's parameters; of the state if it is attached to nothing."""
        optimizer = self._optimizer()
        return [path for path, *_ in self._place] if optimizer is None else paths_of(named_of(optimizer))

    def record(self, recorder: Recorder, start: int = 0) -> None:
        """Record each step from now on, by what `gradxform.record` returned.

        A step has ``parameters`` before the step, ``gradients`` as they come in, and ``updates``, the gradients that go
        out to the optimizer; with ``on="updates"``, what is added to the parameters. A call of a closure counts as a
        step of gradients.

        Args:
            recorder: what to record with; steps that are not due cost nothing.
            start: the number of the next step.
        """
        self._recorder, self._count = recorder, start

    def flush(self, value: Any = None) -> None:
        """Take a step with what an unfinished window of `accumulate` holds, such as the last batches of an epoch.

        It replaces the gradients, as in `gradxform.flush`. With ``on="updates"`` the held updates are applied, and the
        optimizer takes no step.

        Args:
            value: The loss, for transforms that need it.

        Raises:
            TypeError: The transform has no `accumulate`.
            ValueError: The handle was removed.
        """
        check_waits("torch.attach", self.tx)
        optimizer = self._optimizer()
        if optimizer is None:
            raise ValueError("torch.attach: the handle is attached to nothing; flush before remove()")
        self._flushes, parameters = True, self._parameters(optimizer)
        parameters.clear()
        try:
            if self.on == GRADIENTS:
                optimizer.step(**extra_of(value))
            else:
                self._transform(optimizer, value, parameters, parameters.copies(closure=True, every=True))
        finally:
            self._flushes = False

    def remove(self) -> None:
        """Detach the transform from the optimizer."""
        optimizer = self._optimizer()
        if optimizer is not None:
            _attached[optimizer].remove(self)
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._optimizer = (), Attached._optimizer

    def __repr__(self) -> str:
        """Show the transform and the optimizer."""
        optimizer = self._optimizer()
        if optimizer is None:
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
        return {"tx": self.tx, "on": self.on, "_state": self._state}

    # --- states ------------------------------------------------------------------------------------------------------

    def _key(self, optimizer: torch.optim.Optimizer) -> str:
        """Key in the first group of a state_dict; numbered if several transforms are attached."""
        place = _KEYS[self.on]
        peers = [handle for handle in _attached.get(optimizer, ()) if handle.tx.stateful and handle.on == self.on]
        rank = [*peers, self].index(self)
        return f"{place}_{rank}" if rank else place

    def _save(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        """Add the state to the first group, where PyTorch keeps unknown keys."""
        if self.tx.stateful:
            groups = state_dict["param_groups"]
            groups[0] = {**groups[0], self._key(optimizer): _by_path(self._state)}

    def _check(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Refuse the state of another transform before anything is loaded; parameters keep their own names."""
        groups = state_dict["param_groups"]
        if self.tx.stateful and groups and self._saved(optimizer, groups[0]) is None:
            why = f"the state_dict has no state of {self.tx!r}, which goes on with the state that it has"
            warnings.warn(f"torch.attach: {why}", UserWarning, stacklevel=3)
        unnamed = [{key: value for key, value in group.items() if key != "param_names"} for group in groups]
        return {**state_dict, "param_groups": unnamed}

    def _load(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the state that the optimizer has loaded, if there is one."""
        group = optimizer.param_groups[0]
        if (found := self._saved(optimizer, group)) is not None:
            self._state = found
            del group[self._key(optimizer)]

    def _saved(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Any:
        """Return the state that was saved in a group; None if there is none."""
        key = self._key(optimizer)
        if not self.tx.stateful or key not in group:
            return None
        self._parameters(optimizer)
        state, own = group[key], _by_path(self._state)
        if isinstance(state, dict) and (saved := _inside(state)).keys() == (names := _inside(own)).keys():
            state = {path: state[saved[inside]] for inside, path in names.items()}
        why = f"the state_dict has a state that is not of {self.tx!r}"
        drop = f"drop its state: write param_groups[0].pop({key!r}), of the state_dict or the optimizer"
        return _fitted(state, self._state, why, f"Attach the transform of that run, or {drop}")

    def _parameters(self, optimizer: torch.optim.Optimizer) -> Parameters:
        """The parameters now; the state gets groups added since, and follows them to another device."""
        parameters = Parameters(self.tx, named_of(optimizer))
        if self.tx.stateful and (place := _place_of(parameters)) != self._place:
            first, why = parameters.first(), "parameters were added, removed or replaced since"
            advice = "Write handle.remove() and attach again, which starts a new state"
            state = _by_path(first) | _by_path(self._state)
            self._state = _fitted(state, first, f"{why} {self.tx!r} was attached", advice)
            self._place = place
        return parameters

    # --- steps -------------------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Transform the gradients, in a closure after it has computed them; for updates, copy the parameters."""
        if is_inner_call(optimizer):
            return None
        self._before = None
        if is_for_show(optimizer, args, kwargs):
            return None
        handles, value = _attached[optimizer], None
        if any("value" in handle.tx.traits.needs for handle in handles):
            value = kwargs.pop("value", None) if self is handles[-1] else kwargs.get("value")
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if self.on == UPDATES:
            parameters = self._parameters(optimizer)
            self._before = value, parameters, parameters.copies(closure is not None, self._recorded() is not None)
            return None
        if closure is None:
            return self._transform(optimizer, value, self._parameters(optimizer))

        def transformed_closure() -> Any:  # the closure computes the gradients, inside of the step
            with torch.enable_grad():
                loss = closure()
            self._transform(optimizer, loss if value is None else value, self._parameters(optimizer))
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": transformed_closure}
        return (args[0], transformed_closure, *args[2:]), kwargs

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Transform what the step has added."""
        if self._before is not None and not is_inner_call(optimizer):
            before, self._before = self._before, None
            self._transform(optimizer, *before)

    def _transform(self, optimizer: Any, value: Any, parameters: Parameters, copies: Given = None) -> None:
        """Transform the gradients, or what a step has added to copies of the parameters; record the step if it is due.

        An optimizer that unscales gradients itself is told by two attributes, for the length of a step.
        """
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        recorder, variables, by_key = self._recorded(), parameters.variables, parameters.by_key
        if recorder is not None:
            unscaled = [p.grad if p.grad is None or scale is None else p.grad / scale for p in variables]
            given = _values(parameters, unscaled)
        context = Context(by_key(variables), extra_of(value), owned=found_inf is None, flushes=self._flushes)
        if copies is None:
            ran = parameters.on_gradients(self._state, context, scale)
            if scale is not None:
                optimizer.grad_scale = None
        else:
            falling = _falling(optimizer) if "gradients" in self.tx.traits.needs else ()
            ran = parameters.on_updates(self._state, context, copies, falling)
        if recorder is not None:
            updates = [p.grad for p in variables] if copies is None or ran is None else ran.after.results()
            made = _values(parameters, updates)
        self._norm = parameters.norm_before(ran, copies)
        if ran is not None:
            if copies is not None:
                parameters.move(ran, copies, found_inf)
            self._state = next_state(ran, self._state, found_inf)
        if recorder is not None:
            own = zip(variables, copies or [None] * len(variables), strict=True)
            before = by_key([p.detach() if copy is None else copy for p, copy in own])
            recorder(self._count, gradients=given, updates=made, parameters=before)
        self._count += 1
        if copies is None and not is_due(self.tx, self._state):
            for parameter in variables:  # zeros would move what has momentum or weight decay
                parameter.grad = None

    def _recorded(self) -> Recorder | None:
        """What records this step."""
        return self._recorder if self._recorder is not None and self._recorder.is_due(self._count) else None


def _values(parameters: Parameters, leaves: Row) -> list[tuple[str, Any]]:
    """The values of leaves, which may be overwritten then, in pairs, which keep their order."""
    return list(to_numpy(parameters.by_key(leaves)).items())


def _by_path(state: Any) -> dict[str, torch.Tensor]:
    """The tensors of a state by their paths, as a state_dict holds them."""
    return by_path("torch.attach", backend.paths(state), backend.flatten(state)[0])


def _fitted(state: Any, like: Any, why: str, advice: str) -> Any:
    """Convert a state from elsewhere.

    Raises:
        ValueError: it does not fit; the message says why, where, and what to write.
    """
    try:
        return matched("torch.attach", state, like)
    except (TypeError, ValueError) as error:
        where = str(error).removeprefix("torch.attach: ")
        raise ValueError(f"torch.attach: {why}: {where}. {advice}") from error


def _inside(paths: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Paths by those in the model that DistributedDataParallel or `torch.compile` wraps, each followed by its twins."""
    found: dict[tuple[str, ...], str] = {}
    for path in sorted(paths, key=lambda path: (len(path), path)):
        inside = tuple([key for key in path.split("/") if key not in ("module", "_orig_mod")])
        while inside in found:  # a model may have a "module" of its own, whose paths stay longer when wrapped
            inside += ("module",)
        found[inside] = path
    return found


def _place_of(parameters: Parameters) -> Sequence[tuple[str, Any, Any]]:
    """Path, shape and device of each parameter."""
    return [(path, p.shape, p.device) for path, p in zip(parameters.paths, parameters.variables, strict=True)]


# --- optimizers ------------------------------------------------------------------------------------------------------


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside another one, such as Lightning's and Accelerate's wrappers; other objects unchanged."""
    kind = torch.optim.Optimizer
    while isinstance(optimizer, kind) and isinstance(inner := getattr(optimizer, "optimizer", None), kind):
        optimizer = inner
    return optimizer


def named_of(optimizer: torch.optim.Optimizer) -> Named:
    """Parameters of all groups, with names or indices."""
    named: list[tuple[str, torch.Tensor]] = []
    for group in optimizer.param_groups:
        names = group.get("param_names") or [str(len(named) + i) for i in range(len(group["params"]))]
        named += zip(names, group["params"], strict=True)
    return named


def is_for_show(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> bool:
    """Whether this is the step on zeros by which `torch.distributed.checkpoint` creates an optimizer's state."""
    if len(args) > 1 or kwargs != {"closure": None} or optimizer.state:
        return False
    if any(group.get("lr", 0.0) != 0.0 for group in optimizer.param_groups):
        return False
    gradients = [parameter.grad for _, parameter in named_of(optimizer) if parameter.grad is not None]
    return bool(gradients) and not any(gradient.is_sparse or gradient.any() for gradient in gradients)


def _falling(optimizer: torch.optim.Optimizer) -> list[torch.Tensor | None]:
    """The gradients, against which the updates of a step point."""
    pairs = [(p.grad, group.get("maximize")) for group in optimizer.param_groups for p in group["params"]]
    return [-gradient if rises and gradient is not None else gradient for gradient, rises in pairs]


def handles_of(optimizer: Any) -> list[Attached] | None:
    """Handles attached to an optimizer or to its inner one; None for other objects."""
    optimizer = unwrapped(optimizer)
    return list(_attached.get(optimizer, ())) if isinstance(optimizer, torch.optim.Optimizer) else None


def paths_in(given: Any) -> list[str] | None:
    """Paths of the parameters of a module, an optimizer or an `attach` handle; None for other objects."""
    if isinstance(given, torch.nn.Module):
        return paths_of(list(given.named_parameters()))
    if isinstance(given, Attached):
        return given.paths
    given = unwrapped(given)
    return paths_of(named_of(given)) if isinstance(given, torch.optim.Optimizer) else None
