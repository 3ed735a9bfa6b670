"""Draw random chains on random trees; test_chains.py and `python tests/proof/chains_run.py` compare them with the
reference.

A structure (a tree's shapes and dtypes, a chain, a number of steps) is compiled once and runs on many values.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from entries import ENTRIES, Entry
from hypothesis import strategies as st

import gradxform as gx
from gradxform.proof.gradients import zeros
from gradxform.proof.registry import COMPLEX, DTYPES, Row

SCALES = {"float16": (-7, 4), "float64": (-290, 290)}
"""The powers of ten of a leaf's magnitude."""
_SCALE = (-40, 38)


@dataclass(frozen=True)
class Leaf:
    """The shape and dtype of a gradient."""

    dtype: str
    shape: tuple[int, ...]

    def holding(self, values: Any) -> Any:
        """The values in this dtype."""
        return np.asarray(values).astype(zeros(self.dtype).dtype)


@dataclass(frozen=True)
class Structure:
    """The part that a framework compiles once."""

    expression: str
    shapes: Any
    """Leaves by key; nested dicts and lists."""
    steps: int
    moves: int
    """The step after which a run continues in another framework."""

    @property
    def names(self) -> frozenset[str]:
        """The transforms in it."""
        return frozenset(re.findall(r"([a-z_]+)\(", self.expression)) - {"float"}

    @property
    def tx(self) -> gx.GradientTransformation:
        """Build the transform from an expression with gradxform's names."""
        return eval(self.expression, vars(gx))


def structure(rng: random.Random) -> Structure:
    """Draw a tree of up to five leaves and a chain of one to five transforms."""
    mixed = rng.random() < 0.25
    dtype = rng.choice(("float32", "float32", *DTYPES))
    kinds = _PLAIN if dtype in COMPLEX and not mixed else _NARROW
    kinds = _REAL if kinds is _NARROW and (mixed or dtype == "float64") else kinds

    def leaf(*shape: int) -> Leaf:
        return Leaf(rng.choice(("float32", "float16", "bfloat16", "float64")) if mixed else dtype, shape)

    def matrix() -> Leaf:
        return leaf(rng.randint(1, 5), rng.randint(1, 5))

    last = rng.choice((None, matrix()))
    shapes = {"a": {"w": matrix(), "b": leaf(rng.randint(0, 6))}, "h": [matrix(), last], "s": leaf()}
    parts = [transform(rng, kinds, 2) for _ in range(rng.randint(1, 5))]
    steps = rng.choice((1, 2, 3, 4, 5, 6))
    expression = parts[0] if len(parts) == 1 else f"chain({', '.join(parts)})"
    return Structure(expression, shapes, steps, rng.randint(1, max(1, steps - 1)))


structures = st.randoms(use_true_random=False).map(structure)
"""A hypothesis strategy of structures, which shrinks failures."""


def transform(rng: random.Random, kinds: tuple[str, ...], depth: int) -> str:
    """Draw the expression of a transform: of some kinds, or of the kinds for all gradients."""
    text = rng.choice(rng.choice((_PLAIN, _PLAIN, kinds, _NESTED if depth else _PLAIN)))

    def filled(found: re.Match[str]) -> str:
        if found[1] == "tx":
            return transform(rng, kinds, depth - 1)
        return str(rng.choice(CHOICES[found[1]]) if found[1] in CHOICES else NUMBERS[found[1]](rng))

    return re.sub(r"<(\w+)>", filled, text)


def _size(rng: random.Random) -> str:
    """Draw a number with many digits, so that no two coincide at a limit."""
    return f"{10 ** (rng.uniform(-2, 1) if rng.random() < 0.7 else rng.uniform(-8, 8)):.5g}"


def _limit(rng: random.Random) -> str:
    """Draw a number; sometimes a schedule, zero or infinity."""
    kind = rng.random()
    if kind < 0.15:
        return f"lambda t: {_size(rng)} / (t + 1.0)"
    return "0.0" if kind > 0.98 else "float('inf')" if kind > 0.96 else _size(rng)


def _share(rng: random.Random) -> str:
    """Draw a number between zero and one; sometimes a schedule."""
    number = f"{rng.uniform(0.01, 0.99):.4f}"
    return f"lambda t: {number} / (t + 1.0)" if rng.random() < 0.1 else number


NUMBERS: dict[str, Callable[[random.Random], Any]] = {
    "limit": _limit,
    "size": _size,
    "factor": lambda rng: rng.choice(("", "", "-")) + (_size(rng) if rng.random() < 0.97 else "0.0"),
    "share": _share,
    "part": lambda rng: f"{rng.uniform(0.01, 0.99):.4f}",
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "where": ("a/w", "a/*", "**/b", "h/**", "s", "**"),
    "matrix": ("a/w", "h/*"),
    "layout": ("keras", "torch"),
    "order": ("", "", "", ", ord=1", ", ord=float('inf')"),
    "bool": (True, False),
    "few": (1, 2, 3),
}


def _templates(chosen: Callable[[Entry, str], bool] | None) -> tuple[str, ...]:
    """What the registry has for chains, of the chosen entries; by default what goes around another transform."""
    found = ((entry, template) for entry in ENTRIES for template in entry.chains)
    chains = tuple(template for entry, template in found if chosen is None or chosen(entry, template))
    return tuple(template for template in chains if ("<tx>" in template) == (chosen is None))


def _is_real(template: str) -> bool:
    """Whether a transform is for real gradients only."""
    return "complex64" not in Row(template).dtypes


_NESTED, _PLAIN = _templates(None), _templates(lambda _, template: not _is_real(template))
_REAL = _templates(lambda entry, template: _is_real(template) and "chains in float64" not in entry.left_out)
_NARROW = _templates(lambda _, template: _is_real(template))
"""For real gradients; the latter not for float64."""


def values(shapes: Any, rng: np.random.Generator) -> Any:
    """Draw numbers for a tree: leaves of any magnitude, some with zeros, NaN or infinity."""
    if isinstance(shapes, dict):
        return {key: values(part, rng) for key, part in shapes.items()}
    if isinstance(shapes, list):
        return [values(part, rng) for part in shapes]
    if shapes is None:
        return None
    low, high = SCALES.get(COMPLEX.get(shapes.dtype, shapes.dtype), _SCALE)
    magnitude = 10.0 ** (rng.uniform(low, high) if rng.random() < 0.25 else rng.uniform(-2, 2))
    found = _drawn(rng, shapes.shape) * magnitude
    with np.errstate(all="ignore"):
        if shapes.dtype not in COMPLEX:
            return shapes.holding(found)
        # NaN and infinity are in one part only: libraries differ if one number has both.
        return shapes.holding(
            found + 1j * np.where(np.isfinite(found), rng.standard_normal(shapes.shape) * magnitude, 0.0)
        )


def _drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    numbers = rng.standard_normal(shape)
    kind = rng.random()
    if kind < 0.05:
        return numbers * 0.0
    if kind < 0.15:
        numbers = np.where(rng.random(shape) < 0.3, 0.0, numbers)
    if kind > 0.94:
        numbers = np.where(rng.random(shape) < 0.3, rng.choice([np.nan, np.inf, -np.inf]), numbers)
    return numbers
