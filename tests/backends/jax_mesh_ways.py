"""Every transform on eight forced JAX devices: donated, in scan, shard_map and vmap.

A script that prints JSON.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import Any

if __name__ == "__main__":  # not when pytest looks for doctests
    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}

import jax
import jax.numpy as jnp
import numpy as np
from devices import update
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax_mesh import LEAVES, TRANSFORMS, _arrays, _is_as, _is_sharded, main
from support import furthest

STEPS = 4
BOTH = ("x", "y")
SLICED = {"rows": P(BOTH, None), "columns": P(None, BOTH), "both": P("x", "y"), "bias": P(BOTH)}
"""Leaves that are sharded over all devices."""


def measured(name: str, given: dict[str, np.ndarray], mesh: Any, jitted: bool) -> dict[str, Any]:
    """Run one transform in each way."""
    tx = TRANSFORMS[name]

    def step(grads: Any, state: Any, params: Any) -> Any:
        return update(tx, grads, state, params)

    spread = {name: jax.device_put(leaf, NamedSharding(mesh, LEAVES[name][1])) for name, leaf in given.items()}
    where = _shardings(jax.eval_shape(tx.init, spread), spread, mesh)
    state = jax.jit(tx.init, out_shardings=where)(spread)
    report: dict[str, Any] = {"init": sum(not _is_sharded(leaf, spread) for leaf in _arrays(state))}
    after = [spread, state]
    compiled = jax.jit(step)
    for _ in range(STEPS):
        after = list(compiled(*after, spread))
    return report | _scanned(step, spread, state, after) | _donated(step, spread, state) | _alone(name, given, mesh)


def _shardings(state: Any, spread: dict[str, Any], mesh: Any) -> Any:
    """The `out_shardings` for `jit(tx.init)`: arrays shaped like a gradient get its sharding."""
    by_shape = {leaf.shape: leaf.sharding for leaf in spread.values()}
    return jax.tree_util.tree_map(lambda leaf: by_shape.get(leaf.shape, NamedSharding(mesh, P())), state)


def _scanned(step: Any, spread: Any, state: Any, wanted: Any) -> dict[str, Any]:
    """Some steps in a scan that carries the gradients and the state."""

    def many(grads: Any, state: Any, params: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (step(*carry, params), None), (grads, state), None, length=STEPS)[0]

    compiled = jax.jit(many, donate_argnums=(0, 1)).lower(spread, state, spread).compile()
    found = compiled(*_copied((spread, state)), spread)
    return {
        "scan off": _off(found, wanted),
        "scan spread": sum(not _is_as(found[0][name], leaf) for name, leaf in spread.items()),
        "scan state": sum(not _is_sharded(leaf, spread) for leaf in _arrays(found[1])),
        "scan gathers": len(
            re.findall(r"(?:all-gather|all-to-all|collective-permute)(?:-start)?\(", compiled.as_text())
        ),
        "scan held": compiled.memory_analysis().temp_size_in_bytes,
    }


def _donated(step: Any, spread: Any, state: Any) -> dict[str, Any]:
    """Donate gradients and state; report which results reuse donated memory."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compiled = jax.jit(step, donate_argnums=(0, 1)).lower(spread, state, spread).compile()
    shapes = {leaf.shape for leaf in spread.values()}
    header = compiled.as_text().partition("entry_computation_layout")[0]
    return {
        "warned": [str(one.message)[:200] for one in said if "donated" in str(one.message)],
        "aliases": len(re.findall(r"(?:may|must)-alias", header)),
        "arrays": len(spread) + sum(leaf.shape in shapes for leaf in _arrays(state)),
        "held": compiled.memory_analysis().temp_size_in_bytes,
    }


def _alone(name: str, given: dict[str, np.ndarray], mesh: Any) -> dict[str, Any]:
    """Compare shard_map and vmap with the same slices run separately."""
    tx = TRANSFORMS[name]

    def twice(grads: Any) -> Any:
        found, state = update(tx, grads, tx.init(grads), grads)
        return update(tx, found, state, grads)[0]

    own = {name: given[name] for name in SLICED}
    mapped = jax.jit(jax.shard_map(twice, mesh=mesh, in_specs=(SLICED,), out_specs=SLICED, check_vma=True))
    placed = {name: jax.device_put(leaf, NamedSharding(mesh, SLICED[name])) for name, leaf in own.items()}
    found, compiled, off = mapped(placed), jax.jit(twice), 0.0
    with jax.set_mesh(jax.make_mesh((1,), ("alone",))):
        for device in mesh.devices.flat[:3]:
            wanted = compiled({name: jnp.asarray(_on(device, leaf)) for name, leaf in placed.items()})
            off = max(off, _off({path: _on(device, leaf) for path, leaf in found.items()}, wanted, name))
        few = {name: jnp.asarray(leaf[:16]) for name, leaf in own.items()}
        more = jax.tree_util.tree_map(lambda leaf: leaf * leaf.dtype.type(2), few)
        both = jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), few, more)
        mapped_over = jax.jit(jax.vmap(twice))(both)
        each = [
            _off(jax.tree_util.tree_map(lambda x, i=i: x[i], mapped_over), compiled(one), name)
            for i, one in enumerate((few, more))
        ]
    return {"shard_map off": off, "vmap off": max(each)}


def _on(device: Any, leaf: Any) -> np.ndarray:
    return np.asarray(next(part.data for part in leaf.addressable_shards if part.device == device))


def _copied(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def _off(found: Any, wanted: Any, expression: str = "") -> float:
    pairs = zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(wanted), strict=True)
    inexact = [(np.asarray(a), np.asarray(b)) for a, b in pairs if jnp.issubdtype(a.dtype, jnp.inexact)]
    return furthest(*zip(*inexact, strict=True), expression)


if __name__ == "__main__":
    main(*sys.argv[1:], "jit", measure=measured)
