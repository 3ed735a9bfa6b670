"""Equinox: filtered gradients, an optimizer state on disk, and a run that continues bit for bit."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import gradxform as gx

optimizer = optax.chain(gx.clip_global_norm(1.0), gx.masked(gx.ema(0.9), "layers/0/*"), optax.adam(1e-2))


@eqx.filter_jit
def make_step(model: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
    loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2))(model)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = x.sum(axis=1, keepdims=True)
    model = eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(1))
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    model, opt_state, first = make_step(model, opt_state, x, y)
    for _ in range(20):
        model, opt_state, loss = make_step(model, opt_state, x, y)
    assert loss < first
    eqx.tree_serialise_leaves("run.eqx", (model, opt_state))
    like = (eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(2)), optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
    restored = eqx.tree_deserialise_leaves("run.eqx", like)
    assert eqx.tree_equal(make_step(model, opt_state, x, y), make_step(*restored, x, y))
