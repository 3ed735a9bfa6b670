"""MLX: value_and_grad of a module, a clip before the optimizer's update."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

import gradxform as gx


def main() -> None:
    mx.random.seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = optim.AdamW(learning_rate=1e-2)
    x = mx.random.normal((32, 8))
    y = 10.0 * x.sum(axis=1, keepdims=True)
    loss_and_grad = nn.value_and_grad(model, lambda model: nn.losses.mse_loss(model(x), y, reduction="mean"))
    tx = gx.chain(gx.clip_global_norm(1.0), gx.ema(0.9))
    state = tx.init(model.trainable_parameters())
    losses, norms = [], []
    for _ in range(30):
        loss, grads = loss_and_grad(model)
        updates, state = tx.update(grads, state)
        optimizer.update(model, updates)
        mx.eval(model.parameters(), optimizer.state, state)
        losses.append(loss.item())
        norms.append(float(gx.global_norm(updates)))
    assert losses[-1] < losses[0]
    assert max(norms) <= 1.0 + 1e-6  # norms of an average of clipped gradients
