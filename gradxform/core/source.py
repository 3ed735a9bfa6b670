"""A tree of gradients that was read, and its dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend.errors import not_an_array
from gradxform.backend.lookup import is_number, known, owner, unwrapped
from gradxform.backend.protocol import Backend
from gradxform.core.group import Mask as Mask
from gradxform.numerics import Array

SINGLE = frozenset({"float16", "bfloat16", "float32", "complex64"})
DOUBLE = frozenset({"float64", "complex128"})
REAL = frozenset({"float16", "bfloat16", "float32", "float64"})
INEXACT = SINGLE | DOUBLE
NARROW = frozenset({"float16", "bfloat16"})
ENDS = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""Values from here on round to infinity."""
FLOATING = "gradients must be floating-point or complex; cast it, or exclude it with masked(...) or None"


class Source(NamedTuple):
    """The tree that was read."""

    structure: Any
    slots: Sequence[Any]
    """The original leaves, including None and float0."""
    kept: Sequence[int]
    """The slots of the leaves that are gradients."""
    dtypes: tuple[str, ...]
    """The names of these leaves' dtypes, in the input and in the result."""
    kinds: frozenset[str]
    """The set of dtypes."""
    rebuild: tuple[Callable[[Array], Array] | None, ...] | None
    """For each leaf, a function that makes its values sparse again, or None if dense; None if all are dense."""
    find_paths: Callable[[], list[str]]
    owners: Sequence[Any] | None = None
    """The variables or parameters of the slots, if an adapter knows them."""

    @property
    def paths(self) -> list[str]:
        """The path of each leaf."""
        paths = self.find_paths()
        return [paths[slot] for slot in self.kept]

    def path(self, leaf: int) -> str:
        """Return the path of a leaf, for an error message."""
        return self.paths[leaf] or "(the only leaf)"

    def given(self, leaf: int) -> Array:
        """Return the original of a leaf."""
        return self.slots[self.kept[leaf]]


def names(backend: Backend, leaves: Sequence[Array]) -> Sequence[str]:
    """Return the names of the dtypes; each dtype is looked up once."""
    kinds = [leaf.dtype for leaf in leaves]
    if len(set(kinds)) == 1:
        return [backend.dtype(leaves[0])] * len(kinds)
    names = {kind: backend.dtype(leaf) for kind, leaf in zip(kinds, leaves, strict=True)}
    return [names[kind] for kind in kinds]


def adopted(backend: Backend, slots: Sequence[Any], i: int, paths: Callable[[], list[str]]) -> Array:
    """Convert a leaf that is not of a known type of the backend.

    Raises:
        TypeError: it belongs to another framework, or to none; names the paths.
    """
    leaf = unwrapped(slots[i])
    found = owner(leaf)
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(
            f"the leaf at {paths()[i]!r} is a masked array; its mask would be lost: fill or compress it first"
        )
    if found is backend:
        return leaf
    path, kind = paths()[i], type(leaf).__name__
    if (found is not None and found.name == "numpy") or is_number(leaf):
        try:
            return backend.xp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(f"the leaf at {path!r} cannot be an array of {backend.name}: {error}") from error
    if found is None:
        raise not_an_array(path, leaf, known())
    other = next((j for j, slot in enumerate(slots) if owner(slot) is backend), None)
    if other is None:
        raise TypeError(f"the leaf at {path!r} belongs to {found.name} ({kind}); expected an array of {backend.name}")
    raise TypeError(
        f"arrays of two frameworks in one tree: {path!r} is {found.name}'s ({kind}), "
        f"{paths()[other]!r} is {backend.name}'s; convert one of them"
    )
