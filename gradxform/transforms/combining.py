"""Transforms made of other transforms: identity, chain, masked, partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradxform.core import matching
from gradxform.core.factory import factory
from gradxform.core.flat import Flat, flat_view
from gradxform.core.foreign import as_transformation
from gradxform.core.keeping import not_its_own
from gradxform.core.matching import Where
from gradxform.core.transformation import Context, GradientTransformation, Start, stateless
from gradxform.transforms import order


@factory
def identity() -> GradientTransformation:
    r"""Leave each gradient as it is.

    .. math:: g_i \leftarrow g_i

    Returns:
        A stateless transformation of gradients of any shape and dtype.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.identity()([np.array([3.0]), None])
        [array([3.]), None]

    Source:
        The empty product of transforms; optax calls it identity as well.
    """
    return stateless(lambda g: g)


@factory
def chain(*txs: Any) -> GradientTransformation:
    r"""Apply transforms one after the other.

    .. math:: g \leftarrow t_k(\ldots t_2(t_1(g)))

    The tree is flattened once; each gradient is read once for its norms, and read and written once at the end,
    however many of the transforms rescale it; the result is rounded to its dtype once.

    Args:
        *txs: transformations of gradxform, and any object with `init` and `update`, such as optax's on JAX arrays.

    Returns:
        A transformation; stateless if all of them are, else with a tuple of their states.

    Raises:
        TypeError: an object that has no `init` and `update`.

    Warns:
        OrderWarning: a clip before unscaling or accumulation, a freeze before weight decay.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0), gx.scale(-0.1))
        >>> tx([np.array([30.0, 40.0]), np.array([0.0])])
        [array([-0.06, -0.08]), array([-0.])]
        >>> gx.parse(repr(tx)) == tx
        True

    Source:
        `optax.chain`.
    """
    parts = tuple(as_transformation("chain", tx) for tx in txs)
    order.check(txs)

    def rule(view: Flat, states: Any, context: Context) -> tuple[Flat, Any]:
        return _each(parts, [view.scope] * len(parts), view, states, context)

    return GradientTransformation(rule, _starts([(tx, None) for tx in parts]))


@factory
def masked(tx: Any, where: Where) -> GradientTransformation:
    r"""Apply a transform to the chosen gradients only, and leave the others untouched.

    .. math:: g_i \leftarrow t(g)_i \quad\text{where chosen}

    Norms are taken over the chosen gradients only.

    Args:
        tx: a transformation, or any object with `init` and `update`.
        where: which gradients: a glob on the path (``"encoder/**"``, ``"**/bias"``; ``*`` stands for one key,
            ``**`` for any number of them), an `re.Pattern` to be found in the path, a function of the path, or of path
            and leaf, a variable or parameter, a list of these, or a tree of bools, each for its leaf or for all below
            it. `gradxform.paths` lists the paths. Variables are known to the adapters of PyTorch, TensorFlow and Keras.

    Returns:
        A transformation; stateless if `tx` is.

    Raises:
        TypeError: a `where` of no known form; on use, variables and a tree of gradients, which does not know them.
        ValueError: an empty list; on `init` or use, a pattern that matches no path, variables that no gradient belongs
            to, or a gradient without a bool. The message lists some paths, and patterns that would match.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.masked(gx.scale(2.0), "**/bias")({"dense": {"bias": np.ones(1), "kernel": np.ones(1)}})
        {'dense': {'bias': array([2.]), 'kernel': array([1.])}}

    Source:
        `optax.masked`.
    """
    return only("masked", tx, where)


def only(name: str, tx: Any, where: Where) -> GradientTransformation:
    """A transform for the chosen gradients, with the name that its errors give."""
    inner, where = as_transformation(name, tx), matching.check(name, where)

    def rule(view: Flat, state: Any, context: Context) -> tuple[Flat, Any]:
        inside, state = inner.rule(view.focus(matching.chosen(name, where, view)), state, context)
        return inside.widen(view), state

    def start(params: Any) -> Any:
        return inner.init(_only(params, lambda view: matching.chosen(name, where, view)))

    return GradientTransformation(rule, start if inner.stateful else None)


@factory
def partition(rules: Mapping[Where, Any], default: Any = None) -> GradientTransformation:
    r"""Apply to each gradient the transform of the first rule that matches it.

    .. math:: g_i \leftarrow t_{r(i)}(g)_i

    Norms are taken over the gradients of one rule.

    Args:
        rules: from a glob, an `re.Pattern`, a function, a parameter or a tuple of these, as in `masked`, to its
            transformation.
        default: the transformation for gradients that no rule matches; `identity()` if left out.

    Returns:
        A transformation; stateless if all of them are, else with a tuple of their states, the default's last.

    Raises:
        TypeError: rules that are no mapping, an object that is no transformation.
        ValueError: on `init` or use, a pattern that matches no path; lists some paths.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.partition({"**/bias": gx.scale(2.0), "head/**": gx.stop()}, default=gx.scale(-1.0))
        >>> tx({"body": np.ones(1), "head": {"bias": np.ones(1), "kernel": np.ones(1)}})
        {'body': array([-1.]), 'head': {'bias': array([2.]), 'kernel': array([0.])}}

    Source:
        `optax.partition`.
    """
    if not isinstance(rules, Mapping):
        raise TypeError(
            f"partition: rules must map a where to a transformation, such as {{'**/bias': tx}}, got {rules!r:.72}"
        )
    wheres = [matching.check("partition", where) for where in rules]
    parts = tuple(
        as_transformation("partition", tx) for tx in (*rules.values(), identity() if default is None else default)
    )

    def masks(view: Flat) -> list[tuple[bool, ...]]:
        free, found = (True,) * len(view.leaves), []
        for where in wheres:
            mask = matching.chosen("partition", where, view)
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
    """Every part in turn, on its own leaves, with its own state; stateless ones leave any state as it is."""
    outer, new = view, []
    kept = any(tx.stateful for tx in parts)
    if kept and not (isinstance(states, tuple) and len(states) == len(parts)):
        what = ", ".join(tx.name or "a transformation of another library" for tx in parts)
        raise ValueError(not_its_own(f"{len(parts)} transforms ({what})", f"a tuple of {len(parts)}", states))
    for rank, (tx, mask) in enumerate(zip(parts, masks, strict=True)):
        inside, state = tx.rule(view.focus(mask), states[rank] if kept else None, context)
        view = inside.widen(outer)
        new.append(state)
    return view, tuple(new) if kept else states


def _starts(parts: Sequence[tuple[GradientTransformation, Callable[[Flat], Sequence[bool]] | None]]) -> Start | None:
    """The first states of several parts; None if none of them has one."""
    if not any(tx.stateful for tx, _ in parts):
        return None
    return lambda params: tuple(tx.init(params if mask is None else _only(params, mask)) for tx, mask in parts)


def _only(tree: Any, mask: Callable[[Flat], Sequence[bool]]) -> Any:
    """The view of a tree with None for the leaves outside a mask; a tree of nothing but None is itself."""
    view = flat_view(tree)
    return tree if view is None else view.focus(mask(view)).scoped_view()
