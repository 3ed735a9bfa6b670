"""What the page of `gradxform parity --full` says before and after its tables."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import platform
from collections.abc import Iterator

import gradxform
from gradxform.proof.cases import Sizes
from gradxform.proof.extended import bits
from gradxform.proof.values import HARD, RANDOM, Values, hard

_PACKAGES = ("numpy", "ml_dtypes", "jax", "optax", "tensorflow", "keras", "torch", "mlx")


def beginning(command: str, verdict: str) -> Iterator[str]:
    """What is measured, the budgets, and where the numbers come from."""
    yield "# Parity and accuracy"
    yield (
        "How far results are from the right ones, in units in the last place (ULP) of the gradient's dtype: the "
        "largest distance of any element, real and imaginary parts each by themselves. The right ones come from "
        "`gradxform.proof.reference`: each transform a second time, straight from its formula, in extended precision "
        f"({bits()} bits here), rounded once."
    )
    yield "\n".join(
        (
            "| budget | for |",
            "|---|---|",
            "| 2 ULP | float32, float64, complex64, complex128 |",
            "| 1 ULP | float16 and bfloat16 |",
            "| 4 ULP | p-norms of an order other than 1, 2 and infinity |",
            "| 0 ULP | value clips, powers of two, `identity`, `stop`, `freeze`, and gradients within their limit |",
        )
    )
    yield verdict
    yield f"Written by `{command}` on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} with {_versions()}."


def _versions() -> str:
    """What took part, and the processor's architecture; no host and no path."""
    found = [f"Python {platform.python_version()}", f"gradxform {gradxform.__version__}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{', '.join(found)}, {platform.machine()}"


def trees_measured(sizes: Sizes) -> Iterator[str]:
    """What the trees hold."""
    yield "## The gradients"
    yield (
        "Every transform sees, in each of its dtypes, small nested trees of matrices, a 0-d gradient and "
        "None (matrices alone where axes are given). One that keeps a state sees five steps of normal numbers, seven "
        "of hard ones, and one of each other kind. Without a state, it also sees one float32 leaf of "
        f"{math.prod(sizes.large):,} elements. "
        f"`clip_norm(1.0)`, `clip_global_norm(1.0)` and the chain that ends in `scale(-0.1)` see {sizes.many} leaves "
        "at once, and float32, float16, bfloat16 and float64 in one tree. `clip_global_norm(1.0)` sees one leaf of "
        f"{math.prod(sizes.embedding):,} elements (GPT-2's token embedding has 38,597,376). The small trees hold:"
    )
    random = (f"- {name}: {kind.words}" for name, kind in RANDOM.items())
    yield "\n".join((*random, *(f"- {name}: {_said(hard(name, 'float32'))}" for name in HARD)))


def _said(values: Values) -> str:
    given = [", ".join(f"{value:g}" for value in leaf) for leaf in values if leaf]
    return f"{'; in another leaf '.join(given)}; all else zero" if given else "nothing else"
