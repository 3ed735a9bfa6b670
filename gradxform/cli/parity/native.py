"""The frameworks' own functions, as `gradxform parity --full` calls them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

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
    """All functions of some frameworks; of MLX too if everything is asked for."""
    found: list[Native] = []
    mlx = ["mlx"] if everything and importlib.util.find_spec("mlx") is not None else []
    for name in (*frameworks, *mlx):
        with quiet(KERAS_BACKEND="tensorflow"):
            found += cast(Program, importlib.import_module(f"gradxform_{name}.native")).NATIVES
    return found
