"""Combine transforms: identity, chain, masked, partition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradxform.core.factory import factory
from gradxform.core.flat import Flat, flat_view
from gradxform.core.foreign import as_transformation, is_transformation
from gradxform.core.keeping import not_its_own
from gradxform.core.transformation import Context, GradientTransformation, Start, stateless
from gradxform.core.where import Where, check, chosen
from gradxform.transforms import order


@factory
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
    return stateless(lambda g: g)


@factory
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
        OrderWarning: A clip precedes unscaling or accumulation, or a freeze precedes weight decay.

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
    order.check(txs)

    def rule(view: Flat, states: Any, context: Context) -> tuple[Flat, Any]:
        return _each(parts, [view.scope] * len(parts), view, states, context)

    return GradientTransformation(rule, _starts([(tx, None) for tx in parts]))


@factory
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


def only(name: str, tx: Any, where: Where) -> GradientTransformation:
    """Apply a transform to selected gradients; errors begin with `name`."""
    inner, where = as_transformation(name, tx), check(name, where)

    def rule(view: Flat, state: Any, context: Context) -> tuple[Flat, Any]:
        inside, state = inner.rule(view.focus(chosen(name, where, view)), state, context)
        return inside.widen(view), state

    def start(params: Any) -> Any:
        return inner.init(_only(params, lambda view: chosen(name, where, view)))

    return GradientTransformation(rule, start if inner.stateful else None)


@factory
def partition(rules: Mapping[Where, Any], default: Any = None) -> GradientTransformation:
    r"""Apply to each gradient the transform of the first rule that matches it.

    .. math:: g_i \leftarrow t_{r(i)}(g)_i

    Norms cover the gradients of one rule.

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
        raise TypeError(
            f"partition: rules must map patterns to transforms, such as {{'**/bias': tx}}, got {rules!r:.72}"
        )
    wheres = [check("partition", where) for where in rules]
    last = identity() if default is None else default
    if not is_transformation(last) and (isinstance(last, Mapping) or inspect.isfunction(last)):  # labels, as in optax
        raise TypeError(
            f"partition: default must be a transformation or an object with init and update, got {last!r:.72} of type "
            f"{type(last).__name__}; the keys of rules choose, and need no labels: {{'encoder/**': tx}}"
        )
    parts = tuple(as_transformation("partition", tx) for tx in (*rules.values(), last))

    def masks(view: Flat) -> list[tuple[bool, ...]]:
        free, found = (True,) * len(view.leaves), []
        for where in wheres:
            mask = chosen("partition", where, view)
            found.append(tuple(a and b for a, b in zip(mask, free, strict=True)))
            free = tuple(a and not b for a, b in zip(free, mask, strict=True))
        return [*found, free]

    def rule(view: Flat, states: Any, context: Context) -> tuple[Flat, Any]:
        return _each(parts, masks(view), view, states, context)

    def mask(rank: int) -> Callable[[Flat], tuple[bool, ...]]:
        return lambda view: masks(view)[rank]

    return GradientTransformation(rule, _starts([(tx, mask(rank)) for rank, tx in enumerate(parts)]))


def _each(
    parts: Sequence[GradientTransformation], masks: Sequence[Sequence[bool]], view: Flat, states: Any, context: Context
) -> tuple[Flat, Any]:
    """Apply each part to its own leaves with its own state; stateless parts pass any state through."""
    outer, new = view, []
    kept = any(tx.stateful for tx in parts)
    if kept and not (isinstance(states, tuple) and len(states) == len(parts)):
        what = ", ".join(tx.name or "a transform of another library" for tx in parts)
        raise ValueError(not_its_own(f"{len(parts)} transforms ({what})", f"a tuple of {len(parts)}", states))
    for rank, (tx, mask) in enumerate(zip(parts, masks, strict=True)):
        inside, state = tx.rule(view.focus(mask), states[rank] if kept else None, context)
        view = inside.widen(outer)
        new.append(state)
    return view, tuple(new) if kept else states


def _starts(parts: Sequence[tuple[GradientTransformation, Callable[[Flat], Sequence[bool]] | None]]) -> Start | None:
    """Initial states of several parts; None if all are stateless."""
    if not any(tx.stateful for tx, _ in parts):
        return None
    return lambda params: tuple(tx.init(params if mask is None else _only(params, mask)) for tx, mask in parts)


def _only(tree: Any, mask: Callable[[Flat], Sequence[bool]]) -> Any:
    """The view of a tree with None for leaves outside a mask; a tree of only None is returned as it is."""
    view = flat_view(tree)
    return tree if view is None else view.focus(mask(view)).scoped_view()
