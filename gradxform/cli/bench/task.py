"""The benchmark's trees, chains and interface to each framework."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

import gradxform
from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Cost, Place

Array = Any
"""A NumPy array of float32."""
Shapes = dict[str, tuple[int, ...]]
Tree = dict[str, Array]
"""Gradients by path."""

_SEED = 0


# --- trees -----------------------------------------------------------------------------------------------------------


def mlp() -> Shapes:
    """Kernels and biases of an MLP for MNIST, 784-128-64-10."""
    widths = (784, 128, 64, 10)
    shapes: Shapes = {}
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        shapes |= {f"dense{i}/kernel": (fan_in, fan_out), f"dense{i}/bias": (fan_out,)}
    return shapes


def many() -> Shapes:
    """2000 leaves of 256 numbers, to measure overhead."""
    return {f"layer{i}/scale": (256,) for i in range(2000)}


def resnet50() -> Shapes:
    """The parameters of ResNet-50, convolutions as [out, in, height, width]: He et al., 2015."""
    shapes: Shapes = _convolution("conv1", 64, 3, 7, "bn1")
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            prefix = f"layer{stage + 1}/{block}"
            for i, (out, into, size) in enumerate(((width, channels, 1), (width, width, 3), (4 * width, width, 1)), 1):
                shapes |= _convolution(f"{prefix}/conv{i}", out, into, size, f"{prefix}/bn{i}")
            if block == 0:
                shapes |= _convolution(f"{prefix}/downsample/0", 4 * width, channels, 1, f"{prefix}/downsample/1")
            channels = 4 * width
    return shapes | {"fc/weight": (1000, channels), "fc/bias": (1000,)}


def _convolution(name: str, out: int, into: int, size: int, norm: str) -> Shapes:
    """A convolution without bias, and its batch normalisation."""
    return {f"{name}/weight": (out, into, size, size), f"{norm}/weight": (out,), f"{norm}/bias": (out,)}


def gpt2() -> Shapes:
    """The 124 million parameters of GPT-2: Radford et al., 2019."""
    width = 768
    shapes: Shapes = {"wte": (50257, width), "wpe": (1024, width)}
    for block in range(12):
        shapes |= _scale_and_bias(f"h/{block}/ln_1", width)
        shapes |= _affine(f"h/{block}/attn/c_attn", width, 3 * width) | _affine(f"h/{block}/attn/c_proj", width, width)
        shapes |= _scale_and_bias(f"h/{block}/ln_2", width)
        shapes |= _affine(f"h/{block}/mlp/c_fc", width, 4 * width) | _affine(f"h/{block}/mlp/c_proj", 4 * width, width)
    return shapes | _scale_and_bias("ln_f", width)


def _affine(name: str, fan_in: int, fan_out: int) -> Shapes:
    return {f"{name}/weight": (fan_in, fan_out), f"{name}/bias": (fan_out,)}


def _scale_and_bias(name: str, width: int) -> Shapes:
    return {f"{name}/weight": (width,), f"{name}/bias": (width,)}


def matrices() -> Shapes:
    """The matrices of a transformer's six blocks, 256 wide: what Muon trains."""
    width = 256
    sides = {"attn/c_attn": 3 * width, "attn/c_proj": width, "mlp/c_fc": 4 * width}
    shapes: Shapes = {}
    for block in range(6):
        shapes |= {f"h/{block}/{name}/weight": (width, side) for name, side in sides.items()}
        shapes[f"h/{block}/mlp/c_proj/weight"] = (4 * width, width)
    return shapes


TREES: Mapping[str, Callable[[], Shapes]] = {make.__name__: make for make in (mlp, many, resnet50, gpt2, matrices)}


def elements(shapes: Shapes) -> int:
    """Count the elements of a tree."""
    return sum(map(math.prod, shapes.values()))


def gradients(shapes: Shapes) -> Tree:
    """Normally distributed gradients with a fixed seed."""
    rng = np.random.default_rng(_SEED)
    return {path: rng.standard_normal(shape, dtype=np.float32) for path, shape in shapes.items()}


# --- chains ----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A transform's name and its hyperparameter."""

    name: str
    value: float


Chain = int | str
"""The number of transforms, or a name."""
MUON = "muon"
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Muon's iteration, in every library."""
CHAINS: Mapping[Chain, Sequence[Step]] = {
    1: (Step("clip_global_norm", 1.0),),
    3: (Step("clip_value", 0.5), Step("clip_global_norm", 1.0), Step("scale", -0.1)),
    8: (
        Step("clip_value", 0.5),
        Step("clip_norm", 6.0),
        Step("scale", 2.0),
        Step("clip_norm", 10.0),
        Step("clip_value", 0.3),
        Step("clip_global_norm", 20.0),
        Step("clip_norm", 1.0),
        Step("scale", -0.1),
    ),
    MUON: (Step("orthogonalize", 5),),
}
"""Chains by length, and what Muon does to its momentum. Each clip is active in some tree. No clipped norm is below 0.1,
where PyTorch's 1e-6 would show."""


def title(chain: Chain) -> str:
    """Name a chain."""
    return f"chain of {chain}" if isinstance(chain, int) else chain


def transformation(steps: Sequence[Step], **muon: Any) -> GradientTransformation:
    """Build the chain in gradxform; `muon` are the arguments with which `orthogonalize` is the framework's own."""
    keywords = {"orthogonalize": {"scale": None, **muon}}
    made = [getattr(gradxform, step.name)(step.value, **keywords.get(step.name, {})) for step in steps]
    return made[0] if len(made) == 1 else gradxform.chain(*made)


# --- a framework's half ----------------------------------------------------------------------------------------------


def _nothing() -> None:
    """Restore nothing, for work that does not change its input."""


@dataclass(frozen=True)
class Side:
    """One implementation of the work."""

    run: Callable[[], Any]
    """Do the work and wait for the result; this is timed."""
    leaves: Callable[[Any], list[Array]]
    """The result as NumPy arrays in the order of the tree."""
    restore: Callable[[], None] = _nothing
    """Restore the input before each run; not timed."""
    cost: Callable[[], Cost] = Cost
    """Cost of one run on the device, if the framework reports it."""


@dataclass(frozen=True)
class Mode:
    """A way of running a framework, such as eager or compiled."""

    name: str
    """"in place", "jit"."""
    native: str
    """The native functions, in words."""
    sides: Callable[[Sequence[Step], Tree, Place], tuple[Side, Side]]
    """gradxform and the native side at a place, each with its own arrays if it writes to them.

    Raises:
        ImportError: this version of the framework has no such native function.
    """
    compiled: bool = False


class Program(Protocol):
    """The interface of `gradxform_<framework>.bench`."""

    MODES: Sequence[Mode]
    GIVES_MEMORY_BACK: bool
    """Whether freed memory is returned to the system, so that resident memory shows the use of a call."""

    def versions(self) -> dict[str, str]:
        """Versions of the framework and of the native libraries."""
