"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_CHAIN = "chain(clip_norm(5.0), clip_global_norm(1.0))"
DEVICES = ("cpu", "gpu", "cuda", "rocm", "metal", "mps", "tpu")
"""Accepted names. "gpu" is any of the next four that a framework has."""

_CHAIN = typer.Option(help="The transforms, as text that gradxform.parse reads.")
Chain = Annotated[str, _CHAIN]
OptionalChain = Annotated[str | None, _CHAIN]
Gradients = Annotated[Path | None, typer.Option(help="An .npz or .safetensors file with one array per gradient.")]
Frameworks = Annotated[str | None, typer.Option(help="Some of numpy,jax,tensorflow,torch; all by default.")]
_WORDS = f"One of {', '.join(DEVICES)}, optionally with an index: cuda:1."
Device = Annotated[str | None, typer.Option(help=_WORDS)]


def listed(given: str | None) -> list[str] | None:
    """Split names at commas, each once."""
    return None if given is None else list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def checked(command: str, kind: str, given: str | None, known: Sequence[str]) -> list[str]:
    """Return the given names, by default all known ones.

    Raises:
        ValueError: an unknown name, or none; lists the known ones.
    """
    names = list(known) if given is None else listed(given) or [""]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ValueError(f"{command}: no {kind} is named {unknown!r}; the known ones are {', '.join(known)}")
    return names
