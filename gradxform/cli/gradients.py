"""Read gradients from an .npz or .safetensors file."""

from __future__ import annotations

import contextlib
import importlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


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


def _npz(command: str, path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{command}: --gradients {path} is not an .npz file of plain arrays ({error})") from error


def _safetensors(command: str, path: Path) -> Mapping[str, Any]:
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("ml_dtypes")  # NumPy then knows bfloat16
    try:
        return importlib.import_module("safetensors.numpy").load_file(path)
    except ModuleNotFoundError as error:
        raise ValueError(f"{command}: --gradients {path} needs safetensors: pip install safetensors") from error
    except Exception as error:
        raise ValueError(f"{command}: --gradients {path} cannot be read as .safetensors ({error})") from error
