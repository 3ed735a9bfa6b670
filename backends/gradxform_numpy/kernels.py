"""NumPy: the reference backend, and its fast paths where these are equally accurate.

Norms are summed in float32 rows; products and clips are computed in the leaves' dtypes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import kernels, threads
from gradxform.backend.host import namespace as host
from gradxform.backend.lookup import register
from gradxform.backend.protocol import Containers
from gradxform.numerics.elementwise import LEAST, MOST
from gradxform.numerics.elementwise import times as rescaled

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_names: dict[Any, str] = {}


class Plain(Containers):
    """NumPy without fast paths."""

    name, title = "numpy", "NumPy"
    types = (np.ndarray, np.generic)
    xp: Any = kernels.Block()
    module = np
    custom_backward = None

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Silence warnings."""
        return np.errstate(all="ignore")

    def dtype(self, leaf: Any) -> str:
        """Name of the dtype, in any byte order; JAX's dtype for gradients of integers is structured."""
        known = _names.get(leaf.dtype)
        if known is None:
            known = _names[leaf.dtype] = "float0" if leaf.dtype.names == ("float0",) else str(leaf.dtype.name)
        return known

    def copied(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Copy the leaves, keeping their types; into other arrays if given."""
        if out is None or not _are_arrays(out):
            return [leaf.copy() for leaf in leaves]
        pairs = list(zip(out, leaves, strict=True))
        threads.spread(lambda pair: np.copyto(*pair), pairs, [leaf.size for leaf in leaves])
        return list(out)

    def from_numpy(self, array: Any, like: Any = None) -> Any:
        """The array itself, or a copy."""
        return array if like is None else np.array(array)

    def to_numpy(self, leaf: Any) -> Any:
        """The array itself."""
        return np.asarray(leaf)

    def zeros(self, leaves: Sequence[Any], inplace: bool = False) -> list[Any]:
        """Fresh zeros, a NumPy scalar for a NumPy scalar; or the leaves, filled with zeros."""
        if not (inplace and _are_arrays(leaves)):
            some = [np.zeros(leaf.shape, leaf.dtype, "F" if leaf.flags.fnc else "C") for leaf in leaves]
            return self.as_given(leaves, some)
        threads.spread(lambda leaf: leaf.fill(0.0), leaves, [leaf.size for leaf in leaves])
        return list(leaves)

    def as_given(self, leaves: Sequence[Any], new: list[Any]) -> list[Any]:
        """NumPy scalars for NumPy scalars, arrays for arrays."""
        if {*map(type, leaves), *map(type, new)} == {np.ndarray}:
            return new
        pairs = zip(leaves, new, strict=True)
        return [np.asanyarray(own) if isinstance(leaf, np.ndarray) else own[()] for leaf, own in pairs]


class NumPy(kernels.Readable, Plain):
    """NumPy with fast paths."""

    xp = host.NUMPY

    def view(self, array: Any) -> Any:
        """The array itself."""
        return array

    compute = staticmethod(host.compute)
    norms = staticmethod(host.norms)
    norms_over = staticmethod(host.norms_over)
    overwrite = staticmethod(kernels.overwrite)

    @host.QUIET
    def multiply(self, leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
        """Each leaf times its factor; unchanged if the factor is one."""
        each = factors if type(factors) is float else np.asarray(factors, np.float64).tolist()
        if isinstance(each, float):
            steps = {kind: _step(each, kind) for kind in {leaf.dtype for leaf in leaves}}
            by = [steps[leaf.dtype] for leaf in leaves]
        else:
            by = [_step(factor, leaf.dtype) for leaf, factor in zip(leaves, each, strict=True)]
        own = [leaf if isinstance(leaf, np.ndarray) else None for leaf in leaves] if inplace else [None] * len(leaves)
        times: Any = np.multiply if set(map(type, by)) == {np.ndarray} else _times
        if inplace and threads.worth(len(leaves), sum([leaf.size for leaf in leaves])):
            if all([leaf.base is None for leaf in leaves]):  # otherwise two may share memory
                rows = list(zip(leaves, by, own, strict=True))
                return threads.spread(lambda row: times(*row), rows, [leaf.size for leaf in leaves])
        return list(map(times, leaves, by, own))

    @host.QUIET
    def clip(self, leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
        """min(max(factor * leaf, low), high)."""
        scaled: Sequence[Any] = leaves
        if factors is not None:
            wide = [leaf.astype(np.float32) if leaf.dtype.itemsize == 2 else leaf for leaf in leaves]
            scaled = self.multiply(wide, factors, inplace)
        bounds, found = dict[Any, list[Any]](), []
        for new, old in zip(scaled, leaves, strict=True):
            kind, free = (old.dtype, new.dtype), isinstance(new, np.ndarray) and (inplace or new is not old)
            out = new if free else None
            least, most = bounds.get(kind) or bounds.setdefault(kind, _rounded(low, high, *kind))
            found.append(new.clip(least, most, out) if kind[1].kind == "f" else _between(new, least, most, out))
        return found


def _are_arrays(leaves: Sequence[Any]) -> bool:
    """Whether all are writable arrays; a product of an array without axes is a scalar."""
    return all([isinstance(leaf, np.ndarray) and leaf.flags.writeable for leaf in leaves])


def _step(factor: float, dtype: Any) -> Any:
    """The factor in a dtype, if one multiplication with it is enough."""
    enough = factor != 1 and (dtype == _FLOAT64 or (dtype == _FLOAT32 and LEAST <= abs(factor) <= MOST))
    return np.array(factor, dtype) if enough else factor


def _times(leaf: Any, by: Any, out: Any) -> Any:
    if isinstance(by, np.ndarray):
        return np.multiply(leaf, by, out)
    if by == 1:
        return leaf
    result = rescaled(host.NUMPY, np.asarray(leaf), by)
    if out is None:
        return result
    np.copyto(out, result)
    return out


def _rounded(low: Any, high: Any, dtype: Any, wide: Any) -> list[Any]:
    """Round bounds to a dtype, in another one."""
    return [None if bound is None else np.asarray(bound, dtype).astype(wide, copy=False) for bound in (low, high)]


def _between(leaf: Any, low: Any, high: Any, out: Any) -> Any:
    """Clip bfloat16, which np.clip converts to float32."""
    for bound, nearer in ((low, np.maximum), (high, np.minimum)):
        leaf = leaf if bound is None else nearer(leaf, bound, out=out)
    return leaf


backend = NumPy()
register(backend)
