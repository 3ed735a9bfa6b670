"""What tests ask of each transform beside its rows: what it may take on devices, and how a random chain draws it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gradxform.proof.registry import TABLE, Row


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
    devices: Mapping[str, Cost] = field(default_factory=dict)
    """Expressions for accelerators and meshes, and what they may take. `<where>` is a pattern."""
    chains: tuple[str, ...] = ()
    """How a random chain draws it; tests/proof/chains.py has the placeholders."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Tables without it, and why: table, devices, mesh, accelerator, chains, chains in float64, without float64."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """Its rows in the registry."""
        return TABLE.get(self.name, ())


_OWN = {"table": "made from a function: tests/transforms/test_catalogue.py", "devices": "runs the user's code"}

ENTRIES = (
    Entry("identity", {"identity()": Cost(0)}, ("identity()",)),
    Entry("stop", {"stop()": Cost(1, 1)}, ("stop()",)),
    Entry("scale", {"scale(0.3)": Cost(15)}, ("scale(<factor>)", "scale(<factor>)")),
    Entry(
        "scale_by_schedule",
        devices={"scale_by_schedule(lambda t: 0.3 / (t + 1.0))": Cost(22)},
        chains=("scale_by_schedule(lambda t: <size> / (t + 1.0))",),
        left_out={"table": _OWN["table"]},
    ),
    Entry(
        "clip_value",
        {"clip_value(0.5)": Cost(2)},
        ("clip_value(<limit>)", "clip_value(low=-<size>)", "clip_value(low=<size>)"),
    ),
    Entry(
        "clip_norm",
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
        {"clip_global_norm(1.0)": Cost(55)},
        ("clip_global_norm(<limit><order>)", "clip_global_norm(<limit>)"),
    ),
    Entry(
        "chain",
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
        {"masked(clip_global_norm(1.0), '<where>')": Cost(60)},
        ("masked(<tx>, '<where>')", "masked(<tx>, '<where>')", "masked(<tx>, lambda path, leaf: False)"),
    ),
    Entry("freeze", {"freeze('<where>')": Cost(1, 1)}, ("freeze('<where>')",)),
    Entry(
        "partition",
        {"partition({'<where>': scale(2.0)}, default=clip_global_norm(1.0))": Cost(70)},
        ("partition({'<where>': <tx>, '<where>': <tx>})", "partition({'<where>': <tx>}, default=<tx>)"),
    ),
    Entry("clip_rms", {"clip_rms(0.1)": Cost(45)}, ("clip_rms(<limit>)",)),
    Entry("clip_average_norm", {"clip_average_norm(0.001)": Cost(40)}, ("clip_average_norm(<limit>)",)),
    Entry("normalize_norm", {"normalize_norm()": Cost(25)}, ("normalize_norm()",)),
    Entry("normalize_global_norm", {"normalize_global_norm()": Cost(35)}, ("normalize_global_norm()",)),
    Entry("sign", {"sign()": Cost(20, 0.1)}, ("sign()",)),
    Entry("top_k", {"top_k(0.1)": Cost(40, 2.51)}, ("top_k(<part>)",)),
    Entry("zero_nonfinite", {"zero_nonfinite()": Cost(20, 0.1)}, ("zero_nonfinite()",)),
    Entry(
        "centralize",
        {"centralize(axes=0)": Cost(10, 1.51), "centralize(axes=-1)": Cost(10, 1.51)},
        ("centralize()", "centralize(axes='keras')"),
    ),
    Entry(
        "add_decayed_weights",
        {"add_decayed_weights(0.1)": Cost(15, 1.51), "add_decayed_weights(0.1, cautious=True)": Cost(80, 1.51)},
        ("add_decayed_weights(<share>)", "add_decayed_weights(<share>, cautious=True)"),
    ),
    Entry(
        "clip_adaptive",
        {"clip_adaptive(0.01, axes=0)": Cost(60, 1.51)},
        ("clip_adaptive(<limit>, axes='torch')", "clip_adaptive(<limit>, axes='keras')"),
    ),
    Entry(
        "orthogonal_to_parameters",
        {"orthogonal_to_parameters()": Cost(1300, 1.51, mesh={"float32": 2_570_592, "bfloat16": 5_421_216})},
        ("orthogonal_to_parameters()",),
        left_out={
            "without float64": "what is left of parallel gradients is rounding errors, larger than the bound for them",
            "chains in float64": "the ratio of its norms, 1e-188 to 1e242, is beyond float64",
        },
    ),
    Entry("cautious", {"cautious()": Cost(80, 3)}, ("cautious(eps=<share>)", "cautious(negated=True)")),
    Entry("ema", {"ema(0.9)": Cost(50, 2.51, 1.51)}, ("ema(<share>, debias=<bool>)",)),
    Entry(
        "trace",
        {"trace(0.9)": Cost(20, 2.51, 0.51), "trace(0.9, nesterov=True)": Cost(45, 2.51, 1.51)},
        ("trace(<share>, nesterov=<bool>)",),
    ),
    Entry("grokfast", {"grokfast()": Cost(80, 3.51, 1.51)}, ("grokfast(<share>, <size>)",)),
    Entry(
        "mars",
        {"mars()": Cost(120, 3.51, 2.51, mesh={"float32": 870_816, "bfloat16": 1_131_616})},
        ("mars(<share>, <share>, max_norm=<limit>)",),
    ),
    Entry("accumulate", {"accumulate(clip_global_norm(1.0), 2)": Cost(140, 3.51)}, ("accumulate(<tx>, <few>)",)),
    Entry(
        "skip_nonfinite",
        {"skip_nonfinite(clip_global_norm(1.0))": Cost(110, 0.1)},
        ("skip_nonfinite(<tx>)", "skip_nonfinite(<tx>, <few>)"),
    ),
    Entry("skip_large", {"skip_large(clip_global_norm(1.0), 1e9)": Cost(130, 0.1)}, ("skip_large(<tx>, <limit>)",)),
    Entry("skip_spikes", {"skip_spikes(clip_global_norm(1.0))": Cost(200, 0.1)}, ("skip_spikes(<tx>, <size>, <few>)",)),
    Entry(
        "error_feedback",
        {
            "error_feedback(clip_global_norm(1.0))": Cost(120, 3.51, mesh={"float32": 853_096, "bfloat16": 1_094_496}),
            "error_feedback(sign())": Cost(80, 3.51, 2.51),
        },
        ("error_feedback(<tx>)",),
    ),
    Entry(
        "clip_percentile", {"clip_percentile(50.0, 4)": Cost(120)}, ("clip_percentile(40.3, <few>, per_leaf=<bool>)",)
    ),
    Entry("clip_zscore", {"clip_zscore(2.0)": Cost(150)}, ("clip_zscore(<share>, <share>, <few>, per_leaf=<bool>)",)),
    Entry(
        "clip_adagc",
        {"clip_adagc(0.5, warmup=1)": Cost(200)},
        ("clip_adagc(<size>, <share>, warmup=<few>, max_norm=<limit>)",),
    ),
    Entry(
        "clip_spikes",
        {"clip_spikes(1.5, warmup=0)": Cost(120, 3.51, 1.51)},
        ("clip_spikes(<size>, <share>, warmup=<few>)",),
    ),
    Entry("add_noise", {"add_noise(0.1, 0)": Cost(500, 1.51)}, ("add_noise(<share>, 7)",)),
    Entry(
        "orthogonalize",
        {"orthogonalize()": Cost(50, 2.51)},
        # The polynomial x has no products that round; test_orthogonalize.py and the table have the others.
        ("masked(orthogonalize(1, (1.0, 0.0, 0.0), axes='<layout>'), '<matrix>')",),
        left_out={"mesh": "tests/backends/jax_mesh_matrices.py has meshes for matrices"},
    ),
    Entry(
        "normalize_neurons",
        {"normalize_neurons()": Cost(140, 1.51)},
        ("masked(normalize_neurons(<share>, axes='<layout>'), '<matrix>')",),
        left_out={"mesh": "as for `orthogonalize`", "chains in float64": "ratios down to 1e-580 are beyond float64"},
    ),
    Entry("measure", {"measure(clip_global_norm(1.0))": Cost(140)}, ("measure(<tx>)",)),
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


def rows_of(table: str) -> tuple[Row, ...]:
    """The rows of the transforms that are in a table."""
    return tuple(row for entry in ENTRIES if table not in entry.left_out for row in entry.rows)


def on_devices(table: str) -> Iterator[tuple[Entry, str, Cost]]:
    """The expressions for accelerators that a table of tests runs: devices, mesh or accelerator."""
    for entry in ENTRIES:
        if table not in entry.left_out:
            for expression, cost in entry.devices.items():
                yield entry, expression, cost
