"""Lightning: a clip attached in configure_optimizers, logged, and resumed from a checkpoint."""

from typing import Any

import lightning
import torch
from torch import nn

import gradxform as gx

DATA = torch.utils.data.TensorDataset(torch.randn(32, 8), 10.0 * torch.randn(32, 1))


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.log_dict(gx.metrics(self.optimizers()))
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.named_parameters(), lr=1e-2)
        gx.torch.attach(optimizer, gx.chain(gx.measure(gx.clip_global_norm(1.0)), gx.ema(0.9)))
        return optimizer


def main() -> None:
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    loader = torch.utils.data.DataLoader(DATA, batch_size=8)
    model = Regression()
    first, whole, resumed = (lightning.Trainer(max_epochs=epochs, **quiet) for epochs in (2, 4, 4))
    first.fit(model, loader)
    first.save_checkpoint("last.ckpt")
    for trainer, one in ((whole, model), (resumed, Regression())):
        trainer.fit(one, loader, ckpt_path="last.ckpt")
        assert 0.0 < trainer.callback_metrics["clip_global_norm/norm_after"] <= 1.0 + 1e-6
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), one.parameters(), strict=True))
