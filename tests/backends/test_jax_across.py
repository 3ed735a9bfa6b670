"""`across` in JAX: eight forced devices in a subprocess, and `vmap` with an axis name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import across_cases as cases
import numpy as np
import pytest
from support import PROCESSES, assert_ulp, f32, python, slow

import gradxform as gx
from gradxform.proof.registry import Row
from gradxform.proof.ulp import SUMS

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

CLIP = gx.clip_global_norm(1.0)
STAGES = {"w": f32([3, 0], [0, 4]), "tied": f32([12], [12])}
"""One row per device."""


def over(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.vmap(function, axis_name="d")


@slow(PROCESSES)
@pytest.mark.parametrize(
    ("how", "dtype"),
    [("shard_map", "float32"), ("two axes", "bfloat16"), ("pmap", "float32"), ("vmap", "float64")],
)
def test_on_eight_devices(how: str, dtype: str) -> None:
    reports = json.loads(python("tests/backends/jax_across.py", how, dtype).stdout.splitlines()[-1])
    assert len(reports) >= 2 * len(cases.FEW)
    for name, found in reports.items():
        split, expression = name.split(": ", 1)
        assert found["off"] <= cases.budget(expression, dtype), name
        assert found["measures"] <= 2, name
        assert found["differ"] == [], name
        assert found["collectives"] == cases.TRANSFORMS[expression][split == "leaves"], name
        # At most eight numbers a device.
        assert found["numbers"] <= 8 * (8 if how == "vmap" else 1) * 8, name


@slow(PROCESSES)
def test_on_eight_devices_what_lies_on_all_is_proven_to_be_the_same() -> None:
    reports = json.loads(python("tests/backends/jax_across.py", "proven", "float32").stdout.splitlines()[-1])
    for name, found in reports.items():
        assert found["off"] <= (2 * SUMS if Row(name).sums else 2), name
        assert set(found["traffic"]) <= {"all-reduce"}, name
        assert found["moves"] == (0 if "noise" in name else 2), name  # one for each axis
        assert found["traffic"].get("all-reduce", 0) <= 24, name


@pytest.mark.parametrize("jitted", [False, True])
def test_a_vmapped_axis(jitted: bool) -> None:
    for split, replicated, wanted in (
        ("tree", None, {"w": STAGES["w"] / np.sqrt(313), "tied": STAGES["tied"] / np.sqrt(313)}),
        ("tree", "tied", {"w": STAGES["w"] / 13, "tied": STAGES["tied"] / 13}),
        ("leaves", "tied", {"w": STAGES["w"] / 13, "tied": STAGES["tied"] / 13}),
    ):
        run = over(gx.across(CLIP, "d", split=split, replicated=replicated))
        assert_ulp((jax.jit(run) if jitted else run)(STAGES), jax.tree.map(np.float32, wanted), 1)


def test_jax_draws_noise_on_each_device_for_itself() -> None:
    zeros = {"w": jnp.zeros((2, 8)), "tied": jnp.zeros((2, 8))}
    tx = gx.across(gx.add_noise(1.0, seed=3), "d", replicated="tied")
    found, _ = jax.vmap(tx.update, in_axes=(0, None), out_axes=(0, None), axis_name="d")(zeros, tx.init(zeros))
    assert np.array_equal(found["tied"][0], found["tied"][1])
    assert not np.array_equal(found["w"][0], found["w"][1])


def test_derivatives_through_a_norm_of_all_devices() -> None:
    """The results equal those of one device with both rows."""

    def loss(tx: Any, rows: Any) -> Any:
        return jnp.sum(tx(rows) * jnp.arange(1.0, 5.0).reshape(2, 2))

    rows = jnp.asarray(STAGES["w"]) + 0.5
    found = jax.grad(lambda x: loss(over(gx.across(CLIP, "d")), x))(rows)
    np.testing.assert_allclose(found, jax.grad(lambda x: loss(CLIP, x))(rows), rtol=1e-5)


def test_jax_scans_and_optax_take_it() -> None:
    tx = optax.chain(gx.across(gx.skip_nonfinite(gx.clip_percentile(50.0, 3)), "d", replicated="tied"), optax.sgd(0.1))

    def run(rows: Any) -> Any:
        def step(state: Any, scale: Any) -> Any:
            updates, state = tx.update(jax.tree.map(lambda leaf: leaf * scale, rows), state)
            return state, updates

        return jax.lax.scan(step, tx.init(rows), jnp.array([1.0, jnp.nan, 3.0]))[1]

    found = jax.jit(over(run))(STAGES)
    assert_ulp(found["w"][:, 0], -0.1 * STAGES["w"], 1)
    assert not found["w"][:, 1].any()
    assert_ulp(found["w"][:, 2], STAGES["w"] * np.float32(-0.1 * 2), 2)  # 39, to the median of 13 and 39


@pytest.mark.parametrize(
    "expression",
    ["clip_norm(1.0)", "chain(clip_rms(0.1), clip_norm(0.5), trace(0.5))", "normalize_norm()", "top_k(0.3)"],
)
def test_shard_map_knows_that_a_replicated_leaf_stays_replicated(expression: str) -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"r": jax.sharding.PartitionSpec(), "v": jax.sharding.PartitionSpec("x")}
    tx, leaves = gx.parse(expression), {"r": jnp.array([3.0, 4.0]), "v": jnp.arange(8.0)}
    mapped = jax.shard_map(
        lambda tree: tx.update(tree, tx.init(tree))[0], mesh=mesh, in_specs=(specs,), out_specs=specs
    )
    assert_ulp(jax.jit(mapped)(leaves), tx.update(leaves, tx.init(leaves))[0])


def test_a_rebuilt_equal_across_does_not_retrace() -> None:
    traces = []
    run = jax.jit(lambda tx, rows: traces.append(1) or over(tx)(rows), static_argnums=0)
    for _ in range(3):
        run(gx.across(CLIP, "d", replicated="tied"), STAGES)
    assert traces == [1]


def test_across_is_a_value() -> None:
    for tx in (
        gx.across(CLIP, "d"),
        gx.across(CLIP, ("x", "y"), split="leaves", replicated="**/tied"),
        gx.across(gx.across(gx.skip_nonfinite(CLIP), "pipe"), "model", split="leaves"),
    ):
        assert gx.parse(repr(tx)) == tx and hash(gx.parse(repr(tx))) == hash(tx)
    assert gx.across(CLIP, "d") != gx.across(CLIP, "e")
    assert gx.across(CLIP, "d") != gx.across(CLIP, "d", split="leaves")
    assert gx.across(CLIP, "d").traits.axes == ("d",)
    assert gx.chain(gx.masked(gx.across(gx.across(CLIP, "b"), "a"), "w"), gx.across(CLIP, "c")).traits.axes == (
        "a",
        "b",
        "c",
    )
    assert not gx.across(CLIP, "d").stateful and gx.across(gx.trace(0.9), "d").stateful


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: gx.across(CLIP, "d", split="rows"), ValueError, r"split must be 'tree' .* or 'leaves', got 'rows'"),
        (lambda: gx.across(CLIP, 3), TypeError, r"axis must be a JAX axis name .* got 3 of type int"),
        (lambda: gx.across(CLIP, ""), ValueError, r"axis must be a name, or a tuple of different names"),
        (lambda: gx.across(CLIP, ("x", "x")), ValueError, r"axis must be a name, or a tuple of different names"),
        (lambda: gx.across(CLIP, ("x", 1)), TypeError, r"a name or a tuple of names, got \('x', 1\)"),
        (lambda: gx.across(CLIP, ()), ValueError, r"axis must be a name"),
        (lambda: gx.across(CLIP, -100), TypeError, r"do not use across in this process"),
        (
            lambda: gx.across(jnp.tanh, "d"),
            TypeError,
            r"across: expected a transformation or an object with init and update",
        ),
        (lambda: gx.across(CLIP, "d", replicated=3), TypeError, r"across: where must be a glob"),
        (lambda: gx.across(CLIP, "d")([np.ones(2)]), TypeError, r"NumPy has one device, and no axis 'd'"),
        (
            lambda: gx.across(CLIP, "d")([jnp.ones(2)]),
            ValueError,
            r"no axis 'd' is mapped here.*shard_map.*axis_name='d'",
        ),
        (
            lambda: over(gx.across(gx.across(CLIP, "d"), "d"))(STAGES),
            ValueError,
            r"two nested across use the same axis 'd'",
        ),
        (
            lambda: over(gx.across(gx.across(CLIP, ("d",)), "d"))(STAGES),
            ValueError,
            r"two nested across use the same axis \('d',\)",
        ),
        (lambda: over(gx.across(CLIP, "d", replicated="head"))(STAGES), ValueError, r"pattern 'head' matches no path"),
        (lambda: gx.across(gx.trace(0.5), "d", replicated="head").init(STAGES), ValueError, r"'head' matches no path"),
    ],
)
def test_what_across_refuses(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_an_axis_of_the_mesh_that_no_code_is_mapped_over() -> None:
    mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh), pytest.raises(ValueError, match=r"'model' is an axis of the mesh.*leave across out"):
        jax.jit(gx.across(CLIP, "model"))([jnp.ones(2)])
    with (
        jax.set_mesh(mesh),
        pytest.raises(ValueError, match=r"no axis 'x' is mapped here; the mesh in use has 'model'"),
    ):
        jax.jit(gx.across(CLIP, "x"))([jnp.ones(2)])


@slow(PROCESSES)
def test_data_parallel_forms_of_the_page() -> None:
    """Each line of "Data parallel in JAX" (docs/guides/at-scale.md), beside the gradient of the whole batch."""
    found = json.loads(python("tests/backends/jax_data_parallel.py").stdout.splitlines()[-1])
    right = ["jit", "shard_map, loss", "unchecked, gradients", "pmap, gradients"]
    for name in right:
        np.testing.assert_allclose(found[name], 1.0, rtol=1e-6, err_msg=name)
    norms = {name: np.array(rows)[:, 0] for name, rows in found.items()}
    for name, factor in {"shard_map, gradients": 4, "shard_map, sum": 16, "unchecked, sum": 4}.items():
        np.testing.assert_allclose(norms[name], factor, rtol=1e-6, err_msg=name)
    for name in ("unchecked, loss", "pmap, loss"):  # each device has the gradient of its own part
        assert np.ptp(norms[name]) > 0.1, name
