"""Count the Python calls of the library for one update of two NumPy arrays, and the files they are in.

    python tests/benchmarks/calls.py

Frames of comprehensions and generators are not counted. The second pair is of the thousandth update.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import gradxform as gx

CHAINS = ("clip_global_norm(1.0)", "clip_norm(1.0)", "chain(clip_norm(5.0), clip_global_norm(1.0))", "ema(0.9)")
_INSIDE = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}


def calls(function: Callable[[], Any]) -> list[str]:
    """Return "module:function" of each call of the library, in order."""
    found = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if event == "call" and module.startswith("gradxform") and name not in _INSIDE:
            found.append(f"{module}:{name}")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def updated(tx: gx.GradientTransformation) -> Callable[[], Any]:
    """Return an update of two arrays, from the first state."""
    grads = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    state = tx.init(grads)
    return lambda: tx.update(grads, state)


def main() -> None:
    """Print a line for each chain."""
    for expression in CHAINS:
        update = updated(gx.parse(expression))
        first = calls(update)
        for _ in range(998):
            update()
        counts = [
            f"{len(each)} calls in {len({call.partition(':')[0] for call in each})} files"
            for each in (first, calls(update))
        ]
        print(f"{expression:46} first {counts[0]}, thousandth {counts[1]}")


if __name__ == "__main__":
    main()
