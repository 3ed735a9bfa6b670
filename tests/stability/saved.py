"""States and a recording that versions saved. `python tests/stability/saved.py` made them; they are never made anew.

A version that changes a layout adds a file of its own and reads both. The states of new transforms are added to the
file of the next version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from stability import surface

import gradxform as gx

HERE = Path(__file__).parent
STATES, RECORDING = (HERE / "states-1.0.npz", HERE / "states-1.1.npz"), HERE / "recording-1.0"
STEPS = 3
PARAMETERS = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16)}


def gradients(step: int) -> dict[str, Any]:
    """The gradients of a step: exact in every dtype, and the same on every machine."""
    numbers = np.arange(-4, 5) * (step + 1) / 8
    return {"w": np.float32(numbers[:6]).reshape(2, 3), "b": np.float16(numbers[6:])}


def transformation(name: str) -> gx.GradientTransformation:
    """The transformation of a name."""
    return surface.STATEFUL[name]


def _read(*files: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in filter(Path.exists, files or STATES):
        with np.load(path) as file:
            found |= file
    return found


NAMES = sorted({key.split("|")[0] for key in _read()})


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
    """Write the states of new transforms, and the recording if there is none."""
    found, new = _read(STATES[-1]), {name: tx for name, tx in surface.STATEFUL.items() if name not in NAMES}
    for name, tx in new.items():
        state = tx.init(PARAMETERS)
        for step in range(STEPS):
            _, state = tx.update(gradients(step), state)
        found |= {f"{name}|state|{path}": leaf for path, leaf in gx.to_numpy(state, by_path=True).items()}
        found |= {f"{name}|updates|{path}": leaf for path, leaf in tx.update(gradients(STEPS), state)[0].items()}
    np.savez_compressed(STATES[-1], **found)
    if RECORDING.exists():
        return
    recorder = gx.record(RECORDING)
    for step in range(STEPS):
        recorder(step, gradients=gradients(step), loss=1.0 / (1 + step))


if __name__ == "__main__":
    save()
