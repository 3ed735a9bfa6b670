"""From PyTorch to Flax in the midst of a run: weights and averages are renamed and transposed, and the run goes on."""

import flax.linen as nn
import jax
import numpy as np
import torch

import gradxform as gx

TX = gx.chain(gx.clip_global_norm(1.0), gx.ema(0.9))
X = np.sin(np.arange(256, dtype="float32").reshape(32, 8))
Y = 10.0 * X.sum(axis=1, keepdims=True)


def main() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    handle, net = gx.torch.attach(optimizer, TX), nn.Sequential([nn.Dense(16), nn.tanh, nn.Dense(1)])
    grad = jax.jit(jax.value_and_grad(lambda params: ((net.apply(params, X) - Y) ** 2).mean()))
    for step in range(20):
        if step == 10:
            like = net.init(jax.random.key(0), X)
            rename = gx.rename_from_torch(like, modules={"0": "layers_0", "2": "layers_2"})
            weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
            params = gx.from_numpy(weights, like=like, rename=rename)
            state = gx.from_numpy(gx.to_numpy(handle.state), like=TX.init(params), rename=rename)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.from_numpy(X)), torch.from_numpy(Y))
        loss.backward()
        optimizer.step()
        if step >= 10:
            value, grads = grad(params)
            updates, state = jax.jit(TX.update)(grads, state)
            params = jax.tree.map(lambda p, u: p - 0.05 * u, params, updates)
            assert np.isclose(value, loss.item(), rtol=1e-5)
