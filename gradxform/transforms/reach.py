"""Tell adapters which leaves a transform may change or measure, so that they keep no copies of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.core.flat import Flat
from gradxform.core.transformation import GradientTransformation
from gradxform.core.where import check, chosen

_Reach = Callable[[Sequence[Any], Flat], Sequence[bool]]


def reached(tx: Any, view: Flat) -> Sequence[bool]:
    """For each leaf of a view, whether the transform may change or measure it."""
    if not isinstance(tx, GradientTransformation) or tx.name not in _RULES:
        return view.scope
    return _RULES[tx.name]([value for _, value in tx.arguments], view)


def _by_any(parts: Sequence[Any], view: Flat) -> Sequence[bool]:
    found = [reached(part, view) for part in parts]
    return tuple(map(any, zip(*found, strict=True))) if found else view.source.nothing


def _in_mask(arguments: Sequence[Any], view: Flat) -> Sequence[bool]:
    return reached(arguments[0], view.focus(_chosen("masked", arguments[1], view)))


def _frozen(arguments: Sequence[Any], view: Flat) -> Sequence[bool]:
    return view.focus(_chosen("freeze", arguments[0], view)).scope


def _by_rules(arguments: Sequence[Any], view: Flat) -> Sequence[bool]:
    rules, default = arguments[0], arguments[1:]
    free, found = view.scope, []
    for where, tx in rules.items():
        mask = _chosen("partition", where, view)
        found.append(reached(tx, view.focus(tuple(a and b for a, b in zip(mask, free, strict=True)))))
        free = tuple(a and not b for a, b in zip(free, mask, strict=True))
    found += [reached(tx, view.focus(free)) for tx in default]
    return tuple(map(any, zip(*found, strict=True))) if found else view.source.nothing


def _chosen(name: str, where: Any, view: Flat) -> Sequence[bool]:
    return chosen(name, check(name, where), view)


_RULES: dict[str, _Reach] = {
    "chain": _by_any,
    "freeze": _frozen,
    "identity": lambda arguments, view: view.source.nothing,
    "masked": _in_mask,
    "partition": _by_rules,
}
"""Transforms that leave some leaves alone, by name; any other reaches every leaf in its scope."""
