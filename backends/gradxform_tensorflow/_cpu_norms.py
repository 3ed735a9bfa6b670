"""2-norms of many tensors in graphs and under a tape, in processes with CPUs only.

Small tensors of equal size are packed in float64. Large float32 tensors are split into rows: squares are summed in
float32 per row, and rows in float64. If the result leaves float32's range, or one row dominates, or rows rounded alike
add up their errors, the tensors are read again in float64.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.norms import safe_root
from gradxform_tensorflow import _eager, _graph, _packing
from gradxform_tensorflow._namespace import Namespace

_raw = tf.raw_ops
"""Their wrappers take a sixth of the time of a trace."""
_ROW = 64
_SHORT_ROW = 4
_WIDE_ROW = 256
_LARGE = 1 << 14
_FUSED = 1 << 19
"""Number of elements in all large leaves from which writing squares to memory costs more than a few more ops."""
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
    large = sorted((i for i in places if _is_large(leaves[i])), key=lambda i: leaves[i].shape.num_elements())
    if large:
        found.append((large, _row_totals([leaves[i] for i in large])))
    narrow = [i for i in places if leaves[i].dtype in _NARROW]
    found += (part for group in _packing.small(leaves, narrow).values() for part in _sums_together(leaves, group))
    taken = {i for group, _ in found for i in group}
    alone = [i for i in places if i not in taken]
    if alone:
        found.append((alone, _exact_totals([leaves[i] for i in alone])))
    order = [i for group, _ in found for i in group]
    whole = tf.concat([sums for _, sums in found], 0) if len(found) > 1 else found[0][1]
    return whole if order == sorted(order) else tf.gather(whole, np.argsort(order))


def _sums_together(leaves: Sequence[Any], places: Sequence[int]) -> Iterator[tuple[Sequence[int], Any]]:
    """Sums of squares of small leaves, by one op for each size of which there are some."""
    sizes: dict[int, list[int]] = {}
    for i in places:
        sizes.setdefault(leaves[i].shape.num_elements(), []).append(i)
    for size, group in sizes.items():
        if len(group) >= _packing.FEW:
            whole = tf.reshape(tf.cast(_packing.pack([leaves[i] for i in group]), tf.float64), [len(group), size])
            yield group, tf.reduce_sum(tf.square(whole), axis=1)


def _is_large(leaf: Any) -> bool:
    count = leaf.shape.num_elements()
    return leaf.dtype == tf.float32 and count is not None and count > _LARGE


def _row_totals(leaves: Sequence[Any]) -> Any:
    """Sums of squares of large float32 leaves in order of their sizes, as a float64 vector."""
    counts = np.array([leaf.shape.num_elements() for leaf in leaves], np.float64)
    rows, totals_of = [_ROW] * len(leaves), _in_short_steps if _graph.is_xla() else _in_steps
    if counts.sum() >= _FUSED:
        rows, totals_of = [_row(int(count)) for count in counts], _on_cpus

    @tf.custom_gradient
    def squares(*leaves: Any) -> tuple[Any, Callable[..., Any]]:
        shapes = {row: tf.constant([-1, row]) for row in dict.fromkeys(rows)}
        whole = [
            _raw.Reshape(tensor=_whole(leaf, row), shape=shapes[row]) for leaf, row in zip(leaves, rows, strict=True)
        ]
        total, heaviest = totals_of(*whole)
        if any(counts % rows):
            total += _squares_left(leaves, rows)
        sound = (total > counts * _ONLY_ROUNDING_LOST) & (heaviest < total * _HEAVY)  # an infinite row is heavy
        unsound = ~tf.reduce_all(sound)
        sums = _eager.cond(unsound, lambda: _exact_totals(leaves), lambda: total)

        def gradient(upstream: Any) -> list[Any]:
            whole = tf.convert_to_tensor(upstream)  # slices, where the norms are put in order
            factors = tf.unstack(2.0 * whole, num=len(leaves))
            return [
                tf.cast(tf.cast(leaf, tf.float64) * factor, leaf.dtype)
                for leaf, factor in zip(leaves, factors, strict=True)
            ]

        return sums, gradient

    return squares(*leaves)


def _row(count: int) -> int:
    """The length of rows of which a leaf has a whole number, if there is one."""
    return next((row for row in range(_WIDE_ROW, _WIDE_ROW // 2, -1) if count % row == 0), _WIDE_ROW)


def _whole(leaf: Any, row: int) -> Any:
    """A leaf without the numbers at its end that fill no row."""
    rest = leaf.shape.num_elements() % row
    return tf.reshape(leaf, [-1])[:-rest] if rest else leaf


def _squares_left(leaves: Sequence[Any], rows: Sequence[int]) -> Any:
    """Sums of squares of the numbers that fill no row."""
    none = tf.constant(0.0, tf.float64)
    rests = [(leaf, leaf.shape.num_elements() % row) for leaf, row in zip(leaves, rows, strict=True)]
    return 2.0 * tf.stack([_half(tf.reshape(leaf, [-1])[-rest:]) if rest else none for leaf, rest in rests])


def _in_steps(*leaves: Any) -> tuple[Any, Any]:
    """Sums of squares of leaves in rows, and of their heaviest rows; leaves of one size lie side by side."""
    axis = tf.constant(1)
    found = []
    for group in _alike(leaves):
        squares = [_raw.Square(x=leaf) for leaf in group]
        sums = tf.cast(tf.stack([_raw.Sum(input=each, axis=axis) for each in squares]), tf.float64)
        found.append((tf.reduce_sum(sums, axis), tf.reduce_max(sums, axis)))
    return _joined(found)


def _in_short_steps(*leaves: Any) -> tuple[Any, Any]:
    """The same in parts of rows: XLA adds the numbers of a row one by one."""
    lengths = [max(part for part in range(1, _SHORT_ROW + 1) if leaf.shape[1] % part == 0) for leaf in leaves]
    return _in_steps(*(tf.reshape(leaf, [-1, length]) for leaf, length in zip(leaves, lengths, strict=True)))


def _at_once(*leaves: Any) -> tuple[Any, Any]:
    """The same by an op that does not write the squares to memory, and that XLA lacks.

    It rounds the root of each row. If many rows are alike, these errors add up: the heaviest row is infinite then.
    """
    axis = tf.constant(1)
    found = []
    for group in _alike(leaves):
        norms = tf.stack([_raw.EuclideanNorm(input=leaf, axis=axis) for leaf in group])
        step = norms.shape[1] // _SAMPLE
        wide = tf.cast(norms, tf.float64)
        sums = tf.reduce_sum(tf.square(wide), axis), tf.reduce_max(wide, axis)
        found.append((*sums, norms[:, : step * _SAMPLE : step]))
    totals, heaviest, sample = _joined(found)
    return totals, Namespace.where(_are_alike(sample), np.inf, tf.square(heaviest))


def _alike(leaves: Sequence[Any]) -> list[list[Any]]:
    """Neighbours of one shape."""
    return [list(group) for _, group in itertools.groupby(leaves, lambda leaf: leaf.shape.as_list())]


def _joined(parts: Sequence[tuple[Any, ...]]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(tf.concat(column, 0) for column in zip(*parts, strict=True))


def _are_alike(norms: Any) -> Any:
    """Whether an eighth of a leaf's nonzero norms equal others."""
    ordered = tf.math.top_k(norms, _SAMPLE).values
    differ = ordered > tf.concat([ordered[:, 1:], tf.zeros_like(ordered[:, :1])], 1)
    different, all_of_them = (tf.math.count_nonzero(each, axis=1) for each in (differ, ordered))
    return (8 * different <= 7 * all_of_them) & (all_of_them > 0)


_on_cpus = functools.partial(_graph.on_cpus, _at_once, _in_short_steps)


def _exact_totals(leaves: Sequence[Any]) -> Any:
    return 2.0 * tf.stack(list(map(_half, leaves)))


def _half(leaf: Any) -> Any:
    """Half the sum of a leaf's squares."""
    if leaf.dtype.is_complex:
        return _half(tf.math.real(leaf)) + _half(tf.math.imag(leaf))
    return _raw.L2Loss(t=_raw.Cast(x=leaf, DstT=tf.float64))
