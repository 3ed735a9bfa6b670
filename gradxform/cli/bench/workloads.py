"""The benchmark's trees and chains."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import gradxform
from gradxform.cli.frameworks.interface import Tree
from gradxform.core.transform import GradientTransformation

Shapes = dict[str, tuple[int, ...]]


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
        for name, shape in ({"ln_1": (width,), "ln_2": (width,)} | _matrices(width)).items():
            shapes |= {f"h/{block}/{name}/weight": shape, f"h/{block}/{name}/bias": shape[-1:]}
    return shapes | {"ln_f/weight": (width,), "ln_f/bias": (width,)}


def _matrices(width: int) -> Shapes:
    """Those of a transformer's block."""
    sides = {"attn/c_attn": (1, 3), "attn/c_proj": (1, 1), "mlp/c_fc": (1, 4), "mlp/c_proj": (4, 1)}
    return {name: (into * width, out * width) for name, (into, out) in sides.items()}


def matrices() -> Shapes:
    """The matrices of a transformer's six blocks, 256 wide: what Muon trains."""
    return {f"h/{block}/{name}/weight": shape for block in range(6) for name, shape in _matrices(256).items()}


TREES: Mapping[str, Callable[[], Shapes]] = {make.__name__: make for make in (mlp, many, resnet50, gpt2, matrices)}


def gradients(shapes: Shapes) -> Tree:
    """Normally distributed gradients with a fixed seed."""
    rng = np.random.default_rng(0)
    return {path: rng.standard_normal(shape, dtype=np.float32) for path, shape in shapes.items()}


# --- chains ----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A transform's name and its hyperparameter."""

    name: str
    value: float


def transformation(steps: Sequence[Step], **muon: Any) -> GradientTransformation:
    """Build the chain in gradxform; `muon` are the arguments with which `orthogonalize` is the framework's own."""
    keywords = {"orthogonalize": {"scale": None, **muon}}
    made = [getattr(gradxform, step.name)(step.value, **keywords.get(step.name, {})) for step in steps]
    return made[0] if len(made) == 1 else gradxform.chain(*made)


Chain = int | str
"""The number of transforms, or a name."""
MUON = "muon"
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


def chain_title(chain: Chain) -> str:
    """Name a chain."""
    return f"chain of {chain}" if isinstance(chain, int) else chain
