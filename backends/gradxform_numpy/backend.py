"""The primitives on NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import optree

from gradxform.backend.host import elements as host_elements
from gradxform.backend.host import namespace as host
from gradxform.backend.host import norms as host_norms
from gradxform.backend.host import threads

name: str = "numpy"
types: tuple[type, ...] = (np.ndarray, np.generic)

_names: dict[Any, str] = {}
_FLOAT32 = np.dtype(np.float32)
_TINY = 2.0**-126
_HUGE = 2.0**127


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure, by optree; None is a leaf."""
    return optree.tree_flatten(tree, none_is_leaf=True)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The tree again."""
    return structure.unflatten(leaves)


def paths(tree: Any) -> list[str]:
    """One path a leaf."""
    return ["/".join(map(_key, path)) for path in optree.tree_accessors(tree, none_is_leaf=True)]


def _key(entry: Any) -> str:
    return str(entry.field if hasattr(entry, "field") else entry.entry)


def adopt(leaf: Any) -> Any:
    """A Python number as an array."""
    return np.asarray(leaf)


def dtype(leaf: Any) -> str:
    """The name of the dtype."""
    known = _names.get(leaf.dtype)
    if known is None:
        known = _names[leaf.dtype] = "float0" if leaf.dtype.names == ("float0",) else str(leaf.dtype.name)
    return known


def shape(leaf: Any) -> tuple[int, ...]:
    """The shape."""
    return tuple(leaf.shape)


def dense(leaves: Sequence[Any]) -> tuple[Sequence[Any], None]:
    """NumPy has no sparse arrays."""
    return leaves, None


def densify(leaf: Any) -> Any:
    """NumPy has no sparse arrays."""
    return leaf


def norms(leaves: Sequence[Any], ord: float) -> Any:
    """The vector of the leaves' norms."""
    with np.errstate(all="ignore"):
        return host_norms.norms(leaves, ord)


def norm_over(leaf: Any, axes: tuple[int, ...], ord: float) -> Any:
    """Norms over some axes, in float64, the axes kept as ones."""
    return host_norms.norm_over(leaf, axes, ord)


def multiply(leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
    """Each leaf times its factor; one that has the factor one comes back as it is."""
    each = np.asarray(factors, np.float64).tolist()
    with np.errstate(all="ignore"):
        if isinstance(each, float):
            return list(leaves) if each == 1 else _times_one(leaves, each, inplace)
        return [leaf if f == 1 else _times(leaf, f, inplace) for leaf, f in zip(leaves, each, strict=True)]


def _times_one(leaves: Sequence[Any], factor: float, inplace: bool) -> list[Any]:
    """Each leaf times one factor; NumPy is called with what it need not convert."""
    kinds = {(type(leaf), leaf.dtype) for leaf in leaves}
    if kinds != {(np.ndarray, _FLOAT32)} or not _is_ordinary(factor):
        return [_times(leaf, factor, inplace) for leaf in leaves]
    number = np.array(factor, np.float32)
    if inplace:
        own = all([leaf.base is None for leaf in leaves])  # else two may share memory
        share = threads.spread if own else threads.one_by_one
        return share(lambda leaf: np.multiply(leaf, number, leaf), leaves, [leaf.size for leaf in leaves])
    return [np.multiply(leaf, number, np.empty_like(leaf)) for leaf in leaves]


def _times(leaf: Any, factor: float, inplace: bool) -> Any:
    out = leaf if inplace and isinstance(leaf, np.ndarray) else None
    kind = dtype(leaf)
    if leaf.dtype.kind == "c":
        return _as_given(leaf, _by_parts(leaf, lambda part: _times(part, factor, False)), out)
    ordinary = _is_ordinary(factor)
    if kind == "float64" or (kind == "float32" and ordinary):
        return _as_given(leaf, np.multiply(leaf, leaf.dtype.type(factor), out=out), None)
    wide = np.asarray(leaf).astype(np.float32 if ordinary and kind != "float32" else np.float64)
    return _as_given(leaf, np.multiply(wide, wide.dtype.type(factor)).astype(leaf.dtype), out)


def _is_ordinary(factor: float) -> bool:
    """Whether float32 holds a factor to its last bit."""
    return _TINY <= abs(factor) <= _HUGE or factor == 0 or factor != factor


def _by_parts(leaf: Any, function: Callable[[Any], Any]) -> Any:
    """A function of real and imaginary parts: a real factor must not make a NaN of infinity times zero."""
    if leaf.dtype.kind != "c":
        return function(leaf)
    result = np.empty_like(leaf)
    result.real, result.imag = function(leaf.real), function(leaf.imag)
    return result


def _as_given(leaf: Any, result: Any, out: Any) -> Any:
    """The result in the leaf itself when that is wanted, and a NumPy scalar for a NumPy scalar."""
    if out is not None:
        np.copyto(out, result)
        return out
    return np.asarray(result) if isinstance(leaf, np.ndarray) else result[()]


def multiply_over(leaf: Any, factor: Any, inplace: bool) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    with np.errstate(all="ignore"):
        factor = np.asarray(factor, np.float64)
        product = _by_parts(leaf, lambda part: (part.astype(np.float64) * factor).astype(part.dtype))
        result = np.where(factor == 1, leaf, product)
    return _as_given(leaf, result, leaf if inplace and isinstance(leaf, np.ndarray) else None)


def divide(function: str, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
    """Each leaf divided by its divisor, in its own dtype."""
    with np.errstate(all="ignore"):
        return [_as_given(leaf, _quotient(leaf, by), None) for leaf, by in zip(leaves, divisors, strict=True)]


def _quotient(leaf: Any, divisor: Any) -> Any:
    return _by_parts(leaf, lambda part: part / np.asarray(divisor).astype(part.dtype))


def peer_norm(function: str, leaves: Sequence[Any], ord: float, axes: tuple[int, ...] | None) -> None:
    """NumPy has no clipping of its own."""
    return None


def clip(leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
    """min(max(factor * leaf, low), high)."""
    scaled: Sequence[Any] = leaves
    if factors is not None:
        scaled = multiply([leaf.astype(np.float32) if _is_narrow(leaf) else leaf for leaf in leaves], factors, inplace)
    bounds: dict[Any, list[Any]] = {}
    out = []
    with np.errstate(all="ignore"):
        for new, old in zip(scaled, leaves, strict=True):
            kinds = old.dtype, new.dtype
            if kinds not in bounds:
                bounds[kinds] = [
                    None if b is None else np.asarray(b).astype(kinds[0]).astype(kinds[1]) for b in (low, high)
                ]
            out.append(_between(new, bounds[kinds], inplace or new is not old))
    return out


def _is_narrow(leaf: Any) -> bool:
    return bool(leaf.dtype.itemsize == 2)


def _between(leaf: Any, bounds: Sequence[Any], inplace: bool) -> Any:
    out = leaf if inplace and isinstance(leaf, np.ndarray) else None
    if leaf.dtype.kind == "f":
        found = leaf.clip(*bounds, out)  # many times faster to call than np.clip
        return found if type(found) is type(leaf) else _as_given(leaf, found, None)
    for bound, nearer in zip(bounds, (np.maximum, np.minimum), strict=True):  # np.clip makes bfloat16 a float32
        leaf = leaf if bound is None else _as_given(leaf, nearer(leaf, bound, out=out), None)
    return leaf


def elementwise(
    formula: Callable[..., Any],
    columns: Sequence[Sequence[Any]],
    numbers: Sequence[Any],
    factors: Sequence[Any] | None = None,
    **static: Any,
) -> list[Any]:
    """A formula of each leaf's elements, computed wide and rounded once."""
    each_factor = [None] * len(columns[0]) if factors is None else factors
    return [
        host_elements.elementwise(formula, column, numbers, factor, static)
        for factor, *column in zip(each_factor, *columns, strict=True)
    ]


def each(formula: Callable[..., Any], columns: Sequence[Sequence[Any]], numbers: Sequence[Any]) -> list[Any]:
    """A formula of each leaf's elements, in its own dtype."""
    with np.errstate(all="ignore"):
        return [
            _as_given(column[0], np.asarray(formula(host.Namespace, *column, *numbers)), None)
            for column in zip(*columns, strict=True)
        ]


def alongside(arrays: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
    """The arrays as they are."""
    return arrays


def sum_over(leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
    """Sums over some axes, in float64, the axes kept as ones."""
    return host_elements.sum_over(leaf, axes, weights)


def count(leaf: Any, axes: tuple[int, ...] | None) -> float:
    """The number of elements."""
    return float(leaf.size if axes is None else np.prod([leaf.shape[axis] for axis in axes]))


def copied(leaves: Sequence[Any]) -> list[Any]:
    """The leaves in memory of their own."""
    return [leaf.copy() for leaf in leaves]


def stored(value: Any, dtype: str, beside: Any) -> Any:
    """An array of a dtype."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def namespace() -> ModuleType:
    """NumPy."""
    return np


def cast(leaf: Any, like: Any) -> Any:
    """A leaf rounded to the dtype of another."""
    with np.errstate(all="ignore"):
        return leaf.astype(like.dtype)


def zeros(leaves: Sequence[Any]) -> list[Any]:
    """Fresh zeros."""
    return [np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else leaf.dtype.type(0) for leaf in leaves]


def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """A formula in Python floats or float64 vectors."""
    return host.compute(formula, *operands, **static)


def on_backward(leaves: Sequence[Any], numbers: Sequence[Any], function: Callable[..., Any]) -> Any:
    """NumPy has no backward pass."""
    raise TypeError(
        "NumPy's arrays have no backward pass; call it on arrays of JAX, TensorFlow or PyTorch, or transform gradients "
        "that you have computed with tx(gradients)"
    )


def stop_gradient(leaf: Any) -> Any:
    """NumPy has no backward pass."""
    return on_backward([leaf], (), list)


def straight_through(values: Sequence[Any], leaves: Sequence[Any]) -> Any:
    """NumPy has no backward pass."""
    return on_backward(values, leaves, list)


def compile(function: Callable[..., Any]) -> None:
    """NumPy has no compiler."""
    return None


def from_numpy(array: Any) -> Any:
    """The array itself."""
    return array


def placed(array: Any, like: Any) -> Any:
    """A copy."""
    return np.array(array)


def to_numpy(leaf: Any) -> Any:
    """The array itself."""
    return np.asarray(leaf)


def _register() -> None:
    from gradxform.backend.lookup import register

    register(sys.modules[__name__])


_register()
