"""The registry: rows for each transform, which tests and pages run in every framework and mode.

A row is an expression that builds a transform, with the error budget against `proof.reference`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradxform.core.factory import parse
from gradxform.core.transform import GradientTransformation
from gradxform.proof.products import budget as budget_of_products
from gradxform.proof.ulp import budget

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")
COMPLEX = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the parts of a complex dtype."""
MIXED = "mixed"
"""A pseudo dtype: float32, float16, bfloat16 and float64 in one tree."""


_REAL = re.compile("clip_value|sign|top_k|centralize|orthogonal|neurons|cautious|noise")
_SUMS = re.compile("ema|trace|grokfast|mars|accumulate|decayed|noise|feedback|centralize|cautious|spikes|orthogonal_")


@dataclass(frozen=True)
class Row:
    """One transform and its budgets."""

    expression: str
    ulp: float = 2
    """The budget for rescaled float32 and complex64 gradients, in units in the last place; 0 means bit-identical.

    Float64 and sums of terms have their own, see `proof.ulp.budget`."""
    products: float | None = None
    """The budget for products of matrices, whose summands frameworks add in different orders, in place of `ulp`.

    It holds for the norm of the error relative to the norm of the gradient's result, in units of 2^-24 for float32 and
    2^-53 for float64."""
    part: float = 1.0
    """The smallest intermediate result relative to the gradient: 0.1 if it multiplies by 0.1."""

    def __str__(self) -> str:
        """The expression."""
        return self.expression

    @functools.cached_property
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
        real = _REAL.search(self.expression) is not None
        return tuple(dtype for dtype in DTYPES if not (real and dtype in COMPLEX))

    @property
    def sums(self) -> bool:
        """Whether some results are sums of terms, which are judged by the largest one."""
        return _SUMS.search(self.expression) is not None

    @property
    def stateless(self) -> bool:
        """Whether it is a function of whole gradients alone: without state, parameters and sums over elements."""
        return not (self.tx.stateful or self.tx.traits.needs or re.search("centralize|orthogonalize", self.expression))

    @property
    def mixed(self) -> bool:
        """Whether it runs on trees of mixed dtypes: stateless, over whole leaves."""
        return self.stateless and not self.matrix

    def budget(self, dtype: Any, summed: Any = False) -> Any:
        """The error budget in one dtype, or of each element if `summed` says which are sums."""
        if self.products is None:
            return budget(dtype, self.ulp, summed)
        bits = {"float16": 11, "bfloat16": 8}.get(np.dtype(dtype).name)  # the result is rounded once more
        return self.products if bits is None else 1 + self.products * 2.0 ** (bits - 24)


def _rows(*expressions: str, **budgets: Any) -> tuple[Row, ...]:
    """Rows with one budget."""
    return tuple(Row(expression, **budgets) for expression in expressions)


TABLE: dict[str, tuple[Row, ...]] = {
    "identity": _rows("identity()", ulp=0),
    "stop": _rows("stop()", ulp=0),
    "scale": _rows("scale(0.3)", "chain(scale(1e25), scale(1e25), scale(1e-30), scale(1e-20))")
    + _rows("scale(-1.0)", "scale(0.25)", ulp=0),
    "clip_value": _rows("clip_value(0.5)", "clip_value(low=-0.25)", "clip_value(low=0.1, high=0.7)", ulp=0),
    "clip_norm": _rows("clip_norm(1.0)", "clip_norm(1.0, ord=1)", "clip_norm(1.0, ord=float('inf'))")
    + _rows("clip_norm(1.0, ord=3)", "clip_norm(0.7, axes=-1)", "clip_norm(0.7, axes=(0, 1), ord=1)")
    + _rows("clip_norm(0.0)", "clip_norm(float('inf'))", ulp=0),
    "clip_global_norm": _rows("clip_global_norm(1.0)", "clip_global_norm(1.0, ord=1)")
    + _rows("clip_global_norm(1.0, ord=float('inf'))", "clip_global_norm(1.0, ord=2.5)")
    + _rows("clip_global_norm(1.0, norm=40.0)"),
    "chain": _rows(
        "chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))",
        "chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))",
        "chain(scale(3.0), clip_value(0.5), clip_norm(0.7))",
    ),
    "masked": _rows("masked(clip_global_norm(1.0), '**/w')"),
    "freeze": _rows("freeze('**/w')", ulp=0) + _rows("chain(freeze('**/v'), clip_global_norm(1.0))"),
    "partition": _rows("partition({'**/w': clip_global_norm(0.5), '**/v': stop()}, default=scale(0.3))"),
    "clip_rms": _rows("clip_rms(0.5)"),
    "clip_average_norm": _rows("clip_average_norm(0.01)"),
    "normalize_norm": _rows("normalize_norm()"),
    "normalize_global_norm": _rows("normalize_global_norm()"),
    "sign": _rows("sign()", ulp=0),
    "top_k": _rows("top_k(0.1)", ulp=0) + _rows("chain(scale(-3.0), top_k(0.6), clip_norm(0.5))"),
    "zero_nonfinite": _rows("zero_nonfinite()", ulp=0)
    + _rows("chain(scale(0.3), zero_nonfinite(), clip_rms(0.2), normalize_global_norm())"),
    "centralize": _rows("centralize()", "chain(scale(3.0), centralize(axes='keras'), clip_norm(1.0))", part=0.01),
    "add_decayed_weights": _rows("add_decayed_weights(0.01)", part=0.01)
    + _rows("chain(clip_global_norm(1.0), add_decayed_weights(0.3))")
    + _rows("chain(scale(0.5), add_decayed_weights(0.3))", part=0.15)
    + _rows("add_decayed_weights(0.01, cautious=True)", part=0.01)
    + _rows("chain(scale(-0.5), add_decayed_weights(-0.3, cautious=True))", part=0.15),
    "clip_adaptive": _rows("clip_adaptive(0.1, axes='keras')", "clip_adaptive(0.1, axes='torch', eps=0.5)")
    # A clip over axes is rounded before the next one.
    + _rows("chain(scale(3.0), clip_adaptive(0.05, axes={'**': 'torch'}), clip_global_norm(1.0))", ulp=3),
    "orthogonal_to_parameters": _rows(
        "orthogonal_to_parameters()", "chain(scale(-3.0), orthogonal_to_parameters(), clip_norm(0.5))"
    ),
    "cautious": _rows(
        "cautious()",
        "chain(scale(-3.0), cautious(eps=0.4, negated=True), clip_rms(0.5))",
        "masked(cautious(negated=True), '**/w')",
    ),
    "ema": _rows("ema(0.9)", part=0.1)
    + _rows("ema(0.75, debias=False)", part=0.25)
    + _rows("ema(0.9999)", part=0.0001)
    + _rows("ema(0.999999, debias=False)", part=1e-06),
    "trace": _rows("trace(0.9)", "masked(trace(0.9), '**/w')") + _rows("trace(0.9, nesterov=True)", part=0.1),
    "grokfast": _rows("grokfast()", part=0.02) + _rows("grokfast(0.75, amplitude=0.5)", part=0.25),
    "mars": _rows("mars()") + _rows("mars(0.5, 0.75, max_norm=30.0)", part=0.5),
    "accumulate": _rows("accumulate(clip_global_norm(1.0), 2)", "accumulate(trace(0.5), 3)"),
    "skip_nonfinite": _rows("skip_nonfinite(trace(0.5))")
    + _rows("skip_nonfinite(ema(0.5, debias=False), max_consecutive=1)", part=0.5),
    "skip_large": _rows("skip_large(trace(0.5), 73.5)"),
    "skip_spikes": _rows("skip_spikes(trace(0.5), 0.8, 4)", "skip_spikes(clip_norm(0.7), 0.5, 8)"),
    "error_feedback": _rows("error_feedback(clip_global_norm(1.0))", "error_feedback(masked(trace(0.5), '**/w'))")
    + _rows("error_feedback(chain(scale(0.5), sign()))", "error_feedback(top_k(0.3))"),
    "clip_percentile": _rows("clip_percentile(40.0, 3)", "clip_percentile(75.0, 4, per_leaf=True)"),
    "clip_zscore": _rows("clip_zscore(1.0, 0.9, 2)", "clip_zscore(0.5, 0.5, 1, per_leaf=True)"),
    "clip_adagc": _rows("clip_adagc()", "clip_adagc(1.1, 0.5, warmup=2, max_norm=3.0)"),
    "clip_spikes": _rows("clip_spikes(1.5, warmup=0)", "clip_spikes(1.5, 0.5, warmup=1)"),
    "add_noise": _rows("add_noise(0.1, 7)"),
    "orthogonalize": _rows(
        "orthogonalize(axes='keras')",
        "chain(scale(-3.0), trace(0.95, nesterov=True), orthogonalize(axes='torch'), scale(-0.02))",
        products=budget_of_products("jordan", 5),
    )
    + _rows(
        "orthogonalize(3, 'polar_express', scale='rms', axes=((1,), (0,)))",
        products=budget_of_products("polar_express", 3),
    ),
    "normalize_neurons": _rows("normalize_neurons(axes=-1)")
    # As for `clip_adaptive`.
    + _rows("chain(scale(-3.0), normalize_neurons(0.5, axes=((0,), (1,))), clip_norm(0.5))", ulp=3),
    "measure": _rows("measure(masked(trace(0.5), '**/w'), 'momentum')", "measure(clip_norm(0.7), per_leaf=True)")
    + _rows("measure(chain(scale(3.0), clip_value(0.5), clip_norm(0.7), clip_global_norm(1.0)))"),
}
"""The rows of each transform, in families; the first one stands for it where one is enough."""

ROWS = tuple(row for rows in TABLE.values() for row in rows)
