"""What JAX may remove without notice and this backend uses, in one place.

Each name has a test in tests/backends/test_private_jax.py that says what breaks when JAX changes it.
"""

from __future__ import annotations

from typing import Any

from jax import lax
from jax.extend.core.primitives import convert_element_type_p

try:
    from jax.experimental.shard_alike import shard_alike
except ImportError:  # JAX 0.12 has none; the compiler then chooses
    shard_alike = None  # type: ignore[assignment]


def sharded_alike(leaf: Any, new: Any) -> Any:
    """An array that a compiler shards like a traced leaf, where JAX can ask for that."""
    if shard_alike is None:
        return new
    alike: Any = shard_alike(lax.stop_gradient(leaf), new)  # type: ignore[no-untyped-call]
    return alike[1]


def with_weak_type(array: Any, weak: bool) -> Any:
    """An array whose dtype is weak, or not; no public function sets that."""
    return convert_element_type_p.bind(array, new_dtype=array.dtype, weak_type=weak, sharding=None)
