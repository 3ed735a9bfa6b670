"""TensorFlow multiplies small matrices of one shape together: the same results, and few operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import XLA, slow

import gradxform as gx

tf = pytest.importorskip("tensorflow")
from tensorflow_counts import operations, tree  # noqa: E402

from gradxform_tensorflow import running  # noqa: E402

SHAPES = [*[(6, 5)] * 18, *[(5, 6)] * 3, *[(2, 3, 2, 4)] * 18, (70, 60), (70, 60)]


@slow(XLA, mode=("graph for an accelerator", "XLA"))
@pytest.mark.parametrize("mode", ["eager", "graph", "graph for an accelerator", "XLA"])
def test_as_alone(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each matrix, and each kernel of a convolution, is its own polar factor, wherever it lies in a stack."""
    rng, tx = np.random.default_rng(0), gx.orthogonalize(12, "polar_express", axes="keras", scale=None)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    if mode == "graph for an accelerator":
        monkeypatch.setattr(running, "has_only_cpus", lambda: False)
    leaves = list(map(tf.constant, given))
    if mode == "eager":
        found = tx(leaves)
    else:
        found = tf.function(tx, jit_compile=mode == "XLA")(leaves)
    for leaf, new in zip(given, found, strict=True):
        u, _, v = np.linalg.svd(leaf.reshape(-1, leaf.shape[-1]).astype(np.float64), full_matrices=False)
        np.testing.assert_allclose(new.numpy().reshape(-1, leaf.shape[-1]), u @ v, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("on", "most"), [("an accelerator", 70), ("cpu", 1000)])
def test_operations(on: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside reading 100 leaves; on CPUs, norms and factors take a few operations for each."""
    if on == "an accelerator":
        monkeypatch.setattr(running, "has_only_cpus", lambda: False)
        monkeypatch.setattr(running, "readable", lambda tensors: False)
        monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: True)
    free: Any = ("Placeholder", "Const", "Identity", "NoOp", "EnsureShape", "Reshape")
    found = [x for x in operations(gx.orthogonalize(), tree(100, (16, 12), "float32")) if x.type not in free]
    assert len(found) <= most
    assert sum(x.type in ("MatMul", "BatchMatMulV2") for x in found) == 15
