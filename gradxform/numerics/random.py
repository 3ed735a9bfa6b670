"""Counter-based random numbers: Threefry-2x32 with 20 rounds, in int32 operations that every framework has.

Words are int32 with the bits of uint32; sums wrap around. The bits equal JAX's default generator: `bits` of a key and
a shape is `jax.random.bits`, and a block of a key and a number is `jax.random.fold_in`.

Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011.
"""

from __future__ import annotations

import math
from typing import Any

from gradxform.numerics import Array, dtype_name, widest

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def block(xp: Any, key0: Any, key1: Any, count0: Array, count1: Array) -> tuple[Array, Array]:
    """Return two words from a key and a counter of two words each; the key may be Python ints."""
    keys = tuple(map(_signed, (key0, key1, key0 ^ key1 ^ _PARITY)))
    x, y = count0 + keys[0], count1 + keys[1]
    for group in range(5):
        for places in _ROTATIONS[group % 2]:
            x = xp.materialize(x + y)
            # The right shift keeps the sign; the mask removes it.
            y = xp.materialize((xp.shift_left(y, places) | (xp.shift_right(y, 32 - places) & ((1 << places) - 1))) ^ x)
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + (group + 1)
    return x, y


def _signed(word: Any) -> Any:
    return word - 2**32 if isinstance(word, int) and word >= 2**31 else word


def bits(xp: Any, key: tuple[Any, Any], numbers: Array) -> tuple[Array, Array]:
    """Return two words for each number of an int64 or int32 array."""
    if dtype_name(numbers) == "int32":
        return block(xp, *key, xp.zeros_like(numbers), numbers)
    return block(xp, *key, xp.int32(xp.floor(xp.float64(numbers) / 2.0**32)), xp.int32(numbers))


def normal(xp: Any, key: tuple[Any, Any], numbers: Array) -> Array:
    """Return a normal random number for each integer of an array, in float64, or in float32 without it."""
    first, second = bits(xp, key, numbers)
    return xp.sqrt(-2.0 * _log(xp, first)) * _cosine(xp, second)


def _log(xp: Any, word: Array) -> Array:
    """Return log((w + 1/2) / 2^32) of an unsigned word w; in float32, near one, from the distance to one."""
    number, negative = xp.float64(word) + 0.5, word < 0
    if widest(xp) == "float64":
        return xp.log(xp.where(negative, number + 2.0**32, number) / 2.0**32)
    share = xp.where(negative, xp.float64(-1 - word) + 0.5, number) / 2.0**32
    return xp.where(negative, xp.log1p(-share), xp.log(xp.where(negative, 0.5, share)))


def _cosine(xp: Any, word: Array) -> Array:
    """Return the cosine of w / 2^32 turns, from the nearest quarter turn, so that float32 holds the rest."""
    quarter = xp.shift_right(word + 2**29, 30)
    angle = (2.0 * math.pi / 2.0**32) * xp.float64(word - xp.shift_left(quarter, 30))
    away = xp.abs(xp.float64(quarter))
    sine = xp.where(xp.float64(quarter) > 0.0, -xp.sin(angle), xp.sin(angle))
    return xp.where(away < 0.5, xp.cos(angle), xp.where(away < 1.5, sine, -xp.cos(angle)))
