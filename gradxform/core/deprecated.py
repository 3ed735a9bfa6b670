"""Former names that still work: each warns once a process, and says what to write."""

from __future__ import annotations

import warnings
from typing import Any

_told: set[str] = set()


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn the first time that `old` is used; say to write `new`."""
    if old not in _told:
        _told.add(old)
        warnings.warn(
            f"{old} is deprecated and will be removed in gradxform 2.0; write {new}", DeprecationWarning, stacklevel
        )


def field(state: Any, old: str, new: str) -> Any:
    """Return the field `new` of a state for a property of its former name."""
    owner = type(state).__name__
    warn(f"{owner}.{old}", f"{owner}.{new}", stacklevel=4)
    return getattr(state, new)
