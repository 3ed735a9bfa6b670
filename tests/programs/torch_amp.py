"""PyTorch: autocast and a GradScaler, first with unscale_ and a manual clip, then with an attached clip."""

import torch
from torch import nn

import gradxform as gx


def train(attached: bool) -> tuple[nn.Module, list[float], list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.randn(64, 8)
    y = x.sum(dim=1, keepdim=True)
    optimizer, tx = torch.optim.AdamW(model.parameters(), lr=1e-2), gx.clip_global_norm(0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)  # overflows at first: steps are skipped
    if attached:
        gx.torch.attach(optimizer, tx)
    losses, norms = [], []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if not attached:
            scaler.unscale_(optimizer)
            gx.torch.apply_(tx, model.parameters())
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        norms.append(float(gx.global_norm([p.grad for p in model.parameters()])))
    return model, losses, norms


def main() -> None:
    (model, losses, norms), (other, _, _) = train(attached=False), train(attached=True)
    assert losses[0] == losses[1]  # a step that the scaler skipped
    assert losses[-1] < 0.5 * losses[0]
    assert max(norms[-20:]) <= 0.5 + 1e-6
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
