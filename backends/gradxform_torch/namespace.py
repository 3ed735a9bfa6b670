"""Namespace for formulas when values may not be read."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradxform.backend.host.namespace import FLOATS
from gradxform.numerics import norms
from gradxform.numerics.namespace import Defaults, static
from gradxform_torch import private
from gradxform_torch.readable import transformed

_SAME = (
    *("sqrt", "abs", "sum", "max", "any", "expm1", "log", "log1p", "cos", "sign", "sin", "floor", "reshape"),
    *("zeros_like", "ones_like", "complex", "real", "matmul"),
)
"""Functions that formulas use under PyTorch's names."""
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of a number of bytes."""


def materialized(x: Any) -> Any:
    """The same numbers, stored under torch.compile; otherwise each use recomputes them."""
    return x.as_strided(x.size(), x.stride()) if torch.compiler.is_compiling() and isinstance(x, torch.Tensor) else x


class Namespace(Defaults):
    """PyTorch functions under the names that formulas use; new tensors are on one device."""

    shift_left, shift_right = static(torch.bitwise_left_shift, torch.bitwise_right_shift)
    copy, transpose, stop_gradient = static(torch.clone, torch.permute, torch.detach)
    clip, materialize, sort = static(torch.clamp, materialized, lambda x: torch.sort(x).values)
    asarray = staticmethod(functools.partial(torch.asarray, copy=True))
    """A copy: an adapter overwrites a state, whose NumPy arrays may be read-only."""

    def __init__(self, device: torch.device, lasting: bool = True) -> None:
        """Set the device. One that lasts makes numbers anew for each use, which may belong to a graph or a mode."""
        self.device, self.widest = device, widest_on(device)
        self.dtype = getattr(torch, self.widest)
        self._constants: dict[tuple[float, float], torch.Tensor] | None = None if lasting else {}

    @staticmethod
    def imag(x: torch.Tensor) -> torch.Tensor:
        """The imaginary part; zeros for real numbers."""
        return x.imag if x.is_complex() else torch.zeros_like(x)

    @staticmethod
    def isfinite(x: torch.Tensor) -> torch.Tensor:
        """Whether neither NaN nor infinite, in half as many ops as PyTorch's function."""
        return torch.abs(x) < math.inf

    @staticmethod
    def cast(x: torch.Tensor, dtype: str) -> torch.Tensor:
        """A tensor in a dtype."""
        return x.to(getattr(torch, dtype))

    @staticmethod
    def matmul_add(z: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: float, alpha: float) -> torch.Tensor:
        """Return beta * z + alpha * x @ y for stacks of matrices, rounded once."""
        if z.ndim == 2:
            return torch.addmm(z, x, y, beta=beta, alpha=alpha)
        stacks = (part.flatten(0, -3) for part in (z, x, y))
        return torch.baddbmm(*stacks, beta=beta, alpha=alpha).reshape(z.shape)

    @staticmethod
    def sum_over(x: torch.Tensor, axes: Any) -> torch.Tensor:
        """Sum over axes, keeping them; None means all axes."""
        if axes is not None and all([x.shape[axis] == 1 for axis in axes]):  # of no axes PyTorch would sum over all
            return x
        return x.sum(axes, keepdim=axes is not None)

    def sum_exactly(self, x: torch.Tensor, axes: Any) -> torch.Tensor:
        """Sum over axes; on the CPU Inductor adds one by one, so in short rows there."""
        apart = axes and torch.compiler.is_compiling() and self.device.type == "cpu"
        return norms.in_rows(self, x, axes) if apart else self.sum_over(x, axes)

    @staticmethod
    def max_over(x: torch.Tensor, axes: Any) -> torch.Tensor:
        """Maximum over axes, keeping them; NaN if an element is NaN, zero if there are none."""
        if not x.numel():
            return Namespace.sum_over(x, axes)
        if axes is None:
            return x.amax()
        return x.amax(axes, keepdim=True) if axes else x

    @staticmethod
    def power_of_two(x: torch.Tensor) -> torch.Tensor:
        """Largest power of two up to x, from its exponent bits; one for zero and nonfinite x.

        Inductor cannot compile frexp and ldexp of vectors.
        """
        one = torch.ones_like(x)
        plain = torch.where(torch.isfinite(x) & (x > 0.0), x, one)
        least, exponent = (2.0**-126, 0x7F800000) if x.dtype == torch.float32 else (2.0**-1022, 0x7FF0000000000000)
        bits = plain.clamp(min=least).contiguous().view(_INTEGERS[x.element_size()])
        return (bits & exponent).view(x.dtype)

    def _wide(self, x: Any) -> torch.Tensor:
        return x if isinstance(x, torch.Tensor) else self.float64(x)

    def where(self, condition: torch.Tensor, yes: Any, no: Any) -> torch.Tensor:
        """Elementwise choice; of two numbers in the widest dtype."""
        if not torch.compiler.is_compiling():
            return torch.where(condition, self._wide(yes), self._wide(no))
        # In a graph, each constant would be a node.
        either = isinstance(yes, torch.Tensor) or isinstance(no, torch.Tensor)
        return torch.where(condition, yes, no if either else self.float64(no))

    @staticmethod
    def bits(x: torch.Tensor) -> torch.Tensor:
        """The bits of floating-point numbers as integers."""
        return x.resolve_neg().view(_INTEGERS[x.element_size()])

    @staticmethod
    def kth_largest(x: torch.Tensor, count: float) -> torch.Tensor:
        """The element of a rank, counted from 1, the largest."""
        return x.flatten().kthvalue(x.numel() - int(count) + 1).values

    def arange(self, count: int) -> torch.Tensor:
        """Integers from zero, as floats."""
        return torch.arange(count, dtype=self.dtype, device=self.device)

    def iota(self, x: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Index of each element, from a number on."""
        end = start + x.numel()
        few = self.widest == "float32" and end < 2**31
        return torch.arange(start, end, dtype=torch.int32 if few else torch.int64, device=x.device).reshape(x.shape)

    def int32(self, x: Any) -> torch.Tensor:
        """Integers, keeping the lower 32 bits."""
        if isinstance(x, int):
            return torch.full((), (x + 2**31) % 2**32 - 2**31, dtype=torch.int32, device=self.device)
        if self.widest == "float32":
            return torch.as_tensor(x, dtype=torch.int32, device=self.device)
        given = x if isinstance(x, torch.Tensor) else torch.as_tensor(x, device=self.device)
        return given.to(torch.int64).to(torch.int32)

    def float64(self, x: Any) -> torch.Tensor:
        """A number or array in the widest dtype; numbers are created on the device, without a transfer."""
        if isinstance(x, torch.Tensor):
            same = x.dtype is self.dtype and x.device == self.device
            return x if same else x.to(self.device, self.dtype)
        if self.widest == "float32" and isinstance(x, np.ndarray):
            x = x.astype(np.float32)  # before it gets to a device that has no float64
        if self._constants is None or not isinstance(x, (int, float)):  # a compiler's symbols are asked nothing
            return torch.as_tensor(x, dtype=self.dtype, device=self.device)
        key = float(x), math.copysign(1.0, x)
        if key not in self._constants:
            self._constants[key] = torch.full((), key[0], dtype=self.dtype, device=self.device)
        return self._constants[key]

    def rounded(self, x: Any, dtype: str) -> torch.Tensor:
        """Round to a dtype, in float64; narrow dtypes are rounded through float32, as in arithmetic."""
        wide = self._wide(x)
        return wide if dtype == "float64" else wide.float().to(getattr(torch, dtype)).to(self.dtype)

    def take(self, vector: torch.Tensor, index: Any) -> torch.Tensor:
        """Select elements of a vector."""
        if not isinstance(index, tuple):
            return vector.select(0, index)
        if index and torch.compiler.is_compiling():  # inductor for CUDA stacks wrong numbers where one is there twice
            return vector[torch.tensor(index, device=vector.device)]
        parts = vector.unbind()
        return torch.stack([parts[i] for i in index]) if index else vector[:0]

    def stack(self, numbers: Any) -> torch.Tensor:
        """Stack numbers to a vector."""
        if all([isinstance(number, (bool, int, float)) for number in numbers]):
            return self._vector(numbers)
        return torch.stack([self._wide(number).to(self.device) for number in numbers])

    def mask(self, active: tuple[bool, ...]) -> torch.Tensor:
        """Bools as a vector."""
        return self._vector(active) > 0.0

    def _vector(self, numbers: Sequence[float]) -> torch.Tensor:
        """Host numbers in float64; accelerators get them as kernel arguments, without a copy."""
        if self.device.type == "cpu" or transformed():
            return torch.tensor(numbers, dtype=self.dtype, device=self.device)
        found = torch.zeros(len(numbers), dtype=self.dtype, device=self.device)
        private.foreach_add_(list(found.unbind()), list(map(float, numbers)))
        return found


for _name in _SAME:
    setattr(Namespace, _name, staticmethod(getattr(torch, _name)))


def widest_on(device: torch.device) -> str:
    """Widest dtype of a device: Apple's GPUs have no float64."""
    return "float32" if device.type == "mps" else "float64"


def rounded_number(number: float, dtype: torch.dtype) -> float:
    """A Python number rounded to a dtype."""
    return FLOATS.rounded(number, str(dtype).removeprefix("torch."))
