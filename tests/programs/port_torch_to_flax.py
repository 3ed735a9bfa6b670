"""From PyTorch to Flax in the midst of a run: weights and momentum are renamed and transposed, and the run goes on."""

import flax.linen as nn
import jax
import numpy as np
import torch
from flax.traverse_util import unflatten_dict

import gradxform as gx

TX = gx.chain(gx.clip_global_norm(1.0), gx.trace(0.9))
X = np.sin(np.arange(256, dtype="float32").reshape(32, 8))
Y = 10.0 * X.sum(axis=1, keepdims=True)


def to_flax(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    renamed = {name.replace("0/", "params/layers_0/").replace("2/", "params/layers_2/"): name for name in arrays}
    return {name.replace("weight", "kernel"): arrays[old].T for name, old in renamed.items()}


def main() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)
    handle, net = gx.torch.attach(optimizer, TX), nn.Sequential([nn.Dense(16), nn.tanh, nn.Dense(1)])
    grad = jax.jit(jax.value_and_grad(lambda params: ((net.apply(params, X) - Y) ** 2).mean()))
    for step in range(20):
        if step == 10:
            params = to_flax({name.replace(".", "/"): p.detach().numpy() for name, p in model.named_parameters()})
            params = unflatten_dict(jax.tree.map(jax.numpy.asarray, params), sep="/")
            state = gx.from_numpy(to_flax(gx.to_numpy(handle.state, by_path=True)), like=TX.init(params))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.from_numpy(X)), torch.from_numpy(Y))
        loss.backward()
        optimizer.step()
        if step >= 10:
            value, grads = grad(params)
            updates, state = jax.jit(TX.update)(grads, state)
            params = jax.tree.map(lambda p, u: p - 0.05 * u, params, updates)
            assert np.isclose(value, loss.item(), rtol=1e-5)
