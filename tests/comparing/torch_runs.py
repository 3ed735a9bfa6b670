"""Small networks of PyTorch, trained for some steps on real data and recorded; with one fault planted on request."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import gradxform as gx

BATCH, WORDS, WIDTH, HEADS, LENGTH = 16, 128, 16, 4, 12
DIGITS = load_digits()
TEXT = np.frombuffer(inspect.getsource(json).encode("ascii", "replace"), np.uint8).astype(np.int64) % WORDS


def batches(kind: str, seed: int) -> Callable[[int], Any]:
    """Return the batch of a step: digits and their labels, or a text and its next letters."""

    def batch(step: int) -> Any:
        rng = np.random.default_rng((seed, step))
        if kind in ("conv", "residual"):
            rows = rng.integers(0, len(DIGITS.data), BATCH)
            images = DIGITS.images[rows].astype(np.float32)[:, None] / 16
            return torch.tensor(images), torch.tensor(DIGITS.target[rows])
        starts = rng.integers(0, len(TEXT) - LENGTH - 1, BATCH)
        rows = np.stack([TEXT[start : start + LENGTH + 1] for start in starts])
        return torch.tensor(rows[:, :-1]), torch.tensor(rows[:, 1:])

    return batch


class Conv(nn.Module):
    """Two convolutions and two dense layers."""

    def __init__(self, epsilon: float = 1e-5, bias: bool = True, **_: Any) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.norm = nn.GroupNorm(4, 12, eps=epsilon)
        self.hidden, self.head = nn.Linear(12 * 16, 32), nn.Linear(32, 10)
        self.drop = nn.Dropout(0.0)
        if not bias:
            self.conv2.bias = None

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.relu(self.norm(self.conv2(x))).flatten(1)
        return self.head(self.drop(torch.relu(self.hidden(x))))


class Block(nn.Module):
    """Attention and two dense layers, each behind a norm."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=epsilon), nn.LayerNorm(WIDTH, eps=epsilon)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Any, mask: Any) -> Any:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """A language model of letters."""

    def __init__(self, epsilon: float = 1e-5, tied: bool = False, depth: int = 2, **_: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(epsilon) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=epsilon), nn.Linear(WIDTH, WORDS, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.embed.weight)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        x, mask = self.embed(x), torch.triu(torch.full((LENGTH, LENGTH), -1e9), 1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """An LSTM of letters."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.embed(x))[0])


class Residual(nn.Module):
    """A convolution and three residual blocks, each convolution before a batch norm with a bias that has no effect."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
                nn.BatchNorm2d(width),
            )
            for _ in range(3)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x.mean((2, 3)))


NETWORKS = {"conv": Conv, "transformer": Transformer, "lstm": Recurrent, "residual": Residual}
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, **options: torch.optim.SGD(p, **{"lr": 0.1, **options}),
    "momentum": lambda p, **options: torch.optim.SGD(p, **{"lr": 0.05, "momentum": 0.9, **options}),
    "adam": lambda p, **options: torch.optim.Adam(p, **{"lr": 1e-3, **options}),
    "adamw": lambda p, **options: torch.optim.AdamW(p, **{"lr": 1e-3, **options}),
}


def train(
    folder: Path,
    network: str = "conv",
    *,
    steps: int = 6,
    every: int = 1,
    seed: int = 0,
    optimizer: str = "sgd",
    options: Any = None,
    data: int = 0,
    shift: int = 0,
    reduction: str = "mean",
    dropout: float = 0.0,
    dtype: Any = None,
    autocast: Any = None,
    change: Callable[[int, dict[str, Any]], Any] | None = None,
    begin: Callable[[Any], None] | None = None,
    after: Callable[[Any, Any], None] | None = None,
    noise: bool = False,
    norms_only: bool = False,
    **model_options: Any,
) -> None:
    """Train and record; `change` gets the gradients by name before they are recorded and applied.

    With `noise`, each sum is taken in another order, as another framework would: the batch is reversed, and the images
    of the residual network have their channels last.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = NETWORKS[network](**model_options)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    if begin is not None:
        with torch.no_grad():
            begin(model)
    model = model if dtype is None else model.to(dtype)
    make = OPTIMIZERS[optimizer](model.parameters(), **(options or {}))
    recorder, batch = gx.record(folder, every=every, norms_only=norms_only), batches(network, data)
    for step in range(steps):
        x, y = batch(step + shift)
        if noise:
            x, y = x.flip(0), y.flip(0)
            x = x.to(memory_format=torch.channels_last) if network == "residual" else x
        if dtype is not None and x.is_floating_point():
            x = x.to(dtype)
        model.zero_grad()
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction=reduction)
        loss.backward()
        if change is not None:
            with torch.no_grad():
                change(step, {name: p.grad for name, p in model.named_parameters()})
        recorder(step, gradients=model, parameters=model, loss=loss, batch_size=BATCH)
        before = [p.detach().clone() for p in model.parameters()]
        make.step()
        if after is not None:
            with torch.no_grad():
                after(model, before)
