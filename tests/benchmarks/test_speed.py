"""Why chains are fast, checked without a clock: passes over leaves, bytes, traces, and no reads of values."""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_page
import numpy as np
import pytest
from support import FRAMEWORKS, ROOT, XLA, array, slow, tensors, traced
from typer.testing import CliRunner

import gradxform as gx
from gradxform.backend import lookup
from gradxform.cli import app
from gradxform.cli.bench import run as bench
from gradxform.cli.bench.timing import Disagreement, Effort, compare
from gradxform.cli.bench.workloads import CHAINS, TREES, Step, transformation


def tree(sizes: tuple[int, ...] = (3, 40, 20_000, 3, 70_000)) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {str(i): rng.standard_normal(size, dtype=np.float32) for i, size in enumerate(sizes)}


def given(framework: str, leaves: dict[str, Any] | None = None) -> Any:
    return tensors(framework, {path: leaf.copy() for path, leaf in (leaves or tree()).items()})


# --- one read, one read and write ------------------------------------------------------------------------------------

READING, WRITING = ("norms", "norms_over"), ("multiply", "multiply_over", "clip", "divide", "cast", "zeros")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Counter[str]]:
    """Count the leaves passed to each primitive of a backend, without inner calls."""

    def count(framework: str) -> Counter[str]:
        counted: Counter[str] = Counter()
        at_work: list[str] = []
        backend = lookup.backend(framework)

        def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def inside(leaves: Any, *args: Any, **kwargs: Any) -> Any:
                if not at_work:
                    counted[name] += len(leaves) if isinstance(leaves, (list, tuple)) else 1
                at_work.append(name)
                try:
                    return function(leaves, *args, **kwargs)
                finally:
                    at_work.pop()

            return inside

        for name in (*READING, *WRITING):
            monkeypatch.setattr(backend, name, counting(name, getattr(backend, name)))
        return counted

    return count


RESCALING = """chain(clip_norm(90.0), scale(2.0), clip_global_norm(80.0), clip_norm(10.0), scale(3.0),
    clip_global_norm(20.0), masked(clip_norm(0.1), '0'), scale(-0.1))"""
PASSES = [
    (transformation(CHAINS[1]), {"norms": 1, "multiply": 1}),
    (transformation(CHAINS[3]), {"clip": 1, "norms": 1, "multiply": 1}),
    (transformation(CHAINS[8]), {"clip": 2, "norms": 2, "multiply": 1}),
    (gx.parse(RESCALING), {"norms": 1, "multiply": 1}),
    (gx.chain(gx.scale(0.5), gx.clip_value(0.5)), {"clip": 1}),
    (gx.chain(*[gx.scale(0.9)] * 8), {"multiply": 1}),
    (gx.measure(gx.parse(RESCALING)), {"norms": 1, "multiply": 1}),
    (gx.measure(transformation(CHAINS[3])), {"clip": 1, "norms": 2, "multiply": 1}),
]


@pytest.mark.parametrize(
    ("tx", "wanted"), PASSES, ids=[f"{tx.name} {len(tx.arguments)} {wanted}" for tx, wanted in PASSES]
)
def test_passes_over_each_leaf(
    tx: Any, wanted: dict[str, int], framework: str, passes: Callable[[str], Counter[str]]
) -> None:
    grads = given(framework)
    state = tx.init(grads)
    counted = passes(framework)
    tx.update(grads, state)
    assert {name: number / len(grads) for name, number in counted.items()} == wanted


def test_measuring_adds_no_bytes_to_what_xla_counts(jax: Any) -> None:
    grads = given("jax", tree((64, 1000, 1 << 18, 1 << 20)))

    def accessed(tx: Any) -> float:
        found = jax.jit(tx.update).lower(grads, tx.init(grads)).compile().cost_analysis()
        return float((found[0] if isinstance(found, list) else found)["bytes accessed"])

    tx = gx.chain(gx.clip_norm(90.0), gx.scale(2.0), gx.clip_global_norm(80.0))
    assert accessed(tx) <= accessed(gx.measure(tx)) < 1.001 * accessed(tx)


# --- when nothing is due ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "jax"])
@pytest.mark.parametrize("expression", ["clip_global_norm(1e9)", "chain(clip_norm(1e9), clip_global_norm(1e9))"])
def test_gradients_within_their_limits_come_back_themselves(expression: str, framework: str) -> None:
    grads = given(framework)
    out = gx.parse(expression)(grads)
    assert all(out[path] is leaf for path, leaf in grads.items())


@pytest.mark.parametrize("expression", ["clip_global_norm(1e9)", "chain(clip_norm(1e9), clip_global_norm(1e9))"])
def test_gradients_within_their_limits_are_not_written_in_place(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(np, "multiply", lambda *args, **kwargs: written.append(args))
    monkeypatch.setattr(np, "copyto", lambda *args, **kwargs: written.append(args))
    gx.numpy.apply_(gx.parse(expression), tree())
    assert not written


# --- what XLA counts -------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled() -> Callable[[tuple[Step, ...], str], Any]:
    """A chain of the benchmark on large leaves, compiled by XLA: in gradxform and optax."""
    jax = pytest.importorskip("jax")
    pytest.importorskip("optax")
    native = importlib.import_module("gradxform.cli.frameworks.jax").NATIVE
    grads = given("jax", tree((64, 64, 1000, 1 << 18, 3 << 18, 1 << 20, 1 << 21)))

    def made(steps: tuple[Step, ...], library: str) -> Any:
        def optaxes(updates: Any) -> Any:
            leaves = list(updates.values())
            for name, value in steps:
                leaves = native[name](leaves, value)
            return leaves

        return jax.jit(transformation(steps) if library == "gradxform" else optaxes).lower(grads).compile()

    return made


@slow(XLA, length=(3, 8))
@pytest.mark.parametrize(("length", "most"), [(1, 1.02), (3, 1.01), (8, 0.9)])
def test_bytes_accessed_beside_optax(
    length: int, most: float, compiled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass per norm. On the CPU, XLA also counts the branch for extreme numbers, which reads large leaves again."""

    def accessed(library: str) -> float:
        jax.clear_caches()
        found = compiled(CHAINS[length], library).cost_analysis()
        return float((found[0] if isinstance(found, list) else found)["bytes accessed"])

    jax, fast = importlib.import_module("jax"), importlib.import_module("gradxform_jax.norms")
    native, large = accessed("optax"), 4 * ((1 << 18) + (3 << 18) + (1 << 20) + (1 << 21))
    assert accessed("gradxform") <= most * native + large
    monkeypatch.setattr(fast, "cut", lambda leaf: None)
    assert accessed("gradxform") <= most * native


def test_nothing_but_numbers_is_concatenated(jax: Any) -> None:
    grads = given("jax", tree((256,) * 100))
    text = jax.jit(gx.clip_global_norm(1.0)).lower(grads).as_text()
    assert text.count("stablehlo.reduce(") <= 101
    joined = re.findall(r"tensor<[^>]*>", " ".join(re.findall(r"stablehlo.concatenate.*->", text)))
    assert all(re.fullmatch(r"tensor<\d{1,2}xf64>", kind) for kind in joined)


# --- no retrace ------------------------------------------------------------------------------------------------------

LIMITS = (0.1, 0.2, 5.0, 1e9)


def limited(limit: Any, grads: Any) -> Any:
    return gx.chain(gx.clip_value(limit), gx.clip_norm(limit), gx.clip_global_norm(limit), gx.scale(-0.1))(grads)


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "numpy"])
def test_a_changing_limit_is_traced_once(framework: str) -> None:
    grads = given(framework, tree((3, 40)))
    calls = [(tensors(framework, np.float32(limit)), grads) for limit in LIMITS]
    traces, (one, other, *_) = traced(framework, limited, calls)
    assert traces == 1 and not np.array_equal(array(one["1"]), array(other["1"]))


# --- no value is read ------------------------------------------------------------------------------------------------

CHAIN = gx.chain(gx.clip_value(0.5), gx.clip_norm(2.0), gx.clip_global_norm(1.0), gx.scale(-0.1))


class Read(AssertionError):
    """A value was read on the host."""


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise Read


def first_step(tx: Any) -> Callable[[Any], Any]:
    """The gradients after one step, and all metrics."""

    def step(grads: Any) -> Any:
        updates, state = tx.update(grads, tx.init(grads))
        return updates, gx.metrics(state)

    return step


@pytest.mark.parametrize("tx", [CHAIN, gx.measure(CHAIN)], ids=["bare", "measured"])
def test_jax_reads_nothing(tx: Any, monkeypatch: pytest.MonkeyPatch, jax: Any) -> None:
    grads = given("jax")
    kind = type(grads["0"])
    for name in ("__bool__", "__float__", "__int__", "__index__", "__array__", "item", "tolist"):
        monkeypatch.setattr(kind, name, refuse)
    with pytest.raises(Read):
        bool(jax.numpy.ones(()) > 0)
    step = first_step(tx)
    jax.block_until_ready(step(grads))


# --- the benchmark ---------------------------------------------------------------------------------------------------


def test_the_page_is_made_of_the_file_beside_it() -> None:
    found = json.loads((ROOT / "docs/numbers/tables/bench.json").read_text())
    assert bench_page.page(found) == (ROOT / "docs/numbers/tables/bench.md").read_text()


@pytest.fixture
def two_matrices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the benchmark of Muon on small matrices, once."""
    monkeypatch.setitem(TREES, "matrices", lambda: {"wide": (16, 48), "tall": (40, 16)})
    monkeypatch.setattr(bench, "QUICK", bench.QUICK._replace(effort=Effort(0.0, 1, 1)))

    def run(framework: str, out: Path) -> Any:
        return CliRunner().invoke(app, ["bench", "--frameworks", framework, "--trees", "matrices", "--out", str(out)])

    return run


@slow(XLA, framework=("jax", "tensorflow"))
def test_muon_beside_the_frameworks_own(framework: str, tmp_path: Path, two_matrices: Callable[..., Any]) -> None:
    done = two_matrices(framework, tmp_path)
    if "left out" in done.output:
        pytest.skip(done.output)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["chains"] == {"muon": "orthogonalize(scale=None)"}
    assert [line["chain"] for line in found["lines"]] == ["muon", "muon"]
    for line in found["lines"]:
        assert line["difference"] < (0.03 if framework == "torch" else 1e-3)
        assert min(line[side]["first"] for side in ("gradxform", "native")) > 0
    assert ", matrices, muon)" in " ".join(done.output.split())
    bench_page.draw(found, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes()[1:4] == b"PNG"
    assert bench_page.page(found).count("| muon |") == 2


def test_matrices_agree_as_a_whole(rng: Any) -> None:
    """A small element may be far off; the norm of the difference counts."""
    matrix, given = rng.standard_normal((8, 16)), {"w": rng.standard_normal((8, 16))}
    near = matrix.copy()
    matrix[0, 0], near[0, 0] = 1e-9, 0.01
    assert compare([near], [matrix], given, CHAINS["muon"]) < 0.002
    for other, steps in ((1.05 * matrix, CHAINS["muon"]), (near, CHAINS[1]), (np.nan * matrix, CHAINS["muon"])):
        with pytest.raises(Disagreement):
            compare([other], [matrix], given, steps)


def test_sides_that_do_not_agree_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = lookup.backend("numpy")
    monkeypatch.setattr(backend, "multiply", lambda leaves, factors, inplace: [leaf * np.float32(2) for leaf in leaves])
    done = CliRunner().invoke(app, ["bench", "--frameworks", "numpy", "--trees", "mlp", "--out", str(tmp_path)])
    assert done.exit_code != 0
    assert "do not agree" in done.output + str(done.exception)
    assert not (tmp_path / "bench.json").exists()
