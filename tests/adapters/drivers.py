"""Drivers of the adapters in NumPy, PyTorch, TensorFlow and optax; keras_cases.py has Keras's."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from conformance import Driver, Leaves, assembled
from support import array, tensors

import gradxform as gx
from gradxform.backend import lookup


class ByHand(Driver):
    """A state that the user keeps, and saves with parameters and optimizer."""

    _state: Any = None

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = gx.from_numpy(state, like=self._state)

    optimizer_state: Any = None

    def save(self, folder: Path) -> None:
        (folder / "run").write_bytes(pickle.dumps([self.read(), gx.to_numpy(self.state), self.optimizer_state]))

    def load(self, folder: Path) -> None:
        params, self.state, self.optimizer_state = pickle.loads((folder / "run").read_bytes())
        self.assign(params)


class NumpyApply(ByHand):
    name, framework = "numpy.apply_", "numpy"
    optimizers = ()
    dtypes = ("float16", "bfloat16", "float32", "float64", "complex64")

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        self.tx = assembled(tx, None, how)
        self.assign(params)
        self._state = self.tx.init(self.params) if isinstance(self.tx, gx.GradientTransformation) else None

    def step(self, gradients: Leaves) -> None:
        given = {path: None if g is None else np.array(g) for path, g in gradients.items()}
        self._state = gx.numpy.apply_(self.tx, given, self._state, self.params)
        self.assign(
            {path: p if given[path] is None else np.asarray(p - given[path]) for path, p in self.params.items()}
        )

    def read(self) -> Leaves:
        return dict(self.params)

    def assign(self, params: Leaves) -> None:
        self.params = dict(params)


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def torch_optimizers() -> dict[str, Callable[[Any], Any]]:
    import torch

    return {
        "sgd": lambda p: torch.optim.SGD(p, lr=1.0),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        "momentum, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
        "adam, fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
        "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5, fused=True),
    }


class TorchApply(ByHand):
    name, framework = "torch.apply_", "torch"
    sparse, by_identity = True, True
    dtypes = ("float16", "bfloat16", "float32", "float64", "complex64")

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        import torch

        given = {path: torch.nn.Parameter(leaf) for path, leaf in tensors("torch", params).items()}
        self.named = {path.replace("/", "."): p for path, p in given.items()}
        self.optimizer = torch_optimizers()[optimizer](self.named.items())
        self.scale = torch.amp.GradScaler("cpu", init_scale=2.0**10) if how.get("scale") else None
        self.may_skip = "around" in how
        self.unscaled_first = how.get("scale") == "unscaled before"
        self.start(assembled(tx, given, how))

    def start(self, tx: Any) -> None:
        self.tx = tx
        self._state = None if tx is None else gx.torch.init(tx, self.named)

    def step(self, gradients: Leaves) -> None:
        self.fill(gradients)
        if self.tx is not None:
            self._state = gx.torch.apply_(self.tx, self.named, self._state)
        if not self.may_skip or gx.has_updated(self._state):
            self.optimizer.step()

    def fill(self, gradients: Leaves) -> None:
        import torch

        for path, g in gradients.items():
            p = self.named[path.replace("/", ".")]
            if isinstance(g, tuple):
                p.grad = torch.sparse_coo_tensor(torch.tensor(g[0][None]), torch.tensor(g[1]), p.shape)
            else:
                p.grad = None if g is None else tensors("torch", [g])[0].to(p.dtype)

    def read(self) -> Leaves:
        return {path.replace(".", "/"): array(p.detach()).copy() for path, p in self.named.items()}

    def assign(self, params: Leaves) -> None:
        for path, value in tensors("torch", params).items():
            self.named[path.replace("/", ".")].data.copy_(value)

    @property
    def optimizer_state(self) -> Any:
        return self.optimizer.state_dict()

    @optimizer_state.setter
    def optimizer_state(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)


class TorchAttach(TorchApply):
    name = "torch.attach"
    optimizers = tuple(torch_optimizers())[1:] if "torch" in lookup.installed() else ()
    scales = ("scaler", "unscaled before")
    checks_first = has_paths = True

    def start(self, tx: Any) -> None:
        on = "updates" if self.on_updates else "gradients"
        self.attached = None if tx is None else gx.torch.attach(self.optimizer, tx, on=on)

    @property
    def handle(self) -> Any:
        return self.attached

    @property
    def state(self) -> Any:
        return self.attached.state

    @state.setter
    def state(self, state: Any) -> None:
        self.attached.state = state

    def step(self, gradients: Leaves) -> None:
        if self.scale is None:
            self.fill(gradients)
            self.optimizer.step()
            return
        self.optimizer.zero_grad()
        given = zip(self.named.values(), tensors("torch", gradients).values(), strict=True)
        self.scale.scale(sum((p * g).sum() for p, g in given)).backward()
        if self.unscaled_first:
            self.scale.unscale_(self.optimizer)
        self.scale.step(self.optimizer)
        self.scale.update()

    def save(self, folder: Path) -> None:
        import torch

        torch.save([self.named, self.optimizer.state_dict()], folder / "run")

    def load(self, folder: Path) -> None:
        import torch

        named, state = torch.load(folder / "run", weights_only=True)
        for path, p in self.named.items():
            p.data.copy_(named[path])
        self.optimizer.load_state_dict(state)


class TorchUpdates(TorchAttach):
    name, on_updates = "torch.attach, on updates", True
    sparse = False


DRIVERS = [NumpyApply, TorchApply, TorchAttach, TorchUpdates]
