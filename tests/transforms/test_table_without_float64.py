"""The table on devices without float64: 4 ULP for float32 and narrower dtypes, and norms from 1e-18 to 1e18.

Beyond these, a norm may count as infinite or zero.

The devices are simulated. Subnormal results may be zero, as on TPUs and GPUs that flush them.
"""

from __future__ import annotations

from typing import Any

import entries
import optree
import pytest
from support import FAKE, ROOT, assert_right, each_transform_once, shared_group, slow
from trees import first
from without_float64 import indexing, of_mps, of_the_standard, of_torch, refusing

from gradxform.proof import parity
from gradxform.proof.gradients import small
from gradxform.proof.registry import Row

REASON = "many small operations, a second for each dtype of a row; each transform is quick in one"
ROWS = entries.rows_of("without float64")
DTYPES = ("float32", "float16", "bfloat16", "complex64")
FLUSHING = "jax"
"""Judged like JAX, whose kernels flush subnormal results."""


@pytest.mark.parametrize("row", each_transform_once(ROWS, REASON))
def test_right_numbers_by_the_standards_functions(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    of_the_standard(monkeypatch)
    group = shared_group(row, "float32")
    assert_right(row, group, FLUSHING, "eager", parity.runner(row.tx, "array_api_strict", "eager"), float64=False)


CASES = [(row, dtype) for row in ROWS for dtype in (DTYPES if row in first() else DTYPES[:1]) if dtype in row.dtypes]
QUICK = {(expression, "bfloat16") for expression in ("clip_global_norm(1.0)", "ema(0.9)", "clip_zscore(1.0, 0.9, 2)")}


@slow(REASON, lambda row, dtype: (str(row), dtype) not in QUICK)
@pytest.mark.parametrize(("row", "dtype"), CASES, ids=str)
def test_right_numbers_in_pytorch(row: Row, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transform's first row in every dtype."""
    _in_pytorch(row, dtype, monkeypatch)


@pytest.mark.parametrize("row", each_transform_once(ROWS, REASON))
def test_right_numbers_of_small_leaves_together_in_pytorch(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_pytorch(row, "float32", monkeypatch, of_mps)


@pytest.mark.parametrize("expression", ["scale(0.3)", "clip_norm(0.7, axes=-1)", "centralize()"])
def test_half_precision_of_small_leaves_together_in_pytorch(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in ROWS if row.expression == expression)
    _in_pytorch(row, "bfloat16", monkeypatch, of_mps)


def _in_pytorch(row: Row, dtype: str, monkeypatch: pytest.MonkeyPatch, device: Any = of_torch) -> None:
    group, mode = shared_group(row, dtype), device(monkeypatch)
    inner = parity.runner(row.tx, "torch", "eager")

    def run(steps: Any, params: Any) -> Any:
        with mode:
            return inner(steps, params)

    assert_right(row, group, FLUSHING, "eager", run, float64=False)


@slow(FAKE, lambda row: not str(row).startswith(("clip_global", "ema", "clip_value")))
@pytest.mark.parametrize("row", each_transform_once(ROWS, REASON))
def test_tensors_of_mps_stay_there_and_narrow(row: Row, torch: Any) -> None:
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    with fake.FakeTensorMode(), indexing():

        def empty(leaf: Any) -> Any:
            return torch.empty(leaf.shape, dtype=getattr(torch, leaf.dtype.name), device="mps")

        shapes = small("float32", row.matrix)
        tree, params = (optree.tree_map(empty, shapes) for _ in range(2))
        with refusing("mps"):
            out, state = row.tx.update(tree, row.tx.init(params), params, **parity.beside(row.tx, params))
        for leaf in optree.tree_leaves(out):
            assert (leaf.device.type, leaf.dtype) == ("mps", torch.float32)
        for leaf in optree.tree_leaves(state):
            assert leaf.device.type == "mps"
            assert leaf.dtype in (torch.float32, torch.int32, torch.bool)
