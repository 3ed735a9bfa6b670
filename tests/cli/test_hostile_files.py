"""Files of strangers, full disks, folders that cannot be written: one line, exit status 2, nothing half-written."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradxform.cli import gradients, writing


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def claiming(shape: str, *, compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive whose one array says to be of another shape."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64))
    return file.getvalue()


ARRAYS = {"w": np.float32([[1, 2], [3, 4]]), "b": np.zeros(3, np.float16)}
WHOLE = npz(**ARRAYS)
HOSTILE = {
    "huge": claiming("(1099511627776,)"),
    "huge in two": claiming("(4294967296, 4294967296)"),
    "negative": claiming("(-1,)"),
    "deep": claiming("(" * 60 + "1" + ",)" * 60),
    "not a tuple": claiming("print()"),
    "lzma": claiming("(16,)", compression=zipfile.ZIP_LZMA),
    "cut": WHOLE[: len(WHOLE) // 2],
    "empty": b"",
    "not arrays": b"PK\x05\x06" + bytes(18),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_an_archive_that_lies(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "gradients.npz"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^report: --gradients .*gradients\.npz"):
            gradients.read("report", path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_read_or_refused(suffix: str, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(WHOLE if suffix == "npz" else pytest.importorskip("safetensors.numpy").save(ARRAYS))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    path = tmp_path / f"gradients.{suffix}"
    path.write_bytes(content)
    try:
        found = gradients.read("report", path)
    except ValueError as error:
        assert str(error).startswith("report: --gradients")
    else:
        assert sum(array.nbytes for array in found.values()) <= 22


def test_a_file_is_written_in_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before")
    for error in (ValueError, KeyboardInterrupt, MemoryError):
        with pytest.raises(error), writing.whole(path) as part:
            part.write_text("half")
            raise error
    assert path.read_text() == "before"
    with writing.whole(path) as part:
        part.write_text("after")
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["page.md"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.md").symlink_to(tmp_path / "page.md")
    with writing.whole(tmp_path / "link.md") as part:
        part.write_text("after")
    assert (tmp_path / "link.md").is_symlink() and (tmp_path / "page.md").read_text() == "after"
