"""Transforms beside the published algorithms, written as their papers have them; tests/pages/test_migrating.py has
the functions of other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradxform as gx

Leaves = list[Any]


def spiky() -> list[Leaves]:
    """Gradients with some much larger steps and one zero step."""
    rng = np.random.default_rng(4)
    scales = [1, 1.3, 0.7, 1.1, 9, 1, 0.2, 30, 1.2, 0, 0.9, 1.4, 2, 1]
    return [[rng.standard_normal(shape) * scale for shape in ((8, 5), (40,))] for scale in scales]


def norm(*leaves: Any) -> float:
    return float(np.sqrt(sum(np.sum(leaf * leaf) for leaf in leaves)))


def autoclip(steps: list[Leaves], percentile: float, window: int) -> Iterator[Leaves]:
    norms: list[float] = []
    for leaves in steps:
        norms.append(norm(*leaves))
        limit = float(np.percentile(norms[-window:], percentile))
        yield [leaf * min(1.0, limit / max(norms[-1], 1e-300)) for leaf in leaves]


def zclip(steps: list[Leaves], threshold: float, decay: float, warmup: int) -> Iterator[Leaves]:
    """With a warm-up of one the first deviation is zero, and everything above the mean is a spike."""
    first, mean, variance = [], 0.0, 0.0
    for leaves in steps:
        limit = size = norm(*leaves)
        if len(first) < warmup:
            first.append(size)
            mean, variance = float(np.mean(first)), float(np.var(first))
        else:
            deviation = variance**0.5
            z = (size - mean) / deviation if deviation else np.inf * (size - mean)
            if z > threshold:
                limit = mean + threshold**2 / z * deviation
            mean = decay * mean + (1 - decay) * limit
            variance = decay * variance + (1 - decay) * (limit - mean) ** 2
        yield [leaf * (limit / size if size else 1.0) for leaf in leaves]


def adagc(steps: list[Leaves], ratio: float, decay: float, warmup: int, max_norm: float) -> Iterator[Leaves]:
    """A global clip and the smallest norm, then each norm beside its own average."""
    averages: list[float] = []
    for count, leaves in enumerate(steps):
        if count < warmup:
            wanted = [leaf * min(max_norm / norm(*leaves), 1.0) for leaf in leaves]
            averages = list(map(min, averages or [np.inf] * len(leaves), map(norm, wanted)))
        else:
            wanted = [leaf * min(ratio * a / norm(leaf), 1.0) for a, leaf in zip(averages, leaves, strict=True)]
            averages = [decay * a + (1 - decay) * norm(leaf) for a, leaf in zip(averages, wanted, strict=True)]
        yield wanted


def spam(steps: list[Leaves], threshold: float, decay: float, warmup: int) -> Iterator[Leaves]:
    """With the second moment of Adam: not debiased, of the step before, of the limited elements."""
    moments, clipped = [np.zeros_like(leaf) for leaf in steps[0]], 0
    for count, leaves in enumerate(steps):
        spikes = [(leaf**2 > threshold * m) & (count >= warmup) for leaf, m in zip(leaves, moments, strict=True)]
        limits = [np.sign(leaf) * np.sqrt(threshold * m) for leaf, m in zip(leaves, moments, strict=True)]
        wanted = [np.where(*three) for three in zip(spikes, limits, leaves, strict=True)]
        moments = [decay * m + (1 - decay) * new**2 for m, new in zip(moments, wanted, strict=True)]
        clipped += sum(int(spike.sum()) for spike in spikes)
        yield wanted
    assert clipped > 0


def grokfast(steps: list[Leaves], decay: float, amplitude: float) -> Iterator[Leaves]:
    """The average starts with the first gradient and has the current one."""
    average = steps[0]
    for leaves in steps:
        average = [m * decay + leaf * (1 - decay) for m, leaf in zip(average, leaves, strict=True)]
        yield [leaf + m * amplitude for leaf, m in zip(leaves, average, strict=True)]


def mars(steps: list[Leaves], gamma: float, decay: float) -> Iterator[Leaves]:
    """Algorithm 2 with one batch per gradient; the iterates before the first step are equal."""
    for leaves, before in zip(steps, [steps[0], *steps], strict=False):
        wanted = []
        for leaf, old in zip(leaves, before, strict=True):
            c = leaf + gamma * (decay / (1.0 - decay)) * (leaf - old)
            norm = np.linalg.norm(c)
            wanted.append(c / norm if norm > 1.0 else c)
        yield wanted


def normuon(steps: list[Leaves], decay: float) -> Iterator[Leaves]:
    """Lines 6 to 9 of Algorithm 1 without its small number, and the authors' scale, which keeps the norm."""
    v = [0.0] * len(steps[0])
    for leaves in steps:
        v = [decay * old + (1.0 - decay) * np.mean(g * g, 1, keepdims=True) for old, g in zip(v, leaves, strict=True)]
        new = [g / np.sqrt(own) for g, own in zip(leaves, v, strict=True)]
        yield [h * (np.linalg.norm(g) / np.linalg.norm(h)) for g, h in zip(leaves, new, strict=True)]


def ef_signsgd(steps: list[Leaves], lr: float) -> Iterator[Leaves]:
    """Algorithm 1 of Karimireddy et al.: the sign, scaled by the mean size of each gradient."""
    errors = [np.zeros_like(leaf) for leaf in steps[0]]
    for leaves in steps:
        corrected = [lr * leaf + error for leaf, error in zip(leaves, errors, strict=True)]
        wanted = [np.sign(p) * np.abs(p).sum() / p.size for p in corrected]
        errors = [p - delta for p, delta in zip(corrected, wanted, strict=True)]
        yield wanted


def compressed(lr: float) -> gx.GradientTransformation:
    mean_sign = gx.elementwise(lambda p: gx.xp(p).sign(p) * gx.xp(p).abs(p).mean())
    return gx.chain(gx.scale(lr), gx.error_feedback(mean_sign))


THRICE = [*spiky() * 2, *spiky()[:-2], [spiky()[-2][0] * 1e6, spiky()[-2][1]], spiky()[-1]]
NEVER_ZERO = [step for step in spiky() if step[0].any()]
"""A zero norm would stay the smallest."""
MATRICES = [[np.random.default_rng(step).standard_normal((3, 6)) * [[0.01], [step], [5.0]]] for step in range(1, 6)]
PUBLISHED: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Leaves], float, list[tuple[Any, ...]]]] = {
    "AutoClip": (autoclip, gx.clip_percentile, spiky(), 8, [(10, 1000), (50, 5), (75.5, 4), (100, 1000), (0, 3)]),
    "ZClip": (zclip, gx.clip_zscore, spiky(), 8, [(2.5, 0.97, 4), (1.0, 0.5, 3), (2.0, 0.9, 2)]),
    "AdaGC": (
        adagc, lambda ratio, decay, warmup, c: gx.clip_adagc(ratio, decay, warmup=warmup, max_norm=c),
        NEVER_ZERO, 8, [(1.05, 0.98, 100, 1.0), (1.05, 0.98, 4, 1.0), (1.5, 0.5, 2, 9.0)],
    ),
    "SPAM": (
        spam, lambda threshold, decay, warmup: gx.clip_spikes(threshold, decay, warmup=warmup),
        THRICE, 16, [(5000.0, 0.999, 20), (4.0, 0.9, 3), (1.0, 0.5, 1)],  # the authors round squares, and 1 - decay
    ),
    "Grokfast": (grokfast, gx.grokfast, spiky(), 8, [(0.98, 2.0), (0.5, 0.25), (0.0, 1.0)]),
    "MARS": (mars, gx.mars, spiky(), 16, [(0.025, 0.95), (0.5, 0.25), (0.0, 0.9)]),
    "NorMuon": (normuon, gx.normalize_neurons, MATRICES, 16, [(0.95,), (0.5,), (0.0,)]),
    "EF-signSGD": (ef_signsgd, compressed, spiky(), 900, [(0.1,), (1.0,)]),
}  # fmt: skip
"""The algorithm, the transform, gradients, a distance in units of 2^-53, and arguments of both."""


@pytest.mark.parametrize(("name", "given"), [(name, given) for name, row in PUBLISHED.items() for given in row[-1]])
def test_published_algorithms(name: str, given: tuple[Any, ...]) -> None:
    algorithm, make, steps, distance, _ = PUBLISHED[name]
    tx = make(*given)
    state = tx.init(steps[0])
    for leaves, wanted in zip(steps, algorithm(steps, *given), strict=True):
        updates, state = tx.update(leaves, state)
        for found, leaf, right in zip(updates, leaves, wanted, strict=True):
            terms = (
                np.max(np.abs(right) + np.abs(leaf)) if name in ("Grokfast", "MARS") else np.abs(right)
            )  # a sum may cancel
            assert (np.abs(found - right) <= distance * 2.0**-53 * terms).all()


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**40 + 3, -5])
def test_noise_from_the_generator_of_jax(seed: int, jax: Any) -> None:
    """The Box-Muller formula in float64 on JAX's random words, by seed, step and path."""
    draw = pytest.importorskip("jax.extend.random").threefry_2x32
    path, count = 0xCBF29CE484222325, 40_001  # more than a block of the host's
    for character in "w":
        path = (path ^ ord(character)) * 0x100000001B3 % 2**64
    tx, zeros = gx.add_noise(1.0, seed), {"w": np.zeros(count, np.float32)}
    state = tx.init(zeros)
    words = np.uint32([(seed >> 32) % 2**32, seed % 2**32])
    for step in range(3):
        updates, state = tx.update(zeros, state)
        key = jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), step))
        key = draw(key, np.uint32([path >> 32, path & 0xFFFFFFFF]))
        drawn = np.asarray(draw(key, np.concatenate([np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)])))
        first, second = drawn.astype(np.float64).reshape(2, count)
        normal = np.sqrt(-2 * np.log((first + 0.5) / 2.0**32)) * np.cos(2 * np.pi * second / 2.0**32)
        assert np.max(np.abs(updates["w"] - normal) / np.spacing(np.float32(np.abs(normal)))) <= 0.5 + 1e-6
