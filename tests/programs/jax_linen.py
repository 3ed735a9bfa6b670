"""Flax Linen: a TrainState, its checkpoint, and a run that continues bit for bit."""

from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import serialization
from flax.training.train_state import TrainState

import gradxform as gx


@jax.jit
def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    loss, grads = jax.value_and_grad(lambda params: jnp.mean((state.apply_fn(params, x) - y) ** 2))(state.params)
    return state.apply_gradients(grads=grads), loss


def main() -> None:
    net = nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(1)])
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = x.sum(axis=1, keepdims=True)
    limits = gx.partition({"params/layers_0/*": gx.clip_norm(0.1)}, default=gx.clip_percentile(50.0, window=10))
    tx = optax.chain(limits, optax.adamw(1e-2))
    fresh = TrainState.create(apply_fn=net.apply, params=net.init(jax.random.key(1), x), tx=tx)
    state, first = train_step(fresh, x, y)
    for _ in range(20):
        state, loss = train_step(state, x, y)
    assert loss < first
    Path("state.msgpack").write_bytes(serialization.to_bytes(state))
    restored = serialization.from_bytes(fresh, Path("state.msgpack").read_bytes())
    both = [train_step(each, x, y)[0] for each in (state, restored)]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, *both))
