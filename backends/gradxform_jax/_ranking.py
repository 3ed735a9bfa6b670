"""Keep the largest elements of leaves, by counting.

A sort would gather sharded arrays, and takes longer on a CPU. Here, all leaves of a width are counted in one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import ranking
from gradxform_jax._namespace import Namespace


@jax.jit
def largest(leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Keep so many elements of each leaf."""
    sizes = [ranking.in_order(Namespace, leaf) for leaf in leaves]
    limits = dict[int, Any]()
    for dtype in dict.fromkeys(own.dtype for own in sizes):
        places = [i for i, own in enumerate(sizes) if own.dtype == dtype]
        some = [sizes[i] for i in places], [counts[i] for i in places]
        limits.update(zip(places, _limits(dtype, *some), strict=True))
    return [ranking.kept(Namespace, leaf, sizes[i], limits[i]) for i, leaf in enumerate(leaves)]


def _limits(dtype: Any, sizes: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Find the integer of a rank in each array."""
    top = 8 * dtype.itemsize - 2

    def step(i: Any, found: Sequence[Any]) -> list[Any]:
        bit = lax.shift_left(dtype.type(1), lax.convert_element_type(top - i, dtype))
        return ranking.with_bit(Namespace, bit, found, sizes, counts, _reaching)

    first = step(0, [dtype.type(0)] * len(sizes))  # in shard_map, found numbers vary over devices as sizes do
    return list(lax.fori_loop(1, top + 1, step, first))


def _reaching(sizes: Any, least: Any) -> Any:
    small = isinstance(sizes.size, int) and sizes.size < 2**31  # it may be symbolic
    return jnp.sum(sizes >= least, dtype=np.int32 if small else np.int64)
