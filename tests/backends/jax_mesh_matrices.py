"""`orthogonalize` and `normalize_neurons` on a mesh of eight forced JAX devices; a script that prints JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

if __name__ == "__main__":  # not when pytest looks for doctests
    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_mesh import _is_as, traffic

import gradxform as gx

STACKED = ((1,), (2,))
MATRICES: dict[str, tuple[tuple[int, ...], Any, Any]] = {
    "rows": ((512, 128), P("x", None), None),
    "columns": ((128, 512), P(None, "y"), None),
    "both": ((256, 128), P("x", "y"), None),
    "stack": ((8, 32, 64), P(("x", "y"), None, None), STACKED),
    "stack and rows": ((4, 32, 64), P("x", "y", None), STACKED),
    "kernel": ((4, 4, 32, 64), P(None, None, "x", "y"), "keras"),
}
"""Shapes, shardings, and axes."""
MANY = 9
"""Equal leaves: one more than there are devices."""


def main(kind: str) -> None:
    """Print a report of each matrix."""
    axes = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[kind]
    mesh, reports = jax.make_mesh((4, 2), ("x", "y"), axis_types=(axes, axes)), {}
    with jax.set_mesh(mesh):
        for name, (shape, spec, sides) in MATRICES.items():
            given = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            tx = gx.orthogonalize(axes=sides)
            leaf = jax.device_put(given, NamedSharding(mesh, spec))
            several = [np.roll(given, n) for n in range(MANY)]
            leaves = [jax.device_put(each, leaf.sharding) for each in several]
            many = jax.jit(tx).lower(leaves).compile()
            rows = list(zip(many(leaves), tx(several), strict=True))
            reports[name] = report(tx, given, leaf)
            reports[name]["many"] = {
                "products": many.cost_analysis()["flops"] / reports[name]["products"],
                "gathered": traffic(many.as_text()).get("all-gather", 0),
                "off": max(off(*row) for row in rows),
                "spread": all(_is_as(new, leaf) for new, _ in rows),
            }
            reports[name]["neurons"] = report(gx.normalize_neurons(axes=sides), given, leaf)
    print(json.dumps(reports))


def report(tx: gx.GradientTransformation, given: np.ndarray, leaf: jax.Array) -> dict[str, Any]:
    """Compare a step, compiled and eager, with the same in NumPy."""

    def step(x: Any) -> Any:
        return tx.update([x], tx.init([x]))[0][0]

    wanted, compiled = step(given), jax.jit(step).lower(leaf).compile()
    found = compiled(leaf), step(leaf)
    return {
        "traffic": traffic(compiled.as_text()),
        "products": compiled.cost_analysis()["flops"],
        "off": max(off(new, wanted) for new in found),
        "spread": all(_is_as(new, leaf) for new in found),
    }


def off(new: Any, wanted: np.ndarray) -> float:
    """The norm of an error, relative to the result's."""
    return float(np.linalg.norm(new - wanted) / np.linalg.norm(wanted))


if __name__ == "__main__":
    main(*sys.argv[1:])
