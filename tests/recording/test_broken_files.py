"""Files that others, or accidents, have written: one line that names the file, and no large allocation."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import gradxform as gx
from gradxform.cli import app

G = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
STEP = "step_00000000.safetensors"


def recorded(folder: Path, **options: Any) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    recorder = gx.record(folder, **options)
    for step in range(2):
        recorder(step, gradients={"dense": {"kernel": G, "bias": G[0]}}, loss=0.5)
    return folder


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def rewritten(path: Path, header: Any, data: bytes, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def described(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Break the description of a step by a change to its JSON."""

    def broken(path: Path) -> None:
        header, data = parts(path)
        about = json.loads(header["__metadata__"]["about"])
        found = change(about)
        header["__metadata__"]["about"] = found if isinstance(found, str) else json.dumps(about)
        rewritten(path, header, data)

    return broken


def headed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Break the header by a change to its JSON."""

    def broken(path: Path) -> None:
        header, data = parts(path)
        rewritten(path, change(header) or header, data)

    return broken


KERNEL = "gradients/dense/kernel"
BROKEN: dict[str, Callable[[Path], None]] = {
    "no description": headed(lambda h: h["__metadata__"].pop("about") and None),
    "a description that is no JSON": described(lambda about: "{"),
    "a description that is a list": described(lambda about: "[]"),
    "a description nested deeply": described(lambda about: "[" * 100_000),
    **{f"no {field}": described(lambda about, field=field: about.pop(field) and None) for field in ("order", "shapes")},  # type: ignore[misc]
    "no versions": described(lambda about: about.pop("versions") and None),
    "norms_only is a word": described(lambda about: about.update(norms_only="no")),
    "versions are numbers": described(lambda about: about.update(versions={"torch": 2})),
    "an order of numbers": described(lambda about: about.update(order={"gradients": [1, 2]})),
    "an order of more leaves": described(lambda about: about["order"]["gradients"].append("extra")),
    "leaves that are not there": described(lambda about: about.update(order={"x": ["y"]}, shapes={"x": {"y": []}})),
    "another shape": described(lambda about: about["shapes"]["gradients"].update({"dense/kernel": [3, 4]})),
    "a shape of words": described(lambda about: about["shapes"]["gradients"].update({"dense/kernel": ["4", "3"]})),
    "shapes of no tree": described(lambda about: about["shapes"].update(updates=5)),
    "a huge shape": described(lambda about: about["shapes"]["gradients"].update({"dense/kernel": [10**12, 10**12]})),
    "no dtype": described(lambda about: about["dtypes"]["gradients"].pop("dense/kernel") and None),
    "a coarser dtype": described(lambda about: about["dtypes"]["gradients"].update({"dense/kernel": "bfloat16"})),
    "a version that steers the terminal": described(lambda about: about["versions"].update(numpy="\x1b[2J")),
    "complex without parts": described(lambda about: about.update(complex128=[KERNEL])),
    "norms alone": described(lambda about: about.update(norms_only=True)),
    "a header that is huge": lambda path: rewritten(path, *parts(path), length=2**62),
    "a header that is longer than the file": lambda path: rewritten(path, *parts(path), length=10**6),
    "offsets outside": headed(lambda h: h[KERNEL].update(data_offsets=[0, 10**12])),
    "offsets backwards": headed(lambda h: h[KERNEL].update(data_offsets=[48, 0])),
    "another dtype": headed(lambda h: h[KERNEL].update(dtype="F64")),
    "an unknown dtype": headed(lambda h: h[KERNEL].update(dtype="X7")),
    "a shape that does not fit": headed(lambda h: h[KERNEL].update(shape=[4, 300])),
    "a header that is a list": lambda path: rewritten(path, b"[1]", b""),
    "an empty file": lambda path: path.write_bytes(b""),
    "another version": headed(lambda h: h["__metadata__"].update({"gradxform.record": "7" * 1000})),
    "a folder in its place": lambda path: (path.unlink(), path.mkdir())[1],
    "a pipe in its place": lambda path: (path.unlink(), os.mkfifo(path))[1],
}


def compared(a: Path, b: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compare", str(a), str(b)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result.exit_code, result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes of this kind")
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_step_is_one_line_that_names_the_file(broken: str, step: int, tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    path = b / f"step_{step:08d}.safetensors"
    BROKEN[broken](path)
    code, said = compared(a, b)
    assert code == 2, said
    assert str(path) in said and said.count("\n") == 1 and len(said) < 400, said


def test_a_dtype_that_numpy_lacks(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    header, _ = parts(b / STEP)
    for key, entry in header.items():
        if key != "__metadata__":
            entry |= {"dtype": "F8_E4M3"}
    start = 0
    for key in sorted(set(header) - {"__metadata__"}):
        size = int(np.prod(header[key]["shape"]))
        header[key]["data_offsets"], start = [start, start + size], start + size
    rewritten(b / STEP, header, bytes(start))
    code, said = compared(a, b)
    assert code == 2 and "F8_E4M3" in said and said.count("\n") == 1, said


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_changed_or_cut(data: st.DataObject, tmp_path: Path) -> None:
    """A file with some bytes changed is refused in one line, or compared: changed numbers are numbers."""
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    path = b / STEP
    raw = bytearray(path.read_bytes())
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=8)):
        raw[place] = value
    path.write_bytes(raw[: data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))])
    code, said = compared(a, b)
    assert code in (0, 1, 2)
    assert code < 2 or said.count("\n") == 1, said


def test_two_files_of_one_step(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a")
    (a / "step_1.safetensors").write_bytes(b"")
    code, said = compared(a, a)
    assert code == 2 and "step_00000001.safetensors" in said and "step_1.safetensors" in said


def test_steps_of_two_runs_in_one_folder(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    gx.record(b)(1, gradients={"dense": {"kernel": G.T, "bias": G[0]}})
    code, said = compared(a, b)
    assert code == 2 and "(3, 4)" in said and "(4, 3)" in said and STEP in said
    gx.record(b, norms_only=True)(1, gradients={"dense": {"kernel": G, "bias": G[0]}})
    code, said = compared(a, b)
    assert code == 2 and "norms" in said and STEP in said


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: root may read everything."""
    a = recorded(tmp_path / "a")

    def refused(path: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    code, said = compared(a, a)
    assert code == 2 and "a'" in said and "Permission denied" in said and said.count("\n") == 1


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        recorded(tmp_path / "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / STEP).stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("trees", "path"),
    [
        ({"gradients": {"a": {"b": G}, "a/b": G}}, "'a/b'"),
        ({"gradients": {"a": {"b": G}, "a.b": G}}, "'a/b'"),
        ({"gradients": [{"a.b": G, "a": {"b": G}}]}, "'0/a/b'"),
        ({"x": {"w": G}, "x/w": G}, "'x/w'"),
        ({"__metadata__": G}, "'__metadata__'"),
    ],
)
def test_two_leaves_of_one_path_are_refused(trees: dict[str, Any], path: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=path):
        gx.record(tmp_path)(0, **trees)
    assert list(tmp_path.iterdir()) == []


ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=4,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_part_of_a_description_replaced(data: st.DataObject, tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    header, rest = parts(b / STEP)
    about = json.loads(header["__metadata__"]["about"])
    node: Any = about
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else list(range(len(node)))))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = data.draw(ANY)
    header["__metadata__"]["about"] = json.dumps(about)
    rewritten(b / STEP, header, rest)
    code, said = compared(a, b)
    assert code in (0, 1, 2)
    assert code < 2 or (said.count("\n") == 1 and len(said) < 500), said


MAP = """\
[names]
"dense" = "dense"

[[leaf]]
a = "dense/kernel"
b = "dense/kernel"
a_part = [0, 0, 4]
a_gates = [0, 1, 0]
a_axes = [0, 1]
b_shape = [4, 3]
how = "the map"
sure = 1.00

[alone]
a = []
b = []
"""


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_characters_of_a_map_changed(data: st.DataObject, tmp_path: Path) -> None:
    a = recorded(tmp_path / "a")
    (tmp_path / "map.toml").write_text(MAP)
    assert {pair.how for pair in gx.compare(a, a, map=tmp_path / "map.toml").pairs} == {"the map"}
    text = list(MAP)
    edit = st.tuples(st.integers(0, len(text) - 1), st.sampled_from([*"0123456789-.,[]{}\"'=ab \n", ""]))
    for place, character in data.draw(st.lists(edit, min_size=1, max_size=4)):
        text[place] = character
    (tmp_path / "map.toml").write_text("".join(text))
    result = CliRunner().invoke(app, ["compare", str(a), str(a), "--map", str(tmp_path / "map.toml")])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, 2)
    assert result.exit_code < 2 or result.stderr.count("\n") == 1, result.stderr
