"""Accelerate: a prepared loop with accumulated batches, the clip attached, and a saved state to resume from."""

import accelerate
import torch
from torch import nn

import gradxform as gx

X = torch.sin(torch.arange(256.0).reshape(32, 8))
DATA = torch.utils.data.TensorDataset(X, 10.0 * X.sum(dim=1, keepdim=True))


def main() -> None:
    accelerate.utils.set_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(DATA, batch_size=8))
    gx.torch.attach(optimizer, gx.chain(gx.measure(gx.clip_global_norm(1.0)), gx.trace(0.5)))

    def epoch() -> float:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return loss.item()

    first = epoch()
    accelerator.save_state("checkpoint")
    last = [epoch() for _ in range(5)]
    weights = [p.detach().clone() for p in model.parameters()]
    accelerator.load_state("checkpoint")
    assert [epoch() for _ in range(5)] == last
    assert last[-1] < first
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert gx.metrics(optimizer)["clip_global_norm/norm_after"] <= 1.0 + 1e-6
