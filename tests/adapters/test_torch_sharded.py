"""gradxform on DTensors and under FSDP2: torch_sharded_cases.py in the processes of a gloo group, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from support import python

import gradxform as gx

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("PyTorch was built without gloo", allow_module_level=True)

import process_groups as groups  # noqa: E402
import torch_sharded_cases as cases  # noqa: E402

found, test_in_processes = groups.tests(cases)


def test_a_process_without_dtensors_does_not_import_them() -> None:
    code = (
        "import sys, torch, gradxform as gx; before = 'torch.distributed.tensor' in sys.modules; "
        "gx.chain(gx.clip_value(2.0), gx.clip_norm(1.0, axes=0), gx.ema(0.9).update and gx.sign())([torch.ones(2)]); "
        "assert before or 'torch.distributed.tensor' not in sys.modules"
    )
    python("-c", code)


def test_a_shard_on_another_device_than_its_mesh_stays_there() -> None:
    """FSDP2's CPU offloading: from_local would move the tensor. A fake mesh stands for the accelerator."""
    offloaded = Offloaded(torch.full((2, 2), 3.0))
    (found,) = gx.torch.backend.multiply([offloaded], 0.5, False)
    assert found.own.device.type == "cpu"
    assert found.own.tolist() == [[1.5, 1.5]] * 2
    assert offloaded.own.tolist() == [[3.0, 3.0]] * 2
    assert gx.testing.max_ulp(found.own.numpy(), offloaded.own.numpy() * 0.5) == 0


class Offloaded(torch.Tensor):
    """The part of a DTensor that writing a shard needs."""

    class device_mesh:
        device_type = "cuda"

    placements = ()
    own: Any

    @staticmethod
    def __new__(cls, own: Any) -> Any:
        made = own.as_subclass(cls)
        made.own = own
        return made

    def to_local(self) -> Any:
        return self.own

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.empty_like:
            return cls(torch.empty_like(args[0].own, **(kwargs or {})))
        return super().__torch_function__(function, types, args, kwargs)

    @staticmethod
    def from_local(*_: Any, **__: Any) -> Any:
        raise AssertionError("from_local moves to the mesh's device")
