"""PyTorch: DistributedDataParallel on two processes, clipping averaged gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradxform as gx

X = torch.sin(torch.arange(256.0).reshape(32, 8))
Y = 10.0 * X.sum(dim=1, keepdim=True)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
    gx.torch.attach(optimizer, gx.chain(gx.clip_global_norm(1.0), gx.ema(0.9)))
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def worker(rank: int) -> None:
    dist.init_process_group("gloo", init_method="file://./store", rank=rank, world_size=2)
    alone, model = nn.Linear(8, 1), nn.Linear(8, 1)
    dist.broadcast(alone.weight.data, 0), dist.broadcast(alone.bias.data, 0)
    model.load_state_dict(alone.state_dict())
    for p, one in zip(train(DistributedDataParallel(model), X[rank::2], Y[rank::2]), train(alone, X, Y), strict=True):
        torch.testing.assert_close(p, one, rtol=1e-4, atol=1e-5)  # half batches change the order of summation
        parts = [torch.empty_like(p) for _ in range(2)]
        dist.all_gather(parts, p)
        assert torch.equal(*parts)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, nprocs=2)
