"""Defaults for the namespaces of frameworks."""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array, dtype_name


def static(*functions: Any) -> list[Any]:
    """Return functions that stay functions as members of a class."""
    return [staticmethod(function) for function in functions]


def _same(x: Any) -> Any:
    return x


class Defaults:
    """Functions derived from the namespace's own; the class itself is the namespace."""

    @classmethod
    def sum_over(cls: Any, x: Array, axes: tuple[int, ...] | None) -> Array:
        """Sum over axes with keepdims; over all if None."""
        return cls.sum(x, axis=axes, keepdims=axes is not None)

    @classmethod
    def matmul_add(cls: Any, z: Array, x: Array, y: Array, beta: float, alpha: float) -> Array:
        """Return beta * z + alpha * x @ y for stacks of matrices, in the dtype of z; computed in float32 at least."""
        dtype = dtype_name(z)
        wide = "float64" if dtype == "float64" else "float32"
        return cls.cast(beta * cls.cast(z, wide) + alpha * cls.cast(cls.matmul(x, y), wide), dtype)

    @classmethod
    def kth_largest(cls: Any, x: Array, count: Any) -> Array:
        """Return the element of a rank, counted from 1, the largest."""
        flat = cls.reshape(x, (-1,))
        return cls.take(cls.sort(flat), flat.shape[0] - int(count))

    # Marks of an array that is used more than once, values that are computed before what uses them, once, and a product
    # that is not joined with the next one.
    materialize, apart, no_reassociation = static(_same, _same, _same)
