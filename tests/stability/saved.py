"""States and a recording that version 1.0 saved. `python tests/stability/saved.py` made them; they are never made anew.

A version that changes a layout adds a file of its own and reads both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from stability import surface

import gradxform as gx

HERE = Path(__file__).parent
STATES, RECORDING = HERE / "states-1.0.npz", HERE / "recording-1.0"
STEPS = 3
PARAMETERS = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16)}


def gradients(step: int) -> dict[str, Any]:
    """The gradients of a step: exact in every dtype, and the same on every machine."""
    numbers = np.arange(-4, 5) * (step + 1) / 8
    return {"w": np.float32(numbers[:6]).reshape(2, 3), "b": np.float16(numbers[6:])}


def transformation(name: str) -> gx.GradientTransformation:
    """The transformation of a name."""
    return surface.STATEFUL[name]


def _read() -> dict[str, Any]:
    with np.load(STATES) as file:
        return dict(file)


NAMES = sorted({key.split("|")[0] for key in _read()}) if STATES.exists() else []


def state(name: str) -> dict[str, Any]:
    """The state by path, after some steps."""
    return _under(name, "state")


def updates(name: str) -> dict[str, Any]:
    """The updates of the step after these."""
    return _under(name, "updates")


def _under(name: str, what: str) -> dict[str, Any]:
    start = f"{name}|{what}|"
    return {key.removeprefix(start): leaf for key, leaf in _read().items() if key.startswith(start)}


def save() -> None:
    """Write both."""
    found = {}
    for name, tx in surface.STATEFUL.items():
        state = tx.init(PARAMETERS)
        for step in range(STEPS):
            _, state = tx.update(gradients(step), state)
        found |= {f"{name}|state|{path}": leaf for path, leaf in gx.to_numpy(state, by_path=True).items()}
        found |= {f"{name}|updates|{path}": leaf for path, leaf in tx.update(gradients(STEPS), state)[0].items()}
    np.savez_compressed(STATES, **found)
    recorder = gx.record(RECORDING)
    for step in range(STEPS):
        recorder(step, gradients=gradients(step), loss=1.0 / (1 + step))


if __name__ == "__main__":
    save()
