"""What JAX may remove without notice and this backend uses, in one place.

Each name has a test in tests/backends/test_private.py that says what breaks when JAX changes it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import jax.extend.core
import jax.numpy as jnp
from jax import lax
from jax.extend.core.primitives import convert_element_type_p

_core: Any = jax.extend.core if hasattr(jax.extend.core, "get_opaque_trace_state") else jax.core  # before JAX 0.10

try:
    from jax.experimental.shard_alike import shard_alike
except ImportError:  # JAX 0.12 has none
    shard_alike = None  # type: ignore[assignment]


class Scope:
    """64-bit types are enabled, and an error about an array that was donated says what to write."""

    def __init__(self) -> None:
        """Make the context of 64-bit types."""
        self._wide: Any = jax.enable_x64(True)

    def __enter__(self) -> None:
        """Enable them."""
        self._wide.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """End it, and explain the error."""
        self._wide.__exit__(kind, error, trace)
        if kind in (RuntimeError, ValueError) and "has been deleted" in str(error) and "donates" not in str(error):
            raise ValueError(
                f"{error} A function that donates its arguments took it: go on with what that function returned, as in "
                "params, state = step(params, state)"
            ) from error


def current_trace() -> Any:
    """What traces current operations; equal for operations of one trace."""
    return _core.get_opaque_trace_state(convention="gradxform")


def sharded_alike(leaf: Any, new: Any) -> Any:
    """An array that a compiler shards like a traced leaf."""
    if shard_alike is None:
        # Never true. XLA folds it only after sharding, so no leaf is read; of one value, `x ^ x`, it would fold before.
        leaf = lax.stop_gradient(leaf)
        never = (leaf != leaf) ^ (leaf != leaf)
        return lax.select(never, jnp.ones_like(new), new)
    alike: Any = shard_alike(lax.stop_gradient(leaf), new)  # type: ignore[no-untyped-call]
    return alike[1]


def with_weak_type(array: Any, weak: bool) -> Any:
    """An array whose dtype is weak, or not; no public function sets that."""
    return convert_element_type_p.bind(array, new_dtype=array.dtype, weak_type=weak, sharding=None)


def varying(leaf: Any) -> Any:
    """Axes of shard_map over which a traced array varies; JAX 0.10 has renamed the attribute."""
    kind: Any = jax.typeof(leaf)
    return kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else getattr(kind, "vma", None)


def muon_iteration() -> Any:
    """The iteration of `optax.contrib.muon`, for the benchmark; imported late, since it is not in every version.

    Raises:
        ImportError: this version has none.
    """
    from optax.contrib._muon import orthogonalize_via_newton_schulz

    return orthogonalize_via_newton_schulz
