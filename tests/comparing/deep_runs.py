"""Deeper networks of PyTorch: a residual one with batch norm and a transformer of four layers, each twice alike.

The twin takes its sums in another order: the batch is reversed, images have their channels last.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_runs import BATCH, OPTIMIZERS, Transformer, batches

import gradxform as gx

functional = nn.functional


class Residual(nn.Module):
    """A convolution and three residual blocks, each convolution before a batch norm with a bias that has no effect."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "conv1": nn.Conv2d(width, width, 3, padding=1),
                    "norm1": nn.BatchNorm2d(width),
                    "conv2": nn.Conv2d(width, width, 3, padding=1),
                    "norm2": nn.BatchNorm2d(width),
                }
            )
            for _ in range(3)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            y = torch.relu(block["norm1"](block["conv1"](x)))
            x = torch.relu(x + block["norm2"](block["conv2"](y)))
        return self.head(x.mean((2, 3)))


def train(
    folder: Path,
    network: str,
    optimizer: str,
    *,
    steps: int,
    half: bool = False,
    twin: bool = False,
    every: int = 1,
) -> None:
    """Train and record one of two runs that differ by rounding alone; with `half`, computed in bfloat16."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: Any = Residual() if network == "residual" else Transformer(depth=4)
    if twin and network == "residual":
        model = model.to(memory_format=torch.channels_last)
    step_of = OPTIMIZERS[optimizer](model.parameters())
    recorder, batch = gx.record(folder, every=every), batches("conv" if network == "residual" else "transformer", 0)
    for step in range(steps):
        x, y = (part.flip(0) for part in batch(step)) if twin else batch(step)
        if twin and network == "residual":
            x = x.contiguous(memory_format=torch.channels_last)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        recorder(step, gradients=model, parameters=model, loss=loss, batch_size=BATCH)
        step_of.step()
