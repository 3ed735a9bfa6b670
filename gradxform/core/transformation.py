"""The gradient transformation: init, update, call, repr, equality."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from gradxform.backend.lookup import FRAMEWORKS, adapter, backend, preload
from gradxform.core import align, plan
from gradxform.core.autograph import unconverted
from gradxform.core.flat import Flat, flat_view
from gradxform.core.where import verify

if TYPE_CHECKING:
    from gradxform_jax.typed import Base  # so that `optax.chain(tx, ...)` passes pyright
else:
    Base = object

Tree = TypeVar("Tree")
_NONE: Any = ...
"""The default of `tx()`, to detect a missing argument."""


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
    """Whether an adapter owns the state, so that its arrays may be overwritten."""
    added: bool = False
    """Whether these are updates that an optimizer adds to parameters, so that they point against the gradients."""


Rule = Callable[[Flat, Any, Context], tuple[Flat, Any]]
Start = Callable[[Any], Any]

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

    __slots__ = ("__weakref__", "_key", "arguments", "name", "rule", "schedules", "start")

    autograph_info__: ClassVar[dict[str, Any]] = {}
    """Set by `unconverted` on functions."""

    name: str
    """The name of its factory."""
    arguments: tuple[tuple[str | None, Any], ...]
    """The factory's arguments with their names (None: positional), without defaults."""
    rule: Rule
    start: Start | None
    schedules: tuple[Callable[[Any], Any], ...]
    """Its own hyperparameters that are functions of the step, without those of the transformations inside."""
    _key: Any

    def __init__(
        self, rule: Rule, start: Start | None = None, name: str = "", arguments: Any = (), schedules: Any = ()
    ) -> None:
        """For factories; users call a factory, and authors of transforms `stateless`."""
        given = {"rule": rule, "start": start, "name": name, "arguments": arguments, "schedules": schedules}
        for slot, value in given.items():
            object.__setattr__(self, slot, tuple(value) if slot in ("arguments", "schedules") else value)
        key = (name, *((k, _key(v)) for k, v in self.arguments)) if name else (id(rule),)
        object.__setattr__(self, "_key", key)
        preload()

    @property
    def stateful(self) -> bool:
        """Whether the transformation keeps a state between updates."""
        return self.start is not None

    @property
    def may_stop(self) -> bool:
        """Whether it may stop a gradient: `stop`, `freeze`, a custom `transform`, and whatever contains them."""
        if self.name in ("freeze", "stop", "transform"):
            return True
        return any(tx.may_stop for tx in self._inside)

    @property
    def needs_gradients(self) -> bool:
        """Whether it needs the gradients beside the updates: `cautious`, and whatever contains it."""
        return self.name == "cautious" or any(tx.needs_gradients for tx in self._inside)

    @property
    def axes(self) -> tuple[Any, ...]:
        """The device axes of every `across` in it."""
        own = (self.arguments[1][1],) if self.name == "across" else ()
        return (*own, *(axis for tx in self._inside for axis in tx.axes))

    @property
    def wheres(self) -> list[tuple[str, Any]]:
        """The `where` arguments in it, with the names of their transforms; without those inside `across`."""
        if self.name == "across":
            return []
        first, last = self.arguments[:1], self.arguments[-1:]
        own = [key for _, rules in first for key in rules] if self.name == "partition" else []
        own += [where for _, where in last] if self.name in ("freeze", "masked") else []
        return [*((self.name, where) for where in own), *(pair for tx in self._inside for pair in tx.wheres)]

    @property
    def _inside(self) -> list[GradientTransformation]:
        """The transformations among its arguments, including the rules of a partition."""
        parts = [value for _, value in self.arguments]
        parts += [tx for part in parts if isinstance(part, Mapping) for tx in part.values()]
        return [part for part in parts if isinstance(part, GradientTransformation)]

    def init(self, params: Any) -> Any:
        """Return the state before the first update.

        Args:
            params: the tree of parameters, for structure, shapes and dtypes.

        Returns:
            `EmptyState()` for a stateless transformation.

        Raises:
            ValueError: a pattern that matches no path.
        """
        self._verify(params)
        return EmptyState() if self.start is None else self.start(params)

    def _verify(self, params: Any) -> None:
        """Reject patterns that match no path. Without arrays, the first update checks them."""
        wheres = self.wheres
        try:
            view = flat_view(params) if wheres else None
        except TypeError:
            return
        if view is not None:
            for name, where in wheres:
                verify(name, where, view)

    @unconverted
    def update(self, updates: Tree, state: Any = None, params: Any = None, **extra: Any) -> tuple[Tree, Any]:
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
                with other keys than the gradients; a state of another transformation or framework;
                variables among the gradients. The message names the path.
        """
        if self.start is not None and state is None:
            raise TypeError(
                f"{self!r} keeps a state: call state = tx.init(params) first, then tx.update(updates, state)"
            )
        if params is None and not extra:
            planned = plan.updated(self, updates, state)
            if planned is not NotImplemented:
                return planned
        view = flat_view(updates) or _holes(updates, self.axes)
        if view is None:
            return updates, state
        align.check_gradients(view, updates)
        if self.start is not None:
            align.check_state(view, state)
        view, state = self.rule(view, state, Context(params, extra))
        return view.tree(), state

    def __call__(self, updates: Tree = _NONE, params: Any = None) -> Tree:
        """Return the transformed tree; a stateful transformation raises a TypeError."""
        if self.start is not None:
            raise TypeError(
                f"{self!r} keeps a state and cannot be called like a function: "
                "state = tx.init(params), then updates, state = tx.update(updates, state, params)"
            )
        if updates is _NONE:
            raise TypeError(f"{self!r} must be called with gradients: tx(gradients)")
        return self.update(updates, None, params)[0]

    def __tf_tracing_type__(self, context: Any) -> Any:
        """For `tf.function`: equal transformations share a trace."""
        return adapter("tensorflow").TracingType(self)

    def __repr__(self) -> str:
        """Return the expression that builds it, with names from `gradxform`."""
        parts = (_show(value) if name is None else f"{name}={_show(value)}" for name, value in self.arguments)
        return f"{self.name}({', '.join(parts)})" if self.name else f"GradientTransformation({self.rule!r})"

    def __eq__(self, other: object) -> bool:
        """Compare names and hyperparameters; arrays are compared by identity."""
        return self._key == other._key if isinstance(other, GradientTransformation) else NotImplemented

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash(self._key)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise an error: a transformation is immutable."""
        raise AttributeError(f"a GradientTransformation is immutable; build a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        """Raise an error: a transformation is immutable."""
        raise AttributeError(f"a GradientTransformation is immutable; {name!r} cannot be deleted")

    def __reduce__(self) -> Any:
        """Pickle as the call that builds it."""
        if self.name not in factories:
            raise TypeError(f"{self!r} was not made by a factory of gradxform and cannot be pickled")
        args = tuple(value for name, value in self.arguments if name is None)
        return _rebuild, (self.name, args, {name: value for name, value in self.arguments if name is not None})


def stateless(function: Callable[[Flat], Flat]) -> GradientTransformation:
    """Build a transformation from a function of the flat view."""
    return GradientTransformation(lambda view, state, _: (function(view), state))


def _holes(tree: Any, axes: Sequence[Any]) -> Flat | None:
    """Return the view of a tree without arrays; the device axes determine the framework. None if they do not."""
    roots = [type(axis).__module__.partition(".")[0] for axis in axes]
    root = next((root for root in roots if root in FRAMEWORKS), None)
    if root is None:
        return None
    found = backend(root)
    leaves, structure = found.flatten(tree)
    return Flat.holes(found, leaves, structure, lambda: found.paths(tree))


def _rebuild(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GradientTransformation:
    return factories[name](*args, **kwargs)


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
    return _Same(value)


class _Same:
    """Compares a value by identity, and keeps it alive so that its id stays unique."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _show(value: Any) -> str:
    if isinstance(value, re.Pattern):
        return (
            f"re.compile({value.pattern!r}, {int(value.flags)})"
            if value.flags != re.UNICODE
            else f"re.compile({value.pattern!r})"
        )
    if type(value) in (list, tuple):
        shown = ", ".join(map(_show, value)) + "," * (type(value) is tuple and len(value) == 1)
        return f"[{shown}]" if type(value) is list else f"({shown})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_show(k)}: {_show(v)}" for k, v in value.items()) + "}"
    return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)
