"""Runs on several devices and in several processes, recorded; test_record_sharded.py starts them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import gradxform as gx

STEPS, WIDTH = 3, 8
RNG = np.random.default_rng(0)
WEIGHTS = {
    "up": RNG.normal(size=(WIDTH, 2 * WIDTH)).astype(np.float32),
    "down": RNG.normal(size=(16, 8)).astype(np.float32),
}
BATCHES = RNG.normal(size=(STEPS, 16, WIDTH)).astype(np.float32)


def jax_devices(folder: Path, ways: tuple[int, int], jitted: bool) -> None:
    """Train with weights and batches that are sharded over a mesh of devices."""
    import jax
    from jax import numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[: ways[0] * ways[1]]).reshape(ways), ("data", "model"))
    specs = {"up": PartitionSpec("data", "model"), "down": PartitionSpec("model", None)}
    params = {name: jax.device_put(x, NamedSharding(mesh, specs[name])) for name, x in WEIGHTS.items()}
    assert len(params["up"].sharding.device_set) == ways[0] * ways[1]
    recorder = gx.record(folder)

    def loss_of(params: Any, x: Any) -> Any:
        return ((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2).mean()

    @jax.jit
    def step_of(params: Any, x: Any, step: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        if jitted:
            jax.debug.callback(recorder, step, gradients=gradients, parameters=params, loss=loss)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), gradients, loss

    for step, x in enumerate(BATCHES):
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", None)))
        new, gradients, loss = step_of(params, x, step)
        if not jitted:
            recorder(step, gradients=gradients, parameters=params, loss=loss)
        params = new
    jax.effects_barrier()


def jax_processes(folder: Path, rank: int, world: int, address: str) -> None:
    """The same in several processes, none of which has a whole array."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=world, process_id=rank)
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    params = {name: jax.make_array_from_callback(x.shape, sharding, lambda i, x=x: x[i]) for name, x in WEIGHTS.items()}
    assert not params["up"].is_fully_addressable
    gx.record(folder)(0, gradients=params, loss=np.float32(rank))
    multihost_utils.sync_global_devices("recorded")


def torch_processes(folder: Path, rank: int, world: int, store: str) -> None:
    """FSDP2 over the processes of a gloo group, by the recorder and by the handle of `attach`."""
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model = network()
    if world > 1:
        mesh = torch.distributed.init_device_mesh("cpu", (world,))
        fully_shard(model, mesh=mesh)
        assert "DTensor" in type(next(model.parameters())).__name__
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    handle = gx.torch.attach(optimizer, gx.clip_global_norm(0.05))
    handle.record(gx.record(folder / "attached"))
    recorder = gx.record(folder / "called")
    for step, x in enumerate(torch.tensor(BATCHES)):
        optimizer.zero_grad()
        loss = (model(x.chunk(world)[rank]) ** 2).mean()
        loss.backward()
        recorder(step, gradients=model, parameters=model)
        optimizer.step()
    norms = gx.record(folder / "norms", norms_only=True)
    norms(0, gradients=model)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def network() -> Any:
    """Two dense layers."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, 3))


if __name__ == "__main__":
    kind, target, *rest = sys.argv[1:]
    if kind == "jax devices":
        jax_devices(Path(target), (int(rest[0]), int(rest[1])), rest[2] == "jitted")
    else:
        run = {"jax processes": jax_processes, "torch processes": torch_processes}[kind]
        run(Path(target), int(rest[0]), int(rest[1]), rest[2])
