"""Transforms attached to an optimizer work under Lightning and Accelerate unchanged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import bits

import gradxform as gx

torch = pytest.importorskip("torch")

NOISY = ("DeprecationWarning", "FutureWarning", "UserWarning:lightning", "UserWarning:torch")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in NOISY]

TX = gx.chain(gx.clip_global_norm(0.5), gx.masked(gx.trace(0.5), "0/**"), gx.freeze("2/bias"))
X = torch.sin(torch.arange(48.0).reshape(12, 4))
Y = torch.cos(torch.arange(24.0).reshape(12, 2))


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


def batches() -> Iterator[tuple[Any, Any]]:
    return iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=3))


def loss_of(net: Any, batch: Any) -> Any:
    x, y = batch
    return 10.0 * torch.nn.functional.mse_loss(net(x), y)


def by_hand(epochs: int, accumulate: int = 1, autocast: bool = False) -> Any:
    """The weights after a handwritten loop."""
    net = network()
    optimizer = torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
    gx.torch.attach(optimizer, TX)
    for _ in range(epochs):
        for i, batch in enumerate(batches()):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(net, batch) / accumulate
            loss.backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return weights(net)


def weights(net: Any) -> Any:
    return bits(list(net.parameters()))


# --- Lightning -------------------------------------------------------------------------------------------------------


@pytest.fixture
def lightning() -> Any:
    found = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return found


def module(lightning: Any, attach: str = "configure") -> Any:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.norms: list[float] = []

        def training_step(self, batch: Any, _: int) -> Any:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.net.named_parameters(), lr=0.1, momentum=0.9)
            if attach == "configure":
                self.handle = gx.torch.attach(optimizer, TX)
            return optimizer

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if attach == "hook":
                gx.torch.apply_(gx.chain(gx.clip_global_norm(0.5), gx.freeze("2/bias")), self.net)
            self.norms.append(float(gx.global_norm([p.grad for p in self.net.parameters()])))

    return Module()


def fit(lightning: Any, model: Any, folder: Path, epochs: int, **options: Any) -> Any:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        enable_checkpointing=False,
        **{key: value for key, value in options.items() if key != "ckpt_path"},
    )
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=3)
    trainer.fit(model, data, ckpt_path=options.get("ckpt_path"))
    return trainer


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({}, {}),
        ({"accumulate_grad_batches": 2}, {"accumulate": 2}),
        ({"precision": "bf16-mixed"}, {"autocast": True}),  # bfloat16 needs no scaler
    ],
    ids=["plain", "accumulated batches", "mixed precision"],
)
def test_lightning(options: dict[str, Any], by: dict[str, Any], lightning: Any, tmp_path: Path) -> None:
    model = module(lightning)
    fit(lightning, model, tmp_path, 2, **options)
    assert weights(model.net) == by_hand(2, **by)
    assert not by or weights(model.net) != by_hand(2)
    assert model.handle.state[1].trace["0/weight"].abs().max() > 0


def test_lightning_goes_on_from_a_checkpoint(lightning: Any, tmp_path: Path) -> None:
    first, second = module(lightning), module(lightning)
    fit(lightning, first, tmp_path, 1).save_checkpoint(tmp_path / "run.ckpt")
    fit(lightning, second, tmp_path, 2, ckpt_path=tmp_path / "run.ckpt")
    assert weights(second.net) == by_hand(2)


def test_lightnings_hook_sees_the_gradients_that_the_optimizer_will(lightning: Any, tmp_path: Path) -> None:
    model = module(lightning, attach="hook")
    fit(lightning, model, tmp_path, 2)
    assert max(model.norms) <= 0.5 * (1 + 1e-6)
    assert bits(model.net[2].bias) == bits(network()[2].bias)


def test_attach_takes_lightnings_own_optimizer(lightning: Any) -> None:
    wrapped = lightning.pytorch.core.optimizer.LightningOptimizer(torch.optim.SGD(network().parameters(), lr=0.1))
    first, second = gx.torch.attach(wrapped, gx.trace(0.5)), gx.torch.attach(wrapped.optimizer, gx.trace(0.9))
    assert len(wrapped.optimizer._optimizer_step_pre_hooks) == 2
    kept = [key for key in wrapped.optimizer.state_dict()["param_groups"][0] if key.startswith("gradient")]
    assert kept == ["gradient_transformation", "gradient_transformation_1"]
    with gx.torch.attach(wrapped, gx.measure(gx.clip_norm(1.0), name="own")):
        assert "own/norm_before" in gx.metrics(wrapped)
    first.remove()
    second.remove()


# --- Accelerate ------------------------------------------------------------------------------------------------------


@pytest.fixture
def accelerate() -> Iterator[Any]:
    found = pytest.importorskip("accelerate")
    yield found
    found.state.AcceleratorState._reset_state(reset_partial_state=True)
    found.state.GradientState._reset_state()


@pytest.mark.parametrize("when", ["before prepare", "after prepare"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_accelerate(accumulate: int, when: str, accelerate: Any) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    net = network()
    optimizer: Any = torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
    if when == "before prepare":
        gx.torch.attach(optimizer, TX)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=3)
    net, optimizer, data = accelerator.prepare(net, optimizer, data)
    if when == "after prepare":
        gx.torch.attach(optimizer, TX)
    for _ in range(2):
        for batch in data:
            with accelerator.accumulate(net):
                accelerator.backward(loss_of(net, batch))
                optimizer.step()
                optimizer.zero_grad()
    assert weights(net) == by_hand(2, accumulate)
    assert gx.has_updated(optimizer)


def test_accelerate_goes_on_from_a_checkpoint(accelerate: Any, tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)

    def made() -> tuple[Any, Any]:
        net = network()
        optimizer = torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
        gx.torch.attach(optimizer, TX)
        return accelerator.prepare(net, optimizer)

    def epoch(net: Any, optimizer: Any) -> None:
        for batch in batches():
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, batch))
            optimizer.step()

    net, optimizer = made()
    epoch(net, optimizer)
    accelerator.save_state(tmp_path)
    epoch(net, optimizer)
    assert weights(net) == by_hand(2)
    accelerator.load_state(tmp_path)
    epoch(net, optimizer)
    assert weights(net) == by_hand(2)
