"""Operations on devices without float64 for 300 small leaves: PyTorch's mps and MLX's GPU stream."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np
import pytest
from support import f32, slow
from without_float64 import indexing

import gradxform as gx
from gradxform.backend import lookup
from gradxform.testing import max_ulp

LEAVES, SMALL = 300, (64, 48)
LAUNCHES = {  # on mps, of which 300 are copies into gradients
    "clip_global_norm(1.0)": 920,
    "clip_global_norm(1.0, ord=1)": 740,
    "clip_norm(1.0)": 750,
    "normalize_global_norm()": 790,
    "scale(0.3)": 310,
    "chain(clip_norm(1.0), clip_global_norm(1.0), scale(-0.1))": 1500,
    "clip_norm(1.0, axes=0)": 800,
    "centralize(axes=0)": 610,
    "clip_adaptive(0.01, axes=0)": 1050,
}
PRIMITIVES = {"clip_global_norm(1.0)": 3900, "clip_norm(1.0)": 6200, "normalize_global_norm()": 3800, "scale(0.3)": 900}
"""In MLX's graph."""


@pytest.fixture
def counted(torch: Any) -> Any:
    from torch_counts import counted

    return counted


@slow("counts once more, in another dtype", dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tx", LAUNCHES)
def test_launches_on_mps(tx: str, dtype: str, counted: Any) -> None:
    """Along axes, half precision is copied into float32 and back."""
    with indexing():
        found = counted(gx.parse(tx), [SMALL] * LEAVES, dtype, "mps")
    copies = 3 * LEAVES if dtype == "bfloat16" and "axes" in tx else 0
    assert LEAVES <= found.launches.total() <= LAUNCHES[tx] + copies, found.launches
    assert found.between == found.waits == []


def test_small_leaves_of_several_sizes_on_mps(counted: Any) -> None:
    """About seventy launches per size, and only a copy per leaf."""
    shapes = [(64, 48), (64,), (48,), (9, 64), (3, 3, 16)]
    with indexing():
        few, many = (counted(gx.clip_global_norm(1.0), shapes * n, "float32", "mps").launches for n in (2, 60))
    assert many.total() - few.total() == len(shapes) * 58
    assert few.total() <= LAUNCHES["clip_global_norm(1.0)"] - LEAVES + len(shapes) * 75


def test_memory_on_mps(counted: Any) -> None:
    """Large leaves are measured and multiplied in pieces."""
    with indexing():
        found = counted(gx.clip_global_norm(1.0), [(4096, 2048)] * 4, "float32", "mps", "update")
    tree = 4 * 4 * 4096 * 2048
    assert tree <= found.peak <= 1.6 * tree


@pytest.fixture
def mlx(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Simulate MLX on a GPU."""
    core = pytest.importorskip("mlx.core")
    lookup.backend("mlx")
    monkeypatch.setattr(importlib.import_module("gradxform_mlx.backend"), "on_gpu", lambda: True)
    return core


@pytest.mark.parametrize("tx", PRIMITIVES)
def test_primitives_of_mlx(tx: str, mlx: Any) -> None:
    graph, leaves = io.StringIO(), [mlx.ones(SMALL) for _ in range(LEAVES)]
    mlx.eval(leaves)
    mlx.export_to_dot(graph, *gx.parse(tx)(leaves))
    assert LEAVES < graph.getvalue().count("shape=rectangle") <= PRIMITIVES[tx]


@slow("MLX hands four fused loops to a C++ compiler")
def test_a_compiler_changes_no_sum(mlx: Any) -> None:
    """mx.compile fuses elementwise operations; hard rows are summed as without it."""
    rng = np.random.default_rng(0)
    leaf = np.where(np.arange(20_000) == 777, np.float32(1.0), np.float32(3e-4))
    for own in (leaf, np.full(9_999, 0.1, np.float32), rng.standard_normal(5000).astype(np.float32), f32(3e17, 4e17)):
        (found,) = mlx.compile(gx.normalize_norm())([mlx.array(own)])
        norm = np.sqrt(np.sum(np.square(own, dtype=np.float64)))
        assert max_ulp(np.array(found), (own.astype(np.float64) / norm).astype(np.float32)) <= 4
