"""PyTorch: two networks with an optimizer each, one of them LBFGS with a closure."""

import torch
from torch import nn

import gradxform as gx


def main() -> None:
    torch.manual_seed(0)
    encoder, head = nn.Linear(8, 4), nn.Linear(4, 1)
    x = torch.randn(64, 8)
    y = torch.tanh(x).sum(dim=1, keepdim=True)
    adam = torch.optim.Adam(encoder.named_parameters(), lr=1e-2)
    lbfgs = torch.optim.LBFGS(head.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    handle = gx.torch.attach(adam, gx.measure(gx.clip_global_norm(0.1)))
    calls = []

    def loss() -> torch.Tensor:
        return nn.functional.mse_loss(head(torch.tanh(encoder(x))), y)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        value = loss()
        value.backward()
        gx.torch.apply_(gx.zero_nonfinite(), head)
        calls.append(value.item())
        return value

    first = loss().item()
    for _ in range(10):
        adam.zero_grad()
        loss().backward()
        adam.step()
        assert gx.metrics(handle)["clip_global_norm/norm_after"] <= 0.1 + 1e-6
        lbfgs.step(closure)
    assert loss().item() < 0.5 * first
    assert len(calls) > 10
