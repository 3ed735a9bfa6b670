"""Muon by parts beside each library's Muon: equal up to the rounding of matrix products, for small gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import PEERS, array, slow

import gradxform as gx
from gradxform.proof import products

STEPS, RATE = 6, 0.02
SHAPES = ((48, 32), (32, 80))
RNG = np.random.default_rng(3)
WEIGHTS = [RNG.standard_normal(shape).astype(np.float32) for shape in SHAPES]
GRADIENTS = [[RNG.standard_normal(shape).astype(np.float32) for shape in SHAPES] for _ in range(STEPS)]
SINGLE = 2 * products.budget("jordan", 5) * 2.0**-24
"""Both sides of the comparison are off by their own rounding."""
BRAIN = 0.03
"""What bfloat16 products make of these matrices: torch.optim.Muon is 0.014 to 0.017 off the iteration in float64."""
Steps = list[list[Any]]
"""The gradients, or the weights, of each step."""


def muon(factor: float = 0.05, **given: Any) -> gx.GradientTransformation:
    """The factor of a moving average matters for small gradients alone."""
    return gx.chain(gx.trace(0.95, nesterov=True), gx.scale(factor), gx.orthogonalize(**given))


def in_torch(scale: str, dtype: str = "bfloat16", native: str = "") -> Callable[[Steps], Steps]:
    def run(steps: Steps) -> Steps:
        torch = pytest.importorskip("torch")
        if not hasattr(torch.optim, "Muon"):
            pytest.skip("this PyTorch has no Muon")
        parameters, found = [torch.nn.Parameter(torch.tensor(w)) for w in WEIGHTS], []
        if native:
            optimizer = torch.optim.Muon(parameters, RATE, weight_decay=0.1, adjust_lr_fn=native)
        else:
            optimizer = torch.optim.SGD(parameters, RATE, weight_decay=0.1)
            gx.torch.attach(optimizer, muon(scale=scale, dtype=dtype, like="torch"))
        for gradients in steps:
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = torch.tensor(g)
            optimizer.step()
            found.append([array(p).copy() for p in parameters])
        return found

    return run


def in_optax(scale: str, native: bool = False) -> Callable[[Steps], Steps]:
    def run(steps: Steps) -> Steps:
        jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
        if not hasattr(optax.contrib, "muon"):
            pytest.skip("this optax has no Muon")
        rest = optax.add_decayed_weights(0.1), optax.scale_by_learning_rate(RATE)
        own = optax.chain(gx.ema(0.95), gx.orthogonalize(axes="keras", scale=scale, like="optax"), *rest)
        consistent = 0.2 if scale == "rms" else None
        other = optax.contrib.muon(RATE, weight_decay=0.1, consistent_rms=consistent, nesterov=False)
        optimizer, weights = other if native else own, list(map(jax.numpy.asarray, WEIGHTS))
        state, found = optimizer.init(weights), []
        for gradients in steps:
            updates, state = jax.jit(optimizer.update)(list(map(jax.numpy.asarray, gradients)), state, weights)
            weights = optax.apply_updates(weights, updates)
            found.append(list(map(array, weights)))
        return found

    return run


def in_keras(scale: str | None, native: bool = False) -> Callable[[Steps], Steps]:
    def run(steps: Steps) -> Steps:
        keras = pytest.importorskip("keras")
        if not hasattr(keras.optimizers, "Muon"):
            pytest.skip("this Keras has no Muon")
        if native:
            optimizer = keras.optimizers.Muon(RATE, weight_decay=None, rms_rate=scale and 0.2)
        else:
            optimizer = gx.keras.wrap(keras.optimizers.SGD(RATE), muon(1.0, scale=scale, like="keras"))
        weights, found = [keras.Variable(w, name=f"w{i}") for i, w in enumerate(WEIGHTS)], []
        for gradients in steps:
            optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], weights)
            found.append([np.array(w.numpy()) for w in weights])
        return found

    return run


def in_mlx(native: bool = False) -> Callable[[Steps], Steps]:
    def run(steps: Steps) -> Steps:
        mx, optimizers = pytest.importorskip("mlx.core"), pytest.importorskip("mlx.optimizers")
        optimizer, tx = optimizers.Muon(RATE, weight_decay=0.0), gx.chain(muon(like="mlx"), gx.scale(-RATE))
        weights: dict[str, Any] = {str(i): mx.array(w) for i, w in enumerate(WEIGHTS)}
        state, found = tx.init(weights), []
        for gradients in steps:
            given = {str(i): mx.array(g) for i, g in enumerate(gradients)}
            if native:
                weights = optimizer.apply_gradients(given, weights)
            else:
                updates, state = tx.update(given, state)
                weights = {name: weights[name] + updates[name] for name in weights}
            found.append([np.array(w) for w in weights.values()])
        return found

    return run


MUONS = {
    "torch": (in_torch("shape", native="original"), in_torch("shape"), BRAIN),
    "torch, rms": (in_torch("rms", native="match_rms_adamw"), in_torch("rms"), BRAIN),
    "torch, float32": (in_torch("shape", native="original"), in_torch("shape", "float32"), BRAIN),
    "optax": (in_optax("shape", native=True), in_optax("shape"), SINGLE),
    "optax, rms": (in_optax("rms", native=True), in_optax("rms"), SINGLE),
    "keras": (in_keras("rms", native=True), in_keras("rms"), SINGLE),
    "keras, plain": (in_keras(None, native=True), in_keras(None), SINGLE),
    "mlx": (in_mlx(native=True), in_mlx(), SINGLE),
}
"""Each library's Muon, the same by parts, and the distance of a step relative to its norm."""


@slow(PEERS, size=1e-9)
@pytest.mark.parametrize("size", [1.0, 1e-9])
@pytest.mark.parametrize("name", MUONS)
def test_muon_of_each_library(name: str, size: float) -> None:
    native, by_parts, tolerance = MUONS[name]
    steps = [[g * np.float32(size) for g in gradients] for gradients in GRADIENTS]
    runs = [[WEIGHTS, *run(steps)] for run in (native, by_parts)]
    for step in range(STEPS):
        for leaf in range(len(SHAPES)):
            wanted, found = (run[step + 1][leaf].astype(np.float64) - run[step][leaf] for run in runs)
            assert np.linalg.norm(wanted) > 0
            # a weight of size 4 is rounded to 2^-22
            rounding = 2.0**-21 * wanted.size**0.5
            assert np.linalg.norm(wanted - found) < tolerance * np.linalg.norm(wanted) + rounding
