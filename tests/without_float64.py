"""Devices without float64, simulated on a CPU: operations with 64-bit numbers raise an error.

Not simulated: flushed subnormal numbers, and functions with other rounding.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend

ORDERED = ("sort", "kthvalue", "topk")
"""Operations that return indices beside values."""
WIDE = ("float64", "complex128", "int64", "uint64")


class Standard:
    """The array-api-strict functions of docs/extending/backend.md, over float32."""

    widest = "float32"

    def __init__(self) -> None:
        self.strict: Any = importlib.import_module("array_api_strict")
        self.inner = importlib.import_module("gradxform_array_api_strict.namespace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def of(self, values: Any) -> Any:
        """Convert to a NumPy array."""
        return self.strict.asarray(np.array(values, order="C"))

    def float64(self, x: Any) -> Any:
        """Convert to float32."""
        if not hasattr(x, "__array_namespace__") or isinstance(x, np.ndarray):
            return self.of(np.asarray(x, np.float32))
        return self.strict.astype(x, self.strict.float32)

    def int32(self, x: Any) -> Any:
        """Convert to integers."""
        return self.of(np.int32(x)) if isinstance(x, int) else self.strict.astype(x, self.strict.int32)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """Select elementwise."""
        kind = type(condition)
        return self.strict.where(condition, *(x if isinstance(x, kind) else self.float64(x) for x in (yes, no)))

    def stack(self, numbers: Any) -> Any:
        """Stack numbers into a vector."""
        return self.strict.stack([x if "int" in str(getattr(x, "dtype", "")) else self.float64(x) for x in numbers])

    def take(self, vector: Any, index: Any) -> Any:
        """Select numbers of a vector."""
        if not isinstance(index, tuple):
            return vector[index, ...]
        return self.strict.take(vector, self.of(np.asarray(index, np.int32)), axis=0)

    def arange(self, count: int) -> Any:
        """The numbers from zero."""
        return self.of(np.arange(count, dtype=np.float32))

    def iota(self, x: Any) -> Any:
        """Return the index of each element."""
        return self.of(np.arange(x.size, dtype=np.int32).reshape(x.shape))

    def rounded(self, x: Any, dtype: str) -> Any:
        """Round to a dtype."""
        return self.float64(x)

    def power_of_two(self, x: Any) -> Any:
        """Round down to a power of two; 1 for zero and nonfinite numbers."""
        given = np.array(x)
        power = np.ldexp(np.float32(1.0), np.frexp(given)[1] - 1).astype(np.float32)
        return self.of(np.where((given > 0.0) & np.isfinite(given), power, np.float32(1.0)))


def of_the_standard(monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The array-api-strict backend on a device without 64-bit numbers."""
    strict: Any = pytest.importorskip("array_api_strict")
    backend = lookup.backend("array_api_strict")
    monkeypatch.setattr(backend, "xp", Standard(), raising=False)
    kept = [dtype for dtype in strict._array_object._all_dtypes if dtype not in [getattr(strict, k) for k in WIDE]]
    monkeypatch.setattr(strict._array_object, "_all_dtypes", kept)
    return backend


def of_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch's kernels for such a device on the CPU, in a mode that rejects 64-bit tensors."""
    torch = pytest.importorskip("torch")
    namespace, plain = (importlib.import_module(f"gradxform_torch.{name}") for name in ("namespace", "plain"))
    monkeypatch.setattr(namespace, "widest_on", lambda device: "float32")
    monkeypatch.setattr(plain.Plain, "xp", namespace.Namespace(torch.device("cpu")))
    mine, backend = lookup.backend("torch"), plain.Plain()
    monkeypatch.setattr(importlib.import_module("gradxform_torch"), "backend", backend)
    owners = {kind: backend if owner is mine else owner for kind, owner in lookup._by_type.items()}
    monkeypatch.setattr(lookup, "_by_type", owners | dict.fromkeys(backend.types, backend))
    return refusing("cpu")


def of_mps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch's kernels for packed small leaves and pieces of large ones on the CPU, in that mode."""
    torch = pytest.importorskip("torch")
    namespace, plain, readable, parts = (
        importlib.import_module(f"gradxform_torch.{name}") for name in ("namespace", "plain", "readable", "parts")
    )
    monkeypatch.setattr(namespace, "widest_on", lambda device: "float32")
    monkeypatch.setattr(plain.Plain, "xp", namespace.Namespace(torch.device("cpu")))
    monkeypatch.setattr(readable, "_is_on_host", lambda tensor: False)
    monkeypatch.setattr(parts, "LARGE", 300)
    monkeypatch.setattr(parts, "PART", 400)
    return refusing("cpu")


def refusing(device: str) -> Any:
    """A mode in which operations that create 64-bit tensors raise an error; indices in an order are allowed."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            for made in out if isinstance(out, (list, tuple)) else [out]:
                wide = isinstance(made, torch.Tensor) and str(made.dtype).removeprefix("torch.") in WIDE
                if wide and made.device.type == device and not any(word in str(function) for word in ORDERED):
                    raise TypeError(f"{function} makes {made.dtype}")
            return out

    return Refusing()


def indexing() -> Any:
    """A mode in which tensors of a missing device can be indexed; Python's brackets look for the device."""
    import torch
    from torch.overrides import TorchFunctionMode

    def found(x: Any, key: Any) -> Any:
        keys, axis = key if isinstance(key, tuple) else (key,), 0
        for k in keys:
            if k is Ellipsis:
                axis += x.dim() - sum(other is not None and other is not Ellipsis for other in keys)
            elif isinstance(k, int):
                x = x.select(axis, k)
            elif isinstance(k, torch.Tensor):
                x = torch.index_select(x, axis, k)
            else:
                start, stop = (0, 1) if k is None else k.indices(x.shape[axis])[:2]
                x = x.unsqueeze(axis) if k is None else x.narrow(axis, start, max(stop - start, 0))
                axis += 1
        return x

    class Indexing(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.__getitem__:
                return found(*args)
            if function is torch.Tensor.__invert__:
                return torch.logical_not(*args)
            return function(*args, **(kwargs or {}))

    return Indexing()
