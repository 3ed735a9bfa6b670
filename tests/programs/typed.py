"""User code with its inferred types; test_types.py checks it with strict mypy and pyright."""
# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnusedFunction=false
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import torch

import gradxform as gx

tx = gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0), gx.scale(-0.1))
assert_type(tx, gx.GradientTransformation)
assert_type(gx.parse("clip_norm(1.0)"), gx.GradientTransformation)


class Layer(NamedTuple):
    """A custom pytree."""

    w: jax.Array
    b: jax.Array


def with_numpy() -> None:
    grads: dict[str, npt.NDArray[np.float32]] = {"w": np.ones(2, np.float32)}
    assert_type(tx(grads), dict[str, npt.NDArray[np.float32]])
    updates, state = gx.trace(0.9).update(grads, gx.trace(0.9).init(grads))
    assert_type(updates, dict[str, npt.NDArray[np.float32]])
    assert_type(state, Any)
    gx.numpy.apply_(tx, grads)


def with_optax() -> None:
    params = Layer(jnp.ones(2), jnp.ones(()))
    optimizer = optax.chain(tx, optax.adam(1e-3))
    state = optimizer.init(params)
    optimizer.update(params, state, params)
    optax.chain(optax.masked(tx, Layer), optax.apply_if_finite(gx.clip_norm(1.0), 3), gx.freeze("b"))
    optax.MultiSteps(gx.scale(-0.1), 2)
    assert_type(tx(params), Layer)
    updates, _ = tx.update(params, gx.EmptyState(), params)
    assert_type(updates, Layer)
    gx.jax.as_optax(tx).init(params)


def backward() -> None:
    x = jnp.ones(2)
    assert_type(gx.on_backward(tx)(x), jax.Array)
    assert_type(gx.reverse_gradient(x), jax.Array)
    assert_type(gx.stop_gradient({"x": x}), dict[str, jax.Array])


def with_torch() -> None:
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    norm: torch.Tensor = gx.torch.apply_(tx, model, return_norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gx.torch.attach(optimizer, tx) as handle:
        assert_type(handle, gx.torch.Attached)
        assert_type(handle.norm, torch.Tensor | None)
        optimizer.step()
    assert norm.item() > 0.0
    assert_type(gx.metrics(handle), dict[str, Any])


if TYPE_CHECKING:  # errors are found: an unneeded ignore is an error

    def wrong() -> None:
        tx.updates({})  # type: ignore[attr-defined]
        gx.clip_norm()  # type: ignore[call-arg]
        gx.clip_global_norm(1.0, axes=1)  # type: ignore[call-arg]
        gx.torch.attach(tx)  # type: ignore
        grads: dict[str, float] = tx([1.0])  # type: ignore
        del grads
