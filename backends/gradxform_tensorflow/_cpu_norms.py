"""2-norms of many tensors in graphs and under a tape, in processes with CPUs only.

Small tensors of equal size are packed in float64. Large float32 tensors are split into rows: squares are summed in
float32 per row, and rows in float64. If the result leaves float32's range, or one row dominates, or rows rounded alike
add up their errors, the tensors are read again in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.norms import safe_root
from gradxform_tensorflow import _eager, _graph, _packing
from gradxform_tensorflow._namespace import Namespace

_ROW = 64
_WIDE_ROW = 256
_LARGE = 1 << 14
_FUSED = 1 << 17
"""Number of elements from which writing the squares to memory costs more than an op in two threads."""
_HEAVY = 1 / 16
_SAMPLE = 24
"""Rows per leaf that show whether many rows are alike."""
_NARROW = (tf.float32, tf.float16, tf.bfloat16)
_ONLY_ROUNDING_LOST = 2.0**-100
"""Above n times this, a sum of n float32 squares loses less to underflow than to rounding."""


def norms(leaves: Sequence[Any]) -> Any:
    """Vector of the leaves' 2-norms, in float64; no leaf has 64 bits."""
    return safe_root(Namespace, _squares(leaves, range(len(leaves))), 2)


def _squares(leaves: Sequence[Any], places: Sequence[int]) -> Any:
    """Sums of squares of some leaves, as a vector; no leaf has 64 bits."""
    found: list[tuple[Sequence[int], Any]] = []
    large = [i for i in places if _is_large(leaves[i])]
    huge = [i for i in large if leaves[i].shape.num_elements() >= _FUSED]
    for group, row, totals in ((sorted({*large} - {*huge}), _ROW, _in_steps), (huge, _WIDE_ROW, _on_cpus)):
        if group:
            found.append((group, _row_totals(row, totals, [leaves[i] for i in group])))
    narrow = [i for i in places if leaves[i].dtype in _NARROW]
    found += (part for group in _packing.small(leaves, narrow).values() for part in _sums_together(leaves, group))
    taken = {i for group, _ in found for i in group}
    alone = [i for i in places if i not in taken]
    if alone:
        sums = [tf.add_n([2.0 * tf.nn.l2_loss(tf.cast(part, tf.float64)) for part in _parts(leaves[i])]) for i in alone]
        found.append((alone, tf.stack(sums)))
    order = [i for group, _ in found for i in group]
    whole = tf.concat([sums for _, sums in found], 0) if len(found) > 1 else found[0][1]
    return whole if order == sorted(order) else tf.gather(whole, np.argsort(order))


def _sums_together(leaves: Sequence[Any], places: Sequence[int]) -> Iterator[tuple[Sequence[int], Any]]:
    """Sums of squares of small leaves, by one op for each size."""
    sizes: dict[int, list[int]] = {}
    for i in places:
        sizes.setdefault(leaves[i].shape.num_elements(), []).append(i)
    for size, group in sizes.items():
        whole = tf.reshape(tf.cast(_packing.pack([leaves[i] for i in group]), tf.float64), [len(group), size])
        yield group, tf.reduce_sum(tf.square(whole), axis=1)


def _parts(leaf: Any) -> list[Any]:
    return [tf.math.real(leaf), tf.math.imag(leaf)] if leaf.dtype.is_complex else [leaf]


def _is_large(leaf: Any) -> bool:
    count = leaf.shape.num_elements()
    return leaf.dtype == tf.float32 and count is not None and count > _LARGE


def _row_totals(row: int, totals_of: Callable[..., Any], leaves: Sequence[Any]) -> Any:
    """Sums of squares of large float32 leaves, as a float64 vector."""
    counts = np.array([leaf.shape.num_elements() for leaf in leaves], np.float64)

    @tf.custom_gradient
    def squares(*leaves: Any) -> tuple[Any, Callable[..., Any]]:
        rows, rest = zip(*(_rows(leaf, row) for leaf in leaves), strict=True)
        total, heaviest = totals_of(*rows)
        total += tf.stack(rest)
        sound = tf.math.is_finite(total) & (total > counts * _ONLY_ROUNDING_LOST) & (heaviest < total * _HEAVY)
        sums = _eager.cond(tf.reduce_all(sound | tf.math.is_nan(total)), lambda: total, lambda: _exact_totals(leaves))

        def gradient(upstream: Any) -> list[Any]:
            factors = tf.unstack(2.0 * upstream, num=len(leaves))
            return [
                tf.cast(tf.cast(leaf, tf.float64) * factor, leaf.dtype)
                for leaf, factor in zip(leaves, factors, strict=True)
            ]

        return sums, gradient

    return squares(*leaves)


def _rows(leaf: Any, row: int) -> tuple[Any, Any]:
    """Rows of a leaf, and the sum of squares of the numbers that fill no row."""
    rest = leaf.shape.num_elements() % row
    if not rest:
        return tf.reshape(leaf, [-1, row]), tf.constant(0.0, tf.float64)
    flat = tf.reshape(leaf, [-1])
    return tf.reshape(flat[:-rest], [-1, row]), 2.0 * tf.nn.l2_loss(tf.cast(flat[-rest:], tf.float64))


def _in_steps(*leaves: Any) -> tuple[Any, Any]:
    """Sums of squares of leaves in rows, and of their heaviest rows."""
    rows = [tf.reshape(leaf, [-1, _ROW]) for leaf in leaves]
    sums = [tf.cast(tf.reduce_sum(tf.square(each), axis=1), tf.float64) for each in rows]
    return tf.stack([tf.reduce_sum(each) for each in sums]), tf.stack([tf.reduce_max(each) for each in sums])


def _at_once(*leaves: Any) -> tuple[Any, Any]:
    """The same by an op that does not write the squares to memory, and that XLA lacks.

    It rounds the root of each row. If many rows are alike, these errors add up: the heaviest row is infinite then.
    """
    norms = [tf.raw_ops.EuclideanNorm(input=leaf, axis=1) for leaf in leaves]
    halves = tf.stack([tf.nn.l2_loss(tf.cast(each, tf.float64)) for each in norms])
    heaviest = tf.stack([tf.reduce_max(each) for each in norms])
    alike = _are_alike(tf.stack([each[:: each.shape[0] // _SAMPLE][:_SAMPLE] for each in norms]))
    return 2.0 * halves, tf.square(tf.cast(tf.where(alike, np.inf, heaviest), tf.float64))


def _are_alike(norms: Any) -> Any:
    """Whether an eighth of a leaf's nonzero norms equal others."""
    ordered = tf.math.top_k(norms, _SAMPLE).values
    differ = ordered > tf.concat([ordered[:, 1:], tf.zeros_like(ordered[:, :1])], 1)
    different, all_of_them = (tf.math.count_nonzero(each, axis=1) for each in (differ, ordered))
    return (8 * different <= 7 * all_of_them) & (all_of_them > 0)


_on_cpus = functools.partial(_graph.on_cpus, _at_once, _in_steps)


def _exact_totals(leaves: Sequence[Any]) -> Any:
    return tf.stack([2.0 * tf.nn.l2_loss(tf.cast(leaf, tf.float64)) for leaf in leaves])
