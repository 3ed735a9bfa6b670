"""Haiku: a transformed function, its dict of dicts, and an adaptive clip per layer."""

import pickle
from pathlib import Path

import haiku as hk
import jax
import jax.numpy as jnp
import optax

import gradxform as gx


def main() -> None:
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 1])(x)))
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = 10.0 * x.sum(axis=1, keepdims=True)
    params = net.init(jax.random.key(1), x)
    tx = optax.chain(gx.clip_adaptive(0.05, axes="keras"), gx.skip_nonfinite(optax.adam(0.02)))

    @jax.jit
    def step(params: hk.Params, state: optax.OptState, x: jax.Array) -> tuple[hk.Params, optax.OptState, jax.Array]:
        loss, grads = jax.value_and_grad(lambda params: jnp.mean((net.apply(params, x) - y) ** 2))(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    params, state, first = step(params, tx.init(params), x)
    for _ in range(30):
        params, state, loss = step(params, state, x)
    assert loss < first
    broken, state, _ = step(params, state, x.at[0, 0].set(jnp.nan))  # a skipped batch
    assert jax.tree.all(jax.tree.map(jnp.array_equal, params, broken))
    assert not gx.has_updated(state)
    Path("run.pickle").write_bytes(pickle.dumps((params, state)))
    restored = pickle.loads(Path("run.pickle").read_bytes())
    assert jax.tree.all(jax.tree.map(jnp.array_equal, step(params, state, x), step(*restored, x)))
