"""What the commands share: progress bars, Markdown tables, versions, quiet imports."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import gradxform

_PACKAGES = ("numpy", "ml_dtypes", "jax", "jaxlib", "optax", "tensorflow", "keras", "torch", "mlx")


def progress(auto_refresh: bool = True) -> Progress:
    """Return a progress bar that disappears when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(), transient=True, auto_refresh=auto_refresh)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: first column left-aligned, the others right-aligned."""
    lines = [headers, ["---", *("---:" for _ in headers[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def versions() -> dict[str, str]:
    """Return the versions of Python, gradxform and each installed package."""
    found = {"Python": platform.python_version(), "gradxform": gradxform.__version__}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence standard error by its file descriptor: TensorFlow's C++ code ignores `sys.stderr` and log levels.

    Triton, which `torch.compile` imports if it is installed, is imported before TensorFlow: both register the options
    of an LLVM, and Triton aborts the process if it comes second.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        if "tensorflow" not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module("triton")
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
