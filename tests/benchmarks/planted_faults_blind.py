"""Faults of ports, in two language models, written without a look at the rules of `gx.compare`.

`planted_faults.py --blind` compares them. Both sides learn the same numbers; side B sees each batch in reverse order,
so that its sums are rounded otherwise, and has the fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradxform as gx

WORDS, WIDTH, LENGTH, BATCH, HEADS = 29, 24, 9, 6, 3
NAMED_BY_NONE = {"none"}


@dataclass(frozen=True)
class Port:
    """How one side computes."""

    network: str = "gru"
    seed: int = 0
    optimizer: str = "adam"
    rate: float = 3e-3
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    epsilon: float = 1e-8
    epsilon_inside: bool = False
    bias_correction: bool = True
    beta2: float = 0.999
    decay: float = 0.0
    decoupled: bool = False
    decay_vectors: bool = True
    clip: str = ""
    limit: float = 0.5
    loss: str = "mean"
    smoothing: float = 0.0
    shift: int = 1
    factor: float = 1.0
    accumulate: int = 1
    divide: bool = True
    warm_up: int = 0
    warm_from: int = 1
    frozen: str = ""
    smoothed: float = 0.0
    low_precision: bool = False
    other_seed: bool = False
    other_data: int = 0
    dropout: float = 0.0
    norm_epsilon: float = 1e-5
    gelu: str = "none"
    attention_scale: bool = True
    mask: bool = True
    embedding_scale: bool = False
    tied: bool = True
    stop_residual: bool = False
    swap: bool = False
    negate: str = ""
    late: bool = False


class Block(nn.Module):
    """A pre-norm block of attention and two dense layers."""

    def __init__(self, port: Port) -> None:
        super().__init__()
        self.port = port
        self.ln_1 = nn.LayerNorm(WIDTH, eps=port.norm_epsilon)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.ln_2 = nn.LayerNorm(WIDTH, eps=port.norm_epsilon)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.ln_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = heads.flip(0) if self.port.swap else heads
        scores = q @ k.transpose(-1, -2)
        if self.port.attention_scale:
            scores = scores / math.sqrt(WIDTH // HEADS)
        if self.port.mask:
            scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = (x.detach() if self.port.stop_residual else x) + functional.dropout(self.out(mixed), self.port.dropout)
        return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate=self.port.gelu))


class Language(nn.Module):
    """A language model: a GRU with a head of its own, or two blocks with a tied head."""

    def __init__(self, port: Port) -> None:
        super().__init__()
        self.port = port
        self.embed = nn.Embedding(WORDS, WIDTH)
        if port.network == "gru":
            self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
            self.head = nn.Linear(WIDTH, WORDS)
            return
        self.blocks = nn.ModuleList(Block(port) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH, eps=port.norm_epsilon)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if port.tied:
            self.head.weight = self.embed.weight
        else:
            self.head.weight.data.copy_(self.embed.weight.data)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        if self.port.embedding_scale:
            x = x * math.sqrt(WIDTH)
        if self.port.network == "gru":
            return self.head(functional.dropout(self.gru(x)[0], self.port.dropout))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def losses(model: Language, batch: Tensor, port: Port) -> Tensor:
    words, labels = batch[:, :LENGTH], batch[:, port.shift : LENGTH + port.shift]
    with torch.autocast("cpu", torch.bfloat16, enabled=port.low_precision):
        scores = model(words)
    reduction = "sum" if port.loss in ("sum", "batch") else "mean"
    loss = functional.cross_entropy(
        scores.float().flatten(0, 1), labels.flatten(), reduction=reduction, label_smoothing=port.smoothing
    )
    return loss / BATCH if port.loss == "batch" else loss


def clipped(gradients: dict[str, Tensor], port: Port) -> dict[str, Tensor]:
    if port.clip == "value":
        return {name: g.clamp(-port.limit, port.limit) for name, g in gradients.items()}
    norms = {name: g.norm() for name, g in gradients.items()}
    if port.clip == "global":
        norms = dict.fromkeys(norms, torch.stack(list(norms.values())).norm())
    if not port.clip:
        return gradients
    return {name: g * min(1.0, port.limit / float(norms[name])) for name, g in gradients.items()}


def updated(name: str, p: Tensor, g: Tensor, state: dict[str, Tensor], port: Port, rate: float, t: int) -> Tensor:
    decay = port.decay if port.decay_vectors or p.ndim > 1 else 0.0
    if not port.decoupled:
        g = g + decay * p
    zero = torch.zeros_like(p)
    if port.optimizer == "sgd":
        mean = port.momentum * state.get(name, zero) + (1 - port.dampening) * g
        state[name] = mean
        update = g + port.momentum * mean if port.nesterov else mean
    else:
        mean = state[name + "/m"] = 0.9 * state.get(name + "/m", zero) + 0.1 * g
        square = state[name + "/v"] = port.beta2 * state.get(name + "/v", zero) + (1 - port.beta2) * g * g
        if port.bias_correction:
            mean, square = mean / (1 - 0.9**t), square / (1 - port.beta2**t)
        root = (square + port.epsilon).sqrt() if port.epsilon_inside else square.sqrt() + port.epsilon
        update = mean / root
    return p - rate * (update + decay * p if port.decoupled else update)


def train(folder: Path, port: Port, steps: int, reverse: bool) -> None:
    """Train and record."""
    torch.manual_seed(port.seed + 100 * port.other_seed)
    model = Language(port)
    recorder, state, smooth = gx.record(folder), {}, {}
    data = torch.Generator().manual_seed(port.seed + 7 + port.other_data)
    summed: dict[str, Tensor] = {}
    for step in range(steps):
        batch = torch.randint(WORDS, (BATCH, LENGTH + 2), generator=data)
        model.zero_grad()
        loss = losses(model, batch.flip(0) if reverse else batch, port)
        loss.backward()
        named = dict(model.named_parameters())
        gradients = {name: port.factor * p.grad for name, p in named.items()}
        if port.negate:
            gradients = {name: -g if port.negate in name else g for name, g in gradients.items()}
        if port.frozen:
            gradients = {name: 0 * g if port.frozen in name else g for name, g in gradients.items()}
        gradients = clipped(gradients, port)
        if port.smoothed:
            smooth = {n: port.smoothed * smooth.get(n, 0 * g) + (1 - port.smoothed) * g for n, g in gradients.items()}
            gradients = smooth
        before = {name: p.detach().clone() for name, p in named.items()}
        share = 1 / port.accumulate if port.divide else 1.0
        summed = {name: summed.get(name, 0 * g) + share * g for name, g in gradients.items()}
        if (step + 1) % port.accumulate == 0:
            t = (step + 1) // port.accumulate
            rate = port.rate * min(1.0, (t - 1 + port.warm_from) / port.warm_up) if port.warm_up else port.rate
            for name, p in named.items():
                p.data = updated(name, p.data, summed[name], state, port, rate, t)
            summed = {}
        kept = {name: p.detach().clone() for name, p in named.items()} if port.late else before
        recorder(
            step,
            gradients={name: g.numpy() for name, g in gradients.items()},
            parameters={name: p.numpy() for name, p in kept.items()},
            loss=float(loss.detach()),
        )


@dataclass(frozen=True)
class Blind:
    """A fault: what B does otherwise, which kinds name it, what both do, and in which networks it can be made."""

    options: dict[str, Any]
    kinds: set[str] = field(default_factory=lambda: NAMED_BY_NONE)
    both: dict[str, Any] = field(default_factory=dict)
    networks: tuple[str, ...] = ("gru", "transformer")


SGD = {"optimizer": "sgd", "rate": 0.3}
HEAVY = {**SGD, "momentum": 0.9, "rate": 0.05}
ATTENTION = ("transformer",)
BLIND = {
    "the loss is summed": Blind({"loss": "sum"}, {"factor"}, SGD | {"rate": 1e-3}),
    "averaged over the batch, not over tokens": Blind({"loss": "batch"}, {"factor"}),
    "the loss scale is not taken out": Blind({"factor": 1024.0}, {"factor"}),
    "averaged over two of three replicas": Blind({"factor": 1.5}, {"factor"}),
    "a label smoothing": Blind({"smoothing": 0.1}, {"constant"}),
    "labels are not shifted": Blind({"shift": 0}),
    "labels are shifted twice": Blind({"shift": 2}),
    "the gradient is added": Blind({"factor": -1.0}, {"sign"}, SGD),
    "the weight of one layer is negated": Blind({"negate": "head.weight"}, {"leaf_sign"}, {}, ("gru",)),
    "one layer is frozen": Blind({"frozen": "embed"}, {"frozen", "zero"}, {}, ("gru",)),
    "another initial seed": Blind({"other_seed": True}, {"initial"}),
    "other data": Blind({"other_data": 5}),
    "dropout is left on": Blind({"dropout": 0.1}),
    "bfloat16 in one run": Blind({"low_precision": True}, {"precision"}),
    "Adam's epsilon 1e-3": Blind({"epsilon": 1e-3}, {"epsilon"}),
    "Adam's epsilon inside the root": Blind({"epsilon_inside": True}, {"epsilon"}, {"epsilon": 1e-6}),
    "no bias correction": Blind({"bias_correction": False}, {"bias_correction"}),
    "beta2 0.99": Blind({"beta2": 0.99}, {"optimizer"}),
    "decay coupled": Blind({"decoupled": False}, {"weight_decay"}, {"decay": 0.1, "decoupled": True}),
    "decay of vectors left out": Blind({"decay_vectors": False}, {"weight_decay"}, SGD | {"decay": 0.1}),
    "no decay": Blind({"decay": 0.0}, {"weight_decay"}, SGD | {"decay": 0.05}),
    "dampening": Blind({"dampening": 0.9}, {"optimizer", "learning_rate"}, HEAVY),
    "Nesterov": Blind({"nesterov": True}, {"optimizer"}, HEAVY),
    "learning rate of another group": Blind({"rate": 1e-3}, {"learning_rate"}),
    "warm-up off by one": Blind({"warm_from": 0}, {"learning_rate"}, {"warm_up": 5}),
    "no warm-up": Blind({"warm_up": 0}, {"learning_rate"}, {"warm_up": 5}),
    "accumulation without division": Blind({"divide": False}, {"learning_rate"}, SGD | {"accumulate": 2}),
    "steps on every second batch": Blind({"accumulate": 2}, {"optimizer", "learning_rate"}, SGD),
    "clipped by value": Blind({"clip": "value", "limit": 0.02}, {"clip_value"}),
    "clipped by each leaf's norm": Blind({"clip": "leaf", "limit": 0.1}, {"clip_norm"}),
    "clipped by leaf, not by global norm": Blind(
        {"clip": "leaf"}, {"clip_norm", "clip_global_norm"}, {"clip": "global"}
    ),
    "gradients are averaged over time": Blind({"smoothed": 0.9}),
    "recorded after the step": Blind({"late": True}, {"late_parameters"}),
    "embedding scaled": Blind({"embedding_scale": True}),
    "LayerNorm's epsilon": Blind({"norm_epsilon": 1e-3}, {"constant"}, {}, ATTENTION),
    "GELU by tanh": Blind({"gelu": "tanh"}, NAMED_BY_NONE, {}, ATTENTION),
    "no attention scale": Blind({"attention_scale": False}, NAMED_BY_NONE, {}, ATTENTION),
    "no mask": Blind({"mask": False}, NAMED_BY_NONE, {}, ATTENTION),
    "the head is untied": Blind({"tied": False}, {"tied", "missing", "unaligned"}, {}, ATTENTION),
    "the residual is cut": Blind({"stop_residual": True}, NAMED_BY_NONE, {}, ATTENTION),
    "value and query are swapped": Blind({"swap": True}, NAMED_BY_NONE, {}, ATTENTION),
}


def planted(folder: Path, steps: int) -> Iterator[tuple[str, set[str], Path]]:
    """Train the pairs that are not there yet; yield names, kinds that are right and folders."""
    pairs: list[tuple[str, set[str], Port, Port]] = []
    for number, (name, fault) in enumerate(BLIND.items()):
        network, seed = fault.networks[number % len(fault.networks)], number % 3
        a = Port(**{"network": network, "seed": seed, **fault.both})
        pairs.append((f"{name} ({network})", fault.kinds, a, replace(a, **fault.options)))
    for network in ("gru", "transformer"):
        for seed, both in enumerate(({}, SGD, HEAVY, {"decay": 0.1, "decoupled": True, "clip": "global"})):
            a = Port(**{"network": network, "seed": seed, **both})
            pairs.append((f"none ({network}, {seed})", set(), a, a))
    for number, (name, kinds, a, b) in enumerate(pairs):
        made = folder / "blind" / str(number)
        if not (made / "b").exists():
            train(made / "a", a, steps, reverse=False)
            train(made / "b", b, steps, reverse=True)
        yield name, kinds, made
