"""Derivatives through updates in parameters, gradients, rates, limits and factors, against finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support import XLA, assert_close, slow

import gradxform as gx

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

START = {"b": np.array([0.3]), "w": np.array([1.2, -0.7, 0.4])}
assert_near = functools.partial(assert_close, rtol=1e-6, atol=1e-8)


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


Make = Callable[[Any, Any], Any]
SMOOTH: dict[str, Make] = {
    "clip_norm": lambda limit, factor: gx.chain(gx.clip_norm(limit), gx.scale(factor)),
    "clip_norm, axes": lambda limit, factor: gx.chain(gx.clip_norm(limit, axes=0), gx.scale(factor)),
    "clip_norm, ord 3": lambda limit, factor: gx.chain(gx.clip_norm(limit, ord=3), gx.scale(factor)),
    "clip_global_norm": lambda limit, factor: gx.chain(gx.clip_global_norm(limit), gx.scale(factor)),
    "clip_rms": lambda limit, factor: gx.chain(gx.clip_rms(limit / 2), gx.scale(factor)),
    "clip_average_norm": lambda limit, factor: gx.chain(gx.clip_average_norm(limit / 4), gx.scale(factor)),
    "clip_value": lambda limit, factor: gx.chain(gx.scale(factor), gx.clip_value(limit)),
    "clip_adaptive": lambda limit, factor: gx.chain(gx.clip_adaptive(limit, axes="keras"), gx.scale(factor)),
    "normalize_norm": lambda limit, factor: gx.chain(gx.normalize_norm(), gx.scale(factor * limit)),
    "normalize_global_norm": lambda limit, factor: gx.chain(gx.normalize_global_norm(), gx.scale(factor * limit)),
    "centralize": lambda limit, factor: gx.chain(gx.centralize(axes=0), gx.scale(factor * limit)),
    "add_decayed_weights": lambda limit, factor: gx.chain(gx.clip_norm(limit), gx.add_decayed_weights(factor)),
    "add_noise": lambda limit, factor: gx.chain(gx.clip_norm(limit), gx.add_noise(factor, 0)),
    "top_k": lambda limit, factor: gx.chain(gx.top_k(0.5), gx.clip_norm(limit), gx.scale(factor)),
    "zero_nonfinite": lambda limit, factor: gx.chain(gx.zero_nonfinite(), gx.clip_norm(limit), gx.scale(factor)),
    "elementwise": lambda limit, factor: gx.chain(gx.elementwise(lambda g: g / (1 + abs(g))), gx.scale(limit * factor)),
    "partition": lambda limit, factor: gx.partition({"w": gx.clip_norm(limit)}, default=gx.scale(factor)),
    "scale_by_schedule": lambda limit, factor: gx.chain(gx.clip_norm(limit), gx.scale(lambda t: factor / (1 + t))),
    "ema": lambda limit, factor: gx.chain(gx.clip_global_norm(limit), gx.ema(factor / 2)),
    "trace": lambda limit, factor: gx.chain(gx.clip_global_norm(limit), gx.trace(factor / 2, nesterov=True)),
    "grokfast": lambda limit, factor: gx.chain(gx.clip_global_norm(limit), gx.grokfast(factor / 2, limit)),
    "mars": lambda limit, factor: gx.mars(factor, 0.5, max_norm=limit),
    "accumulate": lambda limit, factor: gx.accumulate(gx.chain(gx.clip_norm(limit), gx.scale(factor)), 2),
    "skip_nonfinite": lambda limit, factor: gx.skip_nonfinite(gx.chain(gx.clip_norm(limit), gx.scale(factor))),
    "error_feedback": lambda limit, factor: gx.error_feedback(gx.chain(gx.clip_norm(limit), gx.scale(factor))),
    "skip_large": lambda limit, factor: gx.skip_large(gx.chain(gx.clip_norm(limit), gx.scale(factor)), 50.0),
    "skip_spikes": lambda limit, factor: gx.skip_spikes(gx.chain(gx.clip_norm(limit), gx.scale(factor)), 5.0, 4),
    "clip_adagc": lambda limit, factor: gx.chain(gx.clip_adagc(limit, 0.5, warmup=1, max_norm=limit), gx.scale(factor)),
    "clip_spikes": lambda limit, factor: gx.chain(gx.clip_spikes(limit, 0.5, warmup=1), gx.scale(factor)),
    "orthogonal_to_parameters": lambda limit, factor: gx.chain(
        gx.orthogonal_to_parameters(), gx.clip_norm(limit), gx.scale(factor)
    ),
    "clip_zscore": lambda limit, factor: gx.chain(gx.clip_zscore(limit * 0.1, 0.9, 1), gx.scale(factor)),
}


def arrays(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float64), tree)


def central(function: Callable[..., Any], at: Any, h: float = 1e-6) -> Any:
    """The gradient by finite differences."""
    flat, build = jax.flatten_util.ravel_pytree(at)
    found = []
    for i in range(flat.size):
        high, low = (function(build(flat.at[i].add(sign * h))) for sign in (1, -1))
        found.append((float(high) - float(low)) / (2 * h))
    return build(jnp.array(found))


WEIGHTS = {"b": np.array([0.7]), "w": np.array([1.0, -2.0, 0.5])}
GRADIENTS = {"b": np.array([0.45]), "w": np.array([0.9, -0.2, 1.3])}


@slow(XLA, lambda name: name not in ("clip_norm", "clip_global_norm", "clip_value"))
@pytest.mark.parametrize("name", SMOOTH)
def test_updates_in_parameters_gradients_limit_and_factor(name: str) -> None:
    def total(at: Any) -> Any:
        params, gradient, knobs = at
        tx = SMOOTH[name](knobs["limit"], knobs["factor"])
        state, found = tx.init(params), 0.0
        for size in (1.0, 1.7) if tx.stateful else (1.0,):
            updates, state = tx.update(jax.tree.map(lambda g, size=size: g * size, gradient), state, params)
            found += size * sum(jnp.sum(WEIGHTS[path] * leaf) for path, leaf in updates.items())
        return found

    both = jax.jit(jax.value_and_grad(total))
    at = arrays((START, GRADIENTS, {"limit": 0.8, "factor": 1.1}))
    exact = both(at)[1]
    assert_near(exact, central(lambda at: both(at)[0], at))
    assert any(abs(float(exact[2][knob])) > 1e-3 for knob in ("limit", "factor"))
    of_zeros = both((at[0], jax.tree.map(jnp.zeros_like, at[1]), at[2]))[1]
    if not name.startswith("normalize"):  # a direction has no derivative at zero
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_zeros))


@slow(XLA)
def test_the_limit_of_clip_percentile_is_a_constant() -> None:
    """As in AutoClip, norms are constants."""
    norms, g = [1.0, 3.0], jnp.asarray([3.0, 4.0])
    tx = gx.clip_percentile(50.0, 3)
    state = tx.init(g)
    for norm in norms:
        _, state = tx.update(jnp.array([norm, 0.0]), state)
    exact = jax.jacrev(lambda g: tx.update(g, state)[0])(g)
    np.testing.assert_allclose(exact, jax.jacrev(gx.clip_norm(3.0))(g), rtol=1e-12)


@slow(XLA)
def test_the_mask_of_cautious_is_a_constant() -> None:
    """Each update that is kept is divided by the share, and no other number moves it."""
    updates, gradients = jnp.asarray([3.0, 4.0, -1.0, 2.0]), jnp.asarray([1.0, -1.0, -2.0, 0.5])
    exact = jax.jacrev(lambda u: gx.cautious().update(u, gradients=gradients)[0])(updates)
    np.testing.assert_allclose(exact, np.diag([4.0 / 3.0, 0.0, 4.0 / 3.0, 4.0 / 3.0]), rtol=1e-12)


@slow(XLA)
def test_through_the_iteration_of_matrices() -> None:
    g, weights = jnp.array(np.random.default_rng(0).standard_normal((2, 2, 3))), jnp.arange(6.0).reshape(2, 3)
    tx = gx.chain(gx.orthogonalize(axes="keras"), gx.normalize_neurons(axes="keras"))

    def summed(tree: Any) -> Any:
        first, state = tx.update(tree[:1], tx.init(tree[:1]))
        return jnp.sum(first[0] * weights) + jnp.sum(tx.update(tree[1:], state)[0][0] ** 3)

    at = [g[0], g[1]]
    assert_near(jax.grad(summed)(at), central(jax.jit(summed), at))
