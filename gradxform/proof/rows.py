"""The table of transforms: the tests and `gradxform parity --full` run every row in every framework and mode.

A row is an expression that builds a transform, with the error budget against `proof.reference`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradxform.core.parse import parse
from gradxform.core.transformation import GradientTransformation
from gradxform.proof import products

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")
COMPLEX = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the parts of a complex dtype."""
MIXED = "mixed"
"""A pseudo dtype: float32, float16, bfloat16 and float64 in one tree."""


@dataclass(frozen=True)
class Row:
    """One transform and its budgets."""

    expression: str
    ulp: float = 2
    """The budget for float32, float64 and complex gradients, in units in the last place; 0 means bit-identical.

    Half precision has 1, or 0 where this is 0."""
    double: float | None = None
    """The budget for float64 and complex128, if the rounding of hyperparameters adds error."""
    real: bool = False
    """For real gradients only."""
    single: bool = False
    """Not for float64 gradients, whose sums may cancel."""
    products: float | None = None
    """The budget for products of matrices, whose summands frameworks add in different orders, in place of `ulp`.

    It holds for the norm of the error relative to the norm of the gradient's result, in units of 2^-24 for float32 and
    2^-53 for float64."""
    part: float = 1.0
    """The smallest intermediate result relative to the gradient: 0.1 if it multiplies by 0.1."""

    def __str__(self) -> str:
        """The expression."""
        return self.expression

    @property
    def tx(self) -> GradientTransformation:
        """The transform."""
        return parse(self.expression)

    @property
    def matrix(self) -> bool:
        """Whether axes are given by number, so that gradients need at least two of them."""
        return self.products is not None or re.search(r"axes=[-(\d]", self.expression) is not None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The supported gradient dtypes."""
        left_out = {*(COMPLEX if self.real else ()), *(("float64", "complex128") if self.single else ())}
        return tuple(dtype for dtype in DTYPES if dtype not in left_out)

    @property
    def mixed(self) -> bool:
        """Whether it runs on trees of mixed dtypes: stateless, over whole leaves."""
        return self in STATELESS and not self.matrix

    @property
    def steps(self) -> int:
        """How many consecutive gradients show its behaviour."""
        return 5 if self.tx.stateful else 1

    def budget(self, dtype: Any) -> float:
        """The error budget in one dtype."""
        name = np.dtype(dtype).name
        if self.products is not None:
            bits = {"float16": 11, "bfloat16": 8}.get(name)  # the result is rounded once more
            return self.products if bits is None else 1 + self.products * 2.0 ** (bits - 24)
        if self.double is not None and name in ("float64", "complex128"):
            return self.double
        return min(self.ulp, 1) if name in ("float16", "bfloat16") else self.ulp


STATELESS = (
    Row("identity()", ulp=0),
    Row("stop()", ulp=0),
    Row("scale(0.3)"),
    Row("scale(-1.0)", ulp=0),
    Row("scale(0.25)", ulp=0),
    Row("chain(scale(1e25), scale(1e25), scale(1e-30), scale(1e-20))"),
    Row("clip_value(0.5)", ulp=0, real=True),
    Row("clip_value(low=-0.25)", ulp=0, real=True),
    Row("clip_value(low=0.1, high=0.7)", ulp=0, real=True),
    Row("clip_norm(1.0)"),
    Row("clip_norm(0.0)", ulp=0),
    Row("clip_norm(float('inf'))", ulp=0),
    Row("clip_norm(1.0, ord=1)"),
    Row("clip_norm(1.0, ord=float('inf'))"),
    Row("clip_norm(1.0, ord=3)", ulp=4),
    Row("clip_norm(0.7, axes=-1)"),
    Row("clip_norm(0.7, axes=(0, 1), ord=1)"),
    Row("clip_global_norm(1.0)"),
    Row("clip_global_norm(1.0, ord=1)"),
    Row("clip_global_norm(1.0, ord=float('inf'))"),
    Row("clip_global_norm(1.0, ord=2.5)", ulp=4),
    Row("chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))"),
    Row("chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))", real=True),
    Row("chain(scale(3.0), clip_value(0.5), clip_norm(0.7))", real=True),
    Row("masked(clip_global_norm(1.0), '**/w')"),
    Row("freeze('**/w')", ulp=0),
    Row("chain(freeze('**/v'), clip_global_norm(1.0))"),
    Row("partition({'**/w': clip_global_norm(0.5), '**/v': stop()}, default=scale(0.3))"),
    Row("clip_rms(0.5)"),
    Row("clip_average_norm(0.01)"),
    Row("normalize_norm()"),
    Row("normalize_global_norm()"),
    Row("sign()", ulp=0, real=True),
    Row("top_k(0.1)", ulp=0, real=True),
    Row("chain(scale(-3.0), top_k(0.6), clip_norm(0.5))", real=True),
    Row("zero_nonfinite()", ulp=0),
    Row("chain(scale(0.3), zero_nonfinite(), clip_rms(0.2), normalize_global_norm())"),
)

STATEFUL = (
    Row("centralize()", real=True, part=0.01),
    Row("chain(scale(3.0), centralize(axes='keras'), clip_norm(1.0))", real=True, part=0.01),
    Row("add_decayed_weights(0.01)", part=0.01),
    Row("chain(clip_global_norm(1.0), add_decayed_weights(0.3))", single=True),
    Row("chain(scale(0.5), add_decayed_weights(0.3))", part=0.15),
    Row("clip_adaptive(0.1, axes='keras')"),
    Row("clip_adaptive(0.1, axes='torch', eps=0.5)"),
    Row("chain(scale(3.0), clip_adaptive(0.05, axes={'**': 'torch'}), clip_global_norm(1.0))"),
    Row("cautious()", real=True),
    Row("chain(scale(-3.0), cautious(eps=0.4, negated=True), clip_rms(0.5))", real=True),
    Row("masked(cautious(negated=True), '**/w')", real=True),
    Row("ema(0.9)", double=64, part=0.1),
    Row("ema(0.75, debias=False)", double=64, part=0.25),
    Row("ema(0.9999)", double=64, part=1e-4),
    Row("ema(0.999999, debias=False)", double=64, part=1e-6),
    Row("trace(0.9)", double=64),
    Row("trace(0.9, nesterov=True)", double=64),
    Row("masked(trace(0.9), '**/w')", double=64),
    Row("grokfast()", double=64, part=0.02),
    Row("grokfast(0.75, amplitude=0.5)", double=64, part=0.25),
    Row("accumulate(clip_global_norm(1.0), 2)"),
    Row("accumulate(trace(0.5), 3)"),
    Row("skip_nonfinite(trace(0.5))"),
    Row("skip_nonfinite(ema(0.5, debias=False), max_consecutive=1)", part=0.5),
    Row("skip_large(trace(0.5), 73.5)"),
    Row("error_feedback(clip_global_norm(1.0))", single=True),
    Row("error_feedback(chain(scale(0.5), sign()))", real=True),
    Row("error_feedback(top_k(0.3))", real=True),
    Row("error_feedback(masked(trace(0.5), '**/w'))", double=64),
    Row("clip_percentile(40.0, 3)"),
    Row("clip_percentile(75.0, 4, per_leaf=True)"),
    Row("clip_zscore(1.0, 0.9, 2)", double=4),
    Row("clip_zscore(0.5, 0.5, 1, per_leaf=True)", double=4),
    Row("clip_adagc()"),
    Row("clip_adagc(1.1, 0.5, warmup=2, max_norm=3.0)", double=4),
    Row("clip_spikes()"),
    Row("clip_spikes(1.5, 0.5, warmup=1)", double=4),
    Row("add_noise(0.1, 7)", real=True, single=True),
    Row("orthogonalize(axes='keras')", real=True, products=products.budget("jordan", 5)),
    Row(
        "orthogonalize(3, 'polar_express', scale='rms', axes=((1,), (0,)))",
        real=True,
        products=products.budget("polar_express", 3),
    ),
    Row(
        "chain(scale(-3.0), trace(0.95, nesterov=True), orthogonalize(axes='torch'), scale(-0.02))",
        real=True,
        products=products.budget("jordan", 5),
    ),
    Row("measure(masked(trace(0.5), '**/w'), 'momentum')", double=64),
    Row("measure(chain(scale(3.0), clip_value(0.5), clip_norm(0.7), clip_global_norm(1.0)))", real=True),
)
"""Transforms with parameters or a state; stateful ones run over several steps."""

ROWS = STATELESS + STATEFUL


def first() -> tuple[Row, ...]:
    """The first row of each transform."""
    seen: set[str] = set()
    found = []
    for row in ROWS:
        names = set(re.findall(r"([a-z_]+)\(", row.expression)) - {"float"}
        if names - seen:
            found.append(row)
        seen |= names
    return tuple(found)
