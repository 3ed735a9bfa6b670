"""cagrad and upgrad beside TorchJD 0.18, the authors' library of UPGrad."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import gradxform as gx

torch: Any = pytest.importorskip("torch")
aggregation, linalg = (importlib.import_module(f"torchjd.{name}") for name in ("aggregation", "linalg"))

CAGRAD = {
    # TorchJD 0.18.0 with CVXPY 1.9.3 and Clarabel 0.11.1: CAGrad(c=0.5)(jacobian(count)) in float64. Its package for
    # CAGrad brings ten others, so the figures stand here.
    2: [-0.9395559, 0.1324688, -0.0351688],
    3: [0.8541015, -1.9031979, -0.2378916, -1.2007883, -0.1836849],
    5: [-0.5860855, -1.2372291, -0.7195245, -0.3652615, 0.9259003, -0.1044567, -0.8102201, -0.1099008, -1.186368],
}


def jacobian(count: int) -> Any:
    """One gradient a row, with two decimals."""
    return np.random.default_rng(count).normal(size=(count, 2 * count - 1)).round(2)


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8])
def test_upgrad_without_regularization(count: int) -> None:
    rows = torch.from_numpy(jacobian(count))
    wanted = aggregation.UPGrad(projector=linalg.QuadprogProjector(norm_eps=0.0, reg_eps=0.0))(rows)
    np.testing.assert_allclose(gx.upgrad([[row] for row in rows])[0].numpy(), wanted.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("count", CAGRAD)
def test_cagrad_beside_recorded_figures(count: int) -> None:
    """Clarabel stops at 1e-8 of the objective, so directions differ by its root."""
    rows, wanted = jacobian(count), np.array(CAGRAD[count])
    found = gx.cagrad([[row] for row in rows])[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    assert np.min(rows @ found) >= np.min(rows @ wanted) - 1e-6  # seven digits are recorded
    assert np.linalg.norm(found - rows.mean(axis=0)) <= 0.5 * np.linalg.norm(rows.mean(axis=0)) + 1e-14


def test_the_example_of_torchjds_page() -> None:
    rows = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
    found = gx.cagrad([[row] for row in rows], c=0.5)[0]
    np.testing.assert_allclose(found.numpy(), [0.1835, 1.2041, 1.2041], rtol=0, atol=5e-5)
