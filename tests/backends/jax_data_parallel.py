"""The norm of data-parallel gradients on four forced devices, beside the norm of the whole batch.

python tests/backends/jax_data_parallel.py    # {"form": [ratio on each device]}
"""

from __future__ import annotations

import json
import os
from typing import Any

if __name__ == "__main__":
    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import gradxform as gx

DEVICES = 4
rng = np.random.default_rng(0)
BATCH = np.float32(rng.normal(size=(8, 3))), np.float32(rng.normal(size=8))
PARAMETERS = {"w": np.ones(3, np.float32)}
CLIP = gx.clip_global_norm(0.5)


def loss(p: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ p["w"] - y) ** 2)


def mean_loss(p: Any, x: Any, y: Any) -> Any:
    return jax.lax.pmean(loss(p, x, y), "data")


def of_loss(p: Any, *batch: Any) -> Any:
    return jax.grad(mean_loss)(p, *batch)


def of_gradients(p: Any, *batch: Any) -> Any:
    return jax.lax.pmean(jax.grad(loss)(p, *batch), "data")


def summed(p: Any, *batch: Any) -> Any:
    return jax.lax.psum(jax.grad(loss)(p, *batch), "data")


def shown(gradients: Any) -> Any:
    """The norm, and what a clip leaves of the first gradient, as a row of this device."""
    return jnp.stack([gx.global_norm(gradients), CLIP(gradients)["w"][0]])[None]


def main() -> None:
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, P("data"))
    pieces = [part.reshape(DEVICES, -1, *part.shape[1:]) for part in BATCH]
    wanted = np.asarray(shown(jax.grad(loss)(PARAMETERS, *BATCH)))[0]

    def shard_map(gradients: Any, check: bool) -> Any:
        step = jax.shard_map(
            lambda *given: shown(gradients(*given)),
            mesh=mesh,
            in_specs=(P(), P("data"), P("data")),
            out_specs=P("data"),
            check_vma=check,
        )
        return jax.jit(step)(PARAMETERS, *BATCH)

    def pmap(gradients: Any) -> Any:
        step = jax.pmap(lambda *given: shown(gradients(*given))[0], axis_name="data", in_axes=(None, 0, 0))
        return step(PARAMETERS, *pieces)

    jitted = jax.jit(lambda p, *batch: shown(jax.grad(loss)(p, *batch)))
    found = {
        "jit": jitted(PARAMETERS, *(jax.device_put(part, split) for part in BATCH)),
        "pmap, gradients": pmap(of_gradients),
        "pmap, loss": pmap(of_loss),
    }
    ways = {"loss": of_loss, "gradients": of_gradients, "sum": summed}
    for name, way in ways.items():
        found[f"shard_map, {name}"] = shard_map(way, True)
        found[f"unchecked, {name}"] = shard_map(way, False)
    print(json.dumps({name: (np.asarray(rows) / wanted).tolist() for name, rows in found.items()}))


if __name__ == "__main__":
    main()
