"""optax: masks and labels with a clip inside, compared with path patterns."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import gradxform as gx

PARAMS = {"encoder": {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}, "head": {"w": jnp.ones((2, 1)), "b": jnp.ones(1)}}


def train(tx: Any) -> Any:
    def step(carry: Any, i: jax.Array) -> Any:
        params, state = carry
        grads = jax.tree.map(lambda p: 10.0 * jnp.sin(p + i), params)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), gx.norms(updates)

    return jax.jit(lambda: jax.lax.scan(step, (PARAMS, tx.init(PARAMS)), jnp.arange(10.0)))()


def main() -> None:
    weights_only = jax.tree.map(lambda p: p.ndim > 1, PARAMS)
    (by_mask, _), norms = train(optax.chain(optax.masked(gx.clip_norm(0.5), weights_only), optax.sgd(1.0)))
    (by_pattern, _), _ = train(optax.chain(gx.masked(gx.clip_norm(0.5), "*/w"), optax.sgd(1.0)))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, by_mask, by_pattern))
    assert max(norms["encoder/w"]) <= 0.5 + 1e-6 < max(norms["encoder/b"])
    adam = optax.chain(gx.clip_global_norm(1.0), optax.adamw(0.1, weight_decay=0.1))
    (params, _), _ = train(
        optax.multi_transform(
            {"trained": adam, "frozen": optax.set_to_zero()}, {"encoder": "frozen", "head": "trained"}
        )
    )
    (frozen, _), _ = train(gx.jax.freeze(adam, "encoder/**"))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, params, frozen))
    assert jnp.array_equal(params["encoder"]["w"], PARAMS["encoder"]["w"])
