"""The parity page: its tables, the report of wrong results, and the exit code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import write_parity
from parity_page import measure
from parity_page.groups import Sizes

from gradxform.backend import lookup
from gradxform.proof.judge import judge
from gradxform.proof.registry import ROWS, Row

pytestmark = pytest.mark.filterwarnings("default")
SMALL = Sizes(share=0.01, many=3, large=(8, 9), embedding=(16, 8))
FEW = tuple(row for row in ROWS if row.expression in ("scale(0.25)", "clip_value(0.5)", "clip_norm(1.0)"))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_parity, "SIZES", SMALL)


class Written(NamedTuple):
    exit_code: int
    output: str


@pytest.fixture
def write(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def written(*arguments: str) -> tuple[Written, str]:
        monkeypatch.setenv("COLUMNS", "200")
        out = tmp_path / "numbers.md"
        code = write_parity.main(["--out", str(out), *arguments])
        return Written(code, capsys.readouterr().out), out.read_text() if out.exists() else ""

    return written


def test_the_page_of_numpy(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = (*FEW, *ROWS[::27])
    monkeypatch.setattr(measure, "ROWS", some)
    result, text = write("--frameworks", "numpy")
    assert result.exit_code == 0, result.output
    assert "Every result is within its budget" in text
    for row in some:
        assert f"| `{row.expression}` |" in text
    for words in ("--frameworks numpy --out numbers.md", f"numpy {np.__version__}", "np.clip", "zeros in"):
        assert words in text
    assert str(tmp_path) not in text
    assert text.count("<details>") == text.count("</details>") > 6
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count(" | ") for line in table.splitlines() if "---" not in line}) == 1, table


def test_a_lying_backend_ends_with_1_and_is_named(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROWS", FEW)
    backend = lookup.backend("numpy")
    monkeypatch.setattr(backend, "multiply", lambda leaves, factors, inplace: [leaf * 2 for leaf in leaves])
    result, text = write("--frameworks", "numpy")
    assert result.exit_code == 1
    for words in ("scale(0.25), float32, numpy eager", "clip_norm(1.0), mixed, numpy eager"):
        assert f"over budget: {words}" in result.output
        assert words in text
    assert "changed within its limit" in text


@pytest.mark.parametrize(
    ("dtype", "framework", "flushed"),
    [(np.float32, "jax", 1), (ml_dtypes.bfloat16, "jax", 1), (np.float32, "numpy", 0), (np.float16, "jax", 0)],
)
def test_only_a_kernel_that_flushes_may_lose_subnormal_numbers(dtype: Any, framework: str, flushed: int) -> None:
    least = np.array([1e-7 if dtype == np.float16 else 1e-40]).astype(dtype)
    verdict = judge({"w": np.zeros(1, dtype)}, {"w": least}, framework, Row("identity()"))
    assert verdict.flushed == flushed
    assert (verdict.worst is None) == bool(flushed)


def test_what_was_subnormal_on_the_way_may_be_lost_if_the_transform_says_so() -> None:
    """1e-37 / 10 is below the smallest normal float32, 1.2e-38; 1e-36 / 10 is not."""
    part, whole = Row("ema(0.9)", part=0.1), Row("identity()")
    for value, flushed in ((1e-37, 1), (1e-36, 0)):
        wanted, lost, less = (np.float32([x]) for x in (value, 0.0, value - 1e-38))
        for got in (lost, less):
            assert judge({"w": got}, {"w": wanted}, "jax", part).flushed == flushed
            assert judge({"w": got}, {"w": wanted}, "jax", whole).flushed == 0
            assert judge({"w": got}, {"w": wanted}, "torch", part).flushed == 0
        assert judge({"w": wanted}, {"w": wanted}, "jax", part) == judge({"w": wanted}, {"w": wanted}, "jax", whole)
        assert judge({"w": np.float32([value - 3e-38])}, {"w": wanted}, "jax", part).flushed == 0
