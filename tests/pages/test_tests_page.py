"""The table of slow tests in docs/numbers/tests.md is up to date."""

from __future__ import annotations

from pathlib import Path

from support import ROOT, python


def test_the_table_of_slow_tests_is_that_of_its_command(tmp_path: Path) -> None:
    found = tmp_path / "slow.md"
    python(
        "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--slow-table", found, check=False
    )  # runs no test
    assert found.read_text() in (ROOT / "docs/numbers/tests.md").read_text()
