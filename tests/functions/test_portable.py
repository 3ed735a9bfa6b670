"""States that move from one framework to another during training."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optree
import pytest
from support import FRAMEWORKS, XLA, array, assert_bits, assert_expected, call, run_advice, slow, tensors

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity

STEPS, CHANGE = 6, 3


def transformation() -> gx.GradientTransformation:
    """All stateful transforms, some with a row per gradient."""
    inner = gx.chain(
        gx.measure(gx.clip_percentile(60.0, 3, per_leaf=True)),
        gx.clip_zscore(1.0, 0.9, 2, per_leaf=True),
        gx.clip_global_norm(lambda t: 5.0 / (1.0 + t)),
        gx.masked(gx.ema(0.9), "layer/**"),
        gx.trace(0.5, nesterov=True),
        gx.error_feedback(gx.masked(gx.clip_norm(0.5), "layer/**")),
        gx.clip_adagc(1.1, 0.5, warmup=1),
        gx.clip_spikes(1.5, 0.5, warmup=1),
        gx.masked(gx.grokfast(0.5, 0.5), "layer/**"),
        gx.add_noise(0.01, seed=3),
    )
    return gx.skip_nonfinite(gx.skip_large(gx.accumulate(inner, 2), 1e6), max_consecutive=3)


PATHS = {"layer/w": (3, 5), "layer/b": (7,), "layer-2/w": (2, 3), "head": ()}


def gradients(step: int) -> dict[str, Any]:
    """Gradients by path; one step is NaN."""
    rng = np.random.default_rng(step)
    found = {path: np.asarray(rng.standard_normal(shape), np.float32) for path, shape in PATHS.items()}
    if step == CHANGE - 1:
        found["layer/b"][0] = np.nan
    return found


def nested(leaves: dict[str, Any]) -> Any:
    return {
        "layer": {"w": leaves["layer/w"], "b": leaves["layer/b"]},
        "layer-2": {"w": leaves["layer-2/w"]},
        "head": leaves["head"],
        "unused": None,
    }


def flat(leaves: dict[str, Any]) -> Any:
    return {path: leaves[path] for path in ("layer-2/w", "head", "layer/b", "layer/w")} | {"unused": None}


TREES = {
    "numpy": flat,
    "jax": nested,
    "tensorflow": flat,
    "torch": lambda leaves: dict(reversed(nested(leaves).items())),
}
"""The same paths in trees with another structure and order."""


def tree(framework: str, step: int) -> Any:
    return TREES[framework](tensors(framework, gradients(step)))


def by_path(framework: str, updates: Any) -> dict[str, Any]:
    return parity.named_leaves(updates, lookup.backend(framework))


def through_memory(state: Any, _: Path) -> Any:
    return gx.to_numpy(state)


def through_a_pickle(state: Any, _: Path) -> Any:
    return pickle.loads(pickle.dumps(gx.to_numpy(state)))


def through_an_npz(state: Any, folder: Path) -> Any:
    np.savez(folder / "state.npz", **gx.to_numpy(state, by_path=True))
    return np.load(folder / "state.npz")


WAYS = [through_memory, through_a_pickle, through_an_npz]


@slow(XLA, lambda before, after: "jax" in (before, after) and before != "numpy")
@pytest.mark.parametrize(("before", "after"), list(itertools.product(FRAMEWORKS, FRAMEWORKS)))
def test_a_run_goes_on_in_another_framework(before: str, after: str, tmp_path: Path) -> None:
    tx = transformation()
    wanted = parity.expected_steps(tx, [gradients(step) for step in range(STEPS)], gradients(0))
    at = before
    state = tx.init(tree(before, 0))
    for step in range(STEPS):
        if step == CHANGE:
            way = WAYS[(FRAMEWORKS.index(before) + FRAMEWORKS.index(after)) % len(WAYS)]
            at, old = after, state
            state = gx.from_numpy(way(state, tmp_path), like=tx.init(tree(after, 0)))
            assert_same_leaves(old, before, state, after)
        updates, state = tx.update(tree(at, step), state)
        assert_expected(by_path(at, updates), wanted[step], f"step {step}, in {at}")


def assert_same_leaves(old: Any, before: str, new: Any, after: str) -> None:
    """Bit-identical and of the right framework, including tables, whose rows are sorted."""
    leaves, others = by_path(before, old), by_path(after, new)
    assert all(lookup.owner(leaf) is lookup.backend(after) for leaf in optree.tree_leaves(new))
    assert_bits(others, leaves)


def test_rows_of_a_table_are_in_the_order_of_the_paths(framework: str) -> None:
    tx = gx.clip_percentile(50.0, 1, per_leaf=True)
    _, state = tx.update(tree(framework, 0), tx.init(tree(framework, 0)))
    norms = {path: np.linalg.norm(leaf.astype(float)) for path, leaf in gradients(0).items()}
    wanted = [norms.get(path, 0.0) for path in sorted([*PATHS, "unused"])]
    history = np.ravel(array(state.history))
    np.testing.assert_allclose(history, wanted, rtol=1e-6)


# --- what comes out --------------------------------------------------------------------------------------------------


def test_to_numpy_gives_a_state_of_its_own_memory(framework: str) -> None:
    tx = gx.chain(gx.trace(0.5), gx.clip_norm(lambda t: 1.0 + t))
    params = tensors(framework, {"w": np.float32([3.0, 4.0]), "n": None})
    _, state = tx.update(params, tx.init(params))
    found = gx.to_numpy(state)
    assert type(found[0]) is type(state[0]) and found[0].trace["n"] is None
    assert {type(leaf) for leaf in optree.tree_leaves(found)} == {np.ndarray}
    if framework in ("numpy", "torch"):
        state[0].trace["w"][0] = 99.0
        assert found[0].trace["w"].tolist() == [3.0, 4.0]
    updates, _ = tx.update({"w": np.float32([3.0, 4.0]), "n": None}, found)
    np.testing.assert_allclose(updates["w"], np.float32([4.5, 6.0]) / 7.5 * 2.0, rtol=1e-6)


def test_from_numpy_has_memory_of_its_own(framework: str) -> None:
    state = {"w": np.float32([3.0, 4.0])}
    found = gx.from_numpy(state, like=tensors(framework, {"w": np.zeros(2, np.float32)}))
    state["w"][0] = 99.0
    assert array(found["w"]).tolist() == [3.0, 4.0]
    found = gx.from_numpy(state, like=tensors(framework, np.zeros(1, np.float32)))
    state["w"][0] = 7.0
    assert array(found["w"]).tolist() == [99.0, 4.0]


def test_one_array_is_enough_of_a_likeness(framework: str) -> None:
    tx = gx.chain(gx.trace(0.5), gx.clip_percentile(50.0, 2))
    _, state = tx.update({"w": np.ones(3), "n": None}, tx.init({"w": np.ones(3), "n": None}))
    found = gx.from_numpy(state, like=tensors(framework, np.zeros(1)))
    assert type(found[1]) is type(state[1]) and found[0].trace["n"] is None
    assert all(lookup.owner(leaf) is lookup.backend(framework) for leaf in optree.tree_leaves(found))
    assert_bits(found, state)


def test_a_state_of_float32_goes_on_in_float64() -> None:
    found = gx.from_numpy({"x": np.float32([0.5])}, like={"x": np.zeros(1)})
    assert (found["x"].dtype, found["x"].tolist()) == (np.float64, [0.5])


def test_numbers_of_python_and_counts_of_other_widths(torch: Any) -> None:
    state = {"count": 3, "x": torch.ones(2), "n": torch.tensor(7)}
    saved = gx.to_numpy(state)
    assert saved["count"] == 3 and saved["x"].tolist() == [1.0, 1.0]
    found = gx.from_numpy(saved, like={"count": 0, "x": ZERO, "n": np.zeros((), np.int32)})
    assert found["count"] == 3 and type(found["count"]) is int and found["n"].dtype == np.int32


def test_bfloat16_from_an_npz(tmp_path: Path) -> None:
    import ml_dtypes

    leaf = np.array([1.5, -2.0]).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", x=leaf)
    found = gx.from_numpy(np.load(tmp_path / "x.npz"), like={"x": np.zeros_like(leaf)})
    assert (found["x"].dtype, found["x"].tolist()) == (leaf.dtype, [1.5, -2.0])


def test_an_npz_is_a_state_where_there_is_numpy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's tree engine accepts any mapping; NumPy's does not."""
    monkeypatch.setattr(lookup, "FRAMEWORKS", ("numpy",))
    np.savez(tmp_path / "x.npz", **{"a/b": np.ones(2, np.float32)})
    found = gx.from_numpy(np.load(tmp_path / "x.npz"), like={"a": {"b": ZERO}})
    assert found["a"]["b"].tolist() == [1.0, 1.0]


def test_a_random_key_of_jax_is_named(jax: Any) -> None:
    with pytest.raises(TypeError, match=r"(?s)'key' .*jax\.random\.key_data") as caught:
        gx.to_numpy({"key": jax.random.key(0)})
    advice = str(caught.value).rpartition(";")[2]  # after JAX's own
    assert run_advice(advice, lambda: {"jax": jax, "key": jax.random.key(0)}) == ["jax.random.key_data(key)"]


def test_states_without_arrays() -> None:
    assert gx.to_numpy(gx.EmptyState()) == gx.from_numpy(gx.EmptyState(), like=gx.EmptyState()) == gx.EmptyState()
    assert gx.to_numpy({"w": None}) == {"w": None}
    assert gx.to_numpy({"w": None}, by_path=True) == gx.to_numpy(gx.EmptyState(), by_path=True) == {}


def test_two_leaves_of_one_path_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="to_numpy: two leaves"):
        gx.to_numpy({"a": {"b": ZERO}, "a/b": ZERO}, by_path=True)


def test_containers_that_only_one_framework_knows(flax: Any, jnp: Any, torch: Any) -> None:
    tx = gx.trace(0.5)
    params = flax.core.freeze({"layer": {"w": jnp.array([3.0, 4.0])}})
    _, state = tx.update(params, tx.init(params))
    assert type(gx.to_numpy(state).trace) is type(params)
    found = gx.from_numpy(gx.to_numpy(state), like=tx.init({"layer/w": torch.zeros(2)}))
    assert found.trace["layer/w"].tolist() == [3.0, 4.0]
    back = gx.from_numpy(gx.to_numpy(found), like=tx.init(params))
    assert type(back.trace) is type(params) and back.trace["layer"]["w"].tolist() == [3.0, 4.0]


def test_a_state_goes_to_the_devices_of_its_likeness(torch: Any, jax: Any) -> None:
    found = gx.from_numpy({"x": np.zeros(2, np.float32)}, like={"x": torch.zeros(2, device="meta")})
    assert found["x"].device.type == "meta"
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {"x": jax.device_put(np.zeros(2, np.float32), sharding)}
    assert gx.from_numpy({"x": np.ones(2, np.float32)}, like=like)["x"].sharding == sharding


# --- errors ----------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    one: Any
    two: Any


ZERO = np.zeros(2, np.float32)


INT32, SAME = np.zeros(2, np.int32), {"a": {"b": ZERO}, "a/b": ZERO}
MISFITS: list[tuple[Any, Any, type[Exception], str]] = [
    ({"a": ZERO}, {"b": ZERO}, ValueError, r"lacks 'b'; .*no place for 'a'.*tx\.init\(params\)"),
    ({"a": ZERO}, {"a": ZERO, "b": ZERO}, ValueError, r"lacks 'b'\."),
    (Pair(ZERO, ZERO), Pair(ZERO, None), ValueError, r"no place for 'two'\."),
    ({"a": {"x": ZERO}}, {"a": {"x": np.zeros(3)}}, ValueError, r"'a/x' .*\(2,\).*\(3,\)"),
    ({"a": ZERO}, {"a": INT32}, ValueError, "'a' .*float32.*int32"),
    (SAME, SAME, ValueError, "two leaves .* the same path"),
    ({str(i): ZERO for i in range(9)}, {"0": ZERO}, ValueError, "no place for '1', '2', '3', '4', '5' and 3 more"),
    ({"a": ZERO}, gx.EmptyState(), TypeError, "no arrays.*'a'"),
    ({"a": "text"}, {"a": ZERO}, TypeError, "from_numpy: .*'a'"),
    ({"a": ZERO + 1j}, {"a": ZERO}, ValueError, "'a' .*complex64.*float32"),
    ({"a": np.full(2, 1e300)}, {"a": ZERO}, ValueError, "'a' .*float64.*float32"),
    ({"a": np.array([2**40, 0])}, {"a": INT32}, ValueError, "'a' .*int64.*int32"),
    ({"a": np.array([None, None])}, {"a": ZERO}, TypeError, "from_numpy: .*'a'"),
    ({"a": np.array(2.5), "b": ZERO}, {"a": 3, "b": ZERO}, ValueError, "'a' .*float64.*int64"),
    ({"a": ZERO, "b": ZERO}, {"a": 3, "b": ZERO}, ValueError, r"'a' .*\(2,\).*\(\)"),
]


@pytest.mark.parametrize(("state", "like", "error", "match"), MISFITS)
def test_what_does_not_fit(state: Any, like: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        gx.from_numpy(state, like=like)


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("jax", "tensorflow")])
def test_traced_states_have_no_values(framework: str) -> None:
    with pytest.raises(TypeError, match="'a' has no values"):
        call(framework, "compiled", lambda tree: gx.to_numpy({"a": tree["x"]}) and tree, {"x": ZERO})


def test_variables_of_keras_are_what_a_state_is_like(keras: Any) -> None:
    like = {"net": {"bias": keras.Variable(np.zeros(2, np.float32))}, "scale": keras.Variable(np.float32(0))}
    given = {"net": {"bias": np.float32([1, 2])}, "scale": np.float32(3)}
    found = gx.to_numpy(gx.from_numpy(given, like=like))
    assert found["net"]["bias"].tolist() == [1, 2] and found["scale"] == 3
