"""The file of one step: safetensors, written beside its place and renamed, with what was recorded in its metadata."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unicodedata import category

import numpy as np

from gradxform.backend.errors import install

FORMAT = "1"
"""The version of what the metadata says; a reader refuses others."""
_KEY = "gradxform.record"
_NAME = re.compile(r"step_(\d+)\.safetensors")
Shape = tuple[int, ...]
_STORED = {"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64", "complex128": "F64"}
"""Dtypes that the format does not call by a letter and their bits; a complex128 is two numbers."""


def library() -> ModuleType:
    """The safetensors library; NumPy knows bfloat16 from then on, if the library of its dtypes is there.

    Raises:
        ImportError: it is not installed; says what to install.
    """
    try:
        import safetensors.numpy
    except ModuleNotFoundError as error:
        raise ImportError(f"recordings need 'safetensors': {install('record')}") from error
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("ml_dtypes")
    return safetensors


def path_of(folder: Path, step: int) -> Path:
    """Where a step is kept."""
    return folder / f"step_{step:08d}.safetensors"


def steps_in(folder: Path) -> dict[int, Path]:
    """The files of a folder by step, in order; what is being written, or was left by a killed run, does not count.

    Raises:
        ValueError: two files of one step.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if match := _NAME.fullmatch(path.name):
            first = found.setdefault(int(match[1]), path)
            if first != path:
                raise ValueError(f"{str(folder)!r} has step {int(match[1])} twice: delete {first.name} or {path.name}")
    return dict(sorted(found.items()))


def write(path: Path, arrays: Mapping[str, Any], described: Mapping[str, Any]) -> int:
    """Write a step, and return the size of its file in bytes.

    Raises:
        OSError: the disk is full, or the folder is not there or not writable; says how much was to be written.
        TypeError: a dtype that the format lacks.
    """
    given = {key: np.require(x, np.float32 if "float8" in str(x.dtype) else None, "C") for key, x in arrays.items()}
    pairs = [key for key, array in given.items() if array.dtype == np.complex128]
    given |= {key: given[key].reshape(*given[key].shape, 1).view(np.float64) for key in pairs}
    kept = {_KEY: FORMAT, "about": json.dumps({**described, "complex128": pairs})}
    try:
        with beside(path) as part:
            part.touch()
            mode = part.stat().st_mode  # as the umask has it; the library's own is 0600
            library().numpy.save_file(given, part, metadata=kept)
            part.chmod(mode)
    except Exception as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None and not isinstance(error, OSError):
            raise TypeError(f"record: {path.name} cannot be written: {error}") from error
        number = int(found[1]) if found else getattr(error, "errno", None)
        size, why = sum(array.nbytes for array in given.values()), os.strerror(number) if number else "the write failed"
        if number == errno.ENOSPC:
            free = f"{shutil.disk_usage(path.parent).free / 1e6:.1f} MB are free"
            why += f"; {free}: record less often (every=), fewer leaves (where=), or norms_only=True"
        raise OSError(f"record: {str(path)!r} of {size / 1e6:.1f} MB cannot be written: {why}") from error
    return path.stat().st_size


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Give a path to write to. The file takes the place of `path` after the block, or is removed if the block raises.

    Its suffix is the same: it tells the format of pictures.
    """
    path = path.resolve()
    part = path.with_name(f".{os.getpid()}.{threading.get_ident()}.{path.name}")
    try:
        yield part
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):  # a file system that cannot be written
            part.unlink(missing_ok=True)


class Step:
    """The file of one step, opened for reading."""

    def __init__(self, path: Path) -> None:
        """Reads the header.

        Raises:
            ValueError: a file that is cut short, no recording, or one of another version.
        """
        self.path = path
        if not path.is_file():
            raise ValueError(f"{str(path)!r} is no file: move it out of the recording")
        opened, again = library().safe_open, "delete it or record it again"
        try:
            self._file = opened(path, framework="np")
            metadata = self._file.metadata() or {}
            slices = {key: self._file.get_slice(key) for key in self._file.keys()}
            stored = {key: (tuple(each.get_shape()), each.get_dtype()) for key, each in slices.items()}
        except OSError as error:
            raise ValueError(f"{str(path)!r} cannot be read: {_line(error)}") from error
        except Exception as error:
            raise ValueError(f"{str(path)!r} is cut short, or no safetensors file ({_line(error)}): {again}") from error
        version = metadata.get(_KEY)
        if version != FORMAT:
            what = "not written by gx.record" if version is None else f"of version {version!r:.40} of the format"
            raise ValueError(f"{str(path)!r} is {what}; version {FORMAT} is read here")
        try:
            self.about = _read_about(metadata.get("about", "null"), stored)
        except ValueError as error:
            raise ValueError(f"{str(path)!r} has no description of its arrays ({_line(error)}): {again}") from error

    def read(self, key: str) -> Any:
        """One array, read from the file.

        Raises:
            ValueError: no such array, or one of a dtype that NumPy lacks.
        """
        try:
            array = self._file.get_tensor(key)
        except Exception as error:
            raise ValueError(f"{key!r} of {str(self.path)!r} cannot be read: {_line(error)}") from error
        return array.view(np.complex128)[..., 0] if key in self.about["complex128"] else array


def _line(error: Exception) -> str:
    """What an error says, in one short line."""
    return f"{' '.join(str(error).split()):.120}"


# --- what the metadata says, checked against the arrays of its file before anything relies on it ---------------------


def key_of(name: str, path: str) -> str:
    """The name of an array in the file."""
    return f"{name}/{path}" if path else name


def _read_about(text: str, stored: Mapping[str, tuple[Shape, str]]) -> dict[str, Any]:
    """The description of a step.

    Args:
        text: JSON, as the recorder wrote it.
        stored: the shapes and dtypes of the arrays in the file.

    Raises:
        ValueError: text that is no such description, or one of other arrays.
    """
    try:
        about = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    match about:
        case {
            "framework": str(framework),
            "versions": dict(versions),
            "norms_only": bool(norms_only),
            "complex128": list(complex128),
            "order": dict(order),
            "dtypes": dict(dtypes),
            "shapes": dict(shapes),
        } if order.keys() == dtypes.keys() == shapes.keys() and not (norms_only and complex128):
            printable([framework, *versions, *versions.values(), *order, *complex128])
            about["complex128"] = pairs = set(complex128)
        case _:
            raise ValueError(f"it lacks a field: {about!r:.80}")
    for name, paths in order.items():
        match paths, dtypes.get(name), shapes.get(name):
            case list(), dict(kinds), dict(sizes) if sorted(map(str, paths)) == sorted(sizes):
                printable(paths)
            case _:
                raise ValueError(f"order, dtypes and shapes of {name} have other paths")
        for path in paths:
            key = key_of(name, path)
            match kinds.get(path), sizes[path], stored.get(key):
                case str(dtype), list(given), (shape, kept) if all(type(size) is int and size >= 0 for size in given):
                    sizes[path] = tuple(given)
                case wrong:
                    raise ValueError(f"{key!r} is not there, or said to be no array: {wrong!r:.80}")
            full = (*sizes[path], 2) if key in pairs else sizes[path]
            wanted = ((2,), kept) if norms_only else (full, _stored(dtype))
            if (shape, kept) != wanted:
                raise ValueError(f"the array {key!r} is {kept} {shape}, and is said to be {dtype!r:.40} {sizes[path]}")
    return about


def printable(texts: Iterable[str], where: str = "", advice: str = "") -> None:
    """Refuse what would steer a terminal: characters that are neither printable nor spaces.

    Raises:
        ValueError: the first such text.
    """
    for text in texts:
        if not (isinstance(text, str) and all(x.isprintable() or category(x) == "Zs" for x in text)):
            raise ValueError(f"{where}{text!r:.200} has characters that cannot be printed{advice}")


def _stored(dtype: str) -> str:
    """What the format calls a dtype; float8 is kept as float32, whose numbers it has."""
    letter, bits = dtype[:1].upper(), dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return _STORED.get(dtype, "F32" if dtype.startswith("float8") else f"{letter}{bits}")
