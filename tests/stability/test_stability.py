"""What is public stays as it was promised; what an older version saved is read."""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np
import pytest
from stability import saved, surface
from support import array, tensors

import gradxform as gx
from gradxform.proof import parity
from gradxform.proof.ulp import apart, budget

HERE = Path(__file__).parent


def test_what_is_public_is_as_written_down() -> None:
    for framework in ("jax", "tensorflow", "torch", "keras", "typer", "safetensors"):
        pytest.importorskip(framework)
    promised = (HERE / "public.txt").read_text(encoding="utf-8").splitlines()
    found = surface.surface().splitlines()
    changed = "\n".join(difflib.unified_diff(promised, found, "promised", "found", n=0, lineterm=""))
    assert not changed, (
        f"{changed}\nIf something is new, run `python tests/stability/surface.py > tests/stability/public.txt` and "
        "name it in the changelog. What is gone or different needs a deprecation first."
    )


@pytest.mark.parametrize("name", saved.NAMES)
def test_a_state_that_was_saved_is_continued(name: str, framework: str) -> None:
    tx, state, wanted = saved.transformation(name), saved.state(name), saved.updates(name)
    like = tx.init(tensors(framework, saved.PARAMETERS))
    updates, _ = tx.update(tensors(framework, saved.gradients(saved.STEPS)), gx.from_numpy(state, like=like))
    steps = [saved.gradients(step) for step in range(saved.STEPS + 1)]
    terms = parity.expected_steps(tx, steps, saved.PARAMETERS)[-1].terms
    for path, leaf in wanted.items():
        allowed = 2 * budget(leaf.dtype, 2, terms[path] != 0)  # an older version was as far off as this one
        assert np.all(apart(array(updates[path]), leaf, terms[path]) <= allowed), (name, path)


def test_a_state_of_another_layout_is_refused_by_name() -> None:
    state = {f"inner/{path}": leaf for path, leaf in saved.state("ema(0.5)").items()}
    with pytest.raises(ValueError, match="count"):
        gx.from_numpy(state, like=gx.ema(0.5).init(saved.PARAMETERS))


def test_a_recording_that_was_made_is_compared(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    recorder = gx.record(tmp_path / "again")
    for step in range(saved.STEPS):
        recorder(step, gradients=saved.gradients(step), loss=1.0 / (1 + step))
    found = gx.compare(saved.RECORDING, tmp_path / "again")
    assert found.within and not found.findings
    assert found.steps == list(range(saved.STEPS))


def test_every_stateful_transform_was_saved() -> None:
    assert set(saved.NAMES) == set(surface.STATEFUL)
