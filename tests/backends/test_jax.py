"""gradxform on JAX: in optax, and under every JAX transformation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import XLA, assert_bits, assert_ulp, f32, python, slow, tensors

import gradxform as gx

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

from gradxform_jax.namespace import Namespace  # noqa: E402

CLIP = gx.clip_norm(1.0)
GRADS = {"b": f32(0.1), "w": f32(3, 4)}
CLIPPED = {"b": f32(0.1), "w": f32(0.6, 0.8)}


def grads() -> Any:
    return tensors("jax", GRADS)


def count_compilations(work: Callable[[], Any]) -> int:
    """The number of programs that XLA compiles."""
    events: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(work())
    finally:
        # JAX 0.8 has no public function that removes one listener.
        getattr(jax.monitoring, "unregister_event_duration_listener", lambda _: jax.monitoring.clear_event_listeners())(
            listen
        )
    return sum("backend_compile" in event for event in events)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_power_of_two_is_of_the_scope_in_which_it_is_traced(dtype: str) -> None:
    form = np.finfo(dtype)
    given = np.array([0.0, form.tiny / 2, form.tiny, 1.0, 3.999, form.max, np.inf, np.nan, -2.0], dtype)
    wanted = np.array([1.0, form.tiny, form.tiny, 1.0, 2.0, 2.0 ** (form.maxexp - 1), 1.0, 1.0, 1.0], dtype)

    def powers(numbers: Any) -> Any:
        with jax.enable_x64(True):
            return Namespace.power_of_two(numbers)

    with jax.enable_x64(True):
        numbers = jnp.asarray(given)
    assert_bits(np.asarray(jax.jit(powers)(numbers)), wanted)


# --- the adapters ----------------------------------------------------------------------------------------------------


def test_as_optax_is_an_instance_of_optax_own_types() -> None:
    tx = gx.jax.as_optax(CLIP)
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    assert isinstance(tx, optax.GradientTransformation)
    assert_ulp(jax.jit(tx.update)(grads(), tx.init(grads()))[0], CLIPPED)


def test_extra_arguments_are_not_handed_to_what_takes_none() -> None:
    tx = gx.chain(optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s)))
    assert_bits(tx.update(grads(), tx.init(grads()), value=1.0)[0], GRADS)


def test_as_optax_refuses_what_is_no_transformation() -> None:
    with pytest.raises(TypeError, match=r"as_optax.*'clip'"):
        gx.jax.as_optax("clip")


def test_a_pattern_is_checked_when_optax_starts() -> None:
    params = {"embedding": {"table": jnp.ones(1)}, "head": jnp.ones(1)}
    tx = gx.freeze(["head", "table"])
    for optimizer in (gx.jax.as_optax(tx), optax.chain(tx, optax.sgd(0.1)), gx.jax.freeze(optax.sgd(0.1), ["table"])):
        for init in (optimizer.init, jax.jit(optimizer.init)):
            with pytest.raises(ValueError, match=r"'table' matches no path; .*; did you mean '\*\*/table'\?"):
                init(params)
    frozen = gx.jax.freeze(optax.sgd(0.1), lambda path: path == "head")
    updates, _ = frozen.update(params, frozen.init(params), params)
    assert (updates["embedding"]["table"].item(), updates["head"].item()) == (pytest.approx(-0.1), 0.0)


DONATED: dict[str, Callable[[Any, Any], Any]] = {
    "gradients": lambda old, state: CLIP(old),
    "a state": lambda old, state: gx.trace(0.9).update(grads(), state),
    "parameters": lambda old, state: gx.add_decayed_weights(0.1).update(grads(), None, old),
    "norms": lambda old, state: gx.global_norm(old),
    "paths": lambda old, state: gx.nonfinite_paths(old),
    "to_numpy": lambda old, state: gx.to_numpy(state),
}


@pytest.mark.parametrize("use", DONATED)
def test_arrays_that_were_donated(use: str) -> None:
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any) -> Any:
        return gx.trace(0.9).update(params, state)

    old = params, state = grads(), gx.trace(0.9).init(grads())
    for _ in range(2):
        params, state = step(params, state)  # as the message says
    jax.tree_util.tree_map(lambda array: array.is_deleted() or array.delete(), old)  # not every device donates
    with pytest.raises((ValueError, TypeError), match=r"deleted .*params, state = step\(params, state\)"):
        DONATED[use](*old)


STRICT = {
    "jax_debug_nans": True,
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
}


@slow(XLA, lambda mode, option: mode == "eager" or "promotion" in option)
@pytest.mark.parametrize("option", STRICT)
@pytest.mark.parametrize("mode", ["eager", "jitted"])
def test_the_numbers_do_not_depend_on_how_strict_jax_is(mode: str, option: str) -> None:
    given = {"w": f32([3, -4], [0, 1e-3]), "b": f32(0.1), "h": np.asarray(f32(2, 5), jnp.bfloat16)}
    expressions = "clip_norm(0.1, axes=0)", "ema(0.9)", "add_noise(0.1, 0)"
    tx = gx.chain(gx.clip_norm(1.0), gx.clip_global_norm(0.5), gx.scale(-0.1), *map(gx.parse, expressions))

    def run() -> Any:
        update = jax.jit(tx.update) if mode == "jitted" else tx.update
        leaves = {name: jnp.asarray(leaf) for name, leaf in given.items()}
        return update(leaves, tx.init(leaves))[0]

    wanted, before = run(), getattr(jax.config, option)
    jax.config.update(option, STRICT[option])
    try:
        found = run()
    finally:
        jax.config.update(option, before)
    assert_bits(found, wanted)


# --- transformations of JAX ------------------------------------------------------------------------------------------

SOME = {
    "clip_norm": gx.clip_norm(1.0),
    "clip_global_norm": gx.clip_global_norm(1.0),
    "clip_norm, ord 3": gx.clip_norm(1.0, ord=3),
    "clip_norm, ord inf": gx.clip_norm(1.0, ord=float("inf")),
    "clip_norm, ord 1": gx.clip_norm(1.0, ord=1),
    "clip_norm, axes": gx.clip_norm(1.0, axes=-1),
    "chain": gx.chain(gx.clip_norm(0.5), gx.clip_value(0.3), gx.clip_global_norm(0.4), gx.scale(-0.1)),
}


WEIGHTS = np.array([1.0, 2.0, -0.5])


def loss(tx: Any) -> Callable[[Any], Any]:
    return lambda g: jnp.sum(jnp.asarray(WEIGHTS, g.dtype) * tx(g))


def in_scan(tx: Any) -> Callable[[Any], Any]:
    return lambda g: jax.lax.scan(lambda carry, _: (tx(1.5 * carry), None), g, None, length=2)[0]


def in_cond(tx: Any) -> Callable[[Any], Any]:
    return lambda g: jax.lax.cond(g[0] > 0, tx, gx.identity(), g)


WAYS = {
    "reverse, in scan": lambda f: jax.jit(jax.jacrev(in_scan(f))),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f)),
    "forward over reverse, in cond": lambda f: jax.jacfwd(jax.jacrev(in_cond(f))),
    "forward, rematerialised": lambda f: jax.jacfwd(jax.checkpoint(f)),
}


@slow(XLA, way=("reverse over reverse", "forward over reverse, in cond"))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "ord"), [("clip_global_norm", 2), ("clip_norm, ord 3", 3), ("clip_norm, ord inf", np.inf)]
)
def test_derivatives_without_64_bits_are_those_of_the_formula_with_them(name: str, ord: float, way: str) -> None:
    narrow = WAYS[way](SOME[name])(jnp.array([3.0, -4.0, 2.0]))
    with jax.enable_x64(True):
        formula = WAYS[way](lambda g: g * jnp.minimum(1.0, 1.0 / jnp.linalg.norm(g, ord)))
        wide = formula(jnp.array([3.0, -4.0, 2.0]))
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, wide, rtol=2e-6, atol=2e-7)


@slow(XLA, count=40)
@pytest.mark.parametrize("count", [8, 40])
@pytest.mark.parametrize("first", ["outside", "inside"])
def test_norms_measured_in_a_branch_are_measured_again_outside(first: str, count: int) -> None:
    @gx.transform
    def by_largest(g: Any) -> Any:
        norms = g.norms() if first == "outside" else None

        def largest() -> Any:
            return g.compute(lambda xp, norm: xp.max(norm), norms or g.norms())

        factor = jax.lax.cond(
            g.leaves[0][0] > 0, largest, lambda: g.compute(lambda xp, norm: 1.0 / xp.max(norm), norms or g.norms())
        )
        return g.scaled(factor).scaled(g.compute(lambda xp, norm: 1.0 / norm, g.norms()))

    leaves = [jnp.full(4, i + 1.0) for i in range(count)]
    for found in (by_largest(leaves), jax.jit(lambda g: by_largest(g))(leaves)):
        assert_ulp(found, [np.full(4, count, np.float32)] * count)


def test_no_tracer_leaks() -> None:
    with jax.checking_leaks():
        jax.jit(lambda g, c: gx.chain(gx.clip_norm(c), gx.clip_value(c), gx.scale(c))(g))(grads(), 0.5)
    assert_ulp(CLIP(grads()), CLIPPED)


def test_no_nan_on_the_way_to_a_finite_result() -> None:
    with jax.debug_nans(True):
        assert jax.jit(jax.grad(loss(CLIP)))(jnp.zeros(3)).tolist() == WEIGHTS.tolist()
        assert gx.clip_norm(0.0)(jnp.zeros(3)).tolist() == [0.0, 0.0, 0.0]


# --- trees -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [{}, {"w": np.float32([3.0, 4.0])}], ids=["alone", "beside NumPy"])
def test_float0_passes_through_without_a_jax_array(beside: Any) -> None:
    hole = np.zeros(2, jax.dtypes.float0)
    result = gx.clip_norm(1.0)({"n": hole, **beside})
    assert result["n"].dtype == jax.dtypes.float0


@pytest.mark.parametrize("tx", [*SOME.values(), gx.ema(0.9), gx.trace(0.9), gx.add_decayed_weights(0.1)], ids=repr)
@pytest.mark.parametrize("jit", [False, True])
def test_weak_types_stay_weak(tx: Any, jit: bool) -> None:
    tree = {"weak": jnp.asarray([3.0] if "axes" in repr(tx) else 3.0) * 1.0, "strong": jnp.ones(2)}
    updates, _ = (jax.jit(tx.update) if jit else tx.update)(tree, tx.init(tree), tree)
    for name, leaf in updates.items():
        assert (leaf.weak_type, leaf.dtype) == (tree[name].weak_type, tree[name].dtype)
    assert tree["weak"].weak_type or "axes" in repr(tx)


# --- limits, retraces, 64 bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [float, jnp.float32])
def test_a_new_limit_compiles_nothing_in_eager(kind: Any) -> None:
    def clip(c: float) -> Any:
        return gx.chain(gx.clip_norm(kind(c)), gx.clip_global_norm(kind(2 * c)), gx.scale(kind(-c)))(tree)

    tree = grads()
    clip(1.0)
    assert count_compilations(lambda: jax.jit(lambda x: x * 5 + 3)(jnp.ones(7))) > 0
    assert count_compilations(lambda: clip(0.7)) == 0


def _many_leaves(count: int) -> Any:
    """Small leaves of one shape, of several sizes of numbers."""
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((3, 5)) * 10.0 ** (i % 7 - 3)).astype(np.float32) for i in range(count)]


def test_many_leaves_are_compiled_in_parts() -> None:
    """Twice as many leaves of one shape take no other programs but that of the norms and those for a vector."""
    tx = gx.chain(gx.clip_value(2.0), gx.clip_norm(1.0), gx.scale(0.5))
    few, many = (list(map(jnp.asarray, _many_leaves(count))) for count in (64 * 5, 64 * 10))
    jax.block_until_ready(tx(few))
    assert count_compilations(lambda: tx(many)) <= 3


@pytest.mark.parametrize("tx", [gx.clip_adagc(warmup=1), gx.clip_percentile(50.0, per_leaf=True)], ids=repr)
def test_limits_of_many_leaves_take_no_slice_each(tx: Any) -> None:
    """XLA compiles each slice of a vector by itself: 300 leaves took 11 s."""
    leaves = {f"layer{i}": leaf for i, leaf in enumerate(_many_leaves(40))}  # "layer10" is before "layer2"
    arrays = jax.tree.map(jnp.asarray, leaves)
    assert jax.jit(tx.update).lower(arrays, tx.init(arrays)).as_text().count("stablehlo.slice") < 4
    for update in (tx.update, jax.jit(tx.update)):
        state, wanted_state = tx.init(arrays), tx.init(leaves)
        for factor in (1.0, 2.0, 4.0):
            found, state = update({name: leaf * factor for name, leaf in arrays.items()}, state)
            wanted, wanted_state = tx.update({name: leaf * factor for name, leaf in leaves.items()}, wanted_state)
            assert_ulp(found, wanted)


def test_the_derivative_in_the_limits_of_many_leaves() -> None:
    leaves = [jnp.full(4, i + 1.0) for i in range(40)]
    tx = gx.clip_percentile(50.0, window=1, per_leaf=True)  # the limit is the norm itself

    def total(factor: Any) -> Any:
        updates, _ = tx.update([leaf * factor for leaf in leaves], tx.init(leaves))
        return sum(map(jnp.sum, updates))

    assert_ulp(jax.grad(total)(1.0), np.float32(4 * 820))


def test_64_bits_do_not_come_out_where_they_are_off() -> None:
    program = str(jax.make_jaxpr(lambda g: gx.clip_global_norm(1.0)(g))(jnp.ones(3)))
    assert "f64" in program
    assert jax.jit(gx.clip_global_norm(1.0))(jnp.ones(3)).dtype == np.float32
    assert jnp.asarray(np.float64(1.0)).dtype == np.float32


def test_64_bits_switched_on_for_a_whole_program() -> None:
    python(
        "-c",
        "import jax, jax.numpy as jnp, optax, gradxform as gx\n"
        "tx = optax.chain(gx.clip_global_norm(1.0), optax.sgd(1.0))\n"
        "g = {'a': jnp.array([3.0, 4.0]), 'b': jnp.zeros(2, jnp.float32)}\n"
        "u, _ = jax.jit(tx.update)(g, tx.init(g))\n"
        "assert u['a'].dtype == 'float64' and u['b'].dtype == 'float32'\n"
        "assert abs(u['a'] - jnp.array([-0.6, -0.8])).max() < 3e-16, u\n",
        JAX_PLATFORMS="cpu",
        JAX_ENABLE_X64="1",
    )


def test_a_trace_starts_no_devices() -> None:
    """`jax.distributed.initialize` must come before."""
    python(
        "-c",
        "import jax, gradxform as gx, numpy as np; jax.eval_shape(gx.clip_norm(1.0), [np.ones(64, np.float32)]);"
        "jax.config.update('jax_num_cpu_devices', 3);"  # an error once JAX has looked for devices
        "assert len(jax.devices('cpu')) == 3",
    )
