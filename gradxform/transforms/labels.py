"""The names under which the transforms of a chain or a partition are measured, in letters that all loggers take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradxform.core.foreign import name_of
from gradxform.core.transformation import GradientTransformation
from gradxform.core.where import FUNCTIONS, Variables, path_of

_SHOWN = 3


def told_apart(parts: Sequence[Any]) -> list[str | None]:
    """Names for masks of one kind in a chain, by what they choose; None where the transform's own name will do."""
    kinds = list(map(name_of, parts))
    return [_of_mask(part) if kinds.count(kind) > 1 else None for part, kind in zip(parts, kinds, strict=True)]


def of_rules(rules: Mapping[Any, Any]) -> list[str]:
    """A name for each rule of a partition: by what it chooses, else its number."""
    return [_of_where(where) or str(rank) for rank, where in enumerate(rules)]


def _of_mask(part: Any) -> str | None:
    """What a mask is and is for, such as "masked/encoder/clip_norm" for "encoder/**"; None for other transforms."""
    if not isinstance(part, GradientTransformation) or part.name not in ("masked", "freeze"):
        return None
    *inside, where = (value for _, value in part.arguments)
    label = _of_where(where)
    return "/".join([part.name, label, *map(name_of, inside)]) if label else None


def _of_where(where: Any) -> str:
    """What a `where` chooses: the keys of a pattern, a function's name, a variable's; empty where nothing tells."""
    if isinstance(where, (list, tuple)):  # variables among them
        return _of_several(map(path_of, where) if isinstance(where, Variables) else map(_of_where, where))
    if isinstance(where, FUNCTIONS):
        where = getattr(getattr(where, "func", where), "__name__", "")  # of a functools.partial, its function's
    pattern = where.pattern if isinstance(where, re.Pattern) else where
    return "/".join(re.findall(r"[\w. -]+", pattern)) if isinstance(pattern, str) else ""


def _of_several(names: Iterable[str]) -> str:
    """A few names as one; empty if one of them is."""
    found = list(names)
    more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return " ".join([*found[:_SHOWN], *more]) if all(found) else ""
