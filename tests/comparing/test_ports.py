"""One network in several frameworks, from the same weights, on real data: aligned without a map, only rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import TRAINS, python, slow

import gradxform as gx

pytest.importorskip("torch")
for framework in ("jax", "flax", "optax", "tensorflow", "keras"):
    pytest.importorskip(framework)

import torch_runs  # noqa: E402
from other_runs import flax, keras  # noqa: E402

HERE = Path(__file__).parent
pytestmark = [pytest.mark.filterwarnings("default"), slow(TRAINS)]


@pytest.fixture(scope="module", params=["conv", "transformer"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one network's recordings in three frameworks."""
    folder = tmp_path_factory.mktemp(request.param)
    torch_runs.train(folder / "torch", request.param, steps=4)
    flax(folder / "flax", request.param)
    keras(folder / "keras", request.param)
    return folder


@pytest.mark.parametrize(
    ("a", "b"), [("torch", "flax"), ("flax", "torch"), ("torch", "keras"), ("keras", "flax"), ("keras", "torch")]
)
def test_a_port_is_aligned_without_a_map_and_differs_by_rounding(a: str, b: str, runs: Path) -> None:
    found = gx.compare(runs / a, runs / b)
    assert found.within and not found.findings, str(found)
    assert not found.alignment.alone_a and not found.alignment.alone_b
    assert min(pair.sure for pair in found.pairs) > 0.9
    assert max(found.judged["gradients"].levels.values()) < 2e-5


@pytest.mark.parametrize("fault", [{"data": 1}, {"dropout": 0.3}, {"seed": 3, "data": 1}, {"reduction": "sum"}])
@pytest.mark.parametrize("other", ["keras", "flax"])
def test_a_fault_does_not_lead_the_alignment_astray(
    other: str, fault: dict[str, Any], runs: Path, tmp_path: Path
) -> None:
    """Other batches, dropout and other weights leave the pairs as they are; those that nothing proves are unsure."""
    network = runs.name.rstrip("0123456789")
    torch_runs.train(tmp_path / "torch", network, steps=2, **fault)
    clean, found = (gx.compare(folder / "torch", runs / other) for folder in (runs, tmp_path))
    assert [(pair.a.path, pair.b) for pair in found.pairs] == [(pair.a.path, pair.b) for pair in clean.pairs]
    if "seed" in fault and other == "keras":
        assert max(pair.sure for pair in found.pairs) < 0.5
    else:
        weights = [pair for pair in found.pairs if pair.a.path.endswith("weight") and "norm" not in pair.a.path]
        assert min(pair.sure for pair in weights) >= 0.7


def test_two_biases_of_torch_are_no_certain_fault(tmp_path: Path) -> None:
    """PyTorch's LSTM trains two biases, so their sum moves twice as far as Keras's and Flax's one."""
    torch_runs.train(tmp_path / "torch", "lstm", steps=4)
    keras(tmp_path / "keras", "lstm")
    flax(tmp_path / "flax", "lstm")
    assert gx.compare(tmp_path / "flax", tmp_path / "keras").within
    for other in ("keras", "flax"):
        found = gx.compare(tmp_path / "torch", tmp_path / other)
        assert found.judged["gradients"].first == 1, str(found)
        assert not [finding for finding in found.findings if finding.is_fault and finding.is_certain], str(found)


@pytest.mark.timeout(900)
def test_keras_on_three_backends(tmp_path: Path) -> None:
    """This process runs Keras on TensorFlow."""
    for backend in ("jax", "torch"):
        python(HERE / "other_runs.py", tmp_path / backend, KERAS_BACKEND=backend)
    for network in ("conv", "transformer", "lstm"):
        keras(tmp_path / "tensorflow" / network, network)
        for one, other in (("tensorflow", "jax"), ("jax", "torch"), ("torch", "tensorflow")):
            found = gx.compare(tmp_path / one / network, tmp_path / other / network)
            assert found.within and not found.findings, str(found)
            assert found.a.framework == one
