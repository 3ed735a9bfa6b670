"""Optax's own clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from parity_page.native import Call, Leaves, Native


def _made(make: Callable[[float], Any], compiled: bool) -> Callable[[float], Call]:
    """The update of an optax transformation; 64-bit types are on where there are some."""

    def with_limit(limit: float) -> Call:
        tx = make(limit)

        def update(grads: list[Any]) -> list[Any]:
            return tx.update(grads, tx.init(grads))[0]

        function = jax.jit(update) if compiled else update

        def call(grads: Leaves) -> Leaves:
            with jax.enable_x64(any(g.dtype.name in ("float64", "complex128") for g in grads)):
                return [np.asarray(g) for g in function([jnp.asarray(g) for g in grads])]

        return call

    return with_limit


def _natives(mode: str, compiled: bool) -> list[Native]:
    return [
        Native(
            "optax.clip_by_global_norm", "jax", mode, "clip_global_norm", _made(optax.clip_by_global_norm, compiled)
        ),
        Native("optax.clip", "jax", mode, "clip_value", _made(optax.clip, compiled)),
    ]


NATIVES = (*_natives("eager", False), *_natives("jit", True))
