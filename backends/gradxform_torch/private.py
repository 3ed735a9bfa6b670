"""What PyTorch does not document and this backend needs, in one place.

Each name has a test in tests/backends/test_private.py that says what breaks when PyTorch changes it.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

__all__ = ["FakeTensor", "pytree"]

# One call for many tensors. torch.optim is built on them; PyTorch has no public name for them.
foreach_add = torch._foreach_add
foreach_add_ = torch._foreach_add_
foreach_clamp_max = torch._foreach_clamp_max
foreach_clamp_max_ = torch._foreach_clamp_max_
foreach_clamp_min = torch._foreach_clamp_min
foreach_clamp_min_ = torch._foreach_clamp_min_
foreach_copy_ = torch._foreach_copy_
foreach_div_ = torch._foreach_div_
foreach_mul = torch._foreach_mul
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm
foreach_zero_ = torch._foreach_zero_

_OPTIMIZERS = inspect.getfile(torch.optim.Optimizer)


_interpreters = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state


def is_in_mode() -> bool:
    """Whether a TorchDispatchMode sees current operations."""
    return bool(torch._C._len_torch_dispatch_stack())


def is_in_transform() -> bool:
    """Whether a tracer, torch.func or dual numbers transform current code.

    `torch.jit.is_tracing` tells of the tracer, but PyTorch deprecates `torch.jit`.
    """
    return _interpreters() is not None or forward_ad._current_level >= 0 or _tracing() is not None


def storage_of(tensor: torch.Tensor) -> int:
    """An id of the memory that tensors share; `data_ptr` fails for fake tensors."""
    found: int = tensor.untyped_storage()._cdata
    return found


def device_types(group: Any) -> set[str]:
    """Kinds of device for which a process group has a backend."""
    return {device.type for device in group._device_types}


def split_factor(placement: Any) -> int | None:
    """The number of parts that a strided shard has pieces of, as of FSDP2 over tensor parallelism; None for others."""
    return getattr(placement, "split_factor", None)


def is_inner_call(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a derived class's step calls this step: PyTorch runs the hooks in both.

    Both run the wrapper that PyTorch puts around the step of each class.
    """
    calls, frame = 0, sys._getframe(1)
    while frame is not None:
        place = frame.f_code.co_name, frame.f_code.co_filename
        calls += place == ("wrapper", _OPTIMIZERS) and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return calls > 1


def muon_iteration() -> Any:
    """The iteration of `torch.optim.Muon`, for the benchmark; imported late, since it is not in every version.

    Raises:
        ImportError: this version has none.
    """
    from torch.optim._muon import _zeropower_via_newtonschulz

    return _zeropower_via_newtonschulz
