"""A reference implementation of every transform: the plain formula in extended precision.

Nothing here uses the library; of a transform, its name and arguments are read. Values have more digits than float64, so
that float64 results can be checked too. They are rounded to a leaf's dtype once, at the end.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.proof import reference_catalogue, reference_matrices, reference_peers, reference_state
from gradxform.proof.extended import each, narrowed, number, size
from gradxform.proof.reference_leaf import Leaf, Sum, by, extended, limit_all, matches, norm_of
from gradxform.proof.reference_state import Memory

Leaves = Sequence[tuple[str, Any]]
Transformation = Any
"""A transform of the library."""


def reference(tx: Transformation, leaves: Leaves, params: Sequence[Any] | None = None) -> list[Any]:
    """Return the result of the first step for leaves with paths, as NumPy arrays of the leaves' dtypes.

    Raises:
        NotImplementedError: a transform without a reference.
    """
    return references(tx, [leaves], params)[0].results


class Step(NamedTuple):
    """What the reference says of one step: a list for all leaves each."""

    results: list[Any]
    terms: list[Any]
    """Zeros where a result was never summed; else the sizes that its distance is judged by, see `reference_leaf`."""
    cancelled: list[float]
    """By how much terms exceed the largest value of a sum, at most."""


def references(tx: Transformation, steps: Sequence[Leaves], params: Sequence[Any] | None = None) -> list[Step]:
    """Return the results of consecutive steps."""
    memory: Memory = {}
    found = []
    with np.errstate(all="ignore"):
        for leaves in steps:
            work = [
                Leaf(path, np.asarray(leaf).dtype, np.shape(leaf), extended(leaf), param=param)
                for (path, leaf), param in zip(leaves, params or [None] * len(leaves), strict=True)
            ]
            _apply(tx, work, memory)
            found.append(
                Step(*([of(leaf) for leaf in work] for of in (Leaf.rounded, Leaf.terms, lambda leaf: leaf.cancelled)))
            )
    return found


def norm(leaves: Sequence[Any], ord: float = 2) -> float:
    """Return the global norm of arrays, in extended precision."""
    with np.errstate(all="ignore"):
        return float(norm_of([extended(leaf) for leaf in leaves], ord))


_signature = functools.cache(inspect.signature)


def _apply(tx: Transformation, leaves: Sequence[Leaf], memory: Memory) -> None:
    rule = _RULES.get(getattr(tx, "name", ""))  # which an object of one's own lacks
    if rule is None:
        raise NotImplementedError(f"{tx!r} has no reference")
    signature = _signature(rule)
    active = [leaf for leaf in leaves if not leaf.stopped]
    positional = [value for name, value in tx.arguments if name is None]
    named = {name: value for name, value in tx.arguments if name is not None}
    if "memory" in signature.parameters:
        named["memory"] = memory
    bound = signature.bind(active, *positional, **named)
    for name, value in bound.arguments.items():
        if callable(value) and name not in _NO_SCHEDULES:
            bound.arguments[name] = float(value(float(memory.get("step", 0))))
    memory["step"] = memory.get("step", 0) + 1
    rule(*bound.args, **bound.kwargs)


def _clip_value(leaves: Sequence[Leaf], max_abs: Any = None, low: Any = None, high: Any = None) -> None:
    low, high = (-max_abs, max_abs) if max_abs is not None else (low, high)
    for leaf in leaves:
        for bound, choose in ((low, np.maximum), (high, np.minimum)):
            if bound is not None:
                value, bound = leaf.kept(leaf.value), extended(np.asarray(bound).astype(leaf.dtype))
                leaf.value = value
                leaf.chosen(np.isnan(value) | (choose(value, bound) == value), bound)


def _clip_norm(
    leaves: Sequence[Leaf], max_norm: float, axes: Any = None, ord: float = 2, like: str | None = None
) -> None:
    if like is not None:
        if axes is not None:
            raise NotImplementedError("the reference of like takes no axes")
        return _as_a_peer(reference_peers.EACH[like], leaves, max_norm, ord)
    for leaf in leaves:
        over = axes if axes is None else tuple(axes) if isinstance(axes, (list, tuple)) else (axes,)
        if over is None:
            n = norm_of([leaf.value], ord)
        elif ord == math.inf:
            n = np.max(size(leaf.value), axis=over, keepdims=True, initial=0)
        else:
            n = np.sum(size(leaf.value) ** ord, axis=over, keepdims=True, initial=0) ** (1 / number(ord))
        leaf.limit(n, max_norm, leaf.is_single, over is not None, ord)


def _clip_global_norm(
    leaves: Sequence[Leaf], max_norm: float, ord: float = 2, like: str | None = None, norm: float | None = None
) -> None:
    if norm is not None:
        return limit_all(leaves, number(norm), max_norm)
    if like is not None:
        return _as_a_peer(reference_peers.TOGETHER[like], leaves, max_norm, ord)
    limit_all(leaves, norm_of([leaf.value for leaf in leaves], ord), max_norm, order=ord)


def _as_a_peer(clip: reference_peers.Clip, leaves: Sequence[Leaf], max_norm: float, ord: float) -> None:
    """Compute in the arithmetic of the leaves' dtypes."""
    clipped = clip(
        [leaf.rounded() for leaf in leaves], max_norm, lambda given: norm_of(list(map(extended, given)), ord)
    )
    for leaf, new in zip(leaves, clipped, strict=True):
        leaf.value = extended(new)


def _scale(leaves: Sequence[Leaf], factor: float) -> None:
    for leaf in leaves:
        leaf.become(by(leaf, factor))


def _stop(leaves: Sequence[Leaf]) -> None:
    for leaf in leaves:
        leaf.become(leaf.nothing())
        leaf.stopped = True


def _freeze(leaves: Sequence[Leaf], where: Any) -> None:
    _stop([leaf for leaf in leaves if _matches(where, leaf)])


def _identity(leaves: Sequence[Leaf]) -> None:
    pass


def _inner(memory: Memory, part: Any) -> Memory:
    """The memory of one of several inner transforms."""
    return memory.setdefault(part, {})


def _chain(leaves: Sequence[Leaf], *txs: Transformation, memory: Memory) -> None:
    for rank, tx in enumerate(txs):
        _apply(tx, leaves, _inner(memory, rank))


def _masked(leaves: Sequence[Leaf], tx: Transformation, where: Any, memory: Memory) -> None:
    _apply(tx, [leaf for leaf in leaves if _matches(where, leaf)], _inner(memory, 0))


def _partition(leaves: Sequence[Leaf], rules: Any, default: Any = None, *, memory: Memory) -> None:
    rest = list(leaves)
    for rank, (where, tx) in enumerate(rules.items()):
        _apply(tx, [leaf for leaf in rest if _matches(where, leaf)], _inner(memory, rank))
        rest = [leaf for leaf in rest if not _matches(where, leaf)]
    if default is not None:
        _apply(default, rest, _inner(memory, -1))


def _skip_nonfinite(leaves: Sequence[Leaf], tx: Any, max_consecutive: int | None = None, *, memory: Memory) -> None:
    finite = all(np.isfinite(leaf.rounded()).all() for leaf in leaves)
    memory["bad"] = 0 if finite else memory.get("bad", 0) + 1
    most = math.inf if max_consecutive is None else max_consecutive
    _apply_if(finite or memory["bad"] > most, leaves, tx, memory)


def _skip_large(leaves: Sequence[Leaf], tx: Any, max_norm: float, memory: Memory) -> None:
    kind: Any = np.float32 if all(leaf.is_single for leaf in leaves) else np.float64
    n = narrowed(norm_of([leaf.value for leaf in leaves], 2), kind)
    _apply_if(bool(np.isfinite(n) and n <= kind(max_norm)), leaves, tx, memory)


def _skip_spikes(
    leaves: Sequence[Leaf], tx: Any, threshold: float = 6.0, window: int = 128, *, of: str = "norm", memory: Memory
) -> None:
    if of != "norm":
        raise NotImplementedError("the reference gets no loss")
    kind: Any = np.float32 if all(leaf.is_single for leaf in leaves) else np.float64
    n = number(narrowed(norm_of([leaf.value for leaf in leaves], 2), kind))
    values, waits = memory.setdefault("values", []), memory.setdefault("skipped", 0)
    last, due = number(values[-window:]), True
    if len(last) >= max(window / 4, 2) and not (last == last[0]).all():
        mean = last.mean()
        due = bool(n <= mean + number(threshold) * np.sqrt(((last - mean) ** 2).sum() / (len(last) - 1)))
    if not due and waits >= window / 4:
        due, memory["values"] = True, []
    memory["skipped"] = 0 if due else waits + 1
    if due and np.isfinite(n):
        memory["values"].append(n)
    _apply_if(due, leaves, tx, memory)


def _accumulate(leaves: Sequence[Leaf], tx: Any, every: int, memory: Memory) -> None:
    window = memory.setdefault("window", {})
    for leaf in leaves:
        parts = window.setdefault(leaf.path, [])
        parts.append(by(leaf, 1 / number(every)))
        leaf.become(leaf.summed(*parts, further=len(parts)))
    due = memory["step"] % every == 0
    if due:
        memory["window"] = {}
    _apply_if(due, leaves, tx, memory)


def _error_feedback(leaves: Sequence[Leaf], tx: Any, memory: Memory) -> None:
    errors = memory.setdefault("errors", {})
    for leaf in leaves:
        leaf.become(leaf.summed(leaf, errors.get(leaf.path, leaf.nothing())))
    given = [Sum(leaf.value, leaf.term) for leaf in leaves]
    _apply(tx, leaves, _inner(memory, "inner"))
    for leaf, before in zip(leaves, given, strict=True):
        if not leaf.stopped:
            rest, old = leaf.summed(before, by(leaf, -1)), errors.get(leaf.path, leaf.nothing())
            finite = each(np.isfinite, rest.value)
            errors[leaf.path] = Sum(*(each(np.where, finite, new, last) for new, last in zip(rest, old, strict=True)))


def _measure(
    leaves: Sequence[Leaf], tx: Any, name: str | None = None, *, per_leaf: bool = False, memory: Memory
) -> None:
    _apply(tx, leaves, _inner(memory, "inner"))


def _apply_if(due: bool, leaves: Sequence[Leaf], tx: Transformation, memory: Memory) -> None:
    if due:
        return _apply(tx, leaves, _inner(memory, "inner"))
    trial = [dataclasses.replace(leaf) for leaf in leaves]
    _apply(tx, trial, copy.deepcopy(_inner(memory, "inner")))
    for leaf, tried in zip(leaves, trial, strict=True):  # stopped leaves are stopped in every step
        leaf.become(leaf.nothing())
        leaf.stopped = tried.stopped


def _matches(where: Any, leaf: Leaf) -> bool:
    if isinstance(where, str):
        return matches(where, leaf.path)
    if isinstance(where, re.Pattern):
        return where.search(leaf.path) is not None
    if callable(where):
        return bool(where(leaf.path, leaf.rounded()))
    raise NotImplementedError(f"the reference matches patterns and functions, not {where!r}")


_NO_SCHEDULES = ("axes", "default", "fn", "tx", "where")
"""Arguments that may be functions without being schedules."""
_PLAIN = (_clip_global_norm, _clip_norm, _clip_value, _freeze, _identity, _scale, _stop)
_NESTED = (
    _accumulate,
    _chain,
    _error_feedback,
    _masked,
    _measure,
    _partition,
    _skip_large,
    _skip_nonfinite,
    _skip_spikes,
)
_ALL = (*_PLAIN, *_NESTED, reference_matrices.orthogonalize, *reference_catalogue.RULES, *reference_state.RULES)
_RULES: dict[str, Callable[..., None]] = {
    "scale_by_schedule": _scale,
    **{rule.__name__.removeprefix("_"): rule for rule in _ALL},
}
"""By the name of the transform. A rule takes the active leaves, the transform's arguments and, with a state, memory."""
