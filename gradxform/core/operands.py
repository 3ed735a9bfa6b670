"""Find and replace the arrays among a transformation's hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradxform.backend.protocol import Backend
from gradxform.core.transformation import GradientTransformation, factories
from gradxform.core.where import Variables
from gradxform.numerics import Array

Rebuild = Callable[[Sequence[Array]], GradientTransformation]


def split(tx: GradientTransformation, backend: Backend) -> tuple[list[Array], Rebuild]:
    """Return the arrays in a transformation, and a function that rebuilds it with others, such as tracers."""
    found: list[Array] = []

    def is_array(value: Any) -> bool:
        return isinstance(value, backend.types) and "bool" not in backend.dtype(value)  # a mask must stay readable

    def note(value: Any) -> Any:
        if is_array(value):
            found.append(value)
        return value

    replaced(tx, note)

    def rebuild(arrays: Sequence[Array]) -> GradientTransformation:
        rest: Iterator[Array] = iter(arrays)
        return replaced(tx, lambda value: next(rest) if is_array(value) else value) if found else tx

    return found, rebuild


def values(tx: Any) -> Iterator[Any]:
    """Yield the hyperparameters of a transformation and its inner ones, and transformations of other libraries."""
    if isinstance(tx, GradientTransformation):
        tx = [value for _, value in tx.arguments]
    if isinstance(tx, Variables):  # they select gradients
        return
    if isinstance(tx, (list, tuple, dict)) and not hasattr(tx, "init"):
        for item in tx.values() if isinstance(tx, dict) else tx:
            yield from values(item)
    else:
        yield tx


def replaced(value: Any, swap: Callable[[Any], Any]) -> Any:
    """Replace the numbers, arrays and functions in a hyperparameter; return it unchanged if nothing changes."""
    if isinstance(value, GradientTransformation) and value.name in factories:
        given = [(name, replaced(item, swap)) for name, item in value.arguments]
        if all(new is old for (_, new), (_, old) in zip(given, value.arguments, strict=True)):
            return value
        positional = [item for name, item in given if name is None]
        return factories[value.name](*positional, **{name: item for name, item in given if name is not None})
    if type(value) is dict:
        swapped = {key: replaced(item, swap) for key, item in value.items()}
        return swapped if any(swapped[key] is not value[key] for key in value) else value
    return swap(value)
