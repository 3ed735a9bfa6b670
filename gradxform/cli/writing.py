"""Write a file in whole, or leave what was there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gradxform.recording.files import beside


def check(command: str, path: Path) -> None:
    """Try to write beside a path, before hours are spent on what it will hold.

    Raises:
        ValueError: the folder is not there, or does not let itself be written.
    """
    if not path.parent.is_dir():
        raise ValueError(f"{command}: the folder {str(path.parent)!r} for {path.name} does not exist")
    if path.is_dir():
        raise ValueError(f"{command}: {str(path)!r} is a folder; name a file")
    try:
        if not _stands_for_something_else(path):
            probe = path.resolve().with_name(f".{os.getpid()}.{path.name}")
            probe.touch()
            probe.unlink()
    except OSError as error:
        raise ValueError(f"{command}: {str(path)!r} cannot be written: {error.strerror}") from error


def check_picture(command: str, path: Path) -> None:
    """Refuse a suffix that names no format of pictures.

    Raises:
        ValueError: lists the formats.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"{command}: {path.name!r} has no known format; write .{', .'.join(sorted(known))}")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path to write to. The file takes the place of `path` after the block, or is removed if the block raises.

    Raises:
        OSError: the disk is full, or the folder cannot be written; names `path`.
    """
    try:
        with contextlib.nullcontext(path) if _stands_for_something_else(path) else beside(path) as part:
            yield part
    except OSError as error:
        raise OSError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def _stands_for_something_else(path: Path) -> bool:
    """Tell whether it is a pipe or device, such as /dev/stdout."""
    return path.exists() and not path.is_file() and not path.is_dir()
