"""The option --device: the device of each framework that has one, and the reason where there is none."""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Iterable
from typing import Any, Protocol, cast

from rich.console import Console
from rich.table import Table

from gradxform.backend import lookup
from gradxform.cli.quiet import quiet
from gradxform.cli.text import say
from gradxform.proof.place import Absent, Cost, Place

NAMES = ("cpu", "gpu", "cuda", "rocm", "metal", "mps", "tpu")
"""What may be asked for; "gpu" is whichever of the next four a framework has."""
HELP = f"One of {', '.join(NAMES)}, or one of several: cuda:1. Also counts operations and memory."


class Program(Protocol):
    """What `gradxform_<framework>.device` brings."""

    def find(self, name: str | None = None, index: int = 0) -> Place:
        """The device of a name, or the framework's default one; `Absent` if there is none."""


def parse(command: str, asked: str) -> tuple[str, int]:
    """A device's name and its number.

    Raises:
        ValueError: an unknown name, or a number that is none.
    """
    name, colon, index = asked.strip().lower().partition(":")
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"{command}: no device is named {asked!r}{hint}; the known ones are {', '.join(NAMES)}")
    if colon and not index.isdecimal():
        raise ValueError(f"{command}: --device {asked!r} must end with a number after the colon, as in '{name}:0'")
    return name, int(index or 0)


def find(framework: str, name: str | None = None, index: int = 0) -> Place:
    """A framework's device.

    Raises:
        Absent: it has no such device.
    """
    module = f"gradxform_{framework}.device"
    try:
        with quiet():
            program = cast(Program, importlib.import_module(module))
            return program.find(name, index)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise Absent(f"its backend has no module {module}, so that its devices are not known") from error


def places(command: str, asked: str, frameworks: Iterable[str], console: Console) -> dict[str, Place]:
    """The device of each framework; says which frameworks are left out, and why.

    Raises:
        ValueError: an unknown name, or a device that no framework has.
    """
    name, index = parse(command, asked)
    found, absent = {}, []
    for framework in frameworks:
        try:
            found[framework] = find(framework, name, index)
        except Absent as error:
            absent.append(framework)
            say(console, f"left out: {title(framework)}, {error}")
    if not found:
        raise ValueError(f"{command}: no framework has the device {asked!r}; what is here: {here(absent)}")
    return found


def here(frameworks: Iterable[str]) -> str:
    """The devices that frameworks have, and which of them have each."""
    owners: dict[str, dict[str, None]] = {}
    for framework in frameworks:
        for name in NAMES:
            with contextlib.suppress(Absent):
                owners.setdefault(str(find(framework, name)), {})[title(framework)] = None
    return "; ".join(f"{words} ({', '.join(names)})" for words, names in owners.items()) or "none that is known"


def title(framework: str) -> str:
    """A framework's name as people write it."""
    return lookup.backend(framework).title


def ran_on(places: dict[str, Place]) -> str:
    """Each framework and its device, in words."""
    return "; ".join(f"{title(framework)} on {place}" for framework, place in places.items())


def costs(rows: Iterable[tuple[str, Place, Cost]], heading: str) -> Table:
    """A table of what steps cost."""
    table = Table("framework and mode", "ran on", title=heading, title_justify="left")
    for header in ("operations", "peak memory", "read and written"):
        table.add_column(header, justify="right")
    for who, place, cost in rows:
        table.add_row(who, str(place), amount(cost.operations), size(cost.peak), size(cost.accessed))
    return table


OPERATIONS = (
    "operations: launches in eager modes, where compiled those of the module or graph; - where unknown, and on the CPU "
    "in eager modes, where NumPy does part of the work"
)
EXPLAINED = f"{OPERATIONS}\npeak memory: above that of the gradients, results included; - where unknown"


def amount(value: int | None) -> str:
    """A count; a dash if it is unknown."""
    return "-" if value is None else f"{value:,}"


def size(value: Any) -> str:
    """Bytes in a unit that suits them; a dash if they are unknown."""
    if value is None:
        return "-"
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:g} B"
