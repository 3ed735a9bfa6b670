"""The frameworks' own functions, as `gradxform parity --full` calls them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from gradxform.cli.quiet import quiet
from gradxform.proof.rows import DTYPES, MIXED

Leaves = list[Any]
"""NumPy arrays."""
Call = Callable[[Leaves], Leaves]


@dataclass(frozen=True)
class Native:
    """A function that does what one of our transforms does."""

    name: str
    """As people write it."""
    framework: str
    mode: str
    transform: str
    """The name of our transform."""
    make: Callable[[float], Call]
    """The function with its limit; a compiled one is compiled once for leaves that are alike."""
    columns: tuple[str, ...] = (*DTYPES, MIXED)
    """The dtypes that its framework has."""


class Program(Protocol):
    """What `gradxform_<framework>.native` brings."""

    NATIVES: Sequence[Native]


def natives(frameworks: Sequence[str], everything: bool) -> list[Native]:
    """All functions of some frameworks; of MLX too, which we have no backend for, if everything is asked for."""
    found: list[Native] = []
    for name in frameworks:
        with quiet(KERAS_BACKEND="tensorflow"):
            found += cast(Program, importlib.import_module(f"gradxform_{name}.native")).NATIVES
    if everything and importlib.util.find_spec("mlx") is not None:
        columns = tuple(column for column in DTYPES if column != "complex128")
        found.append(Native("mlx.optimizers.clip_grad_norm", "mlx", "eager", "clip_global_norm", _mlx, columns))
    return found


def _mlx(limit: float) -> Call:
    mx, optimizers = importlib.import_module("mlx.core"), importlib.import_module("mlx.optimizers")

    def call(leaves: Leaves) -> Leaves:
        clipped, _ = optimizers.clip_grad_norm([_to_mlx(mx, leaf) for leaf in leaves], limit)
        return [_from_mlx(mx, new).astype(leaf.dtype) for new, leaf in zip(clipped, leaves, strict=True)]

    return call


def _to_mlx(mx: Any, leaf: Any) -> Any:
    """An array of the leaf's dtype; bfloat16 by way of float32."""
    wide = leaf.astype(np.float32) if leaf.dtype.name == "bfloat16" else leaf
    return mx.array(wide, dtype=getattr(mx, leaf.dtype.name))


def _from_mlx(mx: Any, leaf: Any) -> Any:
    return np.array(leaf.astype(mx.float32) if leaf.dtype == mx.bfloat16 else leaf)
