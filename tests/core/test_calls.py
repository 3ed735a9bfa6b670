"""The way of a gradient stays short: calls of the library for an update of two NumPy arrays, and their files."""

from __future__ import annotations

import calls
import pytest

import gradxform as gx

MOST = {"clip_global_norm(1.0)": (60, 8), "clip_norm(1.0)": (60, 8), calls.CHAINS[2]: (90, 9)}


@pytest.mark.parametrize("expression", MOST)
def test_an_update_takes_few_calls_in_few_files(expression: str) -> None:
    update = calls.updated(gx.parse(expression))
    update()  # imports what is used first
    found = calls.calls(update)
    assert (len(found), len({call.partition(":")[0] for call in found})) <= MOST[expression], found
    assert len({call.partition(":")[0] for call in found}) <= MOST[expression][1], found
