"""The table of transforms from which the numeric tests are made: a new row makes all of its tests.

A row is the expression that builds a transform and what holds of it. Its reference is in `gradxform._reference`, which
has tests of its own: against hand-made values and the frameworks' own functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from gradxform import GradientTransformation, parse

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Row:
    expression: str
    exact: bool = False
    """Bit-identical to the reference: value clips, powers of two, -1, stop."""
    real: bool = False
    """For real gradients only."""
    matrix: bool = False
    """For gradients with at least two axes only."""
    ordinary: bool = False
    """Not for the hard cases: what becomes of them is subnormal, which some frameworks make zero."""
    single: bool = False
    """Not for float64 gradients, of which sums may cancel what is not right to the last bit."""
    ulp: float = 2
    """The budget for float32, float64 and complex; 1 for float16 and bfloat16 always."""
    double: float | None = None
    """The budget for float64 and complex128, where limits that are float64 numbers themselves cost more."""

    @property
    def tx(self) -> GradientTransformation:
        return parse(self.expression)

    @property
    def steps(self) -> int:
        """How many gradients of one run after the other show what a transform does."""
        return 5 if self.tx.stateful else 1

    def budget(self, dtype: Any) -> float:
        name = np.dtype(dtype).name
        if self.double is not None and name in ("float64", "complex128"):
            return self.double
        return 0 if self.exact else 1 if name in ("float16", "bfloat16") else self.ulp


TABLE = (
    Row("identity()", exact=True),
    Row("stop()", exact=True),
    Row("scale(0.3)"),
    Row("scale(-1.0)", exact=True),
    Row("scale(0.25)", exact=True),
    Row("chain(scale(1e25), scale(1e25), scale(1e-30), scale(1e-20))"),
    Row("clip_value(0.5)", exact=True, real=True),
    Row("clip_value(low=-0.25)", exact=True, real=True),
    Row("clip_value(low=0.1, high=0.7)", exact=True, real=True),
    Row("clip_norm(1.0)"),
    Row("clip_norm(0.0)", exact=True),
    Row("clip_norm(float('inf'))", exact=True),
    Row("clip_norm(1.0, ord=1)"),
    Row("clip_norm(1.0, ord=float('inf'))"),
    Row("clip_norm(1.0, ord=3)", ulp=4),
    Row("clip_norm(0.7, axes=-1)", matrix=True),
    Row("clip_norm(0.7, axes=(0, 1), ord=1)", matrix=True),
    Row("clip_global_norm(1.0)"),
    Row("clip_global_norm(1.0, ord=1)"),
    Row("clip_global_norm(1.0, ord=float('inf'))"),
    Row("clip_global_norm(1.0, ord=2.5)", ulp=4),
    Row("chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))"),
    Row("chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))", real=True),
    Row("chain(scale(3.0), clip_value(0.5), clip_norm(0.7))", real=True),
    Row("masked(clip_global_norm(1.0), '**/w')"),
    Row("freeze('**/w')", exact=True),
    Row("chain(freeze('**/v'), clip_global_norm(1.0))"),
    Row("partition({'**/w': clip_global_norm(0.5), '**/v': stop()}, default=scale(0.3))"),
    Row("clip_rms(0.5)"),
    Row("clip_average_norm(0.01)"),
    Row("normalize_norm()"),
    Row("normalize_global_norm()"),
    Row("sign()", exact=True, real=True),
    Row("zero_nonfinite()", exact=True),
    Row("chain(scale(0.3), zero_nonfinite(), clip_rms(0.2), normalize_global_norm())"),
)

OVER_STEPS = (
    Row("centralize()", real=True),
    Row("chain(scale(3.0), centralize(axes='keras'), clip_norm(1.0))", real=True),
    Row("add_decayed_weights(0.01)"),
    Row("chain(clip_global_norm(1.0), add_decayed_weights(0.3))", single=True),
    Row("chain(scale(0.5), add_decayed_weights(0.3))"),
    Row("clip_adaptive(0.1, axes='keras')"),
    Row("clip_adaptive(0.1, axes='torch', eps=0.5)"),
    Row("chain(scale(3.0), clip_adaptive(0.05, axes={'**': 'torch'}), clip_global_norm(1.0))"),
    Row("ema(0.9)", double=64),
    Row("ema(0.75, debias=False)", double=64),
    Row("ema(0.9999)", double=64, ordinary=True),
    Row("ema(0.999999, debias=False)", double=64, ordinary=True),
    Row("trace(0.9)", double=64),
    Row("trace(0.9, nesterov=True)", double=64),
    Row("masked(trace(0.9), '**/w')", double=64),
    Row("accumulate(clip_global_norm(1.0), 2)"),
    Row("accumulate(trace(0.5), 3)"),
    Row("skip_nonfinite(trace(0.5))"),
    Row("skip_nonfinite(ema(0.5, debias=False), max_consecutive=1)"),
    Row("skip_large(trace(0.5), 73.5)"),
    Row("clip_percentile(40.0, 3)"),
    Row("clip_percentile(75.0, 4, per_leaf=True)"),
    Row("clip_zscore(1.0, 0.9, 2)", double=4),
    Row("clip_zscore(0.5, 0.5, 1, per_leaf=True)", double=4),
    Row("add_noise(0.1, 7)", real=True, single=True),
    Row("measure(chain(scale(3.0), clip_value(0.5), clip_norm(0.7), clip_global_norm(1.0)))", real=True),
    Row("measure(masked(trace(0.5), '**/w'), 'momentum')", double=64),
)
"""Transforms that need parameters, or that keep a state: they are run over several steps."""


def gradients(dtype: Any, seed: int = 0, matrix: bool = False) -> dict[str, Any]:
    """A tree of ordinary gradients of one dtype: nested, None among them; 0-d and empty ones too, or matrices alone."""
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> Any:
        values = rng.standard_normal(shape) * 1.7
        if np.dtype(dtype).kind == "c":
            values = values + 1j * rng.standard_normal(shape)
        return np.asarray(values).astype(dtype)

    tree: dict[str, Any] = {"a": {"v": some(3, 5), "w": some(37, 41)}, "b": [some(2, 3, 4), None]}
    if not matrix:
        tree["c"] = (some(301), some(), some(0, 3), {"w": some(7)})
    return tree


def few(dtype: Any, seed: int = 0) -> dict[str, Any]:
    """A smaller tree of ordinary gradients, for modes that compile each leaf."""
    tree = gradients(dtype, seed)
    return {"a": {"v": tree["a"]["v"], "w": tree["a"]["w"]}, "b": [tree["c"][1], None]}


def hard(dtype: Any) -> dict[str, dict[str, Any]]:
    """Gradients of one dtype that libraries get wrong, by name."""
    name = np.dtype(dtype).name
    if name.startswith("complex"):
        name = {"complex64": "float32", "complex128": "float64"}[name]
    info = ml_dtypes.finfo(name)
    # A factor limit / norm must be a normal float64 number itself: float64 gradients of 1e300 are clipped to 1.
    huge, tiny = min(float(info.max) / 4, 1e300), float(info.smallest_normal) * 64

    def leaf(*values: float) -> Any:
        return np.array(values, np.float64).astype(dtype)

    cases = {
        "zeros": {"a": {"v": leaf(0, 0, 0), "w": leaf(0, 0)}},
        "at the limit": {"a": {"v": leaf(0.6, 0, 0.8), "w": leaf(0, 0)}},
        "huge": {"a": {"v": leaf(huge, -huge, 300), "w": leaf(huge, 100)}},
        "tiny": {"a": {"v": leaf(3 * tiny, 0, 4 * tiny), "w": leaf(tiny, 0)}},
        "NaN": {"a": {"v": leaf(np.nan, 1, 0), "w": leaf(2, 0)}},
        "inf": {"a": {"v": leaf(np.inf, 1, 0), "w": leaf(-2, 0)}},
    }
    if name == np.dtype(dtype).name:
        return cases
    return {case: cases[case] for case in ("NaN", "inf")}
