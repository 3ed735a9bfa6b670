"""The how-to gallery: a card with a picture for each page, drawn by the script from what gradxform computes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from support import ROOT

INDEX = (ROOT / "docs/how-to/index.md").read_text()
CARDS = dict(
    re.findall(r"^:link: (\S+)\n:link-type: doc\n:img-top: \.\./pictures/gallery/(\S+)\.png$", INDEX, re.MULTILINE)
)
LARGEST = 20_000
"""Bytes of a picture."""


def test_every_how_to_has_a_card_and_every_card_a_picture() -> None:
    pages = {page.stem for page in (ROOT / "docs/how-to").glob("*.md")} - {"index"}
    assert pages == {link for link in CARDS if "/" not in link}
    pictures = list((ROOT / "docs/pictures/gallery").iterdir())
    assert sorted(CARDS.values()) == sorted(picture.stem for picture in pictures)
    assert all(picture.stat().st_size < LARGEST for picture in pictures)


@pytest.mark.slow(reason="draws twenty-six pictures, with JAX, TensorFlow and PyTorch")
def test_the_script_draws_every_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "optax", "tensorflow", "torch", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    importlib.import_module("gallery.frame").main(tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert [picture.stem for picture in drawn] == sorted(CARDS.values())
    assert all(2_000 < picture.stat().st_size < LARGEST for picture in drawn)
