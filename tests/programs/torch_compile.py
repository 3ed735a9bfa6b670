"""PyTorch: torch.compile of the model with an attached clip, and of a functional step with the clip inside."""

import torch
from torch import nn

import gradxform as gx

TX = gx.chain(gx.clip_norm(0.5), gx.clip_global_norm(0.75))


@torch.compile
def functional_step(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    def loss(params: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = torch.tanh(x @ params["0.weight"].T + params["0.bias"])
        return ((hidden @ params["2.weight"].T + params["2.bias"] - y) ** 2).mean()

    grads = TX(torch.func.grad(loss)(params))
    return {name: p - 0.1 * grads[name] for name, p in params.items()}


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    y = 10.0 * x.sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
    gx.torch.attach(optimizer, TX)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(compiled(x), y)
        loss.backward()
        optimizer.step()
        params = functional_step(params, x, y)
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for name, p in model.named_parameters():
        torch.testing.assert_close(params[name], p.data, rtol=1e-5, atol=1e-6)
