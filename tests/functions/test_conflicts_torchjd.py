"""upgrad beside TorchJD 0.18, the authors' library of UPGrad."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import gradxform as gx

torch: Any = pytest.importorskip("torch")
aggregation, linalg = (importlib.import_module(f"torchjd.{name}") for name in ("aggregation", "linalg"))


def jacobian(count: int) -> Any:
    """One gradient a row, with two decimals."""
    return np.random.default_rng(count).normal(size=(count, 2 * count - 1)).round(2)


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8])
def test_upgrad_without_regularization(count: int) -> None:
    rows = torch.from_numpy(jacobian(count))
    wanted = aggregation.UPGrad(projector=linalg.QuadprogProjector(norm_eps=0.0, reg_eps=0.0))(rows)
    np.testing.assert_allclose(gx.upgrad([[row] for row in rows])[0].numpy(), wanted.numpy(), rtol=0, atol=1e-13)
