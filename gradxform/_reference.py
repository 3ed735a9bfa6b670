"""Every transform a second time, straight from its formula, in extended precision: what the others are held against.

Nothing here goes through the flat view or a backend. Values are NumPy's longdouble (float64 where a platform has no
more), so that float64 results can be judged as well; they are rounded to a leaf's dtype once, at the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradxform import _reference_peers
from gradxform._transformation import GradientTransformation
from gradxform.matching import glob

_SINGLE = ("float16", "bfloat16", "float32", "complex64")


@dataclass
class Leaf:
    """One gradient on its way through a chain."""

    path: str
    dtype: Any
    value: Any
    stopped: bool = False


def reference(tx: GradientTransformation, leaves: Sequence[tuple[str, Any]]) -> list[Any]:
    """What a stateless transformation gives for leaves with paths, as NumPy arrays of the leaves' dtypes.

    Raises:
        NotImplementedError: a transform without a reference.
    """
    work = [Leaf(path, np.asarray(leaf).dtype, _extended(leaf)) for path, leaf in leaves]
    with np.errstate(all="ignore"):
        _apply(tx, work)
        return [_rounded(leaf) for leaf in work]


def norm(leaves: Sequence[Any], ord: float = 2) -> float:
    """The norm of arrays together, in extended precision."""
    with np.errstate(all="ignore"):
        return float(_norm([_extended(leaf) for leaf in leaves], ord))


def _extended(leaf: Any) -> Any:
    array = np.asarray(leaf)
    if array.dtype.kind in "iub":
        return array
    if array.dtype.kind == "c":
        return array.astype(np.clongdouble)
    return (array.astype(np.float32) if array.dtype.name == "bfloat16" else array).astype(np.longdouble)


def _rounded(leaf: Leaf) -> Any:
    narrow = leaf.value.astype(np.float64) if leaf.dtype.name == "bfloat16" else leaf.value
    return np.asarray(narrow).astype(leaf.dtype)


def _apply(tx: GradientTransformation, leaves: Sequence[Leaf]) -> None:
    rule = _RULES.get(tx.name)
    if rule is None:
        raise NotImplementedError(f"{tx!r} has no reference")
    positional = [value for name, value in tx.arguments if name is None]
    rule([leaf for leaf in leaves if not leaf.stopped], *positional, **{k: v for k, v in tx.arguments if k is not None})


def _norm(values: Sequence[Any], ord: float) -> Any:
    sizes = np.concatenate([np.abs(np.asarray(value)).ravel() for value in values] or [np.zeros(0, np.longdouble)])
    if sizes.size == 0:
        return np.longdouble(0)
    largest = sizes.max()
    if not 0 < largest < np.inf or ord == math.inf:
        return largest
    return largest * ((sizes / largest) ** np.longdouble(ord)).sum() ** (1 / np.longdouble(ord))


def _limited(value: Any, norm: Any, max_norm: float, single: bool) -> Any:
    """Times min(1, c / n), with n and c compared in the accumulation dtype."""
    rounded: Any = np.float32 if single and 0 < np.float32(max_norm) < math.inf else np.float64
    factor = np.where(np.isfinite(norm), np.longdouble(max_norm) / np.where(norm == 0, 1, norm), np.nan)
    return np.where((rounded(norm) <= rounded(max_norm)) | (max_norm == math.inf), value, _times(value, factor))


def _times(value: Any, factor: Any) -> Any:
    """A value times a real factor; a complex one by its parts, so that infinity times zero does not come up."""
    if value.dtype.kind != "c":
        return value * factor
    result = np.empty_like(value)
    result.real, result.imag = value.real * factor, value.imag * factor
    return result


def _is_single(leaf: Leaf) -> bool:
    return leaf.dtype.name in _SINGLE


def _clip_value(leaves: Sequence[Leaf], max_abs: Any = None, low: Any = None, high: Any = None) -> None:
    low, high = (-max_abs, max_abs) if max_abs is not None else (low, high)
    for leaf in leaves:
        for bound, choose in ((low, np.maximum), (high, np.minimum)):
            if bound is not None:
                leaf.value = choose(leaf.value, _extended(np.asarray(bound).astype(leaf.dtype)))


def _clip_norm(
    leaves: Sequence[Leaf], max_norm: float, axes: Any = None, ord: float = 2, like: str | None = None
) -> None:
    if like is not None:
        if axes is not None:
            raise NotImplementedError("the reference of like takes no axes")
        return _as_a_peer(_reference_peers.EACH[like], leaves, max_norm, ord)
    for leaf in leaves:
        over = axes if axes is None else tuple(axes) if isinstance(axes, (list, tuple)) else (axes,)
        size = np.abs(leaf.value)
        if over is None:
            n = _norm([leaf.value], ord)
        elif ord == math.inf:
            n = size.max(axis=over, keepdims=True, initial=0)
        else:
            n = (size ** np.longdouble(ord)).sum(axis=over, keepdims=True) ** (1 / np.longdouble(ord))
        leaf.value = _limited(leaf.value, n, max_norm, _is_single(leaf))


def _clip_global_norm(leaves: Sequence[Leaf], max_norm: float, ord: float = 2, like: str | None = None) -> None:
    if like is not None:
        return _as_a_peer(_reference_peers.TOGETHER[like], leaves, max_norm, ord)
    n = _norm([leaf.value for leaf in leaves], ord)
    for leaf in leaves:
        leaf.value = _limited(leaf.value, n, max_norm, all(map(_is_single, leaves)))


def _as_a_peer(clip: _reference_peers.Clip, leaves: Sequence[Leaf], max_norm: float, ord: float) -> None:
    """In the arithmetic of the leaves' dtypes."""
    clipped = clip([_rounded(leaf) for leaf in leaves], max_norm, lambda given: _norm(list(map(_extended, given)), ord))
    for leaf, new in zip(leaves, clipped, strict=True):
        leaf.value = _extended(new)


def _scale(leaves: Sequence[Leaf], factor: float) -> None:
    for leaf in leaves:
        leaf.value = _times(leaf.value, np.longdouble(factor))


def _stop(leaves: Sequence[Leaf]) -> None:
    for leaf in leaves:
        leaf.value, leaf.stopped = np.zeros_like(leaf.value), True


def _chain(leaves: Sequence[Leaf], *txs: GradientTransformation) -> None:
    for tx in txs:
        _apply(tx, leaves)


def _masked(leaves: Sequence[Leaf], tx: GradientTransformation, where: Any) -> None:
    _apply(tx, [leaf for leaf in leaves if _matches(where, leaf)])


def _partition(leaves: Sequence[Leaf], rules: Any, default: Any = None) -> None:
    rest = list(leaves)
    for where, tx in rules.items():
        _apply(tx, [leaf for leaf in rest if _matches(where, leaf)])
        rest = [leaf for leaf in rest if not _matches(where, leaf)]
    if default is not None:
        _apply(default, rest)


def _matches(where: Any, leaf: Leaf) -> bool:
    if isinstance(where, str):
        return glob(where).fullmatch(leaf.path) is not None
    if isinstance(where, re.Pattern):
        return where.search(leaf.path) is not None
    if callable(where):
        return bool(where(leaf.path, leaf.value))
    raise NotImplementedError(f"the reference matches patterns and functions, not {where!r}")


_RULES: dict[str, Callable[..., None]] = {
    "chain": _chain,
    "clip_global_norm": _clip_global_norm,
    "clip_norm": _clip_norm,
    "clip_value": _clip_value,
    "freeze": lambda leaves, where: _stop([leaf for leaf in leaves if _matches(where, leaf)]),
    "identity": lambda leaves: None,
    "masked": _masked,
    "partition": _partition,
    "scale": _scale,
    "stop": _stop,
}
