"""Muon by parts beside torch.optim.Muon, optax.contrib.muon, keras.optimizers.Muon and mlx.optimizers.Muon.

All get the same gradients. Steps and weights agree to rounding of float32 or bfloat16 matrix products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import array

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


def muon(**given: Any) -> gx.GradientTransformation:
    return gx.chain(gx.trace(0.95, nesterov=True), gx.orthogonalize(**given))


def assert_updates(found: list[list[Any]], wanted: list[list[Any]], tolerance: float) -> None:
    """Compare the steps of two runs, given the weights after each step."""
    for before, after, other_before, other_after in zip(found, found[1:], wanted, wanted[1:], strict=False):
        for a, b, c, d in zip(before, after, other_before, other_after, strict=True):
            step, other = b.astype(np.float64) - a, d.astype(np.float64) - c
            assert np.linalg.norm(other) > 0
            # a weight of size 4 is rounded to 2^-22
            rounding = 2.0**-21 * step.size**0.5
            assert np.linalg.norm(step - other) < tolerance * np.linalg.norm(other) + rounding


@pytest.mark.parametrize(("scale", "adjust"), [("shape", "original"), ("rms", "match_rms_adamw")])
def test_muon_of_torch(scale: str, adjust: str) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")

    def run(make: Any) -> list[list[Any]]:
        parameters = [torch.nn.Parameter(torch.tensor(w)) for w in WEIGHTS]
        optimizer, found = make(parameters), [WEIGHTS]
        for gradients in GRADIENTS:
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = torch.tensor(g)
            optimizer.step()
            found.append([array(p).copy() for p in parameters])
        return found

    def by_parts(dtype: str) -> Any:
        def make(parameters: Any) -> Any:
            optimizer = torch.optim.SGD(parameters, RATE, weight_decay=0.1)
            gx.torch.attach(optimizer, muon(scale=scale, dtype=dtype, like="torch"))
            return optimizer

        return make

    native = run(lambda parameters: torch.optim.Muon(parameters, RATE, weight_decay=0.1, adjust_lr_fn=adjust))
    single = run(by_parts("float32"))
    assert_updates(native, single, BRAIN)
    assert_updates(run(by_parts("bfloat16")), single, BRAIN)


@pytest.mark.parametrize("consistent_rms", [None, 0.2])
def test_muon_of_optax(consistent_rms: float | None) -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    if not hasattr(optax.contrib, "muon"):
        pytest.skip("this optax has no Muon")

    def run(optimizer: Any) -> list[list[Any]]:
        weights = list(map(jax.numpy.asarray, WEIGHTS))
        state, found = optimizer.init(weights), [WEIGHTS]
        for gradients in GRADIENTS:
            updates, state = jax.jit(optimizer.update)(list(map(jax.numpy.asarray, gradients)), state, weights)
            weights = optax.apply_updates(weights, updates)
            found.append(list(map(array, weights)))
        return found

    scale = "shape" if consistent_rms is None else "rms"
    parts = gx.trace(0.95), gx.orthogonalize(axes="keras", scale=scale, like="optax")
    ours = optax.chain(*parts, optax.add_decayed_weights(0.1), optax.scale_by_learning_rate(RATE))
    given = {"weight_decay": 0.1, "consistent_rms": consistent_rms}
    assert_updates(run(ours), run(optax.contrib.muon(RATE, nesterov=False, **given)), SINGLE)
    # With Nesterov momentum, optax corrects the bias of gradient and momentum by different powers of the decay.
    natives = [run(optax.contrib.muon(RATE, **given))]
    natives.append(run(optax.chain(_nesterov_of_optax(optax), *parts[1:], *_rest(optax))))
    assert_updates(natives[1], natives[0], SINGLE)


def _rest(optax: Any) -> tuple[Any, Any]:
    return optax.add_decayed_weights(0.1), optax.scale_by_learning_rate(RATE)


def _nesterov_of_optax(optax: Any) -> Any:
    """The momentum of optax.contrib.muon."""
    import jax

    def update(gradients: Any, state: Any, _: Any = None) -> Any:
        count, average = state
        average = jax.tree.map(lambda m, g: 0.95 * m + 0.05 * g, average, gradients)
        ahead, here = 1 - 0.95 ** (count + 2), 1 - 0.95 ** (count + 1)
        found = jax.tree.map(lambda m, g: 0.95 * m / ahead + 0.05 * g / here, average, gradients)
        return found, (count + 1, average)

    return optax.GradientTransformation(lambda params: (0.0, jax.tree.map(jax.numpy.zeros_like, params)), update)


@pytest.mark.parametrize("rms_rate", [0.2, None])
def test_muon_of_keras(rms_rate: float | None) -> None:
    keras = pytest.importorskip("keras")
    if not hasattr(keras.optimizers, "Muon"):
        pytest.skip("this Keras has no Muon")

    def run(optimizer: Any) -> list[list[Any]]:
        weights = [keras.Variable(w, name=f"w{i}") for i, w in enumerate(WEIGHTS)]
        found = [WEIGHTS]
        for gradients in GRADIENTS:
            optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], weights)
            found.append([np.array(w.numpy()) for w in weights])
        return found

    scale = None if rms_rate is None else "rms"
    native = keras.optimizers.Muon(RATE, weight_decay=None, rms_rate=rms_rate)
    ours = gx.keras.wrap(keras.optimizers.SGD(RATE), muon(scale=scale, like="keras"))
    assert_updates(run(ours), run(native), SINGLE)


def test_muon_of_mlx() -> None:
    mx = pytest.importorskip("mlx.core")
    optimizers = pytest.importorskip("mlx.optimizers")

    def run(step: Any) -> list[list[Any]]:
        weights, found = {str(i): mx.array(w) for i, w in enumerate(WEIGHTS)}, [WEIGHTS]
        for gradients in GRADIENTS:
            weights = step({str(i): mx.array(g) for i, g in enumerate(gradients)}, weights)
            found.append([np.array(w) for w in weights.values()])
        return found

    native = optimizers.Muon(RATE, weight_decay=0.0)
    tx = gx.chain(muon(like="mlx"), gx.scale(-RATE))
    state = tx.init({str(i): mx.array(w) for i, w in enumerate(WEIGHTS)})

    def ours(gradients: Any, weights: Any) -> Any:
        nonlocal state
        updates, state = tx.update(gradients, state)
        return {name: weights[name] + updates[name] for name in weights}

    assert_updates(run(ours), run(native.apply_gradients), SINGLE)


@pytest.mark.parametrize("size", [1e-3, 1e-9])
def test_small_gradients_as_in_each_library(size: float) -> None:
    """A native function divides by the norm plus or at least a small number, which matters for small gradients."""
    g = WEIGHTS[0] * np.float32(size / np.linalg.norm(WEIGHTS[0]))
    found: dict[str, tuple[Any, Any, float]] = {}
    try:
        import torch
        from torch.optim._muon import _zeropower_via_newtonschulz as torch_muon

        native = torch_muon(torch.tensor(g), (3.4445, -4.7750, 2.0315), 5, 1e-7).float()
        own = gx.orthogonalize(scale=None, dtype="bfloat16", like="torch")([torch.tensor(g)])[0]
        found["torch"] = own, native, BRAIN
    except ImportError:
        pass
    try:
        import jax.numpy as jnp
        from optax.contrib._muon import orthogonalize_via_newton_schulz as optax_muon

        native = optax_muon(jnp.asarray(g), jnp.asarray((3.4445, -4.7750, 2.0315)), 5)
        found["optax"] = gx.orthogonalize(scale=None, like="optax")([jnp.asarray(g)])[0], native, SINGLE
    except ImportError:
        pass
    if not found:
        pytest.skip("neither torch nor optax is installed")
    plain = gx.orthogonalize(scale=None)([g])[0]
    for name, (own, native, tolerance) in found.items():
        own, native = array(own).astype(np.float64), array(native).astype(np.float64)
        assert np.linalg.norm(own - native) < tolerance * np.linalg.norm(native), name
        apart = np.linalg.norm(plain - native) / np.linalg.norm(native)
        assert (apart > 0.1) == (size < 1e-8), name
