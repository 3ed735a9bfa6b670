"""The frameworks' programs for the commands. Each module imports its framework, and is imported by name only."""

from __future__ import annotations

import functools
import importlib
from typing import cast

from gradxform.backend import lookup
from gradxform.backend.errors import install
from gradxform.cli.console import quiet
from gradxform.cli.frameworks.interface import Program
from gradxform.proof.place import Absent


def program(framework: str) -> Program:
    """Import the program of a framework: of a backend outside of this package, `gradxform_<framework>.device`.

    Raises:
        Absent: another backend has no such module, or something is not installed.
    """
    own = framework in (*lookup.FRAMEWORKS, "mlx")
    module = f"gradxform.cli.frameworks.{framework}" if own else f"gradxform_{framework}.device"
    try:
        with quiet():
            return cast(Program, importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name == module:
            raise Absent(f"whose backend has no module {module}") from error
        raise Absent(f"{error.name} is not installed; {install(framework)}") from error


@functools.cache
def title(framework: str) -> str:
    """Return a framework's display name; the name of its module if it is not installed."""
    try:
        with quiet():
            return lookup.backend(framework).title
    except ImportError:
        return framework
