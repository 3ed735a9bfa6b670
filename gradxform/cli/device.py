"""The option --device: find the device of each framework, or the reason why it has none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

import typer

from gradxform.backend.errors import meant
from gradxform.cli.console import quiet
from gradxform.cli.frameworks import program, title
from gradxform.cli.options import DEVICES, listed
from gradxform.proof.place import Absent, Place
from gradxform.testing import frameworks_or_installed


def parse(command: str, asked: str) -> tuple[str, int]:
    """Split a device into its name and index.

    Raises:
        ValueError: the name is unknown or the index is not a number.
    """
    name, colon, index = asked.strip().lower().partition(":")
    if name not in DEVICES:
        hint = f" (did you mean {close!r}?)" if (close := meant(name, DEVICES)) else ""
        raise ValueError(f"{command}: no device is named {asked!r}{hint}; the known ones are {', '.join(DEVICES)}")
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


def places(command: str, asked: str | None, frameworks: Iterable[str]) -> dict[str, Place]:
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
            typer.echo(f"left out: {title(framework)}, {error}")
    if not found and asked is None:
        raise ValueError(f"{command}: none of {', '.join(absent)} is installed")
    if not found:
        raise ValueError(f"{command}: no framework has the device {asked!r}; available: {here(absent)}")
    return found


def choose(command: str, asked: str | None, frameworks: str | None) -> tuple[list[str], dict[str, Place], str]:
    """Return the frameworks to compare, their devices if one is asked for, and both in words."""
    names = frameworks_or_installed(command, listed(frameworks))
    if asked is None:
        return names, {}, ", ".join(names)
    found = places(command, asked, names)
    return list(found), found, ran_on(found)


def here(frameworks: Iterable[str]) -> str:
    """Return the available devices, each with the frameworks that have it."""
    owners: dict[str, dict[str, None]] = {}
    for framework in frameworks:
        for name in DEVICES:
            with contextlib.suppress(Absent):
                owners.setdefault(str(find(framework, name)), {})[title(framework)] = None
    return "; ".join(f"{words} ({', '.join(names)})" for words, names in owners.items()) or "none"


def ran_on(places: Mapping[str, Place]) -> str:
    """Return each framework and its device in words."""
    return "; ".join(f"{title(framework)} on {place}" for framework, place in places.items())
