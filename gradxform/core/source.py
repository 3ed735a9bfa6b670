"""The source of a flat view: the leaves of one tree, and the structure to rebuild it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend.lookup import belong, is_number, owner, unwrapped
from gradxform.backend.misplaced import as_leaf, short
from gradxform.backend.protocol import Backend
from gradxform.numerics import Array

SINGLE = frozenset({"float16", "bfloat16", "float32", "complex64"})
DOUBLE = frozenset({"float64", "complex128"})
REAL = frozenset({"float16", "bfloat16", "float32", "float64"})
INEXACT = SINGLE | DOUBLE
NARROW = frozenset({"float16", "bfloat16"})
ENDS = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""Values from here on round to infinity."""
_VOID = "float0"

Mask = tuple[bool, ...]
"""One bool per leaf. All-true and all-false masks are singletons of the source; compare with `is`."""


class Source(NamedTuple):
    """The tree behind a flat view, and the structure to rebuild it."""

    backend: Backend
    structure: Any
    slots: Sequence[Any]
    """The original leaves, including None and float0."""
    kept: Sequence[int]
    """The slots of the view's leaves."""
    dtypes: tuple[str, ...]
    """The names of the leaves' dtypes, in the input and in the result."""
    kinds: frozenset[str]
    """The set of dtypes."""
    rebuild: tuple[Callable[[Array], Array] | None, ...] | None
    """For each leaf, a function that makes its values sparse again, or None if dense; None if all are dense."""
    find_paths: Callable[[], list[str]]
    everything: Mask
    nothing: Mask
    owners: Sequence[Any] | None = None
    """The variables or parameters of the slots, if an adapter knows them."""

    @property
    def paths(self) -> list[str]:
        """The path of each leaf of the view."""
        paths = self.find_paths()
        return [paths[slot] for slot in self.kept]

    def given(self, leaf: int) -> Array:
        """Return the original of a leaf."""
        return self.slots[self.kept[leaf]]

    def path(self, leaf: int) -> str:
        """Return the path of a leaf, for an error message."""
        return self.paths[leaf] or "(the only leaf)"

    def mask(self, bools: Iterable[bool]) -> Mask:
        """Convert bools to a mask."""
        found = tuple(bools)
        return self.everything if all(found) else found if any(found) else self.nothing


def read(
    backend: Backend,
    slots: Sequence[Any],
    structure: Any,
    paths: Callable[[], list[str]],
    owners: Sequence[Any] | None = None,
) -> tuple[Source, tuple[Array, ...]] | None:
    """Read leaves found by a tree engine or an adapter; return the source and the values.

    None if all are holes.

    Raises:
        TypeError: arrays of two frameworks, or a leaf that is not an array; names the paths.
    """
    if not belong(backend, slots):
        slots = [slot if slot is None else _adopt(backend, slots, i, paths) for i, slot in enumerate(slots)]
    kept: Sequence[int] = range(len(slots))
    leaves: Sequence[Any] = slots
    if any(slot is None for slot in slots):
        kept = [i for i, slot in enumerate(slots) if slot is not None]
        leaves = [slots[i] for i in kept]
    dtypes = _names(backend, leaves)
    if _VOID in dtypes:
        held = [place for place, dtype in enumerate(dtypes) if dtype != _VOID]
        kept, leaves, dtypes = [kept[i] for i in held], [leaves[i] for i in held], [dtypes[i] for i in held]
    if not kept:
        return None
    dense, rebuild = backend.dense(leaves)
    count = len(kept)
    source = Source(
        backend,
        structure,
        slots,
        kept,
        tuple(dtypes),
        frozenset(dtypes),
        None if rebuild is None else tuple(rebuild),
        paths,
        (True,) * count,
        (False,) * count,
        owners,
    )
    return source, tuple(dense)


def _names(backend: Backend, leaves: Sequence[Array]) -> Sequence[str]:
    """Return the names of the dtypes; each dtype is looked up once."""
    kinds = [leaf.dtype for leaf in leaves]
    names = {kind: backend.dtype(leaf) for kind, leaf in dict(zip(kinds, leaves, strict=True)).items()}
    return list(names.values()) * len(kinds) if len(names) == 1 else [names[kind] for kind in kinds]


def _adopted(backend: Backend, leaf: Any, paths: Callable[[], list[str]], i: int) -> Array:
    try:
        return backend.adopt(leaf)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the leaf at {paths()[i]!r} cannot be an array of {backend.name}: {error}") from error


def _adopt(backend: Backend, slots: Sequence[Any], i: int, paths: Callable[[], list[str]]) -> Array:
    leaf = unwrapped(slots[i])
    found = owner(leaf)
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(
            f"the leaf at {paths()[i]!r} is a masked array; its mask would be lost: fill or compress it first"
        )
    if found is backend:
        return leaf
    if (found is not None and found.name == "numpy") or is_number(leaf):
        return _adopted(backend, leaf, paths, i)
    path = paths()[i]
    if found is None:
        raise TypeError(
            as_leaf(path, leaf) or f"the leaf at {path!r} is a {type(leaf).__name__}, not an array: {short(leaf)}"
        )
    other = next((j for j, slot in enumerate(slots) if owner(slot) is backend), None)
    if other is None:
        kind = type(leaf).__name__
        raise TypeError(f"the leaf at {path!r} belongs to {found.name} ({kind}); expected an array of {backend.name}")
    raise TypeError(
        f"arrays of two frameworks in one tree: {path!r} is {found.name}'s ({type(leaf).__name__}), "
        f"{paths()[other]!r} is {backend.name}'s; convert one of them"
    )
