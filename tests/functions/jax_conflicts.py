"""Conflicting gradients on a mesh of eight forced JAX devices, and under vmap; a script that prints JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # not when pytest looks for doctests
    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import gradxform as gx
from gradxform.proof.ulp import apart

SHARDED = {"rows": ((64, 16), P("x", None)), "both": ((32, 32), P("x", "y")), "whole": ((7,), P())}
FUNCTIONS = {"mgda": gx.mgda, "cagrad": gx.cagrad, "upgrad": gx.upgrad, "pcgrad": lambda trees: gx.pcgrad(trees, 0)}


def trees(seed: int) -> list[dict[str, Any]]:
    """Gradients of two tasks that conflict."""
    rng = np.random.default_rng(seed)
    common = {name: rng.standard_normal(shape) for name, (shape, _) in SHARDED.items()}
    return [
        {name: np.float32(sign * leaf + rng.standard_normal(leaf.shape)) for name, leaf in common.items()}
        for sign in (1.0, -0.7)
    ]


def off(found: Any, wanted: Any, path: str, given: Any) -> float:
    """The distance of two leaves in ULP of the largest term."""
    term = np.max([np.abs(tree[path]) for tree in given], axis=0).astype(np.float64)
    return float(np.max(apart(np.asarray(found), np.asarray(wanted), term)))


def main(kind: str) -> None:
    """Print a report of each function."""
    from jax_mesh import traffic

    axes = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[kind]
    mesh, reports = jax.make_mesh((4, 2), ("x", "y"), axis_types=(axes, axes)), {}
    for name, function in FUNCTIONS.items():
        given, step = trees(0), jax.jit(function)
        wanted = function(given)
        with jax.set_mesh(mesh):
            spread = [
                {path: jax.device_put(leaf, NamedSharding(mesh, SHARDED[path][1])) for path, leaf in tree.items()}
                for tree in given
            ]
            found = step(spread)
            moved = traffic(step.lower(spread).compile().as_text())
        both = [[tree[path] for path in SHARDED] for tree in (function(trees(1)), wanted)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), trees(1), given)
        vmapped = jax.jit(jax.vmap(function))(stacked)
        reports[name] = {
            "off": max(off(found[path], wanted[path], path, given) for path in SHARDED),
            "spread": [
                path for path in SHARDED if not found[path].sharding.is_equivalent_to(spread[0][path].sharding, 2)
            ],
            "traffic": moved,
            "vmapped": max(
                off(vmapped[path][i], tree[k], path, (trees(1), given)[i])
                for i, tree in enumerate(both)
                for k, path in enumerate(SHARDED)
            ),
        }
    print(json.dumps(reports))


if __name__ == "__main__":
    main(*sys.argv[1:])
