"""Multiply leaves on CPUs: small ones packed, large ones behind a branch, known factors by one op each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.rescale import is_extreme
from gradxform_tensorflow import _casting as casting
from gradxform_tensorflow import _eager, _known, _packing
from gradxform_tensorflow._namespace import Namespace

_LEAST = 2.0**-126
_MOST = 2.0**127
_FAR = 2.0**30
"""Factors beyond this can take a product of several out of float32's range."""


def multiply(leaves: Sequence[Any], factors: Any) -> list[Any]:
    """Each leaf times its factor; if all factors are one, the leaves themselves."""
    if casting.is_read(factors):
        return _known.multiply(leaves, factors, _times_known, packed=True)
    out, factors = list(leaves), casting.wide(factors)
    rest = set(range(len(out)))
    if not tf.executing_eagerly():
        for places in _packing.small(out, range(len(out))).values():
            some = [out[i] for i in places]
            new = _packed(_packing.pack(some), _repeated(factors, some, places))
            for i, leaf in zip(places, _packing.unpack(new, some), strict=True):
                out[i] = leaf
            rest.difference_update(places)
    if rest:
        large = sorted(rest)
        of_large = factors if factors.shape.rank == 0 or len(large) == len(out) else tf.gather(factors, large)
        for i, leaf in zip(large, _switched([out[i] for i in large], of_large), strict=True):
            out[i] = leaf
    return out


def _repeated(factors: Any, leaves: Sequence[Any], places: Sequence[int]) -> Any:
    """Factor of each element of packed leaves."""
    if factors.shape.rank == 0:
        return factors
    return tf.gather(factors, np.repeat(places, [leaf.shape.num_elements() for leaf in leaves]))


def _packed(whole: Any, factors: Any) -> Any:
    """Multiply few numbers in float64: branches would cost more."""
    return tf.where(tf.equal(factors, 1.0), whole, _product(whole, factors, True))


def _switched(leaves: list[Any], factors: Any) -> Sequence[Any]:
    """Each leaf times its factor, in float64 if a factor needs it; a no-op if all are one."""
    size = tf.abs(factors)
    untouched, extreme = tf.equal(factors, 1.0), ((size < _LEAST) & (size > 0.0)) | (size > _MOST)
    if factors.shape.rank != 0:
        untouched, extreme = tf.reduce_all(untouched), tf.reduce_any(extreme)
    narrow, wide = (functools.partial(_times, leaves, factors, wide) for wide in (False, True))
    # A branch of three is slower: XLA evaluates its index as it compiles. Most steps pass one branch.
    return list(_eager.cond(untouched | extreme, lambda: _eager.cond(untouched, lambda: leaves, wide), narrow))


def _times(leaves: list[Any], factors: Any, wide: bool) -> list[Any]:
    """Each leaf times its factor in float32 or float64, rounded once; complex leaves by parts."""
    if factors.shape.rank == 0:
        kinds = [_accumulation(leaf.dtype, wide) for leaf in leaves]
        numbers = {kind: casting.to(factors, kind) for kind in dict.fromkeys(kinds)}
        return [_product(leaf, numbers[kind], wide) for leaf, kind in zip(leaves, kinds, strict=True)]
    each = zip(leaves, tf.unstack(factors, num=len(leaves)), strict=True)
    return [
        _eager.select(tf.equal(factor, 1.0), leaf, functools.partial(_product, leaf, factor, wide))
        for leaf, factor in each
    ]


def _times_known(factor: float) -> Callable[[Any], Any]:
    """Product with a Python number, cached as one tensor per dtype."""
    extreme, numbers = is_extreme(factor), dict[Any, Any]()

    def scaled(leaf: Any) -> Any:
        far = not 1 / _FAR < abs(factor) < _FAR and not tf.executing_eagerly()
        if far and leaf.dtype == tf.float32 and not extreme:
            return _apart(leaf, factor)
        plain = leaf.dtype == tf.float64 or (leaf.dtype == tf.float32 and not extreme)
        kind = leaf.dtype if plain else None
        if kind not in numbers:
            # TensorFlow caches tensors of Python numbers, and confuses 0.0 with -0.0.
            numbers[kind] = tf.constant(np.array(factor), kind or tf.float64)
        return tf.raw_ops.Mul(x=leaf, y=numbers[kind]) if plain else _product(leaf, numbers[kind], extreme)

    return scaled


def _apart(leaf: Any, factor: float) -> Any:
    """A float32 leaf times a number that TensorFlow's optimizer and XLA must not fold with another constant."""
    leaf = Namespace.no_reassociation(leaf)
    return leaf * tf.where(leaf <= leaf, np.float32(factor), np.float32("nan"))


def _product(leaf: Any, factor: Any, wide: bool) -> Any:
    if leaf.dtype.is_complex:
        return tf.complex(*(_product(part, factor, wide) for part in (tf.math.real(leaf), tf.math.imag(leaf))))
    if leaf.dtype == tf.float64:
        # TensorFlow's optimizer and XLA would fold two powers into one constant, which may be zero.
        leaf = Namespace.no_reassociation(leaf)
        if wide:
            factor = tf.where(leaf <= leaf, factor, float("nan"))
    dtype_ = _accumulation(leaf.dtype, wide)
    return casting.to(casting.to(leaf, dtype_) * casting.to(factor, dtype_), leaf.dtype)


def multiply_over(leaf: Any, factor: Any) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    factor = tf.convert_to_tensor(factor, tf.float64)
    return tf.where(tf.equal(factor, 1.0), leaf, _product(leaf, factor, True))


def _accumulation(dtype: Any, wide: bool) -> Any:
    """Dtype in which values are multiplied."""
    if wide:
        return tf.float64
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype.real_dtype
