"""JAX's half of the benchmark: optax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradxform.cli.bench.task import COEFFICIENTS, Array, Mode, Side, Step, Tree, transformation
from gradxform.proof.place import Place
from gradxform_jax import _private

Jit = Callable[[Callable[..., Any]], Callable[..., Any]]


def versions() -> dict[str, str]:
    """The versions of JAX and of optax."""
    return {"jax": jax.__version__, "optax": optax.__version__}


def _eager(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    return _sides(steps, tree, place, lambda function: function)


def _jit(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    return _sides(steps, tree, place, jax.jit)


def _sides(steps: Sequence[Step], tree: Tree, place: Place, compiled: Jit) -> tuple[Side, Side]:
    grads = {path: place.put(leaf) for path, leaf in tree.items()}
    parts = [_NATIVE[name](value) for name, value in steps]
    native = parts[0] if len(parts) == 1 else optax.chain(*parts)
    return _side(transformation(steps, like="optax"), grads, place, compiled), _side(native, grads, place, compiled)


def _side(tx: Any, grads: Any, place: Place, compiled: Jit) -> Side:
    """The update of a transformation of gradxform or optax."""
    state = tx.init(grads)
    update = compiled(lambda updates: tx.update(updates, state)[0])
    return Side(lambda: _wait(update(grads)), _values, cost=lambda: place.cost(update, grads))


def _wait(result: Any) -> Any:
    return jax.block_until_ready(result)  # type: ignore[no-untyped-call]


def _values(grads: Any) -> list[Array]:
    return [np.asarray(leaf) for leaf in grads.values()]


def _clip_norm(limit: float) -> Any:
    """Optax limits the norm of all leaves, or the root mean square of each, but not the norm of each."""

    def clip(g: Any, _: Any) -> Any:
        return g * jnp.minimum(1.0, limit / jnp.linalg.norm(g.ravel()))

    return optax.stateless_with_tree_map(clip)


def _orthogonalize(steps: float) -> Any:
    iterate, coefficients = _private.muon_iteration(), jnp.asarray(COEFFICIENTS)
    return optax.stateless_with_tree_map(lambda g, _: iterate(g, coefficients, int(steps)))


_NATIVE: Mapping[str, Callable[[float], Any]] = {
    "clip_value": optax.clip,
    "clip_norm": _clip_norm,
    "clip_global_norm": optax.clip_by_global_norm,
    "scale": optax.scale,
    "orthogonalize": _orthogonalize,
}

GIVES_MEMORY_BACK = True
MODES = (Mode("eager", "optax", _eager), Mode("jit", "optax under jax.jit", _jit, compiled=True))
