"""What `gx.record` keeps, from every framework and every place of a training loop."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import ROOT, tensors

import gradxform as gx
from gradxform.recording import files
from gradxform.recording.reading import Recording

TREE = {"encoder": [{"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": None}], "head": np.float32([1, 2])}


def kept(folder: Path, step: int, name: str) -> dict[str, Any]:
    """Read one tree of a step by path."""
    recording = Recording(folder)
    return {path: recording.read(step, name, path) for path in recording.shapes(step, name)}


def test_a_tree_of_any_framework(framework: str, tmp_path: Path) -> None:
    recorder = gx.record(tmp_path / "run")
    recorder(3, gradients=tensors(framework, TREE), loss=0.5)
    found = kept(tmp_path / "run", 3, "gradients")
    assert set(found) == {"encoder/0/kernel", "head"}
    np.testing.assert_array_equal(found["encoder/0/kernel"], TREE["encoder"][0]["kernel"])
    assert Recording(tmp_path / "run").framework == framework
    assert kept(tmp_path / "run", 3, "loss")[""] == 0.5


DTYPES = ["float16", "float32", "float64", "complex64", "complex128", "int32", "uint8", "bool", "bfloat16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_shapes_are_kept(dtype: str, tmp_path: Path) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    tree = {"matrix": np.array([[1, 0], [2, 3]]).astype(kind).T, "number": np.asarray(1).astype(kind)}
    gx.record(tmp_path)(0, gradients={**tree, "empty": np.zeros((0, 3), kind)})
    found = kept(tmp_path, 0, "gradients")
    for path, leaf in tree.items():
        assert (found[path].dtype, found[path].shape) == (leaf.dtype, leaf.shape)
        assert found[path].tobytes() == leaf.tobytes()
    assert found["empty"].shape == (0, 3)


def test_steps_that_are_not_due_are_not_read(tmp_path: Path) -> None:
    recorder = gx.record(tmp_path, every=10)
    for step in range(0, 30, 3):
        recorder(step, gradients={"w": np.ones(2)} if step % 10 == 0 else object())
    assert recorder.steps == [0]
    recorder(np.int64(20), gradients={"w": np.ones(2)})
    assert recorder.steps == [0, 20]
    assert recorder.megabytes == pytest.approx(sum(p.stat().st_size for p in tmp_path.iterdir()) / 1e6)


def test_where_chooses_leaves_and_norms_only_keeps_two_numbers(tmp_path: Path) -> None:
    recorder = gx.record(tmp_path, where="head", norms_only=True)
    recorder(0, gradients={"head": np.float32([3, -4]), "body": np.ones(9)}, statistics={"mean": np.ones(2)}, loss=1.0)
    assert set(kept(tmp_path, 0, "gradients")) == {"head"}
    np.testing.assert_array_equal(kept(tmp_path, 0, "gradients")["head"], [5, 4])
    assert Recording(tmp_path).norms_only
    with pytest.raises(ValueError, match=r"'hed' .*'head'"):
        gx.record(tmp_path, where="hed")(1, gradients={"head": np.ones(2)})


def test_the_order_of_the_leaves_and_versions(tmp_path: Path) -> None:
    gx.record(tmp_path)(0, gradients={"z": np.ones(1), "a": np.ones(1)})
    found = Recording(tmp_path)
    assert list(found.shapes(0, "gradients")) == sorted(found.shapes(0, "gradients"))  # NumPy's trees are sorted
    assert f"gradxform {gx.__version__}" in found.versions
    gx.record(tmp_path / "pairs")(0, gradients=[("z", np.ones(1)), ("a.b", np.ones(1))])
    assert list(Recording(tmp_path / "pairs").shapes(0, "gradients")) == ["z", "a/b"]


def test_progress_and_megabytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = gx.record(tmp_path, progress=True)
    recorder(7, gradients={"w": np.zeros(500_000, np.float32)})
    assert "7" in (line := capsys.readouterr().err) and repr(recorder) in line
    assert "1 steps, 2.0 MB" in line


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """As on a full disk: a limit on the size of files, which the system enforces."""
    code = f"""
import resource, signal
import numpy as np, gradxform as gx
recorder = gx.record({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    recorder(0, gradients={{"w": np.zeros(9999)}})
except OSError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "0.1 MB" in run.stdout and "File too large" in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file'.*File exists"):
        gx.record(tmp_path / "file")
    recorder = gx.record(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(OSError, match="No such file or directory"):
        recorder(0, loss=1.0)


@pytest.mark.parametrize(
    ("step", "trees", "message"),
    [
        (-1, {"loss": 1.0}, "-1"),
        (0.5, {"loss": 1.0}, "0.5"),
        ("3", {"loss": 1.0}, "3"),
        (0, {}, "has no array"),
        (0, {"gradients": {"w": None}}, "has no array.*gradients holds none"),
        (0, {"gradients": iter(())}, "has no array.*used up"),
        (0, {"gradients": {"w": "text"}}, "'w'"),
        (0, {"gradients": {"w": np.array([{}])}}, "'w'"),
    ],
)
def test_what_cannot_be_recorded(step: Any, trees: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        gx.record(tmp_path)(step, **trees)
    with pytest.raises(ValueError, match=r"every .* 0"):
        gx.record(tmp_path, every=0)
    assert list(tmp_path.iterdir()) == []


def test_no_gradients_beside_a_loss_are_noticed(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="step 0: gradients holds none"):
        gx.record(tmp_path)(0, gradients=iter(()), loss=0.5)


def test_gradients_that_are_not_chosen_are_no_mistake(tmp_path: Path) -> None:
    gx.record(tmp_path, where=lambda path: False)(0, gradients={"w": np.ones(2)}, loss=0.5)
    with pytest.warns(UserWarning, match="step 1: gradients_before holds none"):
        gx.record(tmp_path)(1, gradients_before={"w": None}, loss=0.5)


def test_steps_of_an_earlier_run_are_noticed(tmp_path: Path) -> None:
    gradients = {"w": np.ones(2)}
    first = gx.record(tmp_path)
    for step in (0, 1, 3, 2, 5):
        first(step, gradients=gradients)
    for start in (0, 4):  # anew, or from a checkpoint
        again = gx.record(tmp_path)
        with pytest.warns(UserWarning, match="later steps of an earlier run, up to 5"):
            again(start, gradients=gradients)
        again(start + 1, gradients=gradients)
    gx.record(tmp_path)(6, gradients=gradients)
    assert first.steps == [0, 1, 2, 3, 4, 5, 6]


def test_parameters_alone_are_compared_as_such(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for step in range(3):
            gx.record(tmp_path / name)(step, parameters={"w": np.float32([1, 2, 3])}, loss=0.5)
    assert "no gradients were compared" in str(gx.compare(tmp_path / "a", tmp_path / "b"))


def test_a_step_recorded_again_is_replaced(tmp_path: Path) -> None:
    recorder = gx.record(tmp_path)
    for value in (1.0, 2.0):
        recorder(0, loss=value)
    assert kept(tmp_path, 0, "loss")[""] == 2.0
    (tmp_path / ".step_00000001.safetensors.1.part").write_bytes(b"left by a killed run")
    assert Recording(tmp_path).steps == [0]


def test_a_second_call_of_a_step_adds_to_it(tmp_path: Path) -> None:
    recorder = gx.record(tmp_path)
    recorder(0, gradients={"w": np.ones(2, np.complex128)}, loss=1.0)
    recorder(1, loss=1.0)
    recorder(0, gradients={"v": np.ones(1)}, loss=2.0)  # of another optimizer, with fewer steps
    assert {path: leaf.tolist() for path, leaf in kept(tmp_path, 0, "gradients").items()} == {"w": [1, 1], "v": [1]}
    assert kept(tmp_path, 0, "loss")[""] == 2.0


def test_a_loss_joins_the_step_that_a_handle_records(tmp_path: Path, torch: Any) -> None:
    model, recorder = torch.nn.Linear(2, 1), gx.record(tmp_path)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    gx.torch.attach(optimizer, gx.clip_norm(1.0)).record(recorder)
    for step in range(3):
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        if step == 1:
            recorder(step, loss=loss)
        optimizer.step()
        if step != 1:
            recorder(step, loss=loss)
    for step in range(3):
        assert set(kept(tmp_path, step, "gradients")) == {"weight", "bias"}
        assert set(kept(tmp_path, step, "loss")) == {""}


def test_without_safetensors_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match=r"gradxform\[record\]"):
        gx.record(tmp_path)


def test_files_of_others(tmp_path: Path) -> None:
    files.library().numpy.save_file({"w": np.ones(2)}, tmp_path / "step_0.safetensors")
    with pytest.raises(ValueError, match=r"step_0\.safetensors"):
        Recording(tmp_path)


def test_threads_write_the_same_step(tmp_path: Path) -> None:
    """As JAX's `pmap` calls a callback on each device."""
    errors: list[BaseException] = []

    def record() -> None:
        recorder = gx.record(tmp_path)
        for _ in range(50):
            try:
                recorder(0, gradients={"w": np.ones(1000, np.float32)})
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=record) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000000.safetensors"]


def test_a_file_system_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = gx.record(tmp_path)

    def refuse(path: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="cannot be written: Read-only file system"):
        recorder(0, gradients={"w": np.ones(3)})


def test_a_masked_array_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'w' is masked"):
        gx.record(tmp_path)(0, gradients={"w": np.ma.masked_array(np.ones(3), [0, 1, 0])})


@pytest.mark.parametrize("name", ["w\x1b[2J", "w\x85", "w\u202e", "w\u2028"])
def test_a_name_that_steers_the_terminal_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be printed"):
        gx.record(tmp_path)(0, gradients={name: np.ones(3)})


@pytest.mark.parametrize("name", ["w 1", "w\u00a01", "w\u20091", "w\u30001"])
def test_a_name_with_a_space_is_kept(name: str, tmp_path: Path) -> None:
    for run in "ab":
        gx.record(tmp_path / run)(0, gradients={name: np.ones(3)})
    assert gx.compare(tmp_path / "a", tmp_path / "b").within
