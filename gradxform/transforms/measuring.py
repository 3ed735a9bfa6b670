"""Measure what a transform does, for logs."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradxform.backend.lookup import unwrapped
from gradxform.core import holding
from gradxform.core.factory import factory
from gradxform.core.foreign import inside
from gradxform.core.leaves import SINGLE
from gradxform.core.norm import Norm
from gradxform.core.state import Fresh, stored, stored_as
from gradxform.core.transform import Context, GradientTransformation, ScheduleState, stateful, unconverted, wrong_state
from gradxform.core.tree import Tree
from gradxform.core.where import FUNCTIONS, Variables, keys_of, path_of
from gradxform.numerics import Array
from gradxform.numerics.formulas import Mask
from gradxform.transforms.custom import xp
from gradxform.transforms.history import AdaGCState, PercentileState, SpikesState, ZScoreState
from gradxform.transforms.skipping import due, states_in
from gradxform.transforms.spikes import SkipSpikesState

_SHOWN = 3
_ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52, "complex128": 2.0**-52}


class Measures(NamedTuple):
    """What one transform did at the last step, as 0-d arrays."""

    norm_before: Any
    """Global norm before the transform."""
    norm_after: Any
    """Global norm after the transform."""
    factor: Any
    """Norm after divided by norm before; 1 if both are zero."""
    clipped: Any
    """Whether any gradient's norm shrank by more than rounding."""
    nonfinite_count: Any
    """Number of gradients with NaN or infinity before the transform."""


class MeasureState(NamedTuple):
    """State of `measure`: measures by transform name, with the norms of `per_leaf`, and the transform's own state."""

    measures: dict[str, Any]
    inner: Any


@factory(tx=inside)
def measure(tx: Any, name: str | None = None, *, per_leaf: bool = False) -> GradientTransformation:
    r"""Apply a transform and record what it did; read it with `metrics`.

    .. math:: g \leftarrow t(g), \quad n = \lVert g \rVert, \; n' = \lVert t(g) \rVert, \; f = n' / n

    Results are unchanged bit by bit, and nothing is read on the host. Transforms that rescale, such as all clips by
    norm, already have these norms, so no gradient is read again. Transforms that change elements cost one more read of
    their inputs and one of their outputs.

    Args:
        tx: A transform, or any object with `init` and `update`. The transforms of a chain are measured one by one, and
            those of a partition under the labels of its rules. An optax transform is named after the function that
            made it, if known.
        name: Name of the measures. Default: the transform's name. A named chain or partition is measured as one.
        per_leaf: Whether to record the norm of each gradient before the transform, too. `init` needs the parameters.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. Its state holds, for the last step, the
        joint norm of the gradients in scope before and after and their ratio, in float32 (float64 for float64
        gradients). It also holds whether any gradient's norm shrank, a bool, and the int32 number of gradients with
        NaN, infinity, or a norm beyond float64. If elements change, a norm counts as smaller beyond a few units in the
        last place. A step without gradients changes nothing. With `per_leaf`, the norm of a gradient that is None or
        stopped is NaN, unless all are.

    Raises:
        TypeError: `tx` is not a transform, or `name` is not a string. On use: a gradient is integer; the message gives
            its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.measure(gx.chain(gx.clip_norm(5.0), gx.scale(2.0)))
        >>> updates, state = tx.update({"w": np.array([30.0, 40.0])}, tx.init({"w": np.zeros(2)}))
        >>> for name, value in gx.metrics(state).items():
        ...     print(name, value.item())
        clip_norm/norm_before 50.0
        clip_norm/norm_after 5.0
        clip_norm/factor 0.1
        clip_norm/clipped True
        clip_norm/nonfinite_count 0
        scale/norm_before 5.0
        scale/norm_after 10.0
        scale/factor 2.0
        scale/clipped False
        scale/nonfinite_count 0
        >>> tx = gx.measure(gx.clip_global_norm(5.0), per_leaf=True)
        >>> grads = {"b": np.array([3.0]), "w": np.array([4.0])}
        >>> _, state = tx.update(grads, tx.init(grads))
        >>> {name: value.item() for name, value in gx.metrics(state).items() if "before/" in name}
        {'clip_global_norm/norm_before/b': 3.0, 'clip_global_norm/norm_before/w': 4.0}

    References:
        The norms that `torch.nn.utils.clip_grad_norm_` and `tf.clip_by_global_norm` return.
    """
    if name is not None and not (isinstance(name, str) and name):
        raise TypeError(f"measure: name must be a nonempty string, got {name!r} of type {type(name).__name__}")
    traits = tx.traits
    if traits.compose is not None and name is None:
        if traits.states is not None:  # of a chain, only the transforms are measured
            names = _names(traits.parts)
            made = traits.compose(
                [measure(part, own, per_leaf=per_leaf) for part, own in zip(traits.parts, names, strict=True)]
            )
            return GradientTransformation(made.rule, made.start, traits=made.traits._replace(compose=None))
        rules = [_of_where(where) or str(rank) for rank, where in enumerate(traits.where)]
        both = zip(traits.parts, [*rules, "default"], strict=False)
        tx = traits.compose([_in_partition(part, label, per_leaf) for part, label in both])
    called = name or _name(tx)
    each = f"{called}/norm_before"

    def rule(g: Tree, state: MeasureState, context: Context) -> tuple[Tree, MeasureState]:
        if called not in state.measures:
            raise wrong_state("measure", f"MeasureState with measures of {called!r}", state)
        before = g.norms()
        out, kept = tx.rule(g, state.inner, context)
        compute = g.backend.compute
        after, slack = out.common(out.own_norms(2), 2, (g.vector(_slack(g, out), before.value), math.inf))
        first, last = (norm.value if norm.slots is None else norm.slots.values for norm in (before, after))

        def left(mask: Mask) -> Mask:
            return mask if before.slots is not None else out.active

        asked = [
            (lambda mask: g.total(first, mask, 2), 2),
            (lambda mask: out.total(last, left(mask), 2), 2),
            (lambda mask: compute(_any_smaller, first, last, slack, active=mask, left=left(mask)), 1),
            (lambda mask: compute(_nonfinite, first, active=mask), 1),
        ]
        whole, rest, clipped, lost = g.shared(asked)
        new = whole, rest, compute(_quotient, whole, rest), clipped, lost
        measures = {called: stored_as(g, state.measures[called], *new)}
        return out, MeasureState(measures | ({each: _by_path(g, before, state, each)} if per_leaf else {}), kept)

    def start(fresh: Fresh) -> MeasureState:
        none = Measures(fresh.numbers(()), fresh.numbers(()), fresh.array(1.0), fresh.flag(False), fresh.count())
        norms = {path: fresh.numbers(()) for path in ([] if fresh.view is None else _keys(fresh.view))}
        return MeasureState({called: none, **({each: norms} if per_leaf else {})}, tx.init(fresh.params))

    return stateful(MeasureState, rule, start, tx, states=lambda state: (state.inner,))


def _keys(view: Tree) -> list[str]:
    """A key per leaf: its path, with a number where several slots have it."""
    every = keys_of(view.source.find_paths())
    return [every[slot] for slot in view.source.kept]


def _by_path(g: Tree, norms: Norm, state: MeasureState, each: str) -> dict[str, Any]:
    """The norm of each gradient by path; NaN where there is none."""
    known, keys = state.measures.get(each, {}), _keys(g)
    missing = [keys[i] for i in g.chosen if keys[i] not in known]
    if missing:
        what = ", ".join(map(repr, missing[:_SHOWN]))
        raise wrong_state("measure", f"MeasureState with norms of {what}", state)
    if not known:
        return {}
    old = next(iter(known.values()))
    vector, none = stored(g, norms.value, old), stored(g, math.nan, old)
    with g.backend.scope():
        own = {keys[i]: vector[i, ...] for i in g.chosen}
    return {path: own.get(path, none) for path in known}


def _in_partition(part: GradientTransformation, label: str, per_leaf: bool) -> GradientTransformation:
    """Measure a transform of a partition under a label, and the transforms of a chain one by one."""
    traits = part.traits
    if traits.compose is not None and traits.states is not None:
        return traits.compose([_in_partition(each, label, per_leaf) for each in traits.parts])
    return measure(part, f"partition/{label}/{_name(part)}", per_leaf=per_leaf)


def _name(tx: GradientTransformation) -> str:
    """The name of a transform among metrics."""
    return tx.name or tx.traits.label or "GradientTransformation"


def _names(parts: Sequence[GradientTransformation]) -> list[str | None]:
    """Names for the masks of a chain, if several are of one kind; None where the transform's own name is enough."""
    kinds = list(map(_name, parts))
    return [_of_mask(part) if kinds.count(kind) > 1 else None for part, kind in zip(parts, kinds, strict=True)]


def _of_mask(part: GradientTransformation) -> str | None:
    """What a mask is, selects and applies, such as "masked/encoder/clip_norm"; None for other transforms."""
    traits = part.traits
    label = _of_where(traits.where[0]) if traits.where and traits.compose is None else ""
    inside = () if traits.stage else map(_name, traits.parts)
    return "/".join([part.name, label, *inside]) if label else None


def _of_where(where: Any) -> str:
    """What a `where` selects: keys of a pattern, a few names of functions or variables; empty if nothing tells."""
    if isinstance(where, (list, tuple)):  # variables among them
        found = [path_of(each) if isinstance(where, Variables) else _of_where(each) for each in where]
        more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        return " ".join([*found[:_SHOWN], *more]) if all(found) else ""
    if isinstance(where, FUNCTIONS):
        where = getattr(getattr(where, "func", where), "__name__", "")  # of a functools.partial, its function's
    pattern = where.pattern if isinstance(where, re.Pattern) else where
    return "/".join(re.findall(r"[\w. -]+", pattern)) if isinstance(pattern, str) else ""


def _quotient(xp: Any, before: Array, after: Array) -> Array:
    positive = before > 0.0
    from_zero = xp.where(after > 0.0, float("inf"), 1.0 + after)
    others = xp.where(before <= 0.0, from_zero, before)  # NaN
    return xp.where(positive, after / xp.where(positive, before, 1.0), others)


def _any_smaller(
    xp: Any, before: Array, after: Array, slack: Array, *, active: tuple[bool, ...], left: tuple[bool, ...]
) -> Array:
    after = xp.where(xp.mask(left), after, 0.0)
    least = xp.where(xp.isfinite(before), before - before * slack, before)
    return xp.where(xp.any(xp.mask(active) & (after < least)), 1.0, 0.0)


def _nonfinite(xp: Any, norms: Array, *, active: tuple[bool, ...]) -> Array:
    return xp.sum(xp.where(xp.mask(active), xp.where(xp.isfinite(norms), 0.0, 1.0), 0.0))


def _slack(g: Tree, out: Tree) -> tuple[float, ...]:
    """Relative rounding error of each gradient's norm that does not count as a change; zero if only factors changed.

    New elements are measured to a few units in the last place, and may have been rounded to their dtype.
    """
    found = []
    for i, (new, old, dtype) in enumerate(zip(out.leaves, g.leaves, g.source.dtypes, strict=True)):
        slack, same = 0.0, out.measured is g.measured  # torch.compile knows no "is not" of these
        if not same and (i in g.owned or new is not old):
            slack = 2.0**-22 if dtype in SINGLE else 2.0**-50
            if g.factor is not None or old.dtype != g.source.slots[g.source.kept[i]].dtype:
                slack += _ROUNDING.get(dtype, 2.0**-23)
        found.append(slack)
    return tuple(found)


def _counted(state: Any) -> dict[str, Any]:
    """The number of norms or steps that a limit follows, which warm-ups and windows that are not full depend on."""
    state = state.inner if isinstance(state, ScheduleState) else state
    if not isinstance(state, (AdaGCState, PercentileState, SkipSpikesState, SpikesState, ZScoreState)):
        return {}
    count = unwrapped(state.count)
    return {"count": xp(count).max(count) if len(count.shape) else count}


@unconverted
def metrics(state: Any) -> dict[str, Array]:
    """Read what the transforms inside `measure` did at the last step, as a flat dict of scalars.

    Args:
        state: A state that contains a `measure` state, or an object that holds one. States: of a chain, an optax
            optimizer or a train state; tuples, lists, dicts and dataclasses are searched. Objects: a
            `gradxform.torch.attach` handle or its optimizer, a `GradientProcessor`, a wrapped Keras optimizer (also in
            a ``LossScaleOptimizer``), a Flax train state, an ``nnx.Optimizer``. In a TensorFlow 1 graph, a
            `GradientProcessor` gives the measures of the step they are fetched with, and its ``state`` those of the
            step before.

    Returns:
        A dict from "transform/measure" to a 0-d array of the state's framework, such as "clip_global_norm/norm_before",
        .../norm_after, .../factor, .../clipped, .../nonfinite_count. A second transform of the same name is
        "clip_norm_1". "clip_zscore/count", and that of `clip_adagc`, `clip_percentile`, `clip_spikes` and
        `skip_spikes`, is the number of norms (steps for `clip_spikes`, of the gradient with most norms) that the limit
        follows: up to ``warmup`` it is the limit of the warm-up, or none, and up to ``window`` the window is not full.
        Several masks in a chain and the rules of a partition are named by the pattern, function or variable that
        selects: "masked/encoder/clip_norm" for ``masked(clip_norm(1.0), "encoder/**")``, "partition/encoder/clip_norm"
        for ``partition({"encoder/**": clip_norm(1.0)})``. If a transform may skip steps, or accumulates, "applied" is
        `has_updated`: where it is false, what is measured inside is of the last step that applied. With `per_leaf`,
        "clip_norm/norm_before/encoder/w" is the norm of the gradient at that path. Empty if nothing is measured, also
        for a state of another library.

    Raises:
        TypeError: `state` holds no state.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.chain(gx.measure(gx.clip_global_norm(1.0)), gx.trace(0.9))
        >>> _, state = tx.update([np.array([3.0, 4.0])], tx.init([np.zeros(2)]))
        >>> {name: value.item() for name, value in gx.metrics(state).items() if "norm_" in name.partition("/")[2]}
        {'clip_global_norm/norm_before': 5.0, 'clip_global_norm/norm_after': 1.0}

    References:
        The flat dicts that TensorBoard, Weights & Biases and MLflow accept.
    """
    holding.check("metrics", state)
    found: dict[str, Array] = {}
    taken: set[str] = set()
    for held in states_in(state, MeasureState):
        for name in [name for name, measures in held.measures.items() if isinstance(measures, Measures)]:
            norms = held.measures.get(f"{name}/norm_before", {})
            each = {f"norm_before/{path}": norm for path, norm in norms.items()}
            numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
            own = next(one for one in numbered if one not in taken)
            taken.add(own)
            measures = held.measures[name]._asdict() | _counted(held.inner) | each
            found |= {f"{own}/{field}": unwrapped(value) for field, value in measures.items()}
    applied = due(state)
    return found if not found or applied is True else {**found, "applied": applied}
