"""JAX: what is needed to compute on its arrays.

Norms and factors are float64 whether the user switched 64 bits on or not: `jax.enable_x64` is entered for the
library's own operations alone, and float32 comes out.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.shard_alike import shard_alike
from jax.extend.core.primitives import convert_element_type_p

from gradxform.backend.protocol import Backend
from gradxform_jax import _across, _backward
from gradxform_jax._namespace import Namespace


class Plain(Backend):
    """JAX without kernels of its own."""

    name, title = "jax", "JAX"
    types = (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct)
    xp = Namespace
    module = jnp

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """With 64-bit types on; they do not leave it but as vectors."""
        return jax.enable_x64(True)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Under jax.jit."""
        return jax.jit(function)

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Leaves and structure, by jax.tree_util; None is a leaf here, so that it has a path."""
        return jax.tree_util.tree_flatten(tree, is_leaf=_is_none)

    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """The tree again."""
        return jax.tree_util.tree_unflatten(structure, leaves)

    def paths(self, tree: Any) -> list[str]:
        """One path a leaf. The value of a variable of Flax NNX has the path of the variable."""
        variables = _nnx_variables()
        found = []
        for path, node in jax.tree_util.tree_leaves_with_path(
            tree, is_leaf=lambda x: x is None or isinstance(x, variables)
        ):
            if isinstance(node, variables):
                inside = jax.tree_util.tree_leaves_with_path(node, is_leaf=_is_none)
                found += [(*path, *keys[1:]) for keys, _ in inside]
            else:
                found.append(path)
        return [jax.tree_util.keystr(path, simple=True, separator="/") for path in found]

    def adopt(self, leaf: Any) -> Any:
        """As jax.numpy adopts NumPy arrays and Python numbers; float0 stays NumPy's."""
        return leaf if getattr(leaf, "dtype", None) == jax.dtypes.float0 else jnp.asarray(leaf)

    def dtype(self, leaf: Any) -> str:
        """The name of the dtype."""
        return "float0" if leaf.dtype == jax.dtypes.float0 else str(leaf.dtype)

    def count(self, leaf: Any, axes: tuple[int, ...] | None) -> Any:
        """The number of elements; an array where the shape is symbolic, as `jax.export` has them."""
        size = leaf.size if axes is None else math.prod([leaf.shape[axis] for axis in axes])
        if isinstance(size, (int, float, np.number)):
            return float(size)
        with self.scope():
            return lax.convert_element_type(jnp.asarray(size), np.float64)

    def copied(self, leaves: Sequence[Any]) -> list[Any]:
        """JAX's arrays are not written to."""
        return list(leaves)

    def zeros(self, leaves: Sequence[Any]) -> list[Any]:
        """Zeros, spread over devices as the leaves are; a compiler would put them on each device whole."""
        return [_alike(leaf, jnp.zeros_like(leaf)) for leaf in leaves]

    def as_given(self, leaf: Any, new: Any) -> Any:
        """Weakly typed if the leaf is."""
        return weak_as(leaf, new)

    def from_numpy(self, array: Any) -> Any:
        """A JAX array; of 64 bits too, whether they are on or not."""
        with self.scope():
            return jnp.asarray(array)

    def placed(self, array: Any, like: Any) -> Any:
        """A JAX array on the devices of another, if it has been put there."""
        with self.scope():
            committed = isinstance(like, jax.Array) and getattr(like, "committed", False)
            return jax.device_put(array, like.sharding) if committed else jnp.array(array)

    def to_numpy(self, leaf: Any) -> Any:
        """A NumPy array."""
        return np.asarray(leaf)

    check_axis = staticmethod(_across.check)
    all_gather = staticmethod(_across.all_gather)
    axis_index = staticmethod(_across.axis_index)
    custom_backward = staticmethod(_backward.same)
    straight_through = staticmethod(_backward.straight_through)


def _alike(leaf: Any, new: Any) -> Any:
    """An array that a compiler shards as a traced leaf."""
    if not isinstance(leaf, jax.core.Tracer):
        return new
    alike: Any = shard_alike(lax.stop_gradient(leaf), new)  # type: ignore[no-untyped-call]
    return alike[1]


def weak_as(leaf: Any, result: Any) -> Any:
    """A result of the leaf's weak type."""
    weak = bool(getattr(leaf, "weak_type", False))
    if weak == bool(getattr(result, "weak_type", False)):
        return result
    return convert_element_type_p.bind(result, new_dtype=result.dtype, weak_type=weak, sharding=None)


def _nnx_variables() -> tuple[type, ...]:
    """The types of the nodes that hold one value, if the user has imported them."""
    names = vars(sys.modules.get("flax.nnx", object))
    return tuple(names[name] for name in ("Variable", "VariableState") if name in names)


def _is_none(node: Any) -> bool:
    return node is None
