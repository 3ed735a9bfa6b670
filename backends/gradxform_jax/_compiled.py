"""Compile kernels of the plain backend, each as one function of all leaves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

_PART = 128
"""Leaves of a part: few enough that a kernel compiles in a tenth of a second."""
_MANY = 2 * _PART


def compiled(
    kernel: Callable[..., Any], each: Sequence[str] = (), columns: str | None = None, static: Sequence[str] = ()
) -> Callable[..., Any]:
    """Return a kernel that compiles once for each structure of its arguments.

    Eager code computes many leaves some at a time, since XLA compiles small kernels faster, and one for all parts that
    are alike.

    Args:
        kernel: A function of arrays and numbers, or a method of a backend.
        each: Arguments with an item for each leaf, or one for all.
        columns: An argument that is a list of such arguments.
        static: Arguments that are part of the code.
    """
    names = list(inspect.signature(kernel).parameters)
    static = [name for name in names if name in ("self", *static)]
    numbers = [name for name in names if name in ("numbers", "factors", "low", "high")]
    run = jax.jit(kernel, static_argnames=static)

    @functools.wraps(kernel)
    def call(*args: Any, **named: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | named
        given |= {name: None for name in ("inplace", "out") if name in given}  # JAX writes into no array
        given |= {name: tuple(given[name]) for name in static if isinstance(given[name], list)}
        given |= {name: strong(given[name]) for name in numbers if name in given}
        count = len(given[columns][0]) if columns else len(given[each[0]]) if each else 1
        with jax.enable_x64(True):
            if count < _MANY or is_traced(given):
                return run(**given)
            found: list[Any] = []
            for start in range(0, count, _PART):
                some = {name: _part(given[name], start) for name in each}
                if columns:
                    some[columns] = [_part(column, start) for column in given[columns]]
                found += run(**given | some)
            return found

    return call


def _part(items: Any, start: int) -> Any:
    """Return the items of some leaves; a number is for all."""
    return items[start : start + _PART] if isinstance(items, (list, tuple)) or getattr(items, "ndim", 0) > 0 else items


def strong(given: Any) -> Any:
    """Return Python numbers, alone or in a list, in float64, and the values of variables.

    Weakly typed numbers would compile once more, and `jax.jit` takes no variables of Keras.
    """
    if isinstance(given, (list, tuple)):
        return [strong(item) for item in given]
    if type(given) in (int, float):
        return np.float64(given)
    if isinstance(given, jax.Array) or not hasattr(given, "__jax_array__") or not jax.tree_util.all_leaves([given]):
        return given
    return given.__jax_array__()


def is_traced(tree: Any) -> bool:
    """Whether a tree has a tracer."""
    return any([isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree)])
