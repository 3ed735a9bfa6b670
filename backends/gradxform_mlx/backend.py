"""MLX: lazy arrays, under mx.compile, mx.grad and mx.vmap."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from gradxform.backend.lookup import register
from gradxform.backend.protocol import Backward, Containers, places_of
from gradxform_mlx import namespace

_SMALL = 1 << 13
"""Elements up to which a launch takes longer than a copy."""


class MLX(Containers):
    """MLX backend."""

    name, title = "mlx", "MLX"
    types = (mx.array,)
    module = mx

    @property
    def xp(self) -> Any:
        """Functions over float64 on the CPU, where MLX supports it; over float32 on a GPU."""
        return namespace.single if on_gpu() else namespace.double

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Stream of the caller; on the CPU, the default stream."""
        return contextlib.nullcontext() if on_gpu() else mx.stream(mx.cpu)

    def from_numpy(self, array: Any, like: Any = None) -> mx.array:
        """An array of the same dtype."""
        array = np.asarray(array)
        if array.dtype == np.complex128:
            raise TypeError("MLX has no complex128: cast the array to complex64")
        return mx.array(array, dtype=mx.float64) if array.dtype == np.float64 else mx.array(array)

    def to_numpy(self, leaf: mx.array) -> Any:
        """Copy to NumPy; bfloat16 is the dtype of ml_dtypes."""
        if leaf.dtype == mx.bfloat16:
            import ml_dtypes

            return np.array(leaf.view(mx.uint16)).view(ml_dtypes.bfloat16)
        return np.array(leaf)

    def custom_backward(
        self, first: Sequence[mx.array], second: Sequence[mx.array], backward: Backward
    ) -> list[mx.array]:
        """Return the first arrays, with a custom backward pass."""

        @mx.custom_function
        def same(first: list[mx.array], second: list[mx.array]) -> list[mx.array]:
            return first

        @same.vjp
        def vjp(given: Any, upstream: list[mx.array], _: Any) -> Any:
            found = backward(list(upstream), given[1])
            return tuple(self.zeros(own) if new is None else new for new, own in zip(found, given, strict=True))

        found: Any = same(list(first), list(second))
        return list(found)

    def norms(self, leaves: Sequence[mx.array], ord: float) -> mx.array:
        """The leaves' norms; on a GPU those of small leaves of one size and dtype together, in fewer launches."""
        small = [leaf.size <= _SMALL and on_gpu() for leaf in leaves]
        groups = places_of([(x.size, x.dtype) if small[i] else i for i, x in enumerate(leaves)])
        if len(groups) == len(leaves):
            return super().norms(leaves, ord)
        found: list[Any] = [None] * len(leaves)
        for places in groups.values():
            rows = mx.stack([leaves[i].reshape(-1) for i in places])
            for i, norm in zip(places, mx.split(self.norms_over([rows], [(1,)], ord), len(places)), strict=True):
                found[i] = norm.reshape(())
        return mx.stack(found)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile with mx.compile."""
        return mx.compile(function)

    def peer_norm(
        self, function: str, leaves: Sequence[mx.array], ord: float, axes: tuple[int, ...] | None
    ) -> mx.array | None:
        """The norm as mlx.optimizers computes it."""
        if function != "mlx clip_grad_norm":
            return None
        from mlx.optimizers import clip_grad_norm

        norm = clip_grad_norm(list(leaves), 1.0)[1]  # type: ignore[no-untyped-call]
        with self.scope():
            return self.xp.float64(norm)


def on_gpu() -> bool:
    """Whether MLX uses a GPU by default; `mx.set_default_device` and `mx.stream` decide."""
    return bool(mx.default_device().type == mx.gpu)


backend = MLX()
register(backend)
