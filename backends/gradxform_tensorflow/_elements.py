"""Formulas of elements, and sums over axes: on the host where values may be read, else in float64 tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradxform.backend.host import elements as host
from gradxform.numerics import sums
from gradxform.numerics.double_double import Pair
from gradxform.numerics.elementwise import in_range, of_elements
from gradxform.numerics.ranged import evaluate, in_float64
from gradxform_tensorflow import _casting as casting
from gradxform_tensorflow import _eager
from gradxform_tensorflow._scalars import Namespace

_WIDE = (tf.float64, tf.complex128)


def elementwise(
    formula: Callable[..., Any], column: Sequence[Any], numbers: Sequence[Any], factor: Any, static: dict[str, Any]
) -> Any:
    """A formula of one leaf's elements, in float32, or float64 for float64 leaves; complex ones by their parts."""
    if _is_readable([*column, *numbers, factor]):
        given = list(map(_on_host, numbers))
        return tf.constant(host.elementwise(formula, list(map(_on_host, column)), given, _on_host(factor), static))
    leaf, double = column[0], column[0].dtype in _WIDE
    given = list(map(casting.wide, numbers))
    factor = None if factor is None else casting.wide(factor)

    def real(parts: Sequence[Any]) -> Any:
        wide = [part if isinstance(part, Pair) else casting.to(part, tf.float64) for part in parts]
        made = of_elements(formula, Namespace, wide, given, factor, double, static)
        return casting.to(made, tf.float64 if double else tf.float32)

    if not leaf.dtype.is_complex:
        return real(column)
    return tf.complex(real(list(map(tf.math.real, column))), real(list(map(tf.math.imag, column))))


def _is_readable(operands: Sequence[Any]) -> bool:
    if any(isinstance(operand, Pair) for operand in operands):
        return False
    return _eager.readable([operand for operand in operands if tf.is_tensor(operand)])


def _on_host(operand: Any) -> Any:
    return _eager.view(operand) if tf.is_tensor(operand) else operand


def sum_over(leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
    """Sums over some axes: NumPy arrays where values may be read, else tensors; a pair for a float64 leaf."""
    if _is_readable([leaf, weights]):
        return host.sum_over(_eager.view(leaf), axes, None if weights is None else _on_host(weights))

    def add(values: Any) -> Any:
        return tf.reduce_sum(values, axis=axes, keepdims=True)

    wide = casting.to(leaf, tf.float64)
    if weights is None:
        return sums.total_signed(Namespace, wide, add) if leaf.dtype == tf.float64 else add(wide)
    if leaf.dtype != tf.float64:
        return add(wide * casting.wide(evaluate(in_float64, Namespace, [weights], {})))
    weights = in_range(Namespace, weights)
    parts = [tf.broadcast_to(casting.wide(part), tf.shape(leaf)) for part in _parts(weights)]
    return sums.total_products(Namespace, wide, Pair(*parts) if len(parts) > 1 else parts[0], add)


def _parts(weights: Any) -> tuple[Any, ...]:
    return weights[:2] if isinstance(weights, Pair) else (weights,)
