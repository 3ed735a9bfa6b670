"""The migration pages: both columns of every table run, and `result` agrees or differs as the page says."""

from __future__ import annotations

import contextlib
import functools
import json
import linecache
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import LARGE, MIGRATED_FROM, NAN, ROOT, TRAINS, assert_ulp, python, slow

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pytest.importorskip("sklearn")

SIDE = r":::\{grid-item\}\n\n```\{code-block\} python\n:caption: (.+?)\n\n(.+?)^```\n:::\n"
TABLE = re.compile(rf"^::::\{{grid\}} .+?\n\n{SIDE}\n{SIDE}::::$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Table(NamedTuple):
    """Two columns of a page, with the code before them."""

    page: str
    question: str
    number: int
    version: str
    setup: str
    left: str
    right: str


def tables() -> list[Table]:
    """All tables. A table without setup code uses the setup of the table before it."""
    found = []
    for page in MIGRATED_FROM:
        text = (ROOT / f"docs/migrating/{page}.md").read_text()
        preamble, *sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
        first = len(found)
        for question, section in zip(sections[::2], sections[1::2], strict=True):
            setup, end = "", 0
            for number, match in enumerate(TABLE.finditer(section)):
                setup = "".join(BLOCK.findall(section[end : match.start()])) or setup
                end = match.end()
                version, left, _, right = match.groups()
                code = "".join([*BLOCK.findall(preamble), setup])
                found.append(Table(page, question, number, version, code, left, right))
            assert not BLOCK.findall(section[end:]), f"{question}: code that nothing runs"
        assert len(found) - first == text.count("{grid}") > 0, page
    return found


TABLES = {f"{table.question}-{table.number}": table for table in tables()}


def run(table: Table, side: str) -> dict[str, Any]:
    """Run one side of a table after the page's preamble and its setup; return the namespace."""
    code = table.setup + getattr(table, side)
    file = f"{table.question}, {table.number}, {side}"
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # AutoGraph reads the source
    names: dict[str, Any] = {"__name__": "migration"}
    with contextlib.ExitStack() as stack:
        if table.version == "TensorFlow 1":
            stack.enter_context(tf.Graph().as_default())
            names["session"] = stack.enter_context(tf.compat.v1.Session())
        exec(compile(code, file, "exec"), names)
    return names


@functools.cache  # a gradient's name is registered once in a process
def both(name: str) -> tuple[Any, Any]:
    """The two results."""
    return tuple(
        [None if leaf is None else np.asarray(leaf) for leaf in tf.nest.flatten(run(TABLES[name], side)["result"])]
        for side in ("left", "right")
    )


# --- tables ----------------------------------------------------------------------------------------------------------

RNN = "Exploding gradients in an RNN: where does clipping go?"
STOP = "Train w1 but not w2 and w3: tf.stop_gradient"
FAR = {
    RNN: 1000,  # differences of 1 ULP grow from step to step
    "Clip by global norm: clip_grad_norm_": 1000,  # and of the 1e-6
    "Clip by value or per gradient": 20,  # 1e-6 of norms of 0.6
    "GradScaler": 20,
    STOP: 100,
    "Train only some variables: var_list": 100,
}
"""The largest distance of the results in ULP, if not `NEAR`; in optax, of parameters, which are sums."""
NEAR = {"optax": 20}

F, BF16 = np.float32, tf.bfloat16.as_numpy_dtype
WITHIN = F(0.01 * np.random.default_rng(0).standard_normal(1000))
DIFFER: dict[str, tuple[Any, Any]] = {
    "Small, NaN and infinite gradients in clip_by_norm-0": (
        [None, F([NAN, 0]), F([NAN, NAN]), F([0, 0])],
        [WITHIN, F([NAN, NAN]), F([NAN, NAN]), F([3, 3e-30])],
    ),
    "IndexedSlices: gradients of embeddings-0": (
        [F([6, 4]) / np.sqrt(F(34)), F([6, 4])],
        [F([6, 4]) / np.sqrt(F(52)), F([5, 4])],
    ),
    "gradient_override_map does nothing in TensorFlow 2-0": ([F([1])] * 2, [F([0.1])] * 2),
    "Train only some variables: var_list-1": ([None] * 3, [np.zeros(2, F)] * 3),
    "Where do the numbers differ?-0": (
        [F([0]), F([0]), F([NAN, 0]), np.float16([0]), F([NAN]), BF16(64)],
        [F([1]), F([3e-30]), F([NAN, NAN]), np.float16([1]), F([0]), F(np.sqrt(50000))],
    ),
    "Skip nonfinite steps-0": ([np.full(shape, NAN, F) for shape in ((4,), (8, 4), (4, 2))], [None] * 3),
    "set_to_zero does not freeze-0": ([None] * 2, [np.zeros(4, F), np.zeros((8, 4), F)]),
    "Freeze layers-0": ([None] * 2, [np.zeros((8, 4), F), np.zeros(8, F)]),
}
"""The results where they differ: other numbers than gradxform's, or than the native ones, are None."""
DEVICES = "Several devices with tf.distribute-0"


@slow(LARGE, name=("Where do the numbers differ?-0", "Compile and fit: clipnorm, global_clipnorm, clipvalue-0"))
@pytest.mark.parametrize("name", [name for name in TABLES if name != DEVICES])
def test_both_columns_agree_or_differ_as_the_page_says(name: str) -> None:
    left, right = both(name)
    if name not in DIFFER:
        assert any(leaf is not None and leaf.any() for leaf in left), "zeros would show nothing"
        table = TABLES[name]
        assert_ulp(left, right, FAR.get(table.question, NEAR.get(table.page, 4)))
        return
    for native, own, *wanted in zip(left, right, *DIFFER[name], strict=True):
        for leaf, known, other in zip((native, own), wanted, (own, native), strict=True):
            if known is None:
                assert np.isfinite(leaf).all() and (leaf != other).any()
            else:
                assert_ulp(leaf, known, 2)


def test_unlisted_tables_do_not_exist() -> None:
    assert {DEVICES, *DIFFER} <= TABLES.keys()
    assert FAR.keys() <= {table.question for table in TABLES.values()}


@slow(TRAINS)
@pytest.mark.parametrize("number", [0, 1])
def test_the_loss_falls(number: int) -> None:
    for losses in both(f"{RNN}-{number}"):
        assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("number", [0, 1])
def test_only_w1_learns(number: int) -> None:
    for w1, w2, w3 in both(f"{STOP}-{number}"):
        np.testing.assert_allclose(w1, w2 * w3, atol=1e-5)


def test_a_python_number_traces_again_and_a_schedule_does_not() -> None:
    table = TABLES["Change the limit without retracing-0"]
    assert [len(run(table, side)["traces"]) for side in ("left", "right")] == [3, 1]


@slow(TRAINS)
def test_the_sum_over_the_replicas_is_within_the_limit() -> None:
    """Run in a subprocess: logical devices must be set before TensorFlow starts."""
    code = """
import test_migration as page
for side in ("left", "right"):
    names = page.run(page.TABLES[page.DEVICES], side)
    assert names["strategy"].num_replicas_in_sync == 2
    print(names["result"].tolist())
"""
    done = python("-c", code, cwd=Path(__file__).parent)
    left, right = (F(json.loads(line)) for line in done.stdout.splitlines()[-2:])
    assert_ulp([left, right], [F([1.2, 1.6]), F([0.6, 0.8])], 2)
