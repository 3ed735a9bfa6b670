"""The states of all stateful transforms in JAX's transformations and checkpoints."""

from __future__ import annotations

import functools
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import PROCESSES, XLA, assert_bits, assert_ulp, slow
from support import assert_close as close
from trees import STATEFUL

import gradxform as gx

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

STEPS, HALF = 5, 2
EXPRESSIONS = list({row.tx.name: row.expression for row in STATEFUL if row.tx.stateful and not row.matrix}.values())
"""One of each stateful transform; all are compiled together, many times."""
TXS: dict[str, gx.GradientTransformation] = {
    **{expression: gx.parse(expression) for expression in EXPRESSIONS},
    "a schedule": gx.clip_global_norm(lambda t: 2.0 / (1.0 + t)),
    "scale_by_schedule": gx.scale_by_schedule(lambda t: 0.5**t),
    "a partition": gx.partition({"a/*": gx.ema(0.5)}, default=gx.chain(gx.trace(0.5), gx.clip_zscore(1.0, 0.9, 1))),
    "of matrices": gx.masked(gx.normalize_neurons(0.5), "a/w"),
    "optax inside": gx.skip_nonfinite(gx.chain(gx.clip_norm(1.0), optax.adam(0.1))),
}


def gradient_at(step: int) -> Any:
    rng = np.random.default_rng(step)
    tree = {"a": {"w": rng.normal(size=(3, 2))}, "b": [rng.normal(size=()), None]}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf * (20 if step == 3 else 1), np.float32), tree)


GRADIENTS = [gradient_at(step) for step in range(STEPS)]
STACKED = jax.tree.map(lambda *leaves: jnp.stack(leaves), *GRADIENTS)


def first() -> dict[str, Any]:
    return {name: tx.init(GRADIENTS[0]) for name, tx in TXS.items()}


def update_all(gradient: Any, states: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """One step of every transform, in a single compilation."""
    found = {name: tx.update(gradient, states[name], gradient) for name, tx in TXS.items()}
    return {name: pair[0] for name, pair in found.items()}, {name: pair[1] for name, pair in found.items()}


step = jax.jit(update_all)
assert_close = functools.partial(close, rtol=3e-7, atol=1e-7)
"""The tolerance between two XLA programs that fuse a formula differently."""


@functools.cache
def uninterrupted() -> tuple[list[Any], list[Any]]:
    """The updates of each step, and the states before each and after the last."""
    states, updates = [first()], []
    for gradient in GRADIENTS:
        update, state = step(gradient, states[-1])
        updates.append(update)
        states.append(state)
    return updates, states


@slow(XLA)
def test_jit_keeps_the_form_of_every_state_and_changes_it() -> None:
    _, states = uninterrupted()
    for part in states:
        assert jax.tree.structure(part) == jax.tree.structure(states[0])
        kinds = [[(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(x)] for x in (part, states[0])]
        assert kinds[0] == kinds[1]
    for name in TXS:
        assert any(
            np.asarray(a).tobytes() != np.asarray(b).tobytes()
            for a, b in zip(jax.tree.leaves(states[0][name]), jax.tree.leaves(states[-1][name]), strict=True)
        ), name


def scanned(states: dict[str, Any], gradients: Any) -> Any:
    return jax.lax.scan(lambda state, g: update_all(g, state)[::-1], states, gradients)


def test_scan_carries_every_state() -> None:
    last, updates = jax.eval_shape(scanned, first(), STACKED)
    assert jax.tree.structure(last) == jax.tree.structure(first())
    assert jax.tree.structure(updates) == jax.tree.structure(dict.fromkeys(TXS, STACKED))


@slow(XLA)
def test_scan() -> None:
    updates, states = uninterrupted()
    last, stacked = jax.jit(scanned)(first(), STACKED)
    assert_close(last, states[-1])
    assert_close(stacked, jax.tree.map(lambda *leaves: np.stack(leaves), *updates))


@slow(XLA)
def test_vmap_keeps_one_state_for_each() -> None:
    _, states = uninterrupted()
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), states[1], states[3])
    gradient = jax.tree.map(lambda *leaves: jnp.stack(leaves), GRADIENTS[1], GRADIENTS[3])
    updates, after = jax.jit(jax.vmap(update_all))(gradient, both)
    for i, at in enumerate((1, 3)):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], after), states[at + 1])
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], updates), uninterrupted()[0][at])


@slow(XLA)
def test_cond_between_an_update_and_none() -> None:
    updates, states = uninterrupted()

    @jax.jit
    def maybe(due: Any, gradient: Any, state: Any) -> Any:
        nothing = jax.tree.map(jnp.zeros_like, dict.fromkeys(TXS, gradient))
        return jax.lax.cond(due, update_all, lambda _, kept: (nothing, kept), gradient, state)

    assert_close(maybe(True, GRADIENTS[1], states[1]), (updates[1], states[2]))
    left, kept = maybe(False, GRADIENTS[1], states[1])
    assert_bits(kept, states[1])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(left))


@slow(XLA)
def test_a_donated_state_is_taken_without_a_warning() -> None:
    updates, states = uninterrupted()
    donating = jax.jit(update_all, donate_argnums=1)
    state = first()
    for gradient, wanted in zip(GRADIENTS[:3], updates, strict=False):
        old = state
        update, state = donating(gradient, old)
        assert_bits(update, wanted)
        # JAX only keeps inputs that are read: not the last metrics, nor whether the step was applied.
        held = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(old)]
        assert [path for path, leaf in held if leaf.is_deleted() == bool(re.search(r"\.measures\b|\.due$", path))] == []
    assert_bits(state, states[3])
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        donating(GRADIENTS[0], old)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def by_orbax(state: Any, folder: Path, like: Callable[[], Any] = first) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Orbax's own warnings
        ocp = pytest.importorskip("orbax.checkpoint")
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder / "state", state)
            checkpointer.wait_until_finished()
            return checkpointer.restore(folder / "state", like())


def by_flax_bytes(state: Any, folder: Path) -> Any:
    serialization = pytest.importorskip("flax.serialization")
    (folder / "state").write_bytes(serialization.to_bytes(state))
    return serialization.from_bytes(first(), (folder / "state").read_bytes())


def by_pickle(state: Any, folder: Path) -> Any:
    (folder / "state").write_bytes(pickle.dumps(jax.tree.map(np.asarray, state)))
    return pickle.loads((folder / "state").read_bytes())


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "orbax": by_orbax,
    "orbax, from shapes": functools.partial(by_orbax, like=lambda: jax.eval_shape(first)),
    "flax bytes": by_flax_bytes,
    "pickle": by_pickle,
}


@slow(PROCESSES)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_saved_and_restored_goes_on_bit_by_bit(way: str, tmp_path: Path) -> None:
    updates, states = uninterrupted()
    state = WAYS[way](states[HALF], tmp_path)
    assert_bits(state, states[HALF])
    for i in range(HALF, STEPS):
        update, state = step(GRADIENTS[i], state)
        assert_bits(update, updates[i])
    assert_bits(state, states[-1])


@slow(XLA)
def test_an_exported_step_takes_a_state_and_gives_the_next() -> None:
    from jax import export

    updates, states = uninterrupted()
    structure = jax.tree.structure(states[0])

    def flat(gradient: Any, leaves: list[Any]) -> Any:
        update, state = update_all(gradient, jax.tree.unflatten(structure, leaves))
        return update, jax.tree.leaves(state)

    program = export.export(jax.jit(flat))(GRADIENTS[0], jax.tree.leaves(states[0]))
    again = export.deserialize(program.serialize())
    update, leaves = again.call(GRADIENTS[2], jax.tree.leaves(states[2]))
    assert_close((update, jax.tree.unflatten(structure, leaves)), (updates[2], states[3]))


def test_a_program_of_symbolic_shapes() -> None:
    from jax import export

    (rows,) = export.symbolic_shape("rows")
    tx = gx.chain(gx.clip_norm(1.0), gx.clip_rms(0.3), gx.clip_global_norm(0.5), gx.scale(-0.1))
    shapes = {"w": jax.ShapeDtypeStruct((rows, 3), np.float32), "v": jax.ShapeDtypeStruct((4,), np.float32)}
    program = export.export(jax.jit(tx))(shapes)
    for count in (2, 50_000):
        tree = {"w": np.full((count, 3), 3.0, np.float32), "v": np.ones(4, np.float32)}
        assert_ulp(program.call(tree), tx(tree))
