"""Wrap MLX optimizers."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.optimizers import Optimizer
from mlx.utils import tree_flatten, tree_map, tree_map_with_path, tree_unflatten

from gradxform import GradientTransformation
from gradxform.backend.errors import wrong_type
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import Holder, extra_of
from gradxform.core.transform import Context
from gradxform.functions.convert import matched
from gradxform.transforms.skipping import check_waits, is_due
from gradxform_mlx.backend import backend

_INNER, _OWN = "optimizer", "gradient_transformation"
"""Keys of the two parts of the state."""


def wrap(optimizer: Optimizer, tx: GradientTransformation) -> Transforming:
    """Wrap an optimizer so that it transforms gradients before it applies them.

    Use the result like any MLX optimizer: ``update(model, gradients)``, or ``update(model, gradients, value=loss)`` for
    a transform that needs the loss, as `skip_spikes` may. Within `mx.compile`, its ``state`` is among inputs and
    outputs. The state has the optimizer's and the transform's arrays, so `mlx.utils.tree_flatten` gives all that a
    checkpoint needs.

    Parameters with stopped gradients keep every bit, also under weight decay. A step that the transform skips
    (`skip_nonfinite` and its like, `accumulate`, unless masked) leaves parameters and the optimizer's state as they
    are, bit by bit. Such a transform keeps the arrays before the step until it has selected between both; nothing is
    read on the host.

    Args:
        optimizer: Any `mlx.optimizers.Optimizer`. It is used, not copied.
        tx: A transform. A gradient's path is its place in the model, such as "layers/0/weight".

    Returns:
        An optimizer. Its ``gradient_transformation_state`` can be read, and set to a state of the same transform from
        any framework, such as a result of `gradxform.to_numpy`; call ``init(model.trainable_parameters())`` before, if
        there was no step.

    Raises:
        TypeError: `optimizer` is not an MLX optimizer, or is wrapped already; or `tx` is not a transform.
        ValueError: On the first step: a pattern matches no path. On a step: there are no gradients, or all parameters
            are stopped.

    Example:
        >>> import mlx.core as mx
        >>> import mlx.optimizers as optim
        >>> import gradxform as gx
        >>> optimizer = gx.mlx.wrap(optim.AdamW(0.1, weight_decay=0.5), gx.freeze("embedding"))
        >>> params = {"embedding": mx.ones(1), "head": mx.ones(1)}
        >>> new = optimizer.apply_gradients(params, params)
        >>> new["embedding"].item(), new["head"].item() < 1.0
        (1.0, True)

    References:
        `mlx.optimizers.clip_grad_norm`.
    """
    tx = as_transformation("mlx.wrap", tx, optimizer, "gx.mlx.wrap(optimizer, tx)")
    if isinstance(optimizer, Transforming):
        advice = f"with {optimizer.gradient_transformation!r}; wrap an optimizer once, with chain(...)"
        raise TypeError(f"mlx.wrap: the optimizer is wrapped already, {advice}")
    if not isinstance(optimizer, Optimizer):
        raise wrong_type("mlx.wrap", "an optimizer of mlx.optimizers", optimizer)
    return Transforming(optimizer, tx)


class Transforming(Optimizer):
    """An optimizer that transforms gradients before another one applies them.

    Example:
        >>> import mlx.core as mx
        >>> import mlx.optimizers as optim
        >>> import gradxform as gx
        >>> gx.mlx.wrap(optim.SGD(1.0), gx.clip_norm(1.0))
        <mlx.wrap: clip_norm(1.0) in SGD>

    References:
        `mlx.optimizers.MultiOptimizer`.
    """

    def __init__(self, optimizer: Optimizer, tx: GradientTransformation) -> None:
        """Keep both."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.optimizer, self.gradient_transformation = optimizer, tx
        self._names: list[str] = []
        self._state = {}
        """The transform's arrays by path; the same dict in each step, so that `mx.compile` finds them."""

    def init(self, parameters: Any, every: Any = ()) -> None:
        """Create the first state of both for a tree of parameters; a state that was loaded before is checked.

        Args:
            parameters: The trainable parameters.
            every: All parameters, so that an error about a pattern can say which of them are not trainable.
        """
        flat = dict(tree_flatten(parameters))
        self.optimizer.init(parameters)
        self._names = list(flat)
        paths, frozen = ([name.replace(".", "/") for name in names] for names in (flat, dict(tree_flatten(every))))
        absent = {path: "is not trainable" for path in frozen if path not in paths}
        self._holder = Holder(self.gradient_transformation, backend, paths, absent=lambda: absent)
        first = self._holder.init(list(flat.values()))
        arrays = self._holder.start(first)
        if self._state:
            arrays = self._holder.arrays(matched("mlx.wrap", self._state, first))
        self._state.clear()
        self._state.update(arrays)
        self._initialized = True

    def update(self, model: Any, gradients: Any, value: Any = None) -> None:
        """Update the parameters of a model; the value is the loss, for transforms that need it."""
        if isinstance(gradients, tuple):  # no module is one
            what = "the loss comes first in the result of value_and_grad"
            raise TypeError(f"mlx.wrap: the gradients are a tuple; {what}: loss, gradients = ...")
        if all(leaf is None for leaf in dict(tree_flatten(gradients)).values()):
            raise _without(gradients)
        model.update(self.apply_gradients(gradients, model, value))

    def apply_gradients(self, gradients: Any, parameters: Any, value: Any = None) -> Any:
        """Return the new parameters, in the structure of the gradients; the value is the loss."""
        return self._applied(gradients, parameters, Context(None, extra_of(value)))

    def _applied(self, gradients: Any, parameters: Any, context: Context) -> Any:
        given = dict(tree_flatten(gradients))
        if self._names and all(leaf is None for leaf in given.values()):  # of a MultiOptimizer, a group may be empty
            raise _without(gradients)
        if not self._initialized:
            self.init(gradients, parameters)
        if strange := given.keys() - set(self._names):
            raise ValueError(f"mlx.wrap: the optimizer was not made for {', '.join(sorted(strange))}; call init again")
        old = dict(tree_flatten(tree_map(lambda _, parameter: parameter, gradients, parameters)))
        slots, params = ([own.get(name) for name in self._names] for own in (given, old))
        state = self.gradient_transformation_state
        made = self._holder.step("mlx.wrap", slots, state, context._replace(params=params))
        self._state.update(self._holder.arrays(made.state))
        pairs = enumerate(zip(self._names, made.gradients, strict=True))
        moving = [pair for i, pair in pairs if pair[1] is not None and i not in made.stopped]
        due = is_due(self.gradient_transformation, made.state)
        before = None if due is True else tree_map(lambda array: array, self.optimizer.state)
        new = dict(tree_flatten(self.optimizer.apply_gradients(tree_unflatten(moving) if moving else {}, parameters)))
        if due is not True:
            new = {name: mx.where(due, array, old[name]) for name, array in new.items()}
            _select(due, self.optimizer.state, before)
        return tree_map_with_path(lambda name, _: new.get(name, old[name]), gradients)

    def flush(self, parameters: Any, value: Any = None) -> Any:
        """Apply what an unfinished window of `accumulate` holds, such as the last batches of an epoch.

        Args:
            parameters: All parameters: ``model.update(optimizer.flush(model.trainable_parameters()))``.
            value: The loss, for transforms that need it.

        Returns:
            The new parameters.

        Raises:
            TypeError: The transform has no `accumulate`.
        """
        check_waits("mlx.wrap", self.gradient_transformation)
        context = Context(None, extra_of(value), flushes=True)
        return self._applied(tree_map(mx.zeros_like, parameters), parameters, context)

    @property
    def state(self) -> Any:
        """The states of the optimizer and of the transform, a tree of arrays."""
        return {_INNER: self.optimizer.state, _OWN: self._state}

    @state.setter
    def state(self, state: Any) -> None:
        if _INNER not in state:
            advice = "hand in that of a wrapped optimizer, or set the one inside: wrapped.optimizer.state = state"
            raise ValueError(f"mlx.wrap: the state has no {_INNER!r}; {advice}")
        own = state.get(_OWN, {})  # which has no arrays if the transform keeps no state
        if self._initialized:
            self.gradient_transformation_state = own
        else:
            self._state.update(own)
        self.optimizer.state = state[_INNER]

    @property
    def gradient_transformation_state(self) -> Any:
        """State of the transform, a pytree of arrays, in dicts by path. None before the optimizer has a state."""
        return self._holder.state(self._state) if self._initialized else None

    @gradient_transformation_state.setter
    def gradient_transformation_state(self, state: Any) -> None:
        if not self._initialized:
            raise ValueError("mlx.wrap: the optimizer has no state yet; call init(model.trainable_parameters()) first")
        found = matched("mlx.wrap", state, self.gradient_transformation_state)
        self._state.update(self._holder.arrays(found))

    @property
    def step(self) -> Any:
        """The optimizer's count of steps."""
        return self.optimizer.step

    @property
    def learning_rate(self) -> Any:
        """The optimizer's learning rate."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.optimizer.learning_rate = learning_rate

    def __repr__(self) -> str:
        """Show the transform and the optimizer."""
        return f"<mlx.wrap: {self.gradient_transformation!r} in {type(self.optimizer).__name__}>"


def _select(due: mx.array, state: Any, before: Any) -> None:
    """Put the arrays before a step that is not due back into a state."""
    for key, new in state.items() if isinstance(state, dict) else enumerate(state):
        if isinstance(new, mx.array):
            state[key] = mx.where(due, new, before[key])
        else:
            _select(due, new, before[key])


def _without(gradients: Any) -> ValueError:
    return ValueError(f"mlx.wrap: there are no gradients in {gradients!r}; hand in those of value_and_grad")
