"""Cases of the `across` tests in each framework: transforms, trees on several devices, expected results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from support import furthest

import gradxform as gx
from gradxform.proof.registry import Row

DTYPES = {"float32": np.float32, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16}
SHAPES = {"v": (7,), "w": (6, 5)}
"""The leaves of each device; leaves named r are replicated."""
SHARED = (4, 3)
STEPS = 4
BAD, LARGE = 1, 2
"""The steps in which one device has a NaN or a large leaf."""

CLIP = "clip_global_norm(1.0)"
TRANSFORMS = {
    "clip_norm(1.0)": (0, 1),
    "clip_norm(1.0, ord=1)": (0, 1),
    "clip_norm(1.0, ord=float('inf'))": (0, 1),
    "clip_norm(1.0, ord=3)": (0, 1),
    CLIP: (1, 1),
    "clip_global_norm(1.0, ord=1)": (1, 1),
    "clip_global_norm(1.0, ord=float('inf'))": (1, 1),
    "clip_global_norm(1.0, ord=2.5)": (1, 1),
    "clip_rms(0.1)": (0, 1),
    "clip_average_norm(0.01)": (0, 1),
    "normalize_norm()": (0, 1),
    "normalize_global_norm()": (1, 1),
    "chain(clip_norm(2.0), clip_global_norm(1.0), scale(-0.1))": (1, 2),
    "chain(clip_value(0.5), clip_global_norm(1.0))": (1, 1),
    "masked(clip_global_norm(1.0), '**/w')": (1, 1),
    "masked(clip_global_norm(1.0), '**r')": (1, 1),
    "masked(top_k(0.4), '**r')": (0, 0),
    "partition({'**/w': clip_global_norm(0.5), '**/v': stop()}, default=clip_norm(0.3))": (1, 2),
    "chain(freeze('**/v'), clip_global_norm(1.0))": (1, 1),
    "clip_percentile(40.0, 3)": (1, 1),
    "clip_percentile(40.0, 3, per_leaf=True)": (0, 1),
    "clip_zscore(0.5, 0.5, 1)": (1, 1),
    "clip_zscore(0.5, 0.5, 1, per_leaf=True)": (0, 1),
    "clip_adagc(0.5, 0.5, warmup=2, max_norm=3.0)": (1, 1),
    "error_feedback(clip_global_norm(1.0))": (1, 1),
    "skip_nonfinite(trace(0.5))": (1, 1),
    "skip_nonfinite(chain(clip_global_norm(1.0), ema(0.5)), max_consecutive=2)": (2, 2),
    "skip_large(trace(0.5), 60.0)": (1, 1),
    "skip_spikes(trace(0.5), 0.5, 4)": (1, 1),
    "accumulate(clip_global_norm(1.0), 2)": (1, 1),
    "measure(chain(clip_norm(2.0), clip_global_norm(1.0)), 'both')": (2, 4),
    "measure(clip_value(0.5))": (1, 2),
    "clip_global_norm(1.0, like='torch')": (1, 1),
    "clip_global_norm(1.0, like='tensorflow')": (1, 1),
    "clip_norm(1.0, like='keras')": (0, 1),
    "add_decayed_weights(0.1)": (0, 0),
    "add_decayed_weights(0.1, cautious=True)": (0, 0),
    "trace(0.9)": (0, 0),
    "grokfast(0.9)": (0, 0),
    "mars(0.5, 0.5, max_norm=3.0)": (0, 1),
    "clip_spikes(1.5, 0.5, warmup=1)": (0, 0),
}
"""Expressions, with the collectives per step for a split tree and for split leaves."""
FEW = (CLIP, "clip_norm(1.0)", "clip_rms(0.1)", "clip_percentile(40.0, 3)", "skip_large(trace(0.5), 60.0)")
"""Expressions that run in every dtype."""
BY_LEAF = ("per_leaf", "clip_adagc(")
"""Words in expressions of transforms that keep numbers of each leaf, so states of a split tree differ."""
ORDERS = 16
"""The budget of norms of other orders."""


def device(place: int, step: int, dtype: str, shared: bool = True) -> dict[str, Any]:
    """The gradients of one device."""
    rng = np.random.default_rng([place, step])
    tree = {name: rng.standard_normal(shape) * 3.0**place for name, shape in SHAPES.items()}
    if step == BAD and place == 1:
        tree["w"][0, 0] = np.nan
    if step == LARGE and place == 0:
        tree["v"] *= 100.0
    if shared:
        tree["r"] = np.random.default_rng(step).standard_normal(SHARED)
    return {name: leaf.astype(DTYPES[dtype]) for name, leaf in tree.items()}


def merged(trees: list[dict[str, Any]], split: str) -> dict[str, Any]:
    """Join the trees of all devices; replicated leaves appear once."""
    if split == "leaves":
        found = {name: np.concatenate([tree[name] for tree in trees]) for name in SHAPES}
    else:
        found = {str(i): {name: tree[name] for name in SHAPES} for i, tree in enumerate(trees)}
    return found | ({"r": trees[0]["r"]} if "r" in trees[0] else {})


def parts(whole: dict[str, Any], count: int, split: str) -> list[dict[str, Any]]:
    """Split a tree over the devices."""
    if split == "leaves":
        found = [{name: np.split(whole[name], count)[i] for name in SHAPES} for i in range(count)]
    else:
        found = [dict(whole[str(i)]) for i in range(count)]
    return [part | ({"r": whole["r"]} if "r" in whole else {}) for part in found]


def steps(expression: str, count: int, dtype: str) -> list[list[dict[str, Any]]]:
    """The gradients of all devices at each step; finite only if a transform passes NaN on."""
    hands_on = "skip" not in expression and "percentile" not in expression and "zscore" not in expression
    return [[device(i, step, dtype) for i in range(count)] for step in range(STEPS) if step != BAD or not hands_on]


def expected(expression: str, count: int, dtype: str, split: str) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    """The results of a single device with the whole tree, split over the devices, and its final measures."""
    tx, found = gx.parse(expression), []
    given = [merged(trees, split) for trees in steps(expression, count, dtype)]
    state = tx.init(given[0])
    for tree in given:
        updates, state = tx.update(tree, state, tree)
        found.append(parts(updates, count, split))
    return found, {name: np.asarray(value) for name, value in (gx.metrics(state) if tx.stateful else {}).items()}


def is_by_leaf(expression: str) -> bool:
    """Whether the state has numbers of each leaf."""
    return any(words in expression for words in BY_LEAF)


def budget(expression: str, dtype: str) -> float:
    """How far two results may be apart, in ULP: twice the error budget."""
    return 2.0 * float(ORDERS if "ord=2.5" in expression or "ord=3" in expression else _budget(expression, dtype))


def _budget(expression: str, dtype: str) -> Any:
    row = Row(expression)
    return row.budget(dtype, row.sums and dtype != "bfloat16")


def off(found: dict[str, Any], wanted: dict[str, Any], expression: str = "") -> float:
    """The largest distance of two trees' leaves in ULP; NaN equals NaN."""
    assert found.keys() == wanted.keys()
    return furthest([found[name] for name in wanted], list(wanted.values()), expression)
