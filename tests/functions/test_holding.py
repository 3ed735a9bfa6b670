"""`has_updated` and `metrics` find the state in objects that hold one, and reject others; adapters: conformance.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import array, tensors

import gradxform as gx

G = np.float32([3.0, 4.0])
TX = gx.chain(gx.measure(gx.clip_global_norm(1.0)), gx.accumulate(gx.identity(), 2))


@dataclasses.dataclass
class Train:
    """A custom train state."""

    step: int
    whatever: Any


def assert_found(holder: Any, due: bool) -> None:
    """The metrics of this file's transformation, and whether its last step was applied."""
    assert float(array(gx.metrics(holder)["clip_global_norm/norm_before"])) == 5.0
    assert bool(gx.has_updated(holder)) is due


def test_in_containers(framework: str) -> None:
    tree = tensors(framework, {"w": G})
    state = TX.init(tree)
    for due in (False, True):
        _, state = TX.update(tree, state)
        for holder in (state, (state,), [None, state], {"x": state, "y": tree}, Train(0, {"one": [state]})):
            assert_found(holder, due)


def test_a_loss_scale_optimizer_around_a_plain_one_has_no_transformation(keras: Any) -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0, name="plain"))
    wrapped = gx.keras.wrap(keras.optimizers.SGD(1.0), TX)  # gives the class the properties
    for function in (gx.metrics, gx.has_updated):
        with pytest.raises(TypeError, match="before it is built"):
            function(wrapped)
    assert not hasattr(optimizer, "gradient_transformation_state")
    with pytest.raises(AttributeError, match="gradient_transformation"):
        _ = optimizer.gradient_transformation


def test_in_a_train_state_and_an_optimizer_of_flax(optax: Any, nnx: Any) -> None:
    train_state, jax = pytest.importorskip("flax.training.train_state"), pytest.importorskip("jax")
    grads = tensors("jax", {"w": G})
    state = train_state.TrainState.create(apply_fn=None, params=grads, tx=optax.chain(TX, optax.sgd(1.0)))
    model = nnx.Linear(2, 1, use_bias=False, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, TX, wrt=nnx.Param)
    for due in (False, True):
        state = jax.jit(lambda state: state.apply_gradients(grads=grads))(state)
        assert_found(state, due)
        assert_found(state.opt_state, due)
        optimizer.update(model, nnx.grad(lambda model: model(jax.numpy.array(G)).sum())(model))
        assert_found(optimizer, due)


def test_in_states_of_optax(optax: Any) -> None:
    """A state without a measure, of optax or stateless, has no metrics."""
    tx, grads = optax.chain(optax.masked(TX, {"w": True}), optax.adam(0.1)), tensors("jax", {"w": G})
    state = tx.init(grads)
    for due in (False, True):
        _, state = tx.update(grads, state, grads)
        assert_found(state, due)
    for other in (optax.adam(0.1), gx.scale(2.0)):
        assert gx.metrics(other.init(grads)) == {} and gx.has_updated(other.init(grads)) is True


NONE: dict[str, Callable[[], Any]] = {
    "a number": lambda: 42,
    "None": lambda: None,
    "a string": lambda: "state",
    "an array": lambda: G,
    "gradients": lambda: {"w": G},
    "an empty tuple": tuple,
    "a transformation": lambda: TX,
    "a class": lambda: Train,
    "a dataclass without one": lambda: Train(0, 1),
}


@pytest.mark.parametrize("function", [gx.metrics, gx.has_updated])
@pytest.mark.parametrize("name", NONE)
def test_what_holds_none(function: Any, name: str) -> None:
    given = NONE[name]()
    with pytest.raises(TypeError, match=rf"{function.__name__}: expected the state of a transformation") as caught:
        function(given)
    assert repr(given)[:40] in str(caught.value)


@pytest.mark.parametrize("function", [gx.metrics, gx.has_updated])
def test_plain_optimizers_hold_none(function: Any, torch: Any, keras: Any, optax: Any) -> None:
    w = torch.nn.Parameter(torch.ones(1))
    w.grad = torch.ones(1)
    stepped = torch.optim.Adam([w])
    stepped.step()
    for plain in (torch.optim.SGD([w]), stepped, keras.optimizers.SGD(), optax.adam(0.1)):
        with pytest.raises(TypeError, match="which holds no state") as caught:
            function(plain)
        assert "\n" not in str(caught.value)
