"""What the frameworks' own functions do on the cases the README names, and what ours do instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradxform as gx
from gradxform import _backend
from gradxform.testing import max_ulp

GPT2_EMBEDDING = 38_597_376
"""Elements of GPT-2's token embedding."""
LARGE = [np.float32([1e30]), np.float32([3.0])]


@pytest.fixture(scope="module")
def embedding() -> tuple[Any, float]:
    """Normal float32 values of an embedding's size, and their norm, summed in float64."""
    values = np.random.default_rng(0).standard_normal(GPT2_EMBEDDING, dtype=np.float32)
    blocks = (block.astype(np.float64) for block in np.array_split(values, 600))
    return values, sum(float(np.dot(block, block)) for block in blocks) ** 0.5


@pytest.mark.parametrize("framework", _backend.installed())
def test_an_embedding_is_clipped_right(framework: str, embedding: tuple[Any, float]) -> None:
    values, norm = embedding
    backend = _backend.backend(framework)
    got = backend.to_numpy(gx.clip_norm(1.0)(backend.from_numpy(values)))
    assert max_ulp(got, (values.astype(np.float64) / norm).astype(np.float32)) <= 2


def test_pytorch_loses_digits_of_an_embeddings_norm(embedding: tuple[Any, float]) -> None:
    torch = pytest.importorskip("torch")
    values, norm = embedding
    theirs = torch.nn.utils.get_total_norm([torch.from_numpy(values)]).numpy()
    assert max_ulp(theirs, np.float32(norm)) > 1000


def test_optax_makes_zeros_of_1e30() -> None:
    optax = pytest.importorskip("optax")
    theirs = optax.clip_by_global_norm(1.0)
    updates, _ = theirs.update(LARGE, theirs.init(LARGE))
    assert [float(update[0]) for update in updates] == [0.0, 0.0]


def test_tensorflow_makes_nan_of_1e30() -> None:
    tf = pytest.importorskip("tensorflow")
    clipped, _ = tf.clip_by_global_norm([tf.constant(leaf) for leaf in LARGE], 1.0)
    assert all(np.isnan(leaf.numpy()).all() for leaf in clipped)


@pytest.mark.parametrize("framework", _backend.installed())
def test_ours_are_right_for_1e30(framework: str) -> None:
    backend = _backend.backend(framework)
    out = gx.clip_global_norm(1.0)([backend.from_numpy(leaf) for leaf in LARGE])
    assert max(map(max_ulp, map(backend.to_numpy, out), [np.float32([1.0]), np.float32([3e-30])])) <= 2
