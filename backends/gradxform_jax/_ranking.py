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
from gradxform_jax._namespace import Namespace, barrier


@jax.jit
def largest(leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Keep so many elements of each leaf."""
    limits = dict[int, Any]()
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        some = [leaves[i] for i in places], [counts[i] for i in places]
        limits.update(zip(places, _limits(np.dtype(f"int{8 * dtype.itemsize}"), *some), strict=True))
    return [
        ranking.kept(Namespace, leaf, ranking.in_order(Namespace, leaf), limits[i]) for i, leaf in enumerate(leaves)
    ]


def _limits(whole: Any, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Find the integer of a rank in each leaf of one dtype."""
    top = 8 * whole.itemsize - 2

    def step(i: Any, found: Sequence[Any]) -> list[Any]:
        bit = lax.shift_left(whole.type(1), lax.convert_element_type(top - i, whole))
        # Without the barrier, XLA would write the sizes of all elements before the loop.
        given = [barrier((leaf, i))[0] for leaf in leaves]
        return ranking.with_bit(Namespace, bit, found, counts, lambda least: list(map(_reaching, given, least)))

    first = step(0, [whole.type(0)] * len(leaves))  # in shard_map, found numbers vary over devices as leaves do
    return list(lax.fori_loop(1, top + 1, step, first))


def _reaching(leaf: Any, least: Any) -> Any:
    small = isinstance(leaf.size, int) and leaf.size < 2**31  # it may be symbolic
    return jnp.sum(ranking.in_order(Namespace, leaf) >= least, dtype=np.int32 if small else np.int64)
