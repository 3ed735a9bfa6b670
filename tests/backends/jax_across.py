"""`across` on eight forced JAX devices; a script that prints JSON."""

from __future__ import annotations

import collections
import json
import os
import sys
from typing import Any

if __name__ == "__main__":  # not when pytest looks for doctests
    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}

import across_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import gradxform as gx

COUNT = 8
COLLECTIVES = ("psum", "psum_invariant", "all_gather", "all_gather_invariant", "ppermute", "all_to_all", "pmax", "pmin")


def collectives(jaxpr: Any) -> collections.Counter[str]:
    """The number of collectives of each kind in a program, and the most numbers that one moves."""
    found: collections.Counter[str] = collections.Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name in COLLECTIVES:
            found["calls"] += 1
            found["numbers"] = max(found["numbers"], sum(var.aval.size for var in equation.invars))
        for inner in jax.tree_util.tree_leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inside = getattr(inner, "jaxpr", inner)
            if hasattr(inside, "eqns"):
                more = collectives(inside)
                found["calls"] += more["calls"]
                found["numbers"] = max(found["numbers"], more["numbers"])
    return found


def mapped(how: str) -> tuple[Any, Any, Any]:
    """Return a function that maps over eight devices with stacked arrays, the axis, and where the arrays are put.

    A state that comes back on the mesh would be compiled for once more.
    """
    if how == "vmap":
        return lambda step: jax.vmap(step, axis_name="x"), "x", None
    if how == "pmap":
        return lambda step: jax.pmap(step, axis_name="x"), "x", None
    axis: Any = ("x", "y") if how == "two axes" else "x"
    shape, names = ((4, 2), ("x", "y")) if how == "two axes" else ((8,), ("x",))
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))

    def over(step: Any) -> Any:
        def alone(*trees: Any) -> Any:
            out = step(*jax.tree_util.tree_map(lambda leaf: leaf[0], trees))
            return jax.tree_util.tree_map(lambda leaf: leaf[None], out)

        return jax.shard_map(alone, mesh=mesh, in_specs=P(axis), out_specs=P(axis))

    return over, axis, NamedSharding(mesh, P(axis))


def measured(expression: str, dtype: str, split: str, how: str) -> dict[str, Any]:
    """Compare a transform on eight devices with the same on one."""
    over, axis, place = mapped(how)
    tx = gx.across(gx.parse(expression), axis, split=split, replicated="**r")
    given = [stacked(trees) for trees in cases.steps(expression, COUNT, dtype)]
    state = stacked([tx.init(jax.tree_util.tree_map(lambda leaf: leaf[0], given[0]))] * COUNT)
    if place is not None:
        given, state = jax.device_put((given, state), place)
    step = over(lambda grads, state: tx.update(grads, state, grads))
    run = step if how == "pmap" else jax.jit(step)
    traced = jax.make_jaxpr(step)(given[0], state) if how == "pmap" else run.trace(given[0], state).jaxpr
    found = collectives(traced.jaxpr)
    wanted, metrics = cases.expected(expression, COUNT, dtype, split)
    worst = 0.0
    for tree, right in zip(given, wanted, strict=True):
        updates, state = run(tree, state)
        for i in range(COUNT):
            mine = {name: np.asarray(leaf)[i] for name, leaf in updates.items()}
            worst = max(worst, cases.off(mine, right[i], expression))
    common = {name: np.asarray(value) for name, value in (gx.metrics(state) if tx.stateful else {}).items()}
    return {
        "off": worst,
        "collectives": found["calls"],
        "numbers": found["numbers"],
        "measures": max([cases.off({"": common[name][0]}, {"": value}) for name, value in metrics.items()], default=0),
        "differ": [] if cases.is_by_leaf(expression) and split == "tree" else differing(tx, state),
    }


def differing(tx: Any, state: Any) -> list[str]:
    """The numbers of a state that differ between devices."""
    if not tx.stateful:
        return []
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        own = getattr(path[-1], "key", None) in cases.SHAPES  # traces belong to each device
        if not own and len({row.tobytes() for row in np.asarray(leaf)}) > 1:
            found.append(jax.tree_util.keystr(path))
    return found


def stacked(trees: list[Any]) -> Any:
    return jax.tree_util.tree_map(lambda *leaves: jnp.stack(list(map(jnp.asarray, leaves))), *trees)


def proven() -> dict[str, Any]:
    """What shard_map proves to be replicated if some leaves are, and the communication."""
    from jax_mesh import MOVES, traffic

    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
    spec = {"r": P(), "v": P("x"), "w": P("x", "y")}
    rng = np.random.default_rng(0)
    tree = {"r": rng.standard_normal((64, 32)), "v": rng.standard_normal(256), "w": rng.standard_normal((128, 64))}
    given = {name: np.float32(leaf) for name, leaf in tree.items()}
    spread = {name: jax.device_put(leaf, NamedSharding(mesh, spec[name])) for name, leaf in given.items()}
    found: dict[str, Any] = {}
    for expression in (*cases.FEW, "add_noise(0.1, 3)", "clip_percentile(40.0, 3, per_leaf=True)"):
        inner = gx.parse(expression)
        tx = gx.across(
            gx.across(inner, "x", split="leaves", replicated="r"), "y", split="leaves", replicated=only_w_is_not
        )
        alone = inner.init(given)
        states = jax.tree_util.tree_map_with_path(lambda path, leaf: spec_of(path, leaf, spec, given), alone)
        step = jax.jit(jax.shard_map(tx.update, mesh=mesh, in_specs=(spec, states), out_specs=(spec, states)))
        compiled = step.lower(spread, alone).compile()
        updates, _ = compiled(spread, alone)
        wanted, _ = inner.update(given, alone)
        text = compiled.as_text()
        found[expression] = {
            "off": 0.0 if "noise" in expression else cases.off(updates, wanted, expression),
            "traffic": traffic(text),
            "moves": len(MOVES.findall(text)),
        }
    return found


def only_w_is_not(path: str, leaf: Any) -> bool:
    """Leaves that are replicated along the second axis of the mesh."""
    return path != "w"


def spec_of(path: Any, leaf: Any, spec: dict[str, Any], given: dict[str, Any]) -> Any:
    """Traces are sharded like the gradients; numbers are replicated."""
    name = getattr(path[-1], "key", None)
    return spec[name] if name in spec and leaf.shape == given[name].shape else P()


def main(how: str, dtype: str) -> None:
    """Print a report of each transform."""
    if how == "proven":
        print(json.dumps(proven()))
        return
    chosen = cases.TRANSFORMS if (how, dtype) == ("shard_map", "float32") else cases.FEW
    with jax.enable_x64(dtype == "float64"):
        print(
            json.dumps(
                {
                    f"{split}: {expression}": measured(expression, dtype, split, how)
                    for split in ("tree", "leaves")
                    for expression in chosen
                }
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
