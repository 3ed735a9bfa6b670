"""NumPy: the CPU, and clipping as people write it, pure and in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import gradxform_numpy
from gradxform.cli.frameworks.interface import COEFFICIENTS, Array, Mode, Side, Step, Tree, one_by_one, transformation
from gradxform.proof.place import Absent, Place


def find(name: str | None = None, index: int = 0) -> Place:
    """Return the CPU.

    Raises:
        Absent: Another device is requested.
    """
    if name not in (None, "cpu") or index:
        raise Absent("which runs on the CPU only")
    return Place("cpu", "cpu", np.asarray)


# --- the benchmark ---------------------------------------------------------------------------------------------------


def _pure(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    """New arrays for every step."""
    tx, native = transformation(steps), one_by_one(_PURE, steps)
    return Side(lambda: tx(tree), _values), Side(lambda: native(tree), _values)


def _values(grads: Tree) -> list[Array]:
    return list(grads.values())


def _clip_global_norm(grads: Tree, limit: float) -> Tree:
    factor = min(1.0, limit / np.sqrt(sum(np.sum(np.square(g)) for g in grads.values())))
    return {path: g * factor for path, g in grads.items()}


def _iterated(g: Array, steps: float) -> Array:
    a, b, c = COEFFICIENTS
    x = (g if g.shape[0] <= g.shape[1] else g.T) / np.linalg.norm(g)
    for _ in range(int(steps)):
        squares = x @ x.T
        x = a * x + (b * squares + c * squares @ squares) @ x
    return x if g.shape[0] <= g.shape[1] else x.T


_PURE: Mapping[str, Callable[[Tree, float], Tree]] = {
    "clip_value": lambda grads, limit: {path: np.clip(g, -limit, limit) for path, g in grads.items()},
    "clip_norm": lambda grads, limit: {path: g * min(1.0, limit / np.linalg.norm(g)) for path, g in grads.items()},
    "clip_global_norm": _clip_global_norm,
    "scale": lambda grads, factor: {path: g * factor for path, g in grads.items()},
    "orthogonalize": lambda grads, steps: {path: _iterated(g, steps) for path, g in grads.items()},
}


def _in_place(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    """No new arrays at all."""
    tx = transformation(steps)

    def native(grads: Tree) -> None:
        for name, value in steps:
            _IN_PLACE[name](grads, value)

    return _writing(lambda grads: gradxform_numpy.apply_(tx, grads), tree), _writing(native, tree)


def _writing(work: Callable[[Tree], None], tree: Tree) -> Side:
    """A side that writes to a copy of the tree."""
    own = {path: leaf.copy() for path, leaf in tree.items()}

    def restore() -> None:
        for path, leaf in tree.items():
            np.copyto(own[path], leaf)

    return Side(lambda: work(own), lambda _: list(own.values()), restore)


def _squares(g: Array) -> float:
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
        g[...] = _iterated(g, steps)


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
