"""What each framework's own clip does with four gradients: the table of the README.

    python tests/benchmarks/what_goes_wrong.py

Each side clips to global norm 1. Cells are the first element, or the norm of what comes back, summed in float64.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import peers

import gradxform as gx
from gradxform.cli.console import quiet

LIKES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "keras": "Keras", "optax": "JAX, optax"}
EMBEDDING = 38_597_376
"""Elements of GPT-2's token embedding."""


def embedding() -> np.ndarray[Any, Any]:
    """A gradient of the size of GPT-2's embedding."""
    return np.random.default_rng(0).standard_normal(EMBEDDING, dtype=np.float32)


def across(stages: list[Any]) -> list[Any]:
    """Clip stages of a pipeline with gradxform; `jax.vmap` plays them."""
    import jax

    tx = gx.across(gx.clip_global_norm(1.0), "stage")
    return [np.asarray(leaf) for leaf in jax.vmap(tx, axis_name="stage")(jax.numpy.stack(stages))]


def first(leaves: list[Any]) -> str:
    """The first element."""
    return f"{float(leaves[0].flat[0]):g}".replace("nan", "NaN")


def norm(leaves: list[Any]) -> str:
    """The norm of all leaves, with four digits behind the point."""
    return f"{np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in leaves)):.4f}"


def cells(clip: peers.Native, own: bool = False) -> list[str]:
    """The column of one side."""
    stages = [np.float32([3, 0]), np.float32([0, 4])]
    apart = across(stages) if own else [clip([stage], 1.0)[0] for stage in stages]
    with np.errstate(all="ignore"):
        return [
            norm(clip([embedding()], 1.0)),
            norm(apart),
            first(clip([np.float32([1e30]), np.float32([3])], 1.0)),
            first(clip([np.float16([300]), np.float16([3])], 1.0)),
        ]


ROWS = (
    "GPT-2's embedding: norm",
    "two stages: norm",
    "float32 [1e30], [3]",
    "float16 [300], [3]",
)


def table() -> str:
    """The table in Markdown."""
    with quiet():
        columns = [cells(peers.find("clip_global_norm", like)) for like in LIKES]
        own = cells(peers.gradxform_clip("clip_global_norm"), own=True)
    header = ["should be 1", "gradxform", *LIKES.values()]
    rows = [header, ["---", *["---:"] * (len(header) - 1)]]
    rows += [list(row) for row in zip(ROWS, own, *columns, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
