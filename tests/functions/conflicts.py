"""Second references for the gradients of conflicting tasks: each paper's problem, solved by SciPy's least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import optimize

from gradxform.proof import reference_state

SIZE = 14


def _nonnegative(matrix: Any, target: Any) -> Any:
    return optimize.nnls(matrix, target, maxiter=1000)[0]


def mgda(rows: Any) -> Any:
    """Wolfe's form: the shortest vector of the hull, by nonnegative least squares with a further row of ones."""
    unit = np.min(np.linalg.norm(rows, axis=1)) or 1.0
    found = _nonnegative(np.vstack([rows.T, unit * np.ones(len(rows))]), np.append(np.zeros(rows.shape[1]), unit))
    return found / found.sum() @ rows


def upgrad(rows: Any) -> Any:
    """The mean of projections onto the dual cone; the distance to it is a combination of the gradients."""
    return np.mean([row + _nonnegative(rows.T, -row) @ rows for row in rows], axis=0)


def pcgrad(rows: Any, seed: int = 0) -> Any:
    """Each gradient is projected on the planes of those that it conflicts with, in the order of random words."""
    total = np.zeros(rows.shape[1])
    for i, mine in enumerate(rows):
        with np.errstate(over="ignore"):
            draws = reference_state.threefry(0, seed, i, np.arange(len(rows)))[0].view(np.int32)
        for j in sorted({*range(len(rows))} - {i}, key=draws.__getitem__):
            product = mine @ rows[j]
            mine = mine - product / (rows[j] @ rows[j]) * rows[j] if product < 0 else mine
        total += mine
    return total


def cagrad(rows: Any, c: float = 0.5) -> Any:
    """The highest level t that all products reach within the ball, by bisection over least-distance programs."""
    mean = rows.mean(axis=0)
    radius = c * np.linalg.norm(mean)

    def nearest(level: float) -> Any:
        """The shortest y with rows @ (mean + y) >= level (Lawson and Hanson, 1974, chapter 23); None without one."""
        bounds = level - rows @ mean
        system = np.vstack([rows.T, bounds])
        target = np.append(np.zeros(rows.shape[1]), 1.0)
        rest = system @ _nonnegative(system, target) - target
        return -rest[:-1] / rest[-1] if abs(rest[-1]) > 1e-13 else None

    low, high = float(np.min(rows @ mean)) - 1e-3, float(np.max(rows @ rows.T) * (1.0 + c))
    for _ in range(200):
        middle = (low + high) / 2
        found = nearest(middle)
        reached = found is not None and np.linalg.norm(found) <= radius
        low, high = (middle, high) if reached else (low, middle)
    return mean + nearest(low)


def trees(dtype: Any, seed: int = 0) -> list[dict[str, Any]]:
    """Gradients of three tasks that conflict."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(SIZE)
    rows = [sign * common + rng.standard_normal(SIZE) for sign in (1.0, -0.6, 0.2)]
    return [{"a": row[:12].reshape(3, 4).astype(dtype), "b": row[12:].astype(dtype)} for row in rows]


def flat(tree: Any) -> Any:
    """One vector of float64."""
    return np.concatenate([np.asarray(leaf).astype(np.float64).ravel() for leaf in tree.values()])


def bound(rows: Any, c: float, start: Any) -> float:
    """The lowest bound of cagrad's worst product that SciPy finds among weightings of the tasks."""
    mean = rows.mean(axis=0)
    radius = c * np.linalg.norm(mean)

    def value(weights: Any) -> float:
        given = np.clip(weights, 0.0, None)
        vector = given / max(given.sum(), 1e-300) @ rows
        return float(vector @ mean + radius * np.linalg.norm(vector))

    found = optimize.minimize(value, start, bounds=[(0.0, 1.0)] * len(rows), method="SLSQP", options={"ftol": 1e-14})
    corners = [value(corner) for corner in np.eye(len(rows))]
    shortest = mgda(rows) if np.linalg.norm(rows, axis=1).all() else np.zeros(rows.shape[1])
    least = float(shortest @ mean + radius * np.linalg.norm(shortest))  # at its kink, the search stops early
    return min(value(found.x), value(start), least, *corners)
