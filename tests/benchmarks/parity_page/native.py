"""The frameworks' own functions, as `python tests/benchmarks/write_parity.py` calls them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from gradxform.cli.console import quiet
from gradxform.proof.registry import DTYPES, MIXED

Leaves = list[Any]
"""NumPy arrays."""
Call = Callable[[Leaves], Leaves]


@dataclass(frozen=True)
class Native:
    """A framework's function that corresponds to a transform."""

    name: str
    """The function's name, for display."""
    framework: str
    mode: str
    transform: str
    """The name of the transform."""
    make: Callable[[float], Call]
    """Bind the limit; a compiled function is compiled once per set of shapes."""
    columns: tuple[str, ...] = (*DTYPES, MIXED)
    """The dtypes that its framework supports."""


class Program(Protocol):
    """The interface of `parity_page.native_<framework>`."""

    NATIVES: Sequence[Native]


def natives(frameworks: Sequence[str], everything: bool) -> list[Native]:
    """Return the native functions of some frameworks, and of MLX if `everything`."""
    found: list[Native] = []
    mlx = ["mlx"] if everything and importlib.util.find_spec("mlx") is not None else []
    for name in (*frameworks, *mlx):
        with quiet():
            found += cast(Program, importlib.import_module(f"parity_page.native_{name}")).NATIVES
    return found
