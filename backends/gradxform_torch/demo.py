"""The network of `gradxform demo` in PyTorch, trained with torch.optim.SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gradxform_torch
from gradxform import GradientTransformation
from gradxform.cli.demo.task import OnStep, Task


def train(task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Any], Any]) -> Any:
    """Train by backward(), with the chain in place on .grad before the optimizer; the logits of the test images.

    On one thread: for matrices as small as these, threads would mostly wait for one another.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(_Network(task, put), task, chain, on_step, put)
    finally:
        torch.set_num_threads(threads)


def _train(
    model: torch.nn.Module, task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Any], Any]
) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), task.learning_rate, task.momentum)
    for images, labels in task.batches:
        optimizer.zero_grad()
        logits = model(put(images))
        loss = torch.nn.functional.cross_entropy(logits, put(labels).long(), reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = _gradients(model)
        gradxform_torch.apply_(chain, model.named_parameters())
        optimizer.step()
        on_step(loss.item(), gradients, _gradients(model))
    with torch.no_grad():
        return model(put(task.test_images)).cpu().numpy()


class _Network(torch.nn.Module):
    """The parameter "rnn/input" of the task is `self.rnn.input`, and so on."""

    def __init__(self, task: Task, put: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        for path, weight in task.weights.items():
            layer, name = path.split("/")
            if not hasattr(self, layer):
                self.add_module(layer, torch.nn.ParameterDict())
            getattr(self, layer)[name] = torch.nn.Parameter(put(weight))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits [n, 10] of images [n, 64]."""
        rnn: Any = self.rnn
        head: Any = self.head
        h = images.new_zeros(len(images), len(rnn["bias"]))
        for pixel in images.T:
            h = torch.tanh(pixel.unsqueeze(1) * rnn["input"] + h @ rnn["recurrent"] + rnn["bias"])
        return h @ head["kernel"] + head["bias"]


def _gradients(model: torch.nn.Module) -> Any:
    """Copies of the gradients, by path."""
    named = model.named_parameters()
    return {name.replace(".", "/"): np.array(p.grad.cpu()) for name, p in named if p.grad is not None}
