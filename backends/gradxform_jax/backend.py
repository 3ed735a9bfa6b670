"""JAX backend.

Norms and factors are float64 whether 64 bits are enabled or not: `jax.enable_x64` is entered for the library's own
operations only, and results are float32.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.backend.protocol import Backend, Backward
from gradxform_jax import across, private
from gradxform_jax.namespace import Namespace

# --- the identity with a custom backward pass ------------------------------------------------------------------------


# The second arrays are arguments, and not closed over, so that they may be tracers of any transformation around.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _unchanged(first: list[Any], second: list[Any], backward: Backward) -> list[Any]:
    """Return the first arrays; a function computes what flows back to both lists."""
    return _together(first, second)


def _forward(first: list[Any], second: list[Any], backward: Backward) -> tuple[list[Any], list[Any]]:
    return _together(first, second), second


def _together(leaves: list[Any], numbers: list[Any]) -> list[Any]:
    """Make each leaf depend on all arrays: under `vmap`, if one has a batch, all get one.

    Otherwise the gradient of a leaf without a batch would be summed over the batch before its transform.
    """
    if len(leaves) + len(numbers) == 1:
        return leaves
    first = [jnp.any(jnp.ravel(array)[:1] == 0) for array in (*leaves, *numbers)]
    either = functools.reduce(jnp.logical_or, first)
    return [lax.select(jnp.broadcast_to(either, leaf.shape), leaf, leaf) for leaf in leaves]


def _backward(backward: Backward, second: list[Any], upstream: list[Any]) -> Any:
    return backward(upstream, second)


_unchanged.defvjp(_forward, _backward)


def _straight_through(values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """Return the values, with the leaves' derivatives."""
    return list(map(_instead, values, leaves))


@jax.custom_jvp
def _instead(value: Any, leaf: Any) -> Any:
    return value


@_instead.defjvp
def _instead_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[0], tangents[1]


# --- the backend -----------------------------------------------------------------------------------------------------


class Plain(Backend):
    """JAX without its own kernels."""

    name, title = "jax", "JAX"
    types = (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct)
    xp = Namespace
    module = jnp
    devices = across

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Enable 64-bit types; they leave the scope only as vectors."""
        return private.Scope()

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile with jax.jit."""
        return jax.jit(function)

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Leaves and structure, by jax.tree_util; None is a leaf, so that it has a path."""
        _descend((tree,))
        return jax.tree_util.tree_flatten(tree, is_leaf=_is_none)

    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """Rebuild the tree."""
        return jax.tree_util.tree_unflatten(structure, leaves)

    def paths(self, tree: Any) -> list[str]:
        """One path per leaf. A Flax NNX variable's value has the variable's path."""
        variables, flatten = _nnx_variables(), jax.tree_util.tree_leaves_with_path
        found = []
        for path, node in flatten(tree, is_leaf=lambda x: x is None or isinstance(x, variables)):
            inside = flatten(node, is_leaf=_is_none) if isinstance(node, variables) else [((), node)]
            found += [(*path, *keys[1:]) for keys, _ in inside]
        return [jax.tree_util.keystr(path, simple=True, separator="/") for path in found]

    def dtype(self, leaf: Any) -> str:
        """The name of the dtype."""
        return "float0" if leaf.dtype == jax.dtypes.float0 else str(leaf.dtype)

    def count(self, leaf: Any, axes: tuple[int, ...] | None) -> Any:
        """Number of elements; an array for symbolic shapes, as in `jax.export`."""
        size = leaf.size if axes is None else math.prod([leaf.shape[axis] for axis in axes])
        if isinstance(size, (int, float, np.number)):
            return float(size)
        with self.scope():
            return lax.convert_element_type(jnp.asarray(size), np.float64)

    def copied(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Return the leaves: JAX arrays are immutable."""
        return list(leaves)

    def zeros(self, leaves: Sequence[Any], inplace: bool = False) -> list[Any]:
        """Zeros with the leaves' sharding; a compiler would replicate them."""
        with self.scope():  # else JAX refuses float64 zeros with a sharding
            pairs = [(leaf, jnp.zeros_like(leaf)) for leaf in leaves]
            return [private.sharded_alike(*pair) if isinstance(pair[0], jax.core.Tracer) else pair[1] for pair in pairs]

    def as_given(self, leaves: Sequence[Any], new: list[Any]) -> list[Any]:
        """Make results weakly typed where the leaves are."""
        return list(map(_weak_as, leaves, new))

    def from_numpy(self, array: Any, like: Any = None) -> Any:
        """Convert to a JAX array, with 64 bits even if they are disabled; on another one's devices, if committed."""
        with self.scope():
            committed = isinstance(like, jax.Array) and getattr(like, "committed", False)
            return jax.device_put(array, like.sharding) if committed else jnp.array(array, copy=like is not None)

    def to_numpy(self, leaf: Any) -> Any:
        """A NumPy array; of an array that other processes have parts of, in every process, the whole."""
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
                from jax.experimental import multihost_utils

                return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        with self.scope():
            return np.asarray(leaf)

    custom_backward = staticmethod(_unchanged)
    straight_through = staticmethod(_straight_through)


def _weak_as(leaf: Any, result: Any) -> Any:
    """Give a result the leaf's weak type."""
    weak = bool(getattr(leaf, "weak_type", False))
    if weak == bool(getattr(result, "weak_type", False)):
        return result
    return private.with_weak_type(result, weak)


def _nnx_variables() -> tuple[type, ...]:
    """Types of NNX variables, if NNX is imported."""
    names = vars(sys.modules.get("flax.nnx", object))
    return tuple(names[name] for name in ("Variable", "VariableState") if name in names)


def _descend(tree: Any) -> None:
    """Raise Python's RecursionError for endless containers: after JAX's own, the interpreter has no stack left."""
    for child in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(child, (dict, list, tuple)):
            _descend(child)


def _is_none(node: Any) -> bool:
    return node is None
