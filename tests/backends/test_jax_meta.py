"""Derivatives through updates in parameters, gradients, rates, limits and factors, against finite differences."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from entries import ENTRIES
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


KNOBS = {"limit": "limit", "size": "limit", "factor": "factor", "share": "factor / 2", "part": "0.5", "where": "w"}
KNOBS |= {"order": "", "few": "1", "bool": "False", "tx": "chain(clip_norm(limit), scale(factor))"}
CONSTANT = ("stop", "freeze", "clip_percentile", "cautious", "skip_large")
"""Transforms whose derivatives are zero, or tested below, or whose limit leaves the step out."""
SMOOTH = [
    f"skip_large({KNOBS['tx']}, 50.0)",
    "clip_norm(limit, axes=0)",
    "clip_norm(limit, ord=3)",
    "centralize(axes=0)",
    "elementwise(lambda g: g / (1 + abs(g)))",
    *(
        re.sub(r"<(\w+)>", lambda found: KNOBS[found[1]], entry.chains[0])
        for entry in ENTRIES
        if entry.chains and entry.name not in CONSTANT and "<matrix>" not in entry.chains[0]
    ),
]
"""An expression of each transform, as random chains have it."""


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


@slow(XLA, lambda expression: expression not in ("clip_norm(limit)", "clip_global_norm(limit)", "clip_value(limit)"))
@pytest.mark.parametrize("expression", SMOOTH)
def test_updates_in_parameters_gradients_limit_and_factor(expression: str) -> None:
    def total(at: Any) -> Any:
        params, gradient, knobs = at
        tx = gx.chain(eval(expression, vars(gx) | knobs), gx.scale(knobs["factor"]))
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
    if not expression.startswith("normalize"):  # a direction has no derivative at zero
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
