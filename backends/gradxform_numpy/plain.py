"""NumPy backend without fast paths."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradxform.backend.containers import Containers
from gradxform.backend.host.elements import Block

_names: dict[Any, str] = {}


class Plain(Containers):
    """NumPy without its own kernels."""

    name, title = "numpy", "NumPy"
    types = (np.ndarray, np.generic)
    xp: Any = Block()
    module = np
    custom_backward = None

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Silence warnings."""
        return np.errstate(all="ignore")

    def dtype(self, leaf: Any) -> str:
        """Name of the dtype; JAX's dtype for gradients of integers is structured."""
        return name_of(leaf)

    def copied(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Copy the leaves, keeping their types."""
        return [leaf.copy() for leaf in leaves]

    def from_numpy(self, array: Any) -> Any:
        """The array itself."""
        return array

    def to_numpy(self, leaf: Any) -> Any:
        """The array itself."""
        return np.asarray(leaf)

    def placed(self, array: Any, like: Any) -> Any:
        """A copy."""
        return np.array(array)

    def zeros(self, leaves: Sequence[Any], inplace: bool = False) -> list[Any]:
        """Fresh zeros; a NumPy scalar for a NumPy scalar."""
        return [np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else leaf.dtype.type(0) for leaf in leaves]

    def as_given(self, leaf: Any, new: Any) -> Any:
        """A NumPy scalar for a NumPy scalar."""
        return like(leaf, new)


def name_of(leaf: Any) -> str:
    """Name of a dtype, in any byte order."""
    known = _names.get(leaf.dtype)
    if known is None:
        known = _names[leaf.dtype] = "float0" if leaf.dtype.names == ("float0",) else str(leaf.dtype.name)
    return known


def like(leaf: Any, new: Any) -> Any:
    """New values for a leaf: an array, or a NumPy scalar for a NumPy scalar."""
    return np.asarray(new) if isinstance(leaf, np.ndarray) else new[()]
