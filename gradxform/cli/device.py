"""The option --device: find the device of each framework, or the reason why it has none."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Sequence

from rich.console import Console

from gradxform.cli.console import quiet, say
from gradxform.cli.frameworks import program, title
from gradxform.proof.place import Absent, Place
from gradxform.testing import frameworks_or_installed

NAMES = ("cpu", "gpu", "cuda", "rocm", "metal", "mps", "tpu")
"""Accepted names. "gpu" is any of the next four that a framework has."""
HELP = f"One of {', '.join(NAMES)}, optionally with an index: cuda:1. Also counts operations and memory."
OPERATIONS = (
    "operations: launches of an eager step, or operations of the compiled module or graph; - if unknown, and for eager "
    "steps on the CPU, where NumPy does part of the work"
)


def parse(command: str, asked: str) -> tuple[str, int]:
    """Split a device into its name and index.

    Raises:
        ValueError: the name is unknown or the index is not a number.
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
    """Return a framework's device.

    Raises:
        Absent: the framework has no such device.
    """
    with quiet():
        return program(framework).find(name, index)


def places(command: str, asked: str | None, frameworks: Iterable[str], console: Console) -> dict[str, Place]:
    """Return the device of each framework, by default its own; print which frameworks are left out and why.

    Raises:
        ValueError: the name is unknown, no framework has the device, or none is installed.
    """
    name, index = (None, 0) if asked is None else parse(command, asked)
    found, absent = {}, []
    for framework in frameworks:
        try:
            found[framework] = find(framework, name, index)
        except Absent as error:
            absent.append(framework)
            say(console, f"left out: {title(framework)}, {error}")
    if not found and asked is None:
        raise ValueError(f"{command}: none of {', '.join(absent)} is installed")
    if not found:
        raise ValueError(f"{command}: no framework has the device {asked!r}; available: {here(absent)}")
    return found


def choose(
    command: str, asked: str | None, frameworks: Sequence[str] | None, console: Console
) -> tuple[list[str], dict[str, Place] | None, str]:
    """Return the frameworks to compare, their devices if one is asked for, and both in words."""
    names = frameworks_or_installed(command, frameworks)
    if asked is None:
        return names, None, ", ".join(names)
    found = places(command, asked, names, console)
    return list(found), found, ran_on(found)


def here(frameworks: Iterable[str]) -> str:
    """Return the available devices, each with the frameworks that have it."""
    owners: dict[str, dict[str, None]] = {}
    for framework in frameworks:
        for name in NAMES:
            with contextlib.suppress(Absent):
                owners.setdefault(str(find(framework, name)), {})[title(framework)] = None
    return "; ".join(f"{words} ({', '.join(names)})" for words, names in owners.items()) or "none"


def ran_on(places: dict[str, Place]) -> str:
    """Return each framework and its device in words."""
    return "; ".join(f"{title(framework)} on {place}" for framework, place in places.items())


def amount(value: int | None) -> str:
    """Format a count; a dash if unknown."""
    return "-" if value is None else f"{value:,}"


def size(value: float | None) -> str:
    """Format bytes in a suitable unit; a dash if unknown."""
    if value is None:
        return "-"
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:g} B"
