"""Flax NNX: a model, an nnx.Optimizer, and weights selected by path."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import gradxform as gx


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.encoder = nnx.Linear(4, 8, rngs=rngs)
        self.head = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(nnx.relu(self.encoder(x)))


@nnx.jit
def train_step(model: Net, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def main() -> None:
    model = Net(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = 10.0 * x.sum(axis=1, keepdims=True)
    tx = optax.chain(gx.measure(gx.clip_global_norm(1.0)), gx.freeze("head/bias"), optax.sgd(0.1))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    losses = [train_step(model, optimizer, x, y) for _ in range(30)]
    assert losses[-1] < losses[0]
    assert not model.head.bias[...].any()
    assert model.encoder.bias[...].any()
    assert gx.metrics(optimizer)["clip_global_norm/norm_after"] <= 1.0 + 1e-6
