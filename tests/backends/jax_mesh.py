"""Every transform on a mesh of eight forced JAX devices, also donated, in scan, shard_map and vmap.

A script that prints JSON.
"""

from __future__ import annotations

import json
import math
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
from devices import transforms, update
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import furthest

LEAVES = {
    "rows": ((1024, 256), P("x", None)),
    "columns": ((256, 1024), P(None, "y")),
    "both": ((1024, 512), P("x", "y")),
    "vocabulary": ((2048, 128), P(("x", "y"), None)),
    "stacked": ((8, 128, 128), P(None, "x", "y")),
    "bias": ((4096,), P("x")),
    "odd": ((7, 33), P()),
    "whole": ((200, 300), P()),
}
"""Shapes and their shardings."""


def tanh(x: Any) -> Any:
    """JAX's function, also of NumPy arrays: NumPy has other digits."""
    return jnp.tanh(x) if isinstance(x, jax.Array) else np.asarray(jnp.tanh(x))


TRANSFORMS = transforms("mesh", "*s", tanh)
STEPS = 4
BOTH = ("x", "y")
SLICED = {"rows": P(BOTH, None), "columns": P(None, BOTH), "both": P("x", "y"), "bias": P(BOTH)}
"""Leaves that are sharded over all devices."""
MOVES = re.compile(
    r"= (\(?\w+\[[^=]*?) (all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter)(?:-start)?\("
)


def traffic(module: str) -> dict[str, int]:
    """The largest number of elements that a collective of each kind moves."""
    found: dict[str, int] = {}
    for shapes, operation in MOVES.findall(module):
        sizes = (math.prod(map(int, filter(None, dims.split(",")))) for dims in re.findall(r"\w+\[([\d,]*)\]", shapes))
        found[operation] = max(found.get(operation, 0), sum(sizes))
    return found


def gradients(dtype: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal numbers."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(jnp.dtype(dtype)) for name, (shape, _) in LEAVES.items()}


def measured(name: str, given: dict[str, np.ndarray], mesh: Any, jitted: bool) -> dict[str, Any]:
    """Compare a transform on a mesh with the same in NumPy, which compiles nothing."""

    tx = TRANSFORMS[name]

    def step(grads: Any, state: Any, params: Any) -> Any:
        return update(tx, grads, state, params)

    beside = gradients(str(given["odd"].dtype), 1)
    wanted = step(given, tx.init(given), beside)[0]
    spread, params = (
        {name: jax.device_put(leaf, NamedSharding(mesh, LEAVES[name][1])) for name, leaf in tree.items()}
        for tree in (given, beside)
    )
    report: dict[str, Any] = {}
    if jitted:
        state = jax.jit(tx.init)(spread)
        compiled = jax.jit(step).lower(spread, state, params).compile()
        report |= {"traffic": traffic(compiled.as_text())}
        report |= {"temporary": compiled.memory_analysis().temp_size_in_bytes}
        found, after = compiled(spread, state, params)
        report |= in_other_ways(name, given, mesh, spread, compiled)
    else:
        state = tx.init(spread)
        found, after = step(spread, state, params)
    report["off"] = furthest([found[path] for path in given], [wanted[path] for path in given], name)
    report["spread"] = [name for name in given if not _is_as(found[name], spread[name])]
    report["state"] = sum(not _is_sharded(leaf, spread) for part in (state, after) for leaf in _arrays(part))
    return report


def _arrays(state: Any) -> list[Any]:
    return [leaf for leaf in jax.tree_util.tree_leaves(state) if isinstance(leaf, jax.Array)]


def _is_as(found: Any, like: Any) -> bool:
    return bool(found.sharding.is_equivalent_to(like.sharding, found.ndim))


def _is_sharded(leaf: Any, spread: dict[str, Any]) -> bool:
    """Whether an array of a state with a gradient's shape has its sharding."""
    return all(_is_as(leaf, own) for own in spread.values() if own.shape == leaf.shape)


def in_other_ways(name: str, given: Any, mesh: Any, spread: dict[str, Any], compiled: Any) -> dict[str, Any]:
    """Run one transform in scan; on Explicit meshes donate gradients and state; on Auto ones use shard_map and vmap."""
    tx = TRANSFORMS[name]

    def step(grads: Any, state: Any, params: Any) -> Any:
        return update(tx, grads, state, params)

    where = _shardings(jax.eval_shape(tx.init, spread), spread, mesh)
    state = jax.jit(tx.init, out_shardings=where)(spread)
    report: dict[str, Any] = {"init": sum(not _is_sharded(leaf, spread) for leaf in _arrays(state))}
    after = [spread, state]
    for _ in range(STEPS):
        after = list(compiled(*after, spread))
    report |= _scanned(step, spread, state, after)
    return report | (_donated(step, spread, state) if _is_explicit(mesh) else _alone(name, given, mesh))


def _is_explicit(mesh: Any) -> bool:
    return AxisType.Explicit in mesh.axis_types


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
    }


def _alone(name: str, given: dict[str, np.ndarray], mesh: Any) -> dict[str, Any]:
    """Compare shard_map and vmap with the same slices alone: two steps with a state, in JAX, else one, in NumPy."""
    tx = TRANSFORMS[name]

    def run(grads: Any) -> Any:
        found, state = update(tx, grads, tx.init(grads), grads)
        return update(tx, found, state, grads)[0] if tx.stateful else found

    own = {name: given[name] for name in SLICED}
    mapped = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(SLICED,), out_specs=SLICED, check_vma=True))
    placed = {name: jax.device_put(leaf, NamedSharding(mesh, SLICED[name])) for name, leaf in own.items()}
    found, devices = mapped(placed), list(mesh.devices.flat[:3])
    slices, shards = (
        [{name: _on(device, leaf) for name, leaf in tree.items()} for device in devices] for tree in (placed, found)
    )
    with jax.set_mesh(jax.make_mesh((1,), ("alone",))):
        wanted = list(map(jax.jit(run) if tx.stateful else run, slices))
        together = jax.jit(jax.vmap(run))(jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *slices))
    each = [{name: np.asarray(leaf)[i] for name, leaf in together.items()} for i in range(len(slices))]
    return {
        f"{way} off": max(_off(one, right, name) for one, right in zip(results, wanted, strict=True))
        for way, results in (("shard_map", shards), ("vmap", each))
    }


def _on(device: Any, leaf: Any) -> np.ndarray:
    return np.asarray(next(part.data for part in leaf.addressable_shards if part.device == device))


def _copied(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def _off(found: Any, wanted: Any, expression: str = "") -> float:
    pairs = zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(wanted), strict=True)
    inexact = [(np.asarray(a), np.asarray(b)) for a, b in pairs if jnp.issubdtype(a.dtype, jnp.inexact)]
    return furthest(*zip(*inexact, strict=True), expression)


def main(kind: str, dtype: str, mode: str) -> None:
    """Print a report of each transform."""
    axes = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[kind]
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(axes, axes))
    given = gradients(dtype)
    with jax.set_mesh(mesh), jax.enable_x64(dtype == "float64"):
        print(json.dumps({name: measured(name, given, mesh, mode == "jit") for name in TRANSFORMS}))


if __name__ == "__main__":
    main(*sys.argv[1:])
