"""Read gradients from an .npz or .safetensors file."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gradxform.recording.files import library


def read(command: str, path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name.

    Raises:
        ValueError: the file is missing or broken, or holds no arrays or non-numeric ones.
    """
    if not path.is_file():
        raise ValueError(f"{command}: --gradients {path} is not a file")
    try:
        arrays = library().numpy.load_file(path) if path.suffix == ".safetensors" else _npz(path)
    except Exception as error:  # zipfile, NumPy and safetensors raise a dozen kinds for damaged files
        kind = path.suffix if path.suffix == ".safetensors" else ".npz"
        raise ValueError(f"{command}: --gradients {path} cannot be read as {kind} ({error})") from error
    if not arrays:
        raise ValueError(f"{command}: --gradients {path} holds no arrays")
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc" and array.dtype.isbuiltin != 2:  # 2: bfloat16, which np.savez loses
            raise ValueError(
                f"{command}: --gradients {path}: {name!r} has the dtype {array.dtype.str}, which is not numeric; "
                "save bfloat16 as .safetensors"
            )
    return dict(arrays)


def _npz(path: Path) -> dict[str, Any]:
    """The arrays of an archive. `np.load` would allocate what a forged header says before it reads."""
    arrays = {}
    with zipfile.ZipFile(path) as file:
        for entry in file.infolist():
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{entry.filename!r} is compressed in a way that np.savez does not use")
            content = io.BytesIO(file.read(entry))
            version = np.lib.format.read_magic(content)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = header(content)
            if min(shape, default=0) < 0:
                raise ValueError(f"{entry.filename!r} says to have the shape {shape}")
            order: Any = "F" if fortran else "C"
            held = np.ndarray(shape, dtype, content.getbuffer(), content.tell(), order=order)
            arrays[entry.filename.removesuffix(".npy")] = held
    return arrays
