"""Simulate a TPU's update on the CPU by evaluating its jaxpr, operation by operation.

A TPU's float64 is a pair of float32 numbers: each result in float64 is rounded to 48 bits, with the range of float32.
Rounding inside one operation, such as a sum, is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

LEAST = np.finfo(np.float32).tiny


def on_tpu(function: Callable[..., Any], *trees: Any) -> Any:
    """Call a function with trees of NumPy arrays and return trees of NumPy arrays."""
    jaxpr, shape = jax.make_jaxpr(function, return_shape=True)(*trees)
    with jax.enable_x64(True):
        found = _evaluated(jaxpr, [jnp.asarray(leaf) for leaf in jax.tree_util.tree_leaves(trees)])
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), list(map(np.asarray, found)))


@np.errstate(all="ignore")
def paired(x: Any) -> Any:
    """Round float64 numbers to sums of two normal float32 numbers; keep others."""
    if getattr(x, "dtype", None) != np.float64:
        return x
    given = np.asarray(x)
    high = _flushed(given.astype(np.float32))
    digit = np.exp2(np.frexp(high)[1].astype(np.float64) - 48)
    low = _flushed((np.rint((given - high) / digit) * digit).astype(np.float32))
    return jnp.asarray(np.where(np.isfinite(high), high.astype(np.float64) + low, high))


def _flushed(x: Any) -> Any:
    return np.where(np.abs(x) < LEAST, np.float32(0) * x, x)


def _evaluated(closed: Any, arguments: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = {}

    def read(variable: Any) -> Any:
        return paired(np.asarray(variable.val, variable.aval.dtype)) if hasattr(variable, "val") else values[variable]

    jaxpr = closed.jaxpr
    for names, given in ((jaxpr.constvars, closed.consts), (jaxpr.invars, arguments)):
        values.update(zip(names, map(paired, given), strict=True))
    for equation in jaxpr.eqns:
        values.update(zip(equation.outvars, _results(equation, list(map(read, equation.invars))), strict=True))
    return list(map(read, jaxpr.outvars))


def _results(equation: Any, given: list[Any]) -> Sequence[Any]:
    primitive, params = equation.primitive, equation.params
    if primitive.name == "platform_index":
        places = [i for i, names in enumerate(params["platforms"]) if names is None or "tpu" in names]
        return [np.int32(places[0])]
    if primitive.name == "cond":
        return _evaluated(params["branches"][int(given[0])], given[1:])
    inner = [params[name] for name in ("jaxpr", "call_jaxpr") if name in params]
    if inner:
        assert primitive.name in ("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat"), primitive
        return _evaluated(inner[0] if isinstance(inner[0], core.ClosedJaxpr) else core.ClosedJaxpr(inner[0], ()), given)
    found = primitive.bind(*given, **params)
    return list(map(paired, found if primitive.multiple_results else [found]))
