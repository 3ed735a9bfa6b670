"""NumPy's part of the benchmark: plain clipping, and clipping that saves memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import gradxform_numpy
from gradxform.cli.bench.task import COEFFICIENTS, Array, Mode, Side, Step, Tree, transformation
from gradxform.proof.place import Place


def versions() -> dict[str, str]:
    """NumPy's version."""
    return {"numpy": np.__version__}


# --- pure: new arrays for every step ---------------------------------------------------------------------------------


def _pure(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    tx = transformation(steps)

    def native() -> Tree:
        grads = tree
        for name, value in steps:
            grads = _PURE[name](grads, value)
        return grads

    return Side(lambda: tx(tree), _values), Side(native, _values)


def _values(grads: Tree) -> list[Array]:
    return list(grads.values())


def _clip_value(grads: Tree, limit: float) -> Tree:
    return {path: np.clip(g, -limit, limit) for path, g in grads.items()}


def _clip_norm(grads: Tree, limit: float) -> Tree:
    return {path: g * min(1.0, limit / np.linalg.norm(g)) for path, g in grads.items()}


def _clip_global_norm(grads: Tree, limit: float) -> Tree:
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in grads.values()))
    factor = min(1.0, limit / norm)
    return {path: g * factor for path, g in grads.items()}


def _orthogonalize(grads: Tree, steps: float) -> Tree:
    return {path: _iterate(g, int(steps)) for path, g in grads.items()}


def _iterate(g: Array, steps: int) -> Array:
    a, b, c = COEFFICIENTS
    x = (g if g.shape[0] <= g.shape[1] else g.T) / np.linalg.norm(g)
    for _ in range(steps):
        squares = x @ x.T
        x = a * x + (b * squares + c * squares @ squares) @ x
    return x if g.shape[0] <= g.shape[1] else x.T


def _scale(grads: Tree, factor: float) -> Tree:
    return {path: g * factor for path, g in grads.items()}


_PURE: Mapping[str, Callable[[Tree, float], Tree]] = {
    "clip_value": _clip_value,
    "clip_norm": _clip_norm,
    "clip_global_norm": _clip_global_norm,
    "scale": _scale,
    "orthogonalize": _orthogonalize,
}


# --- in place: no new arrays at all ----------------------------------------------------------------------------------


def _in_place(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    tx = transformation(steps)

    def native(grads: Tree) -> None:
        for name, value in steps:
            _IN_PLACE[name](grads, value)

    return _writing(lambda grads: gradxform_numpy.apply_(tx, grads), tree), _writing(native, tree)


def _writing(work: Callable[[Tree], None], tree: Tree) -> Side:
    """A candidate that writes to a copy of the tree."""
    own = {path: leaf.copy() for path, leaf in tree.items()}

    def restore() -> None:
        for path, leaf in tree.items():
            np.copyto(own[path], leaf)

    return Side(lambda: work(own), lambda _: list(own.values()), restore)


def _squares(g: Any) -> float:
    flat = g.ravel()
    return float(np.dot(flat, flat))


def _scale_in_place(grads: Tree, factor: float) -> None:
    for g in grads.values():
        np.multiply(g, factor, out=g)


def _clip_value_in_place(grads: Tree, limit: float) -> None:
    for g in grads.values():
        np.clip(g, -limit, limit, out=g)


def _clip_norm_in_place(grads: Tree, limit: float) -> None:
    for g in grads.values():
        norm = math.sqrt(_squares(g))
        if norm > limit:
            np.multiply(g, limit / norm, out=g)


def _clip_global_norm_in_place(grads: Tree, limit: float) -> None:
    norm = math.sqrt(sum(_squares(g) for g in grads.values()))
    if norm > limit:
        _scale_in_place(grads, limit / norm)


def _orthogonalize_in_place(grads: Tree, steps: float) -> None:
    for g in grads.values():
        g[...] = _iterate(g, int(steps))


_IN_PLACE: Mapping[str, Callable[[Tree, float], None]] = {
    "clip_value": _clip_value_in_place,
    "clip_norm": _clip_norm_in_place,
    "clip_global_norm": _clip_global_norm_in_place,
    "scale": _scale_in_place,
    "orthogonalize": _orthogonalize_in_place,
}


GIVES_MEMORY_BACK = True
MODES = (
    Mode("pure", "g * min(1, c / norm), matmul", _pure),
    Mode("in place", "np.dot, then np.multiply(g, c / norm, out=g); matmul", _in_place),
)
