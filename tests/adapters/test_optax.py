"""gradxform and optax together: each in the other's combinators."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import STATEFUL, TRAINS, assert_bits, assert_close, assert_ulp, f32, slow, tensors

import gradxform as gx

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

import optax.contrib  # noqa: E402, F811

try:
    from optax.experimental import aggregating
except ImportError:  # optax 0.2.5 has no optax.experimental
    aggregating = types.ModuleType("aggregating")

CLIP = gx.clip_norm(1.0)
UNTOUCHED = {"b": f32(0.1), "w": f32(3, 4)}
CLIPPED = {"b": f32(0.1), "w": f32(0.6, 0.8)}
grads = functools.partial(tensors, "jax", UNTOUCHED)
WRITTEN_FOR = optax.__version__ == "0.2.8"

# --- every combinator of optax ---------------------------------------------------------------------------------------

PARAMS = {"b": np.float32([0.5, -2.0]), "w": np.float32([[1.0, -0.5], [0.25, 2.0]])}
ONLY_W = {"b": False, "w": True}
Wrap = Callable[[Any], Any]


def sgd(tx: Any) -> Any:
    return optax.chain(tx, optax.sgd(0.1))


COMBINATORS: dict[str, Wrap] = {
    "chain": sgd,
    "named_chain": lambda tx: optax.named_chain(("clip", tx), ("sgd", optax.sgd(0.1))),
    "masked": lambda tx: optax.masked(tx, ONLY_W),
    "masked, by a function": lambda tx: optax.masked(tx, lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)),
    "partition": lambda tx: optax.partition({"clip": tx, "other": optax.adam(0.1)}, {"b": "other", "w": "clip"}),
    "multi_transform": lambda tx: optax.multi_transform({0: optax.set_to_zero(), 1: tx}, {"b": 0, "w": 1}),
    "selective_transform": lambda tx: optax.selective_transform(tx, freeze_mask={"b": True, "w": False}),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 2),
    "conditionally_transform": lambda tx: optax.conditionally_transform(tx, lambda step: step != 1),
    "conditionally_mask": lambda tx: optax.conditionally_mask(tx, lambda step: step != 1),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 2),
    "MultiSteps, gradient_transformation": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "MultiSteps, skip_not_finite": lambda tx: optax.MultiSteps(tx, 1, should_skip_update_fn=optax.skip_not_finite),
    "MultiSteps, skip_large_updates": lambda tx: optax.MultiSteps(
        tx, 1, should_skip_update_fn=functools.partial(optax.skip_large_updates, max_squared_norm=100.0)
    ),
    "inject_hyperparams": lambda tx: optax.inject_hyperparams(lambda lr: optax.chain(tx, optax.sgd(lr)))(
        lr=optax.linear_schedule(0.1, 0.2, 4)
    ),
    "flatten": optax.flatten,
    "with_extra_args_support": optax.with_extra_args_support,
    "lookahead": lambda tx: optax.lookahead(sgd(tx), 2, 0.5),
    "monitor": lambda tx: optax.chain(
        optax.monitor({"norm": optax.tree.norm, "mean": optax.measure_with_ema(optax.tree.norm, 0.9)}), tx
    ),
    "snapshot": lambda tx: optax.chain(tx, optax.snapshot("norm", optax.tree.norm)),
    "lbfgs": lambda tx: optax.lbfgs(0.1, linesearch=tx),
    "freeze": lambda tx: optax.chain(optax.freeze(ONLY_W), tx),
    "keep_params_nonnegative": lambda tx: optax.chain(sgd(tx), optax.keep_params_nonnegative()),
    "contrib.mechanize": lambda tx: optax.contrib.mechanize(sgd(tx)),
    "contrib.schedule_free": lambda tx: optax.contrib.schedule_free(sgd(tx), 0.1),
    "contrib.sam": lambda tx: optax.contrib.sam(sgd(tx), optax.sgd(0.05), sync_period=2),
    "contrib.sam, the adversary": lambda tx: optax.contrib.sam(optax.sgd(0.1), sgd(tx), sync_period=2),
    "contrib.split_real_and_imaginary": optax.contrib.split_real_and_imaginary,
    "contrib.galore": lambda tx: optax.contrib.galore(0.1, rank=1, base_optimizer=tx),
    "contrib.scale_by_galore": lambda tx: optax.contrib.scale_by_galore(rank=1, base_optimizer=tx),
    "contrib.sophia": lambda tx: optax.contrib.sophia(0.1, hessian_diagonal_fn=tx, update_interval=1),
}
if hasattr(aggregating, "process"):
    COMBINATORS["aggregating.process"] = lambda tx: aggregating.process(optax.identity(), tx, optax.sgd(0.1))
LATER = () if WRITTEN_FOR else ("selective_transform", "monitor", "snapshot", "freeze", "galore", "scale_by_galore")
"""What optax 0.2.5 lacks."""
for name in [name for name in COMBINATORS if name.rpartition(".")[2] in LATER]:
    del COMBINATORS[name]
WITH_A_COND = ("aggregating", "apply_if", "conditionally", "MultiSteps", "lookahead", "lbfgs", "contrib.")
TX = gx.chain(gx.clip_value(2.0), gx.ema(0.9), gx.trace(0.5))
NATIVE = optax.chain(optax.clip(2.0), optax.ema(0.9), optax.trace(0.5))


def run(name: str, tx: Any, steps: int = 4) -> Any:
    """The parameters after each of some steps, one of them large."""
    optimizer = COMBINATORS[name](tx)
    params = jax.tree.map(jnp.asarray, PARAMS)
    if name == "lookahead":
        params = optax.LookaheadParams.init_synced(params)

    # Eager mode shares compiled operations between combinators, but compiles each cond again.
    update = jax.jit(optimizer.update) if name.startswith(WITH_A_COND) else optimizer.update
    state = optimizer.init(params)
    for i in range(steps):
        gradient = {path: jnp.asarray(np.cos(leaf * 7 + i) * (30 if i == 2 else 3)) for path, leaf in PARAMS.items()}
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


@slow(TRAINS)
@pytest.mark.parametrize("name", COMBINATORS)
def test_a_transform_trains_like_optax_in_a_combinator(name: str) -> None:
    found, wanted = run(name, TX), run(name, NATIVE)
    assert_close(found, wanted, rtol=3e-6, atol=1e-6)
    moved = found.fast if name == "lookahead" else found
    assert not np.array_equal(moved["w" if name != "freeze" else "b"], PARAMS["w" if name != "freeze" else "b"])


GROWS = {"monitor", "snapshot"}
"""optax adds its measurements to a state that was created without them."""
MULTIPLIES = {"contrib.sam", "contrib.sam, the adversary"}
"""optax selects between two states by adding products, which turns bools into numbers."""


@pytest.mark.parametrize("name", COMBINATORS)
def test_in_a_combinator_every_state_goes_through_a_trace_and_keeps_its_form(name: str) -> None:
    params = jax.tree.map(jnp.asarray, PARAMS)
    if name == "lookahead":
        params = optax.LookaheadParams.init_synced(params)
    gradient = params.fast if name == "lookahead" else params
    for kind, tx in STATEFUL.items():
        optimizer = COMBINATORS[name](tx)
        state = jax.eval_shape(optimizer.init, params)
        updates, new = jax.eval_shape(optimizer.update, gradient, state, params)
        assert jax.tree.structure(updates) == jax.tree.structure(params), kind
        if name not in GROWS:
            assert jax.tree.structure(new) == jax.tree.structure(state), kind
        if name not in GROWS | MULTIPLIES:
            kinds = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(part)] for part in (state, new)]
            assert kinds[0] == kinds[1], kind


def test_tree_get_and_tree_set_find_what_is_in_our_states() -> None:
    tx = optax.chain(gx.chain(CLIP, gx.ema(0.9)), optax.adam(0.1))
    state = tx.init(grads())
    assert_bits(optax.tree.get(state, "ema"), jax.tree.map(np.zeros_like, CLIPPED))
    new = optax.tree.set(state, ema=grads())
    assert_bits(optax.tree.get(new, "ema"), grads())


@pytest.mark.parametrize("name", STATEFUL)
def test_tree_map_params_changes_what_is_of_the_parameters_form(name: str) -> None:
    tx, params = STATEFUL[name], {"b": jnp.ones(7), "w": jnp.ones((3, 5))}
    for outer in (tx, optax.chain(CLIP, tx, optax.adam(0.1))):
        state = outer.init(params)
        new = optax.tree.map_params(outer, lambda leaf: leaf + 1, state)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
            assert np.array_equal(b, a + 1 if a.shape in ((7,), (3, 5), (3, 1)) else a)


# --- hyperparameters that are injected -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name"),
    [(gx.clip_norm, "max_norm"), (gx.clip_rms, "max_rms"), (gx.clip_value, "max_abs"), (gx.scale, "factor")],
)
def test_a_hyperparameter_that_is_set_by_hand_between_steps_does_not_retrace(make: Any, name: str) -> None:
    assert name in inspect.signature(make).parameters
    tx = optax.chain(optax.inject_hyperparams(make)(**{name: 1.0}), optax.scale(-1.0))
    traces = []

    @jax.jit
    def step(tree: Any, state: Any) -> Any:
        traces.append(state)
        return tx.update(tree, state)

    state = jax.jit(tx.init)(grads())
    for limit in (1.0, 0.5, 2.0, 100.0):
        state[0].hyperparams[name] = jnp.asarray(limit, jnp.float32)
        updates, state = step(grads(), state)
        assert_ulp(jax.tree.map(np.negative, updates), make(limit)(grads()))
    assert len(traces) == 1


# --- optax in gradxform ----------------------------------------------------------------------------------------------


def test_optax_after_stop_has_no_state_for_what_is_stopped() -> None:
    tx = gx.partition({"w": gx.stop()}, default=optax.trace(0.9))
    state = tx.init(grads())
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [(1,)]


VALUE = {"value": True}
ADAM = functools.partial(optax.adam, 0.1)
IN_GRADXFORM: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[str, bool]]] = {
    "adamw": (lambda: gx.chain(optax.adamw(0.1, weight_decay=0.5)), lambda: optax.adamw(0.1, weight_decay=0.5), {}),
    "skip_nonfinite": (lambda: gx.skip_nonfinite(ADAM()), lambda: optax.apply_if_finite(ADAM(), 3), {}),
    "accumulate": (lambda: gx.accumulate(ADAM(), 2), lambda: optax.MultiSteps(ADAM(), 2), {}),
    "lbfgs": (lambda: gx.chain(optax.lbfgs(0.1, linesearch=None)), lambda: optax.lbfgs(0.1, linesearch=None), {}),
    "polyak, in three chains": (
        lambda: gx.jax.as_optax(gx.chain(gx.scale(0.5), gx.chain(gx.chain(optax.polyak_sgd(1.0))))),
        lambda: optax.chain(optax.scale(0.5), optax.polyak_sgd(1.0)),
        VALUE,
    ),
    "polyak, masked": (
        lambda: gx.masked(gx.chain(optax.polyak_sgd(1.0)), "w"),
        lambda: optax.masked(optax.polyak_sgd(1.0), ONLY_W),
        VALUE,
    ),
    "polyak, on steps that are not skipped": (
        lambda: gx.skip_large(gx.skip_nonfinite(optax.polyak_sgd(1.0)), 100.0),
        lambda: optax.polyak_sgd(1.0),
        VALUE,
    ),
    "reduce_on_plateau": (
        lambda: optax.chain(
            gx.jax.as_optax(gx.chain(gx.scale(0.5), optax.contrib.reduce_on_plateau(patience=1))), optax.sgd(0.1)
        ),
        lambda: optax.chain(optax.scale(0.5), optax.contrib.reduce_on_plateau(patience=1), optax.sgd(0.1)),
        VALUE,
    ),
    "contrib.momo, in partition": (
        lambda: gx.partition({"w": optax.contrib.momo(0.1)}, default=optax.sgd(0.1)),
        lambda: optax.partition({"w": optax.contrib.momo(0.1), "b": optax.sgd(0.1)}, {"w": "w", "b": "b"}),
        VALUE,
    ),
}


@pytest.mark.parametrize("name", IN_GRADXFORM)
def test_optax_transforms_act_alike_in_gradxform(name: str) -> None:
    *makes, extra = IN_GRADXFORM[name]

    def trained(optimizer: Any) -> Any:
        params = jax.tree.map(jnp.asarray, PARAMS)
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for i in range(4):
            gradient = {path: jnp.asarray(np.cos(leaf * 7 + i)) for path, leaf in PARAMS.items()}
            given = dict.fromkeys(extra, jnp.float32(5.0 - i // 2))
            updates, state = update(gradient, state, params, **given)
            params = optax.apply_updates(params, updates)
        return params

    found, wanted = (trained(make()) for make in makes)
    assert_close(found, wanted)
    assert float(jnp.max(jnp.abs(found["w"] - PARAMS["w"]))) > 1e-3


def test_an_update_has_the_dtype_of_its_gradient_where_optax_alone_would_have_that_of_its_state() -> None:
    gradient, params = {"w": jnp.ones(2, jnp.bfloat16)}, {"w": jnp.ones(2)}
    native, chained = optax.adam(0.1, mu_dtype=jnp.float32), gx.chain(optax.adam(0.1, mu_dtype=jnp.float32))
    for tx, dtype in ((native, np.float32), (chained, jnp.bfloat16), (optax.chain(gx.chain(CLIP), native), np.float32)):
        assert tx.update(gradient, tx.init(params), params)[0]["w"].dtype == dtype


# --- freeze, around every optimizer ----------------------------------------------------------------------------------

FROZEN = {"embedding": {"table": np.float32([[0.1, -3.3], [2e-38, -0.0]])}, "head": np.ones((2, 2), np.float32)}
SPECIAL: dict[str, Callable[[], Any]] = {
    "lbfgs": lambda: optax.lbfgs(0.1, linesearch=None),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=jax.random.key(0)),
    "polyak_sgd": lambda: optax.polyak_sgd(0.1),
}
NOT_FROZEN = {
    "optimistic_adam": "deprecated: it warns, and is optimistic_adam_v2",
    "scale_by_learning_rate": "a transformation, and no optimizer",
    "scale_by_rprop": "a transformation, and no optimizer",
    "contrib.scale_by_madgrad": "a transformation, and no optimizer",
    "contrib.dpsgd": "takes the gradients of each example, so that those of the frozen have another shape",
    "contrib.sophia": "evaluates a loss of all parameters, and would be handed some",
}
VALUES = ("contrib.momo", "contrib.momo_adam", "polyak_sgd")


def optimizers() -> list[str]:
    """The optax functions whose first argument is a learning rate, and optimizers without one."""
    found = []
    for prefix, place in (("", optax), ("contrib.", optax.contrib)):
        for name, value in sorted(vars(place).items()):
            if (
                name[0] != "_"
                and inspect.isfunction(value)
                and next(iter(inspect.signature(value).parameters), "") == "learning_rate"
            ):
                found.append(prefix + name)
    return sorted({*found, *SPECIAL})


@slow(TRAINS, lambda name: not name.endswith("adam"))
@pytest.mark.parametrize("name", [name for name in optimizers() if name not in NOT_FROZEN])
def test_freeze_around_an_optimizer_changes_no_bit_of_what_is_frozen(name: str) -> None:
    place = optax.contrib if name.startswith("contrib.") else optax
    make = getattr(place, name.removeprefix("contrib."))
    inner = SPECIAL[name]() if name in SPECIAL else make(learning_rate=0.1)
    optimizer = gx.jax.freeze(inner, "embedding/**")
    params = jax.tree.map(jnp.asarray, FROZEN)
    gradient = {"embedding": {"table": jnp.array([[1.0, jnp.nan], [-jnp.inf, 2.0]])}, "head": jnp.full((2, 2), 2.0)}
    extra = {"value": jnp.float32(3.0)} if name in VALUES else {}
    state = optimizer.init(params)
    for _ in range(2):
        updates, state = optimizer.update(gradient, state, params, **extra)
        params = optax.apply_updates(params, updates)
    assert_bits(params["embedding"], FROZEN["embedding"])
    assert not np.array_equal(params["head"], FROZEN["head"])
    assert np.isfinite(params["head"]).all()


def test_freeze_hands_on_extra_arguments() -> None:
    optimizer = optax.chain(gx.jax.freeze(optax.chain(CLIP, optax.contrib.reduce_on_plateau(0.5, patience=1)), "b"))
    state = optimizer.init(grads())
    for _ in range(2):
        updates, state = optimizer.update(grads(), state, grads(), value=jnp.float32(1.0))
    assert_ulp(updates, {"b": -np.zeros(1, np.float32), "w": np.float32([0.3, 0.4])})
