"""A transformation in a configuration: the expression that builds it."""

from __future__ import annotations

from gradxform import GradientTransformation, parse


def written(what: str, tx: GradientTransformation) -> str:
    """The expression of a transformation.

    Raises:
        ValueError: one that no expression builds, since it holds a function or an array.
    """
    try:
        again = parse(repr(tx))
    except (TypeError, ValueError):
        again = None
    if again != tx:
        raise ValueError(
            f"{what}: {tx!r} cannot be saved, since it holds a function or an array; build it of numbers, strings and "
            "patterns, or save the weights alone"
        )
    return repr(tx)
