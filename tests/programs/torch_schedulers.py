"""PyTorch: a learning rate scheduler, a limit that follows a schedule, and a checkpoint to resume from."""

from typing import Any

import torch
from torch import nn

import gradxform as gx

X = torch.sin(torch.arange(256.0).reshape(32, 8))


def made() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)
    gx.torch.attach(optimizer, gx.chain(gx.clip_global_norm(lambda step: 0.9**step), gx.ema(0.9)))
    return model, optimizer, scheduler


def train(model: nn.Module, optimizer: Any, scheduler: Any, steps: int) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), X.sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        scheduler.step()
    return loss.item()


def main() -> None:
    first, second = made(), made()
    start = train(*first, steps=20)
    torch.save([part.state_dict() for part in first], "checkpoint.pt")
    for part, state in zip(second, torch.load("checkpoint.pt"), strict=True):
        part.load_state_dict(state)
    assert train(*first, steps=20) == train(*second, steps=20) < start
    assert all(torch.equal(a, b) for a, b in zip(first[0].parameters(), second[0].parameters(), strict=True))
