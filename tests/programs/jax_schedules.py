"""optax: schedules for rate and limit, and an injected limit that is lowered by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import gradxform as gx

PARAMS = {"w": jnp.full(4, 3.0, jnp.float32)}


def updates_of(tx: Any, state: Any, steps: int) -> tuple[list[float], Any]:
    update = jax.jit(tx.update)
    norms, params = [], PARAMS
    for _ in range(steps):
        updates, state = update(jax.tree.map(lambda p: 100.0 * p, params), state, params)
        params = optax.apply_updates(params, updates)
        norms.append(float(gx.global_norm(updates)))
    assert update._cache_size() == 1
    return norms, state


def main() -> None:
    limit = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=4, decay_steps=12)
    rate = optax.exponential_decay(1.0, transition_steps=1, decay_rate=0.5)
    tx = optax.chain(gx.clip_global_norm(limit), optax.scale_by_learning_rate(rate))
    norms, _ = updates_of(tx, tx.init(PARAMS), 12)
    assert all(abs(norm - float(limit(i) * rate(i))) <= 1e-6 for i, norm in enumerate(norms))

    tx = optax.chain(optax.inject_hyperparams(gx.clip_global_norm)(max_norm=1.0), optax.sgd(1.0))
    norms, state = updates_of(tx, tx.init(PARAMS), 3)
    state[0].hyperparams["max_norm"] = jnp.float32(0.25)
    assert [round(norm, 6) for norm in norms + updates_of(tx, state, 3)[0]] == [1.0] * 3 + [0.25] * 3

    injected, plain = optax.inject_hyperparams(gx.clip_global_norm)(max_norm=limit), gx.clip_global_norm(limit)
    assert updates_of(injected, injected.init(PARAMS), 3)[0] == updates_of(plain, plain.init(PARAMS), 3)[0]
