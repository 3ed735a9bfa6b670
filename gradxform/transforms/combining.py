"""Combine transforms, and choose gradients: identity, chain, masked, stop, freeze, partition."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradxform.core.factory import factory
from gradxform.core.foreign import as_transformation, is_transformation, leaves_of
from gradxform.core.transform import (
    Context,
    GradientTransformation,
    Traits,
    declared,
    once_flushed,
    stateless,
    wrong_state,
)
from gradxform.core.tree import Tree
from gradxform.core.where import Where, check, chosen, recorded

Masks = Callable[[Tree], Sequence[Sequence[bool]]]


class OrderWarning(UserWarning):
    """The transforms of a chain are in a wrong order.

    The right order is: unscale, sum over replicas, accumulate, freeze, replace NaN, clip, decay. What averages, decays
    or optimizes belongs inside of `accumulate` and the transforms that skip steps. To silence the warning:
    ``warnings.simplefilter("ignore", gradxform.OrderWarning)``.

    Example:
        >>> import warnings
        >>> import gradxform as gx
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     tx = gx.chain(gx.clip_norm(1.0), gx.accumulate(gx.identity(), every=4))
        >>> print(caught[0].message)  # doctest: +ELLIPSIS
        chain: clip_norm(1.0) comes before accumulate(identity(), 4): ...

    References:
        PyTorch's recipes for mixed precision, which unscale and then clip.
    """


@factory()
def identity() -> GradientTransformation:
    r"""Return each gradient unchanged.

    .. math:: g_i \leftarrow g_i

    Returns:
        A stateless transform for gradients of any shape and dtype.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.identity()([np.array([3.0]), None])
        [array([3.]), None]

    References:
        ``optax.identity``.
    """
    return stateless(lambda g: g, masks=lambda view: ())


@factory()
def chain(*txs: Any) -> GradientTransformation:
    r"""Apply transforms one after the other.

    .. math:: g \leftarrow t_k(\ldots t_2(t_1(g)))

    The tree is flattened once. Each gradient is read once for its norms, and read and written once at the end, however
    many transforms rescale it. The result is rounded to its dtype once.

    Args:
        *txs: Transforms of gradxform, or any objects with `init` and `update`, such as optax transforms on JAX arrays.

    Returns:
        A transform; stateless if all parts are, else with a tuple of their states.

    Raises:
        TypeError: An object lacks `init` or `update`.

    Warns:
        OrderWarning: A clip precedes unscaling or accumulation; an average, or a clip by norm, precedes what replaces
            or skips nonfinite gradients. On `init`: a transform that skips steps or accumulates precedes one that zeros
            would move, such as `ema` or ``optax.adamw``.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0), gx.scale(-0.1))
        >>> tx([np.array([30.0, 40.0]), np.array([0.0])])
        [array([-0.06, -0.08]), array([-0.])]
        >>> gx.parse(repr(tx)) == tx
        True

    References:
        `optax.chain`.
    """
    parts = tuple(as_transformation("chain", tx) for tx in txs)
    _check_order(parts)

    traits = declared(
        *parts, masks=lambda view: [view.mask(view.scope)] * len(parts), states=tuple, compose=lambda new: chain(*new)
    )
    return _combined(parts, None, traits)


@factory()
def masked(tx: Any, where: Where) -> GradientTransformation:
    r"""Apply a transform to selected gradients only, and leave the others unchanged.

    .. math:: g_i \leftarrow t(g)_i \quad\text{where chosen}

    Norms cover the selected gradients only.

    Args:
        tx: A transform, or any object with `init` and `update`.
        where: Which gradients: a glob on the path (``"encoder/**"``, ``"**/bias"``; ``*`` matches one key, ``**`` any
            number), an `re.Pattern` to search in the path, a function of the path or of path and leaf, a variable or
            parameter, a list of these, or a tree of bools, each for its leaf or for its subtree. `gradxform.paths`
            lists the paths. Variables need an adapter: PyTorch, TensorFlow or Keras.

    Returns:
        A transform; stateless if `tx` is.

    Raises:
        TypeError: `where` has an unknown form. On use: variables are given for a plain tree of gradients.
        ValueError: The list is empty. On `init` or use: a pattern matches no path, a variable has no gradient, or a
            gradient has no bool. The message lists paths, and patterns that would match.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.masked(gx.scale(2.0), "**/bias")({"dense": {"bias": np.ones(1), "kernel": np.ones(1)}})
        {'dense': {'bias': array([2.]), 'kernel': array([1.])}}

    References:
        `optax.masked`.
    """
    return only("masked", tx, where)


def only(name: str, tx: Any, where: Where, stage: str = "") -> GradientTransformation:
    """Apply a transform to selected gradients; errors begin with `name`."""
    inner, checked = as_transformation(name, tx, where, f"gx.{name}(tx, where)"), check(name, where)

    def mask(view: Tree) -> Sequence[bool]:
        return chosen(name, checked, view)

    def rule(view: Tree, state: Any, context: Context) -> tuple[Tree, Any]:
        inside, state = inner.rule(view.focus(mask(view)), state, context)
        return inside.widen(view), state

    def start(params: Any) -> Any:
        view = Tree.read(params)
        return inner.init(params if view is None else view.focus(mask(view)).scoped_view())

    traits = declared(inner, name=name, where=(recorded(where),), masks=lambda view: [mask(view)], stage=stage)
    return GradientTransformation(rule, start if inner.stateful else None, traits=traits)


@factory()
def stop() -> GradientTransformation:
    r"""Replace each gradient by zeros, and mark it as stopped.

    .. math:: g_i \leftarrow 0

    NaN does not pass through. Adapters that can skip a stopped variable do, because momentum and weight decay move
    variables on zero gradients.

    Returns:
        A stateless transform for gradients of any shape and dtype.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.stop()([np.array([np.nan, 2.0])])
        [array([0., 0.])]

    References:
        ``optax.set_to_zero``; `tf.stop_gradient` and `jax.lax.stop_gradient`, as transforms.
    """
    return stateless(lambda g: g.stop(), stops=True, stage="freeze")


@factory()
def freeze(where: Where) -> GradientTransformation:
    r"""Stop selected gradients and leave the others unchanged: ``masked(stop(), where)``.

    .. math:: g_i \leftarrow 0 \quad\text{where chosen}

    Args:
        where: Which gradients, as in `masked`.

    Returns:
        A stateless transform for gradients of any shape and dtype.

    Raises:
        TypeError: `where` has an unknown form.
        ValueError: On `init` or use: a pattern matches no path; the message lists paths.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.freeze("embedding/**")({"embedding": {"table": np.ones(2)}, "head": np.ones(1)})
        {'embedding': {'table': array([0., 0.])}, 'head': array([1.])}

    References:
        The inverse of ``var_list`` in TensorFlow's optimizers.
    """
    return only("freeze", stop(), where, stage="freeze")


@factory()
def partition(rules: Mapping[Where, Any], default: Any = None) -> GradientTransformation:
    r"""Apply to each gradient the transform of the first rule that matches it.

    .. math:: g_i \leftarrow t_{r(i)}(g)_i

    Norms cover the gradients of one rule. A rule after ``"**"`` is never reached, of which `init` warns: write general
    patterns last.

    Args:
        rules: Mapping from a glob, an `re.Pattern`, a function, a parameter or a tuple of these, as in `masked`, to a
            transform.
        default: Transform for gradients that match no rule. Default: `identity()`.

    Returns:
        A transform; stateless if all parts are, else with a tuple of their states, the default's last.

    Raises:
        TypeError: `rules` is not a mapping, or a value is not a transform.
        ValueError: On `init` or use: a pattern matches no path; the message lists paths.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.partition({"**/bias": gx.scale(2.0), "head/**": gx.stop()}, default=gx.scale(-1.0))
        >>> tx({"body": np.ones(1), "head": {"bias": np.ones(1), "kernel": np.ones(1)}})
        {'body': array([-1.]), 'head': {'bias': array([2.]), 'kernel': array([0.])}}

    References:
        `optax.partition`.
    """
    if not isinstance(rules, Mapping):
        raise TypeError(f"partition: rules must map patterns to transforms, {{'**/bias': tx}}, got {rules!r:.72}")
    wheres = [check("partition", where) for where in rules]
    last = identity() if default is None else default
    if not is_transformation(last) and (isinstance(last, Mapping) or inspect.isfunction(last)):  # labels, as in optax
        what = f"{last!r:.72} of type {type(last).__name__}"
        hint = "the keys of rules choose, and need no labels: {'encoder/**': tx}"
        raise TypeError(f"partition: default must be an object with init and update, got {what}; {hint}")
    parts = tuple(as_transformation("partition", tx) for tx in (*rules.values(), last))

    def masks(view: Tree) -> list[tuple[bool, ...]]:
        free, found = (True,) * len(view.leaves), []
        for where in wheres:
            mask = chosen("partition", where, view)
            found.append(tuple(a and b for a, b in zip(mask, free, strict=True)))
            free = tuple(a and not b for a, b in zip(free, mask, strict=True))
        return [*found, free]

    keys = tuple(map(recorded, rules))
    traits = declared(
        *(parts[:-1] if default is None else parts),
        name="partition",
        where=keys,
        masks=masks,
        compose=lambda new: partition(dict(zip(keys, new, strict=False)), *new[len(keys) :]),
    )
    return _combined(parts, masks, traits)


def _combined(parts: Sequence[GradientTransformation], masks: Masks | None, traits: Traits) -> GradientTransformation:
    """Apply each part to its own leaves with its own state; stateless parts pass any state through."""
    stateful = any([tx.stateful for tx in parts])

    def rule(view: Tree, states: Any, context: Context) -> tuple[Tree, Any]:
        if stateful and not (isinstance(states, tuple) and len(states) == len(parts)):
            names = ", ".join([tx.name or "a transform of another library" for tx in parts])
            raise wrong_state(f"{len(parts)} transforms ({names})", f"a tuple of {len(parts)}", states)
        outer, new = view, []
        each = [None] * len(parts) if masks is None else masks(view)
        for rank, (tx, mask) in enumerate(zip(parts, each, strict=True)):
            state, traits = states[rank] if stateful else None, tx.traits
            if not context.flushes or traits.waits or traits.stops:  # without a gradient, others do nothing
                inside, state = tx.rule(view if mask is None else view.focus(mask), state, context)
                view = inside if mask is None else inside.widen(outer)
            new.append(state)
            if masks is None and traits.waits:
                context = once_flushed(context, parts[rank + 1 :])
        return view, tuple(new) if stateful else states

    def start(params: Any) -> Any:
        view = None if masks is None else Tree.read(params)
        given = [params] * len(parts)
        if masks is not None and view is not None:
            given = [view.focus(own).scoped_view() for own in masks(view)]
        states = tuple([tx.init(inside) for tx, inside in zip(parts, given, strict=True)])
        if masks is None:
            _warn_of_zeros(parts, states)
        return states

    return GradientTransformation(rule, start if stateful else None, traits=traits)


_LIMITED = {
    "unscale": "the limit would apply to scaled gradients; unscale first",
    "accumulate": "each part would be clipped instead of their mean; accumulate first: "
    "accumulate(chain(clip, ...), every)",
}
_LATE = {
    "limit": _LIMITED,
    "clip": _LIMITED
    | {"zero": "one NaN or infinity makes NaN of all gradients that share the norm; write chain({late}, {early})"},
    "average": {
        "zero": "a NaN stays in the average; write chain({late}, {early})",
        "skip": "a NaN stays in the average; write {inside}",
    },
}
"""For each stage, the stages that must not come after it, and why."""


def _check_order(parts: Sequence[GradientTransformation]) -> None:
    """Warn of the first transform that comes too early."""
    earlier: dict[str, GradientTransformation] = {}
    finite = False
    for tx in parts:
        stage = tx.traits.stage
        for own, early in earlier.items():
            if stage in _LATE[own] and not (finite and stage in ("zero", "skip")):
                label = tx.traits.label or repr(tx)
                within = repr(tx.traits.parts[0]) if tx.traits.parts else ""
                inside = label.replace(within, f"chain({early!r}, {within})", 1)
                why = _LATE[own][stage].format(late=label, early=repr(early), inside=inside)
                return warnings.warn(f"chain: {early!r} comes before {label}: {why}", OrderWarning, stacklevel=4)
        finite = finite or _is_finite_after(tx)
        if stage in _LATE:
            earlier.setdefault(stage, tx)
    return None


def _is_finite_after(tx: GradientTransformation) -> bool:
    """Whether a transform, or one within it, replaces or skips what is not finite."""
    return tx.traits.stage in ("zero", "skip") or any(map(_is_finite_after, tx.traits.parts))


def _warn_of_zeros(parts: Sequence[GradientTransformation], states: Sequence[Any]) -> None:
    """Warn of a transform that zeros would move, after one that returns zeros in place of a step."""
    paused = None
    for tx, state in zip(parts, states, strict=True):
        if paused is not None and _moves(tx, state):
            inner, label = repr(paused.traits.parts[0]), tx.traits.label
            better = repr(paused).replace(inner, f"chain({inner}, {'...' if label else repr(tx)})", 1)
            moved = f"{label!r} of another library" if label else repr(tx)
            why = f"{paused!r} returns zeros where it skips a step or waits, and they move {moved}"
            warnings.warn(f"chain: {why}; write {better}", OrderWarning, stacklevel=4)
            return
        paused = paused or pausing(tx)


def pausing(tx: GradientTransformation) -> GradientTransformation | None:
    """The transform in this one that may return zeros in place of a step."""
    own = tx.traits.parts and tx.traits.stage in ("skip", "accumulate")
    return tx if own else next(filter(None, map(pausing, tx.traits.parts)), None)


def _moves(tx: GradientTransformation, state: Any) -> bool:
    """Whether zeros have an effect: on arrays in the state, which average or collect gradients, or on parameters."""
    if tx.traits.stage in ("decay", "noise") or any([_moves(part, ()) for part in tx.traits.parts]):
        return True
    return any([len(getattr(leaf, "shape", ())) > 0 for leaf in leaves_of(state)])
