"""The same transforms of updates in optax, PyTorch and Keras, and by peers' own formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradxform as gx
from gradxform.testing import max_ulp

RATE, STEPS = 0.01, 10
SHAPES = {"w": (5, 4), "b": (6,)}
Leaves = dict[str, Any]


def given() -> tuple[Leaves, list[Leaves]]:
    """Parameters between 0.5 and 2, and gradients that change signs and sizes."""
    rng = np.random.default_rng(3)
    params = {key: np.float32(rng.uniform(0.5, 2.0, shape)) for key, shape in SHAPES.items()}
    steps = [
        {key: np.float32(rng.standard_normal(shape) * 10.0 ** (step % 3)) for key, shape in SHAPES.items()}
        for step in range(STEPS)
    ]
    return params, steps


def by_hand(change: Callable[[Any, Any, Any], Any]) -> Leaves:
    """Adam in float64, with decays of which float32 rounds no power.

    `change` gets each update before the learning rate, its gradient and its parameter.
    """
    params, steps = given()
    values = {key: np.float64(value) for key, value in params.items()}
    first, second = ({key: np.zeros(shape) for key, shape in SHAPES.items()} for _ in "ab")
    for step, gradients in enumerate(steps, 1):
        for key, gradient in gradients.items():
            g = np.float64(gradient)
            first[key] = 0.5 * first[key] + 0.5 * g
            second[key] = 0.75 * second[key] + 0.25 * g**2
            update = first[key] / (1 - 0.5**step) / np.sqrt(second[key] / (1 - 0.75**step))
            values[key] = values[key] - RATE * change(update, g, values[key])
    return values


def in_optax(tx: gx.GradientTransformation) -> Leaves:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    chain = gx.chain(optax.scale_by_adam(0.5, 0.75, eps=1e-30), tx, gx.scale(-RATE))
    params, steps = given()
    params = jax.tree.map(jax.numpy.asarray, params)
    state = chain.init(params)

    @jax.jit
    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = chain.update(gradients, state, params, gradients=gradients)
        return optax.apply_updates(params, updates), state

    for gradients in steps:
        params, state = step(params, state, gradients)
    return {key: np.asarray(value) for key, value in params.items()}


def in_torch(tx: gx.GradientTransformation) -> Leaves:
    torch = pytest.importorskip("torch")
    params, steps = given()
    named = {key: torch.nn.Parameter(torch.tensor(value)) for key, value in params.items()}
    optimizer = torch.optim.Adam(named.items(), lr=RATE, betas=(0.5, 0.75), eps=1e-30)
    gx.torch.attach(optimizer, tx, on="updates")
    for gradients in steps:
        for key, gradient in gradients.items():
            named[key].grad = torch.tensor(gradient)
        optimizer.step()
    return {key: p.detach().numpy() for key, p in named.items()}


def in_keras(tx: gx.GradientTransformation) -> Leaves:
    keras = pytest.importorskip("keras")
    params, steps = given()
    variables = {key: keras.Variable(value, name=key) for key, value in params.items()}
    optimizer = gx.keras.wrap(keras.optimizers.Adam(RATE, 0.5, 0.75, epsilon=1e-30), tx, on="updates")
    for gradients in steps:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients.values()], list(variables.values()))
    return {key: np.asarray(v.numpy()) for key, v in variables.items()}


def _clipped(update: Any, gradient: Any, param: Any) -> Any:
    return update * min(1.0, 0.8 / np.sqrt(np.mean(update**2)))


def _of_parameter(update: Any, gradient: Any, param: Any) -> Any:
    return update * min(1.0, np.linalg.norm(param) * 0.5 / np.linalg.norm(update))


def _cautious(update: Any, gradient: Any, param: Any) -> Any:
    mask = (update * gradient > 0).astype(float)
    return update * mask / max(mask.mean(), 1e-3)


RULES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "clip_rms": (_clipped, gx.clip_rms(0.8), gx.clip_rms(0.8 * RATE)),
    "clip_adaptive": (
        _of_parameter,
        gx.clip_adaptive(0.5, axes={"w": (0, 1), "b": (0,)}),
        gx.clip_adaptive(0.5 * RATE, axes={"w": (0, 1), "b": (0,)}),
    ),
    "cautious": (_cautious, gx.cautious(), gx.cautious()),
}
"""By hand; before the learning rate, as in optax; after it."""


@pytest.mark.parametrize("name", RULES)
def test_the_same_training_in_three_frameworks(name: str) -> None:
    """Within an ULP for each step of Adam in float64: libraries round its formula, and each step the parameter."""
    change, before, after = RULES[name]
    wanted = {key: np.float32(value) for key, value in by_hand(change).items()}
    plain = {key: np.float32(value) for key, value in by_hand(lambda update, *_: update).items()}
    for found in (in_optax(before), in_torch(after), in_keras(after)):
        for key, value in wanted.items():
            assert max_ulp(found[key], value) <= STEPS, (name, key, found[key], value)
            assert max_ulp(plain[key], value) > 100


def test_cautious_after_the_learning_rate_in_optax() -> None:
    """`negated=True` after a whole optimizer is `cautious()` before its learning rate."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    params, steps = given()
    before = gx.chain(optax.scale_by_adam(), gx.cautious(), gx.scale(-RATE))
    after = optax.chain(optax.adam(RATE), gx.jax.as_optax(gx.cautious(negated=True)))
    ends = []
    for chain in (before, after):
        own, state = jax.tree.map(jax.numpy.asarray, params), chain.init(params)
        for gradients in steps:
            updates, state = chain.update(gradients, state, own, gradients=gradients)
            own = optax.apply_updates(own, updates)
        ends.append(own)
    for key in SHAPES:
        assert max_ulp(np.asarray(ends[0][key]), np.asarray(ends[1][key])) <= 2


def test_the_update_clip_of_adafactor_in_torch() -> None:
    """Adafactor limits the update's root mean square to its step size, which is a multiple of the parameter's."""
    torch = pytest.importorskip("torch")
    params, steps = given()
    ends = []
    for clip in (True, False):
        named = {key: torch.nn.Parameter(torch.tensor(value)) for key, value in params.items()}
        optimizer = torch.optim.Adafactor(named.items(), lr=RATE, weight_decay=0.0, d=1.0 if clip else 1e30)
        if not clip:
            rules = {
                key: gx.clip_adaptive(RATE, eps=1e-3 * math.sqrt(math.prod(shape)), axes=tuple(range(len(shape))))
                for key, shape in SHAPES.items()
            }
            gx.torch.attach(optimizer, gx.partition(rules), on="updates")
        for gradients in steps:
            for key, gradient in gradients.items():
                named[key].grad = torch.tensor(gradient)
            optimizer.step()
        ends.append({key: p.detach().numpy() for key, p in named.items()})
    for key in SHAPES:
        assert max_ulp(ends[0][key], ends[1][key]) <= 4
