"""Every transform as a TPU computes it (float64 with float32's range), against the reference."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support import XLA, slow

import gradxform as gx
from gradxform.proof import parity
from gradxform.proof.judge import judge
from gradxform.proof.registry import Row

jax = pytest.importorskip("jax")
jnp = jax.numpy

from devices import update  # noqa: E402
from jax_mesh import TRANSFORMS  # noqa: E402
from jax_tpu import on_tpu, paired  # noqa: E402

SHAPES = {"weights": (37, 41), "kernel": (8, 3, 3, 4), "bias": (301,)}
SIZES = (1.0, 1e15, 1e-15)
EXTREME = (1e30, 3e38, 1e-25, 0.0)
"""Norms are outside of [1e-18, 1e18]: infinite or zero. Zero means all sizes from 1e-25 on."""
NORMS = ("_norm(", "clip_rms(", "clip_adaptive(", "clip_percentile(", "clip_zscore(", "clip_adagc(", "_per_norm(")
NORMS += ("mars(",)
UNLIMITED = ("clip_adaptive(", "skip_nonfinite(")
"""The limit counts as infinite too; skips what counts as infinite."""
BEYOND = ("centralize(",)
"""For gradients of 3e38, the sum exceeds float32's range: known limitation."""


def gradients(size: float, dtype: str = "float32") -> dict[str, Any]:
    """Normally distributed numbers of a scale, at most 3e38."""
    rng = np.random.default_rng(0)
    found = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    found = {name: x * (size or 10.0 ** rng.uniform(-25, 30, x.shape)) for name, x in found.items()}
    return {name: np.clip(x, -3e38, 3e38).astype(jnp.dtype(dtype)) for name, x in found.items()}


def verdicts(tx: Any, grads: Any) -> list[Any]:
    """Run two steps."""
    wanted = parity.expected_steps(tx, [grads, grads], grads)
    state, found = tx.init(jax.tree_util.tree_map(jnp.asarray, grads)), []
    for right in wanted:
        new, state = on_tpu(functools.partial(update, tx), grads, state, grads)
        found.append(judge(new, right, "jax", Row(repr(tx))))
    return [verdict for verdict in found if verdict.over or verdict.wrong]


WITHOUT_FLOATS = ("tanh", "top_k")
"""A function of the user's; a loop that compares integers."""


SQUARED = ("orthogonal_to_parameters()",)
"""Squares of parameters of these sizes, which are the gradients here, leave float32's range: known limitation."""
QUICK = ("clip_norm(1.0)", "clip_norm(1.0, ord=1)", "clip_norm(1.0, ord=float('inf'))", "clip_global_norm(1.0)")
QUICK += ("ema(0.9)",)


@slow(XLA, lambda name: name not in QUICK)
@pytest.mark.parametrize("name", [name for name in TRANSFORMS if not any(words in name for words in WITHOUT_FLOATS)])
def test_every_transform_on_a_tpu(name: str) -> None:
    for size in (1.0,) if name in SQUARED else SIZES:
        assert not verdicts(TRANSFORMS[name], gradients(size)), size


@slow(XLA, lambda name: name not in QUICK)
@pytest.mark.parametrize("name", [name for name in TRANSFORMS if not any(words in name for words in WITHOUT_FLOATS)])
def test_extreme_gradients_on_a_tpu(name: str) -> None:
    """Transforms without a norm are right; after an infinite norm, all is NaN."""
    for size in () if name in SQUARED or any(words in name for words in UNLIMITED) else EXTREME:
        if any(words in name for words in NORMS):
            found = verdicts(TRANSFORMS[name], gradients(size)) if size == 1e30 else []
            assert all(verdict.wrong == "NaN" for verdict in found), (size, found)
        elif size != 3e38 or not any(words in name for words in BEYOND):
            assert not verdicts(TRANSFORMS[name], gradients(size)), size


@slow(XLA)
@pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
@pytest.mark.parametrize("size", [1e15, 1e-15])
def test_other_dtypes_on_a_tpu(size: float, dtype: str) -> None:
    limit = size / 10
    for tx in (gx.clip_norm(limit), gx.clip_global_norm(limit), gx.clip_norm(limit, axes=0)):
        assert not verdicts(tx, gradients(size, dtype)), tx


@slow(XLA)
def test_hundreds_of_leaves_and_a_second_norm_on_a_tpu() -> None:
    rng = np.random.default_rng(0)
    grads = {f"{i:03}": (rng.standard_normal(5) * 1e15).astype(np.float32) for i in range(40)}
    for tx in (gx.clip_global_norm(1.0), gx.chain(gx.clip_norm(1e15), gx.clip_global_norm(1.0), gx.scale(-0.1))):
        assert not verdicts(tx, grads), tx


@slow(XLA, size=1e-15)
@slow(XLA, axes=0)
@pytest.mark.parametrize("size", [1e-15, 1e15])
@pytest.mark.parametrize("axes", [None, 0])
def test_derivatives_on_a_tpu(axes: int | None, size: float) -> None:
    grads, weights = gradients(size), gradients(0.0)
    weights = {name: np.sign(leaf) for name, leaf in weights.items()}

    def loss(tree: Any) -> Any:
        return sum(jnp.sum(weights[name] * leaf) for name, leaf in gx.clip_norm(size / 10, axes=axes)(tree).items())

    found, wanted = on_tpu(jax.grad(loss), grads), jax.jit(jax.grad(loss))(grads)
    assert all(np.allclose(found[name], right, rtol=1e-5, atol=1e-7) for name, right in wanted.items())


def test_what_is_looked_for_is_found() -> None:
    with jax.enable_x64(True):
        plain = on_tpu(lambda x: jnp.sum(jnp.square(x.astype(np.float64))), np.float32([1e30]))
        assert plain == np.inf
        assert on_tpu(lambda x: jnp.square(x.astype(np.float64)), np.float32(1e-25)) == 0.0
        assert float(paired(np.float64(1 + 2.0**-40))) == 1 + 2.0**-40
        assert float(paired(np.float64(1 + 2.0**-52))) == 1
