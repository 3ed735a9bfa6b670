"""What the tests of examples read off the pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of the page's table with that header, which may be given without its outer bars."""
    line = header if header.startswith("|") else f"| {header} |"
    found = re.search(rf"^{re.escape(line)}\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found, header
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


def assert_drawn(picture: Path) -> None:
    """A picture of this run, of which the site has one too."""
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
    assert (ROOT / "docs/pictures" / picture.name).exists()
