"""PyTorch: parameter groups without weight decay for biases and norms, and a separate limit for the embedding."""

import torch
from torch import nn

import gradxform as gx


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(words).mean(dim=1)))


def main() -> None:
    torch.manual_seed(0)
    model = Classifier()
    decay = [(name, p) for name, p in model.named_parameters() if p.ndim > 1]
    rest = [(name, p) for name, p in model.named_parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 1e-3}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    limits = gx.partition({"embedding/*": gx.clip_norm(0.01)}, default=gx.clip_global_norm(0.1))
    handle = gx.torch.attach(optimizer, gx.chain(gx.freeze("norm/bias"), gx.measure(limits)))
    losses, words = [], torch.randint(0, 20, (32, 5))
    labels = (words.sum(dim=1) > 50).long()
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert model.embedding.weight.grad.norm() <= 0.01 * (1 + 1e-6)
    assert gx.global_norm([p.grad for p in (model.norm.weight, *model.head.parameters())]) <= 0.1 * (1 + 1e-6)
    assert losses[-1] < losses[0]
    assert not model.norm.bias.any()
    assert gx.metrics(handle)["partition/clipped"]
