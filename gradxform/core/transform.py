"""The gradient transformation: what it declares, init, update, repr, equality; how one is made of a rule."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.errors import short
from gradxform.backend.lookup import FRAMEWORKS, adapter, backend
from gradxform.backend.protocol import Backend
from gradxform.core import align
from gradxform.core.state import Fresh, advanced
from gradxform.core.tree import Tree
from gradxform.core.where import Variables, verify
from gradxform.numerics import Array

if TYPE_CHECKING:
    from gradxform_jax.typed import Base  # so that `optax.chain(tx, ...)` passes pyright
else:
    Base = object

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_NONE: Any = ...
"""The default of `tx()`, to detect a missing argument."""


def unconverted(function: F) -> F:
    """Keep TensorFlow's AutoGraph from rewriting a function that has no condition on a tensor: that takes time."""
    vars(function)["autograph_info__"] = {}
    return function


class EmptyState(NamedTuple):
    """The state of a stateless transformation: an empty tuple, a pytree without leaves in every framework.

    Example:
        >>> import gradxform as gx
        >>> gx.scale(2.0).init({})
        EmptyState()

    Source:
        `optax.EmptyState`.
    """


class Context(NamedTuple):
    """The other arguments of `update`: the parameters and extra arguments."""

    params: Any
    extra: Mapping[str, Any]
    owned: bool = False
    """Whether the state's arrays may be overwritten."""
    added: bool = False
    """Whether these are updates that an optimizer adds to parameters, so that they point against the gradients."""
    flushes: bool = False
    """Whether there is no new gradient, and unfinished windows are applied; the gradients are zeros."""


def once_flushed(context: Context, later: Sequence[GradientTransformation]) -> Context:
    """The context of what follows a window, which gets a gradient also when it is flushed."""
    if context.flushes and any([tx.traits.waits for tx in later]):
        raise ValueError("flush: one window of accumulate fills another, so neither can be flushed alone; use one")
    return context._replace(flushes=False)


Rule = Callable[[Tree, Any, Context], tuple[Tree, Any]]
Start = Callable[[Any], Any]


class Traits(NamedTuple):
    """What a transformation declares, for combinations and adapters; see `declared`."""

    parts: tuple[GradientTransformation, ...] = ()
    """The transformations inside."""
    where: tuple[Any, ...] = ()
    """What selects the leaves of each part."""
    masks: Callable[[Tree], Sequence[Sequence[bool]]] | None = None
    """Returns the leaves that each part may change or measure; the rest are left alone. None: all in scope."""
    states: Callable[[Any], Sequence[Any]] | None = None
    """Returns the states of the parts, which say whether a step applies. None: its own state says it."""
    compose: Callable[[Sequence[Any]], GradientTransformation] | None = None
    """Builds the same combination of other parts, so that they are measured one by one."""
    stage: str = ""
    """Its place in a chain, for order warnings: "unscale", "accumulate", "skip", "zero", "clip" (by norms), "limit" (of
    elements), "average", "decay", "noise", "freeze"."""
    label: str = ""
    """Its name among metrics, if it has no factory."""
    axes: tuple[Any, ...] = ()
    """The device axes of every `across` in it."""
    needs: tuple[str, ...] = ()
    """What it needs besides updates: "params", "gradients", "value" (the loss)."""
    stops: bool = False
    """Whether it may stop a gradient."""
    waits: bool = False
    """Whether it holds gradients of an unfinished window, which `flush` applies."""
    selections: tuple[tuple[str, Any, tuple[Any, ...]], ...] = ()
    """What selects leaves anywhere in it: name of the transform, selection, those before it; not inside `across`."""


def declared(*parts: GradientTransformation, name: str = "", **own: Any) -> Traits:
    """Return traits; those of the transformations inside are inherited."""
    traits, inside = Traits(parts, **own), [part.traits for part in parts]
    selections = [(name, where, traits.where[:rank]) for rank, where in enumerate(traits.where)]
    selections += [each for part in inside for each in part.selections]
    return traits._replace(
        axes=(*traits.axes, *[axis for part in inside for axis in part.axes]),
        needs=(*traits.needs, *[need for part in inside for need in part.needs]),
        stops=traits.stops or any([part.stops for part in inside]),
        waits=traits.waits or any([part.waits for part in inside]),
        selections=() if traits.axes else tuple(selections),  # along axes, another device may have what is selected
    )


factories: dict[str, Callable[..., GradientTransformation]] = {}
"""All transforms by name, for `parse`."""


class GradientTransformation(Base):
    """A gradient transformation: an immutable value that equals any other with the same hyperparameters.

    Factories such as `clip_norm(1.0)` and `chain(...)` create it. It transforms pytrees of NumPy, JAX, TensorFlow or
    PyTorch arrays, of any shape and floating or complex dtype, with None where there is no gradient. The result has
    the structure, order, dtypes, devices and None of the input. It has `init` and `update` like an optax
    transformation, and works in optax unchanged.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.clip_norm(1.0)
        >>> tx({"w": np.array([3.0, 4.0]), "b": None})
        {'w': array([0.6, 0.8]), 'b': None}
        >>> tx
        clip_norm(1.0)
        >>> tx == gx.clip_norm(1.0), hash(tx) == hash(gx.clip_norm(1.0)), tx == gx.clip_norm(2.0)
        (True, True, False)

    Source:
        The pair (init, update) is optax's: DeepMind, The DeepMind JAX ecosystem, 2020.
    """

    __slots__ = ("__weakref__", "_key", "arguments", "name", "rule", "start", "traits")

    autograph_info__: ClassVar[dict[str, Any]] = {}
    """Set by `unconverted` on functions."""

    name: str
    """The name of its factory."""
    arguments: tuple[tuple[str | None, Any], ...]
    """The factory's arguments with their names (None: positional), without defaults."""
    rule: Rule
    start: Start | None
    traits: Traits
    _key: Any

    def __init__(
        self, rule: Rule, start: Start | None = None, name: str = "", arguments: Any = (), traits: Traits | None = None
    ) -> None:
        """For factories, whose rules become transformations by `stateless` and `stateful`; users call a factory."""
        arguments = tuple(arguments)
        key = (name, *((k, _key(v)) for k, v in arguments)) if name else (id(rule),)
        values = key, arguments, name, rule, start, traits or Traits()
        for slot, value in zip(self.__slots__[1:], values, strict=True):
            object.__setattr__(self, slot, value)
        lookup.preload()

    @property
    def stateful(self) -> bool:
        """Whether the transformation keeps a state between updates."""
        return self.start is not None

    def reached(self, view: Tree) -> Sequence[bool]:
        """For each leaf of a view, whether the transformation may change or measure it."""
        parts, masks = self.traits.parts, self.traits.masks
        if masks is None:
            return view.mask(view.scope)
        found = [part.reached(view.focus(mask)) for part, mask in zip(parts, masks(view), strict=False)]
        return tuple(map(any, zip((False,) * len(view.leaves), *found, strict=True)))

    def init(self, params: Any) -> Any:
        """Return the state before the first update.

        Args:
            params: the tree of parameters, for structure, shapes and dtypes.

        Returns:
            `EmptyState()` for a stateless transformation.

        Raises:
            ValueError: a pattern that matches no path.
        """
        selections = self.traits.selections
        try:
            view = Tree.read(params) if selections else None
        except TypeError:  # without arrays, the first update checks patterns
            view = None
        if view is not None:
            for name, where, before in selections:
                own = self.start is None or any([where is each for each in self.traits.where])  # else it is inside
                verify(name, where, view, before if own else ())
        return EmptyState() if self.start is None else self.start(params)

    @unconverted
    def update(self, updates: T, state: Any = None, params: Any = None, **extra: Any) -> tuple[T, Any]:
        """Transform one tree of gradients.

        Args:
            updates: a pytree of arrays of one framework; NumPy arrays among them are converted.
            state: the state from `init` or the last `update`; a stateless transformation returns it unchanged.
            params: the parameters, a tree of the same structure; only some transforms need them.
            **extra: ``gradients``, a tree like the updates, for `cautious`. All are passed to the optax transformations
                in a chain that accept extra arguments.

        Returns:
            The transformed tree and the new state.

        Raises:
            TypeError: an integer gradient, arrays of two frameworks in one tree, a leaf that is not an array, or a
                missing state; the message names the path.
            ValueError: a pattern that matches no path; a bound that would broadcast a gradient; parameters or a state
                with other keys than the gradients, of which there may be none; a state of another transformation or
                framework; variables among the gradients. The message names the path.
        """
        if self.start is not None and state is None:
            steps = "state = tx.init(params), then updates, state = tx.update(updates, state)"
            raise TypeError(f"{self!r} keeps a state: {steps}")
        view = Tree.read(updates) or _without_arrays(updates, self.traits.axes)
        if view is None:
            if self.start is not None:
                align.check_nothing(updates, state, self.start)
            return updates, state
        if view.backend.variables or isinstance(updates, (list, tuple)):  # which may be pairs with variables
            align.check_gradients(view, updates)
        if self.start is not None:
            align.check_state(view, state)
        view, state = self.rule(view, state, Context(params, extra))
        return view.tree(), state

    def __call__(self, updates: T = _NONE, params: Any = None) -> T:
        """Return the transformed tree; a stateful transformation raises a TypeError."""
        if updates is _NONE and self.start is None:
            raise TypeError(f"{self!r} must be called with gradients: tx(gradients)")
        return self.update(updates, None, params)[0]

    def __tf_tracing_type__(self, context: Any) -> Any:
        """For `tf.function`: equal transformations share a trace."""
        return adapter("tensorflow").TracingType(self)

    def __repr__(self) -> str:
        """Return the expression that builds it, with names from `gradxform`."""
        parts = (_show(value) if name is None else f"{name}={_show(value)}" for name, value in self.arguments)
        return f"{self.name}({', '.join(parts)})" if self.name else f"<{self.traits.label or repr(self.rule)}>"

    def __eq__(self, other: object) -> bool:
        """Compare names and hyperparameters; arrays are compared by identity."""
        return self._key == other._key if isinstance(other, GradientTransformation) else NotImplemented

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash(self._key)

    def __setattr__(self, name: str, value: Any = None) -> None:
        """Raise an error: a transformation is immutable."""
        raise AttributeError(f"a GradientTransformation is immutable; build a new one instead of changing {name!r}")

    __delattr__ = __setattr__

    def __reduce__(self) -> Any:
        """Pickle as the call that builds it."""
        if self.name not in factories:
            raise TypeError(f"{self!r} was not made by a factory of gradxform and cannot be pickled")
        return _rebuilt, (self.name, self.arguments)


def stateless(rule: Callable[..., Tree], **traits: Any) -> GradientTransformation:
    """Make a transformation of a rule without a state.

    Args:
        rule: maps the view to a new one; if the transformation `needs` parameters or gradients, view and context.
        **traits: what the transformation declares, as in `Traits`.
    """
    needs = "needs" in traits
    return GradientTransformation(
        lambda view, state, context: (rule(view, context) if needs else rule(view), state), traits=Traits(**traits)
    )


def stateful(
    kind: type, rule: Rule, start: Callable[[Fresh], Any], *parts: GradientTransformation, **traits: Any
) -> GradientTransformation:
    """Make a transformation of a rule with a state.

    Args:
        kind: the type of the state, a named tuple.
        rule: maps the view, the state and the context to a new view and state.
        start: makes the first state of fresh arrays.
        *parts: the transformations inside.
        **traits: what else the transformation declares, as in `Traits`.

    Raises:
        ValueError: on use, the state of another transformation.
    """

    def checked(view: Tree, state: Any, context: Context) -> tuple[Tree, Any]:
        if not isinstance(state, kind):
            raise wrong_state(rule.__qualname__.partition(".")[0], kind.__name__, state)  # a factory's own function
        return rule(view, state, context)

    return GradientTransformation(checked, lambda params: start(Fresh(params)), traits=declared(*parts, **traits))


def wrong_state(name: str, wanted: str, state: Any) -> ValueError:
    """The error for the state of another transformation."""
    return ValueError(
        f"{name}: the state must be {wanted}, from tx.init(params), got {short(state)} of type {type(state).__name__}"
    )


class ScheduleState(NamedTuple):
    """The state of a transform with a schedule: the step count and the transform's own state."""

    count: Any
    inner: Any


def scheduled(
    make: Callable[..., GradientTransformation], given: Mapping[str, Any], schedules: Mapping[str, Callable[[Any], Any]]
) -> GradientTransformation:
    """Make a transformation that calls its factory at each step with the values of schedules, functions of the step."""
    formulas = {name: functools.partial(_value_at, schedule) for name, schedule in schedules.items()}
    # Arrays are not read: values outside the valid range are clamped instead of rejected.
    pattern = make(**{**given, **dict.fromkeys(schedules, np.ones(()))})

    def rule(view: Tree, state: ScheduleState, context: Context) -> tuple[Tree, ScheduleState]:
        found = {name: view.backend.compute(formula, state.count) for name, formula in formulas.items()}
        now = {name: np.asarray(value) if isinstance(value, float) else value for name, value in found.items()}
        view, inner = make(**{**given, **now}).rule(view, state.inner, context)
        return view, ScheduleState(advanced(view, state.count), inner)

    rule.__qualname__ = make.__name__  # which errors name
    tx = stateful(ScheduleState, rule, lambda fresh: ScheduleState(fresh.count(), pattern.init(fresh.params)))
    return GradientTransformation(tx.rule, tx.start, traits=pattern.traits)


def _value_at(schedule: Callable[[Any], Any], xp: Any, step: Any) -> Any:
    try:
        value = schedule(step)
        constant = isinstance(value, (int, float)) and not isinstance(step, (int, float))
        return xp.float64(value) if constant else value  # under torch.compile it must be a tensor
    except TypeError as error:
        if type(schedule).__module__.partition(".")[0] != "keras":
            raise
        what = f"{type(schedule).__name__} works only with Keras's backend"
        raise TypeError(f"{what}; write lambda step: 0.1 * 0.99**step") from error


def replaced(value: Any, swap: Callable[[Any], Any]) -> Any:
    """Replace the numbers, arrays and functions in a hyperparameter; return it unchanged if nothing changes."""
    if isinstance(value, GradientTransformation) and value.name in factories:
        old, names = [item for _, item in value.arguments], [name for name, _ in value.arguments]
    elif type(value) in (list, tuple, dict):
        old = list(value.values() if type(value) is dict else value)
    else:
        return swap(value)
    new = [replaced(item, swap) for item in old]
    if all(one is other for one, other in zip(new, old, strict=True)):
        return value
    if isinstance(value, GradientTransformation):
        return _rebuilt(value.name, list(zip(names, new, strict=True)))
    return type(value)(zip(value, new, strict=True) if type(value) is dict else new)


def hyperparameters(tx: Any) -> list[Any]:
    """The hyperparameters in a transformation, and the transformations of other libraries; not selected variables."""
    found: list[Any] = []

    def note(value: Any) -> Any:
        found.append(value)
        return value

    replaced(tx, note)
    return [value for value in found if not isinstance(value, Variables)]


def split(
    tx: GradientTransformation, backend: Backend
) -> tuple[list[Array], Callable[[Sequence[Array]], GradientTransformation]]:
    """Return the arrays in a transformation, and a function that rebuilds it with others, such as tracers."""

    def is_array(value: Any) -> bool:
        return isinstance(value, backend.types) and "bool" not in backend.dtype(value)  # a mask must stay readable

    def rebuild(arrays: Sequence[Array]) -> GradientTransformation:
        rest: Iterator[Array] = iter(arrays)
        return replaced(tx, lambda value: next(rest) if is_array(value) else value)

    return [value for value in hyperparameters(tx) if is_array(value)], rebuild


def _rebuilt(name: str, arguments: Sequence[tuple[str | None, Any]]) -> GradientTransformation:
    """Call a factory with arguments and their names."""
    named = {key: item for key, item in arguments if key is not None}
    return factories[name](*[item for key, item in arguments if key is None], **named)


def _without_arrays(tree: Any, axes: Sequence[Any]) -> Tree | None:
    """Return the view of a tree without arrays; the device axes determine the framework. None if they do not."""
    roots = [type(axis).__module__.partition(".")[0] for axis in axes]
    root = next((root for root in roots if root in FRAMEWORKS), None)
    if root is None:
        return None
    found = backend(root)
    leaves, structure = found.flatten(tree)
    return Tree.of(found, leaves, structure, lambda: found.paths(tree))


def _key(value: Any) -> Any:
    """Return a hashable key of a hyperparameter: numbers by value, arrays by identity."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0:
        return ("zero", math.copysign(1.0, value))
    if value is None or isinstance(value, (bool, int, float, str, GradientTransformation, re.Pattern)):
        return value
    if isinstance(value, Mapping):
        return ("{}", *((_key(k), _key(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return ("[]", *map(_key, value))
    return Variables((value,))  # which keeps it alive, so that its id stays unique


def _show(value: Any) -> str:
    if isinstance(value, re.Pattern):
        flags = f", {int(value.flags)}" if value.flags != re.UNICODE else ""
        return f"re.compile({value.pattern!r}{flags})"
    if type(value) in (list, tuple):
        shown = ", ".join(map(_show, value)) + "," * (type(value) is tuple and len(value) == 1)
        return f"[{shown}]" if type(value) is list else f"({shown})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_show(k)}: {_show(v)}" for k, v in value.items()) + "}"
    return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)
