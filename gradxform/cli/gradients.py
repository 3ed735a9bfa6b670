"""Read gradients from an .npz or .safetensors file."""

from __future__ import annotations

import contextlib
import importlib
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradxform.backend.errors import install


def read(command: str, path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name.

    Raises:
        ValueError: the file is missing or broken, or holds no arrays or non-numeric ones.
    """
    if not path.is_file():
        raise ValueError(f"{command}: --gradients {path} is not a file")
    arrays = _safetensors(command, path) if path.suffix == ".safetensors" else _npz(command, path)
    if not arrays:
        raise ValueError(f"{command}: --gradients {path} holds no arrays")
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc" and array.dtype.isbuiltin != 2:  # 2: bfloat16, which np.savez loses
            raise ValueError(
                f"{command}: --gradients {path}: {name!r} has the dtype {array.dtype.str}, which is not numeric; "
                "save bfloat16 as .safetensors"
            )
    return dict(arrays)


_EXPANSION = 1032
"""How many bytes one byte of deflated data can stand for."""


def _check_size(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Refuse an array that says to be larger than its entry can be: NumPy would allocate it before reading."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename!r} is compressed in a way that np.savez does not use")
    with file.open(entry) as member:
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(member)
    claimed, held = math.prod(shape) * dtype.itemsize, min(entry.file_size, _EXPANSION * entry.compress_size)
    if not 0 <= claimed <= held:
        raise ValueError(f"{entry.filename!r} says to hold {claimed} bytes, and has room for at most {held}")


def _npz(command: str, path: Path) -> Mapping[str, Any]:
    try:
        with zipfile.ZipFile(path) as file:
            for entry in file.infolist():
                _check_size(file, entry)
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # zipfile and NumPy raise a dozen kinds for damaged files
        raise ValueError(f"{command}: --gradients {path} is not an .npz file of plain arrays ({error})") from error


def _safetensors(command: str, path: Path) -> Mapping[str, Any]:
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("ml_dtypes")  # NumPy then knows bfloat16
    try:
        return importlib.import_module("safetensors.numpy").load_file(path)
    except ModuleNotFoundError as error:
        raise ValueError(f"{command}: --gradients {path} needs safetensors: {install('record')}") from error
    except Exception as error:
        raise ValueError(f"{command}: --gradients {path} cannot be read as .safetensors ({error})") from error
