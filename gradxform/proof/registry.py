"""The registry: one entry for each transform, from which tests, random chains and pages draw their tables.

A row of an entry is an expression that builds a transform, with the error budget against `proof.reference`: the tests
and the parity page run every row in every framework and mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gradxform.core.parse import parse
from gradxform.core.transform import GradientTransformation
from gradxform.proof import products
from gradxform.proof.ulp import budget

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")
COMPLEX = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the parts of a complex dtype."""
MIXED = "mixed"
"""A pseudo dtype: float32, float16, bfloat16 and float64 in one tree."""


_SUMS = re.compile("ema|trace|grokfast|accumulate|decayed|noise|feedback|centralize|cautious|spikes|orthogonal_")


@dataclass(frozen=True)
class Row:
    """One transform and its budgets."""

    expression: str
    ulp: float = 2
    """The budget for rescaled float32 and complex64 gradients, in units in the last place; 0 means bit-identical.

    Float64 and sums of terms have their own, see `proof.ulp.budget`."""
    real: bool = False
    """For real gradients only."""
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
        return tuple(dtype for dtype in DTYPES if not (self.real and dtype in COMPLEX))

    @property
    def sums(self) -> bool:
        """Whether some results are sums of terms, which are judged by the largest one."""
        return _SUMS.search(self.expression) is not None

    @property
    def mixed(self) -> bool:
        """Whether it runs on trees of mixed dtypes: stateless, over whole leaves."""
        return self in STATELESS and not self.matrix

    @property
    def steps(self) -> int:
        """How many consecutive gradients show its behaviour."""
        return 5 if self.tx.stateful else 1

    def budget(self, dtype: Any, summed: Any = False) -> Any:
        """The error budget in one dtype, or of each element if `summed` says which are sums."""
        if self.products is not None:
            bits = {"float16": 11, "bfloat16": 8}.get(np.dtype(dtype).name)  # the result is rounded once more
            return self.products if bits is None else 1 + self.products * 2.0 ** (bits - 24)
        return budget(dtype, self.ulp, summed)


class Cost(NamedTuple):
    """What a transform may take on a device, for `<where>` that chooses all leaves."""

    launches: int
    """Kernels for 300 leaves of 64 x 48."""
    memory: float = 0.0
    """Largest memory beyond results and states, relative to the four leaves of 4096 x 8192 that it transforms."""
    owned: float | None = None
    """The same if an adapter owns the state and overwrites it; None if it does not matter."""
    mesh: Mapping[str, int] = {}
    """Temporary bytes per device, by dtype, that XLA's CPU compiler takes on a mesh to write leaves: measured."""


@dataclass(frozen=True)
class Entry:
    """One transform."""

    name: str
    rows: tuple[Row, ...] = ()
    """Its rows in the table; the first one stands for it where one is enough."""
    devices: Mapping[str, Cost] = field(default_factory=dict)
    """Expressions for accelerators and meshes, and what they may take. `<where>` is a pattern."""
    chains: tuple[str, ...] = ()
    """How a random chain draws it; tests/proof/chains.py has the placeholders."""
    needs: str = ""
    """What `update` needs: "parameters" or "gradients"."""
    sums: bool = False
    """Whether it sums elements, for which compilers take half a minute in 64 bits."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Tables without it, and why: table, devices, mesh, accelerator, chains, chains in float64, without float64."""

    @property
    def real(self) -> bool:
        """Whether it is for real gradients only."""
        return bool(self.rows) and all(row.real for row in self.rows)

    @property
    def stateless(self) -> bool:
        """Whether it is a function of whole gradients alone."""
        return not (self.needs or self.sums or any(row.tx.stateful for row in self.rows))


_OWN = {"table": "made from a function: tests/transforms/test_catalogue.py", "devices": "runs the user's code"}

ENTRIES = (
    Entry("identity", (Row("identity()", ulp=0),), {"identity()": Cost(0)}, ("identity()",)),
    Entry("stop", (Row("stop()", ulp=0),), {"stop()": Cost(1, 1)}, ("stop()",)),
    Entry(
        "scale",
        (
            Row("scale(0.3)"),
            Row("scale(-1.0)", ulp=0),
            Row("scale(0.25)", ulp=0),
            Row("chain(scale(1e25), scale(1e25), scale(1e-30), scale(1e-20))"),
        ),
        {"scale(0.3)": Cost(15)},
        ("scale(<factor>)", "scale(<factor>)"),
    ),
    Entry(
        "scale_by_schedule",
        devices={"scale_by_schedule(lambda t: 0.3 / (t + 1.0))": Cost(22)},
        chains=("scale_by_schedule(lambda t: <size> / (t + 1.0))",),
        left_out={"table": _OWN["table"]},
    ),
    Entry(
        "clip_value",
        (
            Row("clip_value(0.5)", ulp=0, real=True),
            Row("clip_value(low=-0.25)", ulp=0, real=True),
            Row("clip_value(low=0.1, high=0.7)", ulp=0, real=True),
        ),
        {"clip_value(0.5)": Cost(2)},
        ("clip_value(<limit>)", "clip_value(low=-<size>)", "clip_value(low=<size>)"),
    ),
    Entry(
        "clip_norm",
        (
            Row("clip_norm(1.0)"),
            Row("clip_norm(0.0)", ulp=0),
            Row("clip_norm(float('inf'))", ulp=0),
            Row("clip_norm(1.0, ord=1)"),
            Row("clip_norm(1.0, ord=float('inf'))"),
            Row("clip_norm(1.0, ord=3)"),
            Row("clip_norm(0.7, axes=-1)"),
            Row("clip_norm(0.7, axes=(0, 1), ord=1)"),
        ),
        {
            "clip_norm(1.0)": Cost(35),
            "clip_norm(1.0, ord=1)": Cost(35),
            "clip_norm(1.0, ord=float('inf'))": Cost(35),
            "clip_norm(0.1, axes=0)": Cost(45, 1.51),
            "clip_norm(0.1, axes=-1)": Cost(45, 1.51),
        },
        (
            "clip_norm(<limit><order>)",
            "clip_norm(<limit>)",
            "masked(clip_norm(<limit>, axes=-1<order>), '<matrix>')",
            "masked(clip_norm(<limit>, axes=(0, 1)), '<matrix>')",
        ),
    ),
    Entry(
        "clip_global_norm",
        (
            Row("clip_global_norm(1.0)"),
            Row("clip_global_norm(1.0, ord=1)"),
            Row("clip_global_norm(1.0, ord=float('inf'))"),
            Row("clip_global_norm(1.0, ord=2.5)"),
        ),
        {"clip_global_norm(1.0)": Cost(55)},
        ("clip_global_norm(<limit><order>)", "clip_global_norm(<limit>)"),
    ),
    Entry(
        "chain",
        (
            Row("chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))"),
            Row("chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))", real=True),
            Row("chain(scale(3.0), clip_value(0.5), clip_norm(0.7))", real=True),
        ),
        {
            "chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))": Cost(60),
            "chain(clip_norm(1.0), clip_global_norm(1.0), scale(-0.1))": Cost(100),
            # Half precision is rounded once.
            "chain(scale(3.0), clip_value(0.5), clip_global_norm(1.0))": Cost(
                670, 1.51, mesh={"float32": 993_896, "bfloat16": 1_363_880}
            ),
        },
        ("chain(<tx>, <tx>)",),
    ),
    Entry(
        "masked",
        (Row("masked(clip_global_norm(1.0), '**/w')"),),
        {"masked(clip_global_norm(1.0), '<where>')": Cost(60)},
        ("masked(<tx>, '<where>')", "masked(<tx>, '<where>')", "masked(<tx>, lambda path, leaf: False)"),
    ),
    Entry(
        "freeze",
        (Row("freeze('**/w')", ulp=0), Row("chain(freeze('**/v'), clip_global_norm(1.0))")),
        {"freeze('<where>')": Cost(1, 1)},
        ("freeze('<where>')",),
    ),
    Entry(
        "partition",
        (Row("partition({'**/w': clip_global_norm(0.5), '**/v': stop()}, default=scale(0.3))"),),
        {"partition({'<where>': scale(2.0)}, default=clip_global_norm(1.0))": Cost(70)},
        ("partition({'<where>': <tx>, '<where>': <tx>})", "partition({'<where>': <tx>}, default=<tx>)"),
    ),
    Entry("clip_rms", (Row("clip_rms(0.5)"),), {"clip_rms(0.1)": Cost(45)}, ("clip_rms(<limit>)",)),
    Entry(
        "clip_average_norm",
        (Row("clip_average_norm(0.01)"),),
        {"clip_average_norm(0.001)": Cost(40)},
        ("clip_average_norm(<limit>)",),
    ),
    Entry("normalize_norm", (Row("normalize_norm()"),), {"normalize_norm()": Cost(25)}, ("normalize_norm()",)),
    Entry(
        "normalize_global_norm",
        (Row("normalize_global_norm()"),),
        {"normalize_global_norm()": Cost(35)},
        ("normalize_global_norm()",),
    ),
    Entry("sign", (Row("sign()", ulp=0, real=True),), {"sign()": Cost(20, 0.1)}, ("sign()",)),
    Entry(
        "top_k",
        (Row("top_k(0.1)", ulp=0, real=True), Row("chain(scale(-3.0), top_k(0.6), clip_norm(0.5))", real=True)),
        {"top_k(0.1)": Cost(40, 2.51)},
        ("top_k(<part>)",),
    ),
    Entry(
        "zero_nonfinite",
        (
            Row("zero_nonfinite()", ulp=0),
            Row("chain(scale(0.3), zero_nonfinite(), clip_rms(0.2), normalize_global_norm())"),
        ),
        {"zero_nonfinite()": Cost(20, 0.1)},
        ("zero_nonfinite()",),
    ),
    Entry(
        "centralize",
        (
            Row("centralize()", real=True, part=0.01),
            Row("chain(scale(3.0), centralize(axes='keras'), clip_norm(1.0))", real=True, part=0.01),
        ),
        {"centralize(axes=0)": Cost(10, 1.51), "centralize(axes=-1)": Cost(10, 1.51)},
        ("centralize()", "centralize(axes='keras')"),
        sums=True,
    ),
    Entry(
        "add_decayed_weights",
        (
            Row("add_decayed_weights(0.01)", part=0.01),
            Row("chain(clip_global_norm(1.0), add_decayed_weights(0.3))"),
            Row("chain(scale(0.5), add_decayed_weights(0.3))", part=0.15),
        ),
        {"add_decayed_weights(0.1)": Cost(15, 1.51)},
        ("add_decayed_weights(<share>)",),
        needs="parameters",
    ),
    Entry(
        "clip_adaptive",
        (
            Row("clip_adaptive(0.1, axes='keras')"),
            Row("clip_adaptive(0.1, axes='torch', eps=0.5)"),
            # A clip over axes is rounded before the next one.
            Row("chain(scale(3.0), clip_adaptive(0.05, axes={'**': 'torch'}), clip_global_norm(1.0))", ulp=3),
        ),
        {"clip_adaptive(0.01, axes=0)": Cost(60, 1.51)},
        ("clip_adaptive(<limit>, axes='torch')", "clip_adaptive(<limit>, axes='keras')"),
        needs="parameters",
    ),
    Entry(
        "orthogonal_to_parameters",
        (
            Row("orthogonal_to_parameters()", real=True),
            Row("chain(scale(-3.0), orthogonal_to_parameters(), clip_norm(0.5))", real=True),
        ),
        {"orthogonal_to_parameters()": Cost(1300, 1.51, mesh={"float32": 2_570_592, "bfloat16": 5_421_216})},
        ("orthogonal_to_parameters()",),
        needs="parameters",
        left_out={
            "without float64": "what is left of parallel gradients is rounding errors, larger than the bound for them",
            "chains in float64": "the ratio of its norms, 1e-188 to 1e242, is beyond float64",
        },
    ),
    Entry(
        "cautious",
        (
            Row("cautious()", real=True),
            Row("chain(scale(-3.0), cautious(eps=0.4, negated=True), clip_rms(0.5))", real=True),
            Row("masked(cautious(negated=True), '**/w')", real=True),
        ),
        {"cautious()": Cost(80, 3)},
        ("cautious(eps=<share>)", "cautious(negated=True)"),
        needs="gradients",
    ),
    Entry(
        "ema",
        (
            Row("ema(0.9)", part=0.1),
            Row("ema(0.75, debias=False)", part=0.25),
            Row("ema(0.9999)", part=1e-4),
            Row("ema(0.999999, debias=False)", part=1e-6),
        ),
        {"ema(0.9)": Cost(50, 2.51, 1.51)},
        ("ema(<share>, debias=<bool>)",),
    ),
    Entry(
        "trace",
        (
            Row("trace(0.9)"),
            Row("trace(0.9, nesterov=True)", part=0.1),
            Row("masked(trace(0.9), '**/w')"),
        ),
        {"trace(0.9)": Cost(20, 2.51, 0.51), "trace(0.9, nesterov=True)": Cost(45, 2.51, 1.51)},
        ("trace(<share>, nesterov=<bool>)",),
    ),
    Entry(
        "grokfast",
        (Row("grokfast()", part=0.02), Row("grokfast(0.75, amplitude=0.5)", part=0.25)),
        {"grokfast()": Cost(80, 3.51, 1.51)},
        ("grokfast(<share>, <size>)",),
    ),
    Entry(
        "accumulate",
        (Row("accumulate(clip_global_norm(1.0), 2)"), Row("accumulate(trace(0.5), 3)")),
        {"accumulate(clip_global_norm(1.0), 2)": Cost(140, 3.51)},
        ("accumulate(<tx>, <few>)",),
    ),
    Entry(
        "skip_nonfinite",
        (Row("skip_nonfinite(trace(0.5))"), Row("skip_nonfinite(ema(0.5, debias=False), max_consecutive=1)", part=0.5)),
        {"skip_nonfinite(clip_global_norm(1.0))": Cost(110, 0.1)},
        ("skip_nonfinite(<tx>)", "skip_nonfinite(<tx>, <few>)"),
    ),
    Entry(
        "skip_large",
        (Row("skip_large(trace(0.5), 73.5)"),),
        {"skip_large(clip_global_norm(1.0), 1e9)": Cost(130, 0.1)},
        ("skip_large(<tx>, <limit>)",),
    ),
    Entry(
        "error_feedback",
        (
            Row("error_feedback(clip_global_norm(1.0))"),
            Row("error_feedback(chain(scale(0.5), sign()))", real=True),
            Row("error_feedback(top_k(0.3))", real=True),
            Row("error_feedback(masked(trace(0.5), '**/w'))"),
        ),
        {
            "error_feedback(clip_global_norm(1.0))": Cost(120, 3.51, mesh={"float32": 853_096, "bfloat16": 1_094_496}),
            "error_feedback(sign())": Cost(80, 3.51, 2.51),
        },
        ("error_feedback(<tx>)",),
    ),
    Entry(
        "clip_percentile",
        (Row("clip_percentile(40.0, 3)"), Row("clip_percentile(75.0, 4, per_leaf=True)")),
        {"clip_percentile(50.0, 4)": Cost(120)},
        ("clip_percentile(40.3, <few>, per_leaf=<bool>)",),
    ),
    Entry(
        "clip_zscore",
        (Row("clip_zscore(1.0, 0.9, 2)"), Row("clip_zscore(0.5, 0.5, 1, per_leaf=True)")),
        {"clip_zscore(2.0)": Cost(150)},
        ("clip_zscore(<share>, <share>, <few>, per_leaf=<bool>)",),
    ),
    Entry(
        "clip_adagc",
        (Row("clip_adagc()"), Row("clip_adagc(1.1, 0.5, warmup=2, max_norm=3.0)")),
        {"clip_adagc(0.5, warmup=1)": Cost(200)},
        ("clip_adagc(<size>, <share>, warmup=<few>, max_norm=<limit>)",),
    ),
    Entry(
        "clip_spikes",
        (Row("clip_spikes(1.5, warmup=0)"), Row("clip_spikes(1.5, 0.5, warmup=1)")),
        {"clip_spikes(1.5, warmup=0)": Cost(120, 3.51, 1.51)},
        ("clip_spikes(<size>, <share>, warmup=<few>)",),
    ),
    Entry(
        "add_noise",
        (Row("add_noise(0.1, 7)", real=True),),
        {"add_noise(0.1, 0)": Cost(500, 1.51)},
        ("add_noise(<share>, 7)",),
    ),
    Entry(
        "orthogonalize",
        (
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
        ),
        {"orthogonalize()": Cost(50, 2.51)},
        # The polynomial x has no products that round; test_orthogonalize.py and the table have the others.
        ("masked(orthogonalize(1, (1.0, 0.0, 0.0), axes='<layout>'), '<matrix>')",),
        sums=True,
        left_out={"mesh": "tests/backends/jax_mesh_matrices.py has meshes for matrices"},
    ),
    Entry(
        "measure",
        (
            Row("measure(masked(trace(0.5), '**/w'), 'momentum')"),
            Row("measure(chain(scale(3.0), clip_value(0.5), clip_norm(0.7), clip_global_norm(1.0)))", real=True),
        ),
        {"measure(clip_global_norm(1.0))": Cost(140)},
        ("measure(<tx>)",),
    ),
    Entry("elementwise", left_out={**_OWN, "chains": "runs the user's code"}),
    Entry("transform", left_out={**_OWN, "chains": "runs the user's code"}),
    Entry(
        "across",
        left_out={
            "table": "needs devices: tests/across_cases.py",
            "devices": "as in the table",
            "chains": "as in the table",
        },
    ),
)
"""Every transform, in families."""

ROWS = tuple(row for entry in ENTRIES for row in entry.rows)
STATELESS = tuple(row for entry in ENTRIES if entry.stateless for row in entry.rows)
STATEFUL = tuple(row for row in ROWS if row not in STATELESS)
"""Rows with parameters, a state, or sums; stateful ones run over several steps."""


def first() -> tuple[Row, ...]:
    """The first row of each transform."""
    return tuple(entry.rows[0] for entry in ENTRIES if entry.rows)


def rows_of(table: str) -> tuple[Row, ...]:
    """The rows of the transforms that are in a table."""
    return tuple(row for entry in ENTRIES if table not in entry.left_out for row in entry.rows)


def on_devices(table: str) -> Iterator[tuple[Entry, str, Cost]]:
    """The expressions for accelerators that a table of tests runs: devices, mesh or accelerator."""
    for entry in ENTRIES:
        if table not in entry.left_out:
            for expression, cost in entry.devices.items():
                yield entry, expression, cost
