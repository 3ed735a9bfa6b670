"""Metrics for logs, and functions that inspect gradients."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import FRAMEWORKS, MODES, array, assert_bits, assert_ulp, call, f32, tensors

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity, reference
from gradxform.proof.gradients import few, gradients

FIELDS = ("norm_before", "norm_after", "factor", "clipped", "nonfinite_count")


def measured(tx: Any, tree: Any, framework: str = "numpy", mode: str = "eager") -> dict[str, Any]:
    """The metrics after one step as NumPy arrays; compiled code returns them."""

    def one(given: Any) -> Any:
        updates, state = tx.update(given, tx.init(given), given)
        return updates, gx.metrics(state)

    found = call(framework, mode, one, tree)[1]
    assert all(isinstance(value, lookup.backend(framework).types) for value in found.values())
    return {name: array(value) for name, value in found.items()}


# --- right numbers ---------------------------------------------------------------------------------------------------

PARTS = {
    "clip_value": "clip_value(0.5)",
    "clip_norm": "clip_norm(0.9)",
    "clip_global_norm": "clip_global_norm(1.0)",
    "scale": "scale(-0.1)",
}
CHAIN = gx.chain(*map(gx.parse, PARTS.values()))


def wanted(tree: Any) -> dict[str, float]:
    """Reference norms after each prefix of the transforms."""
    found, rank = {}, 0
    for rank, name in enumerate(PARTS, 1):
        before, after = (
            reference.norm(list(parity.expected(gx.chain(*map(gx.parse, list(PARTS.values())[:k])), tree).values()))
            for k in (rank - 1, rank)
        )
        found |= {f"{name}/norm_before": before, f"{name}/norm_after": after, f"{name}/factor": after / before}
    return found


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_norms_and_factors_are_those_of_the_reference(framework: str, mode: str) -> None:
    """Norms within 1 ULP, factors within 2."""
    slow = (framework, mode) == ("torch", "compiled")  # inductor needs two minutes for float64
    for dtype in ("float32",) if slow else ("float32", "float64"):
        tree = few(dtype)
        found = measured(gx.measure(CHAIN), tree, framework, mode)
        assert set(found) == {f"{name}/{field}" for name in PARTS for field in FIELDS}
        for name, value in wanted(tree).items():
            assert_ulp(found[name], np.asarray(value, dtype), 2 if name.endswith("factor") else 1, name)
        assert [bool(found[f"{name}/clipped"]) for name in PARTS] == [True] * 4
        assert {found[f"{name}/clipped"].dtype.name for name in PARTS} == {"bool"}
        assert {found[f"{name}/nonfinite_count"].dtype.name for name in PARTS} == {"int32"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64"])
def test_the_norms_of_other_dtypes_are_float32(dtype: str, framework: str) -> None:
    tree = few(dtype)
    found = measured(gx.measure(gx.clip_global_norm(1.0)), tree, framework)
    norm = reference.norm(list(parity.named_leaves(tree).values()))
    assert_ulp(found["clip_global_norm/norm_before"], np.float32(norm), 1)
    assert_ulp(found["clip_global_norm/norm_after"], np.float32(1.0), 1)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_gradients_are_bit_by_bit_those_of_the_bare_chain(framework: str) -> None:
    tree = tensors(framework, gradients("float32"))
    tx = gx.measure(CHAIN)
    assert_bits(tx.update(tree, tx.init(tree))[0], CHAIN(tree))


# --- whether it clipped ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_one_small_gradient_that_is_clipped_beside_a_huge_one_is_seen(framework: str, mode: str) -> None:
    tree = {"large": np.full(4, 1e6, np.float32), "small": np.float32([2e-3, 0.0])}
    around = gx.measure(gx.masked(gx.clip_norm(1e-3), "small"), "around")
    found = measured(gx.chain(around, gx.masked(gx.measure(gx.clip_norm(5e-4)), "small")), tree, framework, mode)
    assert found["around/clipped"] and found["clip_norm/clipped"]
    assert (found["around/factor"], found["clip_norm/factor"]) == (1.0, 0.5)  # of all gradients in scope


SIZES = [(3,), (40,), (257, 3), (70_001,)]


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_what_is_within_its_limit_is_not_clipped(framework: str, mode: str) -> None:
    """Changed elements are measured again, and rounding does not count as clipping, in either precision."""
    rng = np.random.default_rng(0)
    for dtype in ("float32", "bfloat16", "float64") if mode == "eager" else ("float32",):
        numpy = few(dtype)["a"]["v"].dtype
        tree = {str(i): rng.standard_normal(size).astype(numpy) for i, size in enumerate(SIZES)}
        within = gx.chain(gx.scale(0.3), gx.clip_value(99.0), gx.zero_nonfinite(), gx.clip_norm(1e6))
        found = measured(gx.measure(gx.chain(within, gx.clip_global_norm(1e6))), tree, framework, mode)
        clipped = {name.partition("/")[0]: bool(found[name]) for name in found if name.endswith("/clipped")}
        expected = {"clip_value": False, "zero_nonfinite": False, "clip_norm": False, "clip_global_norm": False}
        assert clipped == {"scale": True} | expected, dtype


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_limit_itself_is_no_clip_and_the_next_number_is_one(framework: str) -> None:
    for limit, clipped in ((5.0, False), (float(np.nextafter(np.float32(5), np.float32(0))), True)):
        for tx in (gx.clip_norm(limit), gx.clip_global_norm(limit)):
            found = measured(gx.measure(tx, "clip"), {"w": np.float32([3.0, 4.0])}, framework)
            assert bool(found["clip/clipped"]) is clipped
            assert (found["clip/factor"] < 1) == clipped


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_in_place(framework: str) -> None:
    tree = tensors(framework, {"w": np.float32([3.0, 4.0])})
    tx = gx.measure(gx.chain(gx.clip_value(3.0), gx.clip_norm(1.0), gx.clip_value(2.0)))
    state = tx.init(tree)
    if framework == "numpy":
        state = gx.numpy.apply_(tx, tree, state)
    elif framework == "torch":
        torch = pytest.importorskip("torch")
        parameter = torch.nn.Parameter(torch.zeros(2))
        parameter.grad = tree["w"]
        state = gx.torch.apply_(tx, [("w", parameter)], state)
    else:
        state = tx.update(tree, state)[1]
    found = {name: float(value) for name, value in gx.metrics(state).items()}
    assert [found[f"clip_value{suffix}/clipped"] for suffix in ("", "_1")] == [1.0, 0.0]
    assert math.isclose(found["clip_value/norm_after"], math.sqrt(18), rel_tol=1e-6)
    assert math.isclose(found["clip_value_1/norm_after"], 1.0, rel_tol=1e-6)


# --- zero, and what is not finite ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_zero_and_what_is_not_finite(framework: str, mode: str) -> None:
    tx = gx.chain(gx.measure(gx.clip_global_norm(1.0), "clip"), gx.measure(gx.zero_nonfinite()), gx.measure(gx.stop()))
    cases = {
        "zero": ({"a": [0.0], "b": [0.0]}, [0.0, 0.0, 1.0, False, 0]),
        "NaN": ({"a": [math.nan, 1.0], "b": [2.0]}, [math.nan, math.nan, math.nan, False, 1]),
        "inf": ({"a": [math.inf], "b": [-math.inf]}, [math.inf, math.nan, math.nan, False, 2]),
        "huge": ({"a": [3e37], "b": [2.0]}, [3e37, 1.0, 1 / 3e37, True, 0]),
    }
    for name, (leaves, values) in cases.items():
        tree = {path: np.float32(leaf) for path, leaf in leaves.items()}
        found = measured(tx, tree, framework, mode)
        np.testing.assert_allclose([found[f"clip/{field}"] for field in FIELDS], values, rtol=1e-6, atol=0)
        stopped = [found[f"stop/{field}"] for field in ("norm_after", "nonfinite_count")]
        assert stopped == [0, 0], name
        zeroed = int(found["zero_nonfinite/nonfinite_count"])
        assert zeroed == (2 if name in ("NaN", "inf") else 0), name  # the clip made all of them NaN


def test_noise_on_zeros_has_an_infinite_factor() -> None:
    found = measured(gx.measure(gx.add_noise(1.0, 0)), {"w": np.zeros(3)})
    assert (found["add_noise/norm_before"], found["add_noise/factor"]) == (0.0, math.inf)


def test_a_step_without_gradients_leaves_the_measures_as_they_were() -> None:
    tx = gx.measure(gx.clip_norm(1.0))
    state = tx.init({"w": np.zeros(2)})
    assert [gx.metrics(state)[f"clip_norm/{field}"] for field in FIELDS] == [0.0, 0.0, 1.0, False, 0]
    _, state = tx.update({"w": np.array([3.0, 4.0])}, state)
    updates, after = tx.update({"w": None}, state)
    assert updates == {"w": None} and gx.metrics(after)["clip_norm/norm_before"] == 5.0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_comes_down_from_infinity_or_is_stopped_is_clipped(framework: str) -> None:
    tree = {"w": np.float32([math.inf, 1.0])}
    assert measured(gx.measure(gx.clip_value(25.0)), tree, framework)["clip_value/clipped"]
    assert measured(gx.measure(gx.zero_nonfinite()), tree, framework)["zero_nonfinite/clipped"]
    ones = {"w": np.ones(2, np.float32), "b": np.zeros(1, np.float32)}
    assert measured(gx.measure(gx.freeze("w")), ones, framework)["freeze/clipped"]
    assert not measured(gx.measure(gx.freeze("b")), ones, framework)["freeze/clipped"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_element_of_a_thousand_is_clipped(dtype: str, framework: str) -> None:
    numpy = few(dtype)["a"]["v"].dtype
    leaf = np.ones(1000).astype(numpy)
    leaf[7] = 1.25
    assert measured(gx.measure(gx.clip_value(1.0)), {"w": leaf}, framework)["clip_value/clipped"]


def test_one_element_of_a_million_that_loses_a_tenth_is_not_seen_in_float32() -> None:
    """The limits of `clipped`, as in the logging guide."""
    for dtype, seen in ((np.float32, False), (np.float64, True)):
        leaf = np.ones(1_000_000, dtype)
        leaf[7] = 1.1
        assert bool(measured(gx.measure(gx.clip_value(1.0)), {"w": leaf})["clip_value/clipped"]) is seen


def test_a_state_of_another_transform_is_refused() -> None:
    _, state = gx.measure(gx.clip_norm(1.0)).update([np.ones(2)], gx.measure(gx.clip_norm(1.0)).init([np.ones(2)]))
    for wrong in (state, gx.EmptyState(), {}):
        with pytest.raises(ValueError, match=r"measure: the state must be MeasureState with measures of 'b'"):
            gx.measure(gx.clip_norm(1.0), "b").update([np.ones(2)], wrong)


# --- names and nesting -----------------------------------------------------------------------------------------------


def names(tx: Any) -> list[str]:
    return list(dict.fromkeys(name.rpartition("/")[0] for name in measured(tx, {"w": np.ones(2)})))


def test_names() -> None:
    clip = gx.clip_norm(1.0)
    assert names(gx.measure(clip)) == ["clip_norm"]
    assert names(gx.measure(gx.chain(clip, gx.chain(gx.scale(2.0), clip)))) == ["clip_norm", "scale", "clip_norm_1"]
    assert names(gx.measure(gx.chain(clip, clip), "both")) == ["both"]
    assert names(gx.chain(gx.measure(clip, "a"), clip, gx.measure(clip, "a"))) == ["a", "a_1"]
    assert names(gx.masked(gx.measure(gx.skip_nonfinite(gx.measure(clip))), "w")) == ["skip_nonfinite", "clip_norm"]
    assert names(gx.chain(clip, gx.trace(0.5))) == []
    three = [gx.measure(clip, name) for name in ("a", "a", "a_1")]
    assert names(gx.chain(*three)) == ["a", "a_1", "a_1_1"]


def test_masks_of_one_chain_are_told_apart_by_their_patterns() -> None:
    """Names contain no parentheses or asterisks, which MLflow rejects."""
    clip, tree = gx.clip_norm(1.0), {"a": {"w": np.ones(2)}, "b": {"w": np.ones(2)}}

    def found(*txs: Any) -> list[str]:
        metrics = measured(gx.measure(gx.chain(*txs)), tree)
        return list(dict.fromkeys(name.rpartition("/")[0] for name in metrics))

    one, other = gx.masked(clip, "a/**"), gx.masked(gx.clip_global_norm(2.0), "**/b/*")
    assert found(one, other) == ["masked/a/clip_norm", "masked/b/clip_global_norm"]
    assert found(one, one) == ["masked/a/clip_norm", "masked/a/clip_norm_1"]
    assert found(one, gx.freeze("b/w")) == ["masked", "freeze"]  # short names if they are unique
    assert found(gx.freeze("a/**"), gx.freeze("b/w")) == ["freeze/a", "freeze/b/w"]
    assert found(gx.masked(clip, re.compile(r"^a/")), gx.masked(gx.chain(clip, clip), "b/**"), clip) == [
        "masked/a/clip_norm",
        "masked/b/chain",
        "clip_norm",
    ]
    assert found(one, gx.masked(clip, lambda path, _: path == "b/w"), gx.masked(clip, "**")) == [
        "masked/a/clip_norm",
        "masked/lambda/clip_norm",
        "masked",
    ]
    several = gx.masked(clip, ["a/**", re.compile("^b/w$")])
    assert found(several, gx.masked(clip, is_b)) == ["masked/a b/w/clip_norm", "masked/is_b/clip_norm"]
    many = gx.masked(clip, ["a/w", "b/w", "**/w", "*/w"])
    assert found(many, gx.masked(clip, functools.partial(is_b))) == [
        "masked/a/w b/w w 1 more/clip_norm",
        "masked/is_b/clip_norm",
    ]
    assert found(one, gx.masked(clip, {"a": True, "b": False})) == ["masked/a/clip_norm", "masked"]


def is_b(path: str) -> bool:
    return path.startswith("b")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_rules_of_a_partition_are_measured_under_their_labels(framework: str) -> None:
    tree = tensors(framework, {"a": f32(3, 4), "b": f32(2), "c": f32(5), "d": f32(8)})
    rules = {"a": gx.chain(gx.clip_norm(1.0), gx.scale(2.0)), is_b: gx.clip_value(1.0), ("**c",): gx.scale(-1.0)}
    tx = gx.partition(rules, default=gx.scale(0.5))
    measured_too = gx.measure(tx)
    updates, state = measured_too.update(tree, measured_too.init(tree))
    assert_bits(updates, tx(tree))
    norms = {name: float(array(value)) for name, value in gx.metrics(state).items() if "norm_after" in name}
    assert norms == {
        "partition/norm_after": pytest.approx((4 + 1 + 25 + 16) ** 0.5),
        "partition/a/clip_norm/norm_after": 1.0,
        "partition/a/scale/norm_after": 2.0,
        "partition/is_b/clip_value/norm_after": 1.0,
        "partition/c/scale/norm_after": 5.0,
        "partition/default/scale/norm_after": 4.0,
    }


def test_a_partition_with_a_name_is_measured_as_one() -> None:
    rules = {"w": gx.clip_norm(1.0), re.compile("^w$"): gx.stop()}
    assert names(gx.measure(gx.partition(rules), "all")) == ["all"]
    assert names(gx.measure(gx.partition(rules))) == ["partition", "partition/w/clip_norm", "partition/w/stop"]
    wheres = gx.partition({"**": gx.clip_norm(1.0), "w": gx.stop()})
    assert names(gx.measure(wheres)) == ["partition", "partition/0/clip_norm", "partition/w/stop"]


def test_variables_are_known_by_their_names() -> None:
    tf = pytest.importorskip("tensorflow")
    w, b = tf.Variable([3.0, 4.0], name="kernel"), tf.Variable([1.0], name="bias")
    clip = gx.clip_norm(1.0)
    tx = gx.measure(gx.chain(gx.masked(clip, [w, b]), gx.masked(clip, b), gx.masked(clip, ["kernel", b])))
    processor = gx.tensorflow.GradientProcessor(tx, [w, b])
    processor([(tf.constant([3.0, 4.0]), w), (tf.constant([2.0]), b)])
    found = list(dict.fromkeys(name.rpartition("/")[0] for name in gx.metrics(processor)))
    assert found == ["masked/kernel bias/clip_norm", "masked/bias/clip_norm", "masked/kernel bias/clip_norm_1"]


def test_names_within_dicts_are_the_same_before_and_after_a_compiled_function() -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    rules = {"z": gx.measure(gx.clip_norm(1.0)), "a": gx.measure(gx.clip_norm(2.0))}
    tx = optax.partition(rules, {"one": "z", "two": "a"})
    tree = {"one": jax.numpy.array([5.0]), "two": jax.numpy.array([10.0])}
    eager = tx.update(tree, tx.init(tree))[1]
    compiled = jax.jit(tx.update)(tree, tx.init(tree))[1]
    for state in (eager, compiled):
        assert [float(gx.metrics(state)[f"{name}/norm_before"]) for name in ("clip_norm", "clip_norm_1")] == [10.0, 5.0]


def test_a_name_with_slashes_is_a_place_in_the_log() -> None:
    assert names(gx.measure(gx.clip_norm(1.0), "train/clip")) == ["train/clip"]


def test_the_scope_of_a_mask_is_what_is_measured() -> None:
    tree = {"a": np.array([3.0, 4.0]), "b": np.array([100.0])}
    found = measured(gx.masked(gx.measure(gx.clip_global_norm(1.0)), "a"), tree)
    assert (found["clip_global_norm/norm_before"], found["clip_global_norm/norm_after"]) == (5.0, 1.0)


def test_a_frozen_gradient_is_not_measured() -> None:
    tree = {"a": np.array([3.0, 4.0]), "b": np.array([np.nan])}
    for first in (gx.freeze("b"), gx.chain(gx.measure(gx.identity()), gx.freeze("b"))):
        found = measured(gx.chain(first, gx.measure(gx.clip_global_norm(1.0))), tree)
        assert (found["clip_global_norm/norm_before"], found["clip_global_norm/nonfinite_count"]) == (5.0, 0)


def test_repr_and_equality() -> None:
    tx = gx.measure(gx.chain(gx.clip_norm(1.0), gx.scale(2.0)), "both")
    assert repr(tx) == "measure(chain(clip_norm(1.0), scale(2.0)), 'both')"
    assert gx.parse(repr(tx)) == tx and tx != gx.measure(gx.chain(gx.clip_norm(1.0), gx.scale(2.0)))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: gx.measure("clip"), TypeError, r"measure.*'clip'"),
        (lambda: gx.measure(gx.clip_norm), TypeError, r"measure.*call it first"),
        (
            lambda: gx.measure(gx.clip_norm(1.0), 3),
            TypeError,
            r"measure: name must be a nonempty string, got 3",
        ),
        (lambda: gx.measure(gx.clip_norm(1.0), ""), TypeError, r"measure: name must be a nonempty string"),
    ],
)
def test_bad_arguments(make: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_in_optax_around_optax_and_in_a_scan() -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    tx = optax.chain(
        optax.masked(gx.measure(gx.clip_global_norm(1.0)), {"w": True}),
        optax.apply_if_finite(gx.measure(gx.chain(optax.trace(0.5), optax.adam(0.1))), 3),
        optax.inject_hyperparams(lambda limit: gx.measure(gx.clip_norm(limit), "last"))(limit=0.25),
    )
    params = {"w": jax.numpy.array([3.0, 4.0])}

    def step(state: Any, scale: Any) -> Any:
        _, state = tx.update(jax.tree.map(lambda g: g * scale, params), state, params)
        return state, gx.metrics(state)

    _, found = jax.jit(lambda: jax.lax.scan(step, tx.init(params), jax.numpy.array([1.0, 2.0, 0.1])))()
    np.testing.assert_allclose(found["clip_global_norm/norm_before"], [5.0, 10.0, 0.5], rtol=1e-6)
    assert found["clip_global_norm/clipped"].tolist() == [True, True, False]
    np.testing.assert_allclose(found["trace/norm_before"], [1.0, 1.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(found["trace/norm_after"], [1.0, 1.5, 1.25], rtol=1e-6)
    assert found["last/norm_after"].max() <= 0.25 and {name.partition("/")[0] for name in found} == {
        "clip_global_norm", "trace", "chain", "last",
    }  # fmt: skip


# --- plain functions -------------------------------------------------------------------------------------------------

TREE = {"dense": {"kernel": np.float32([[3.0, 4.0]]), "bias": np.float32([2.0])}, "unused": None}


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_norms_by_path(framework: str, mode: str) -> None:
    backend = lookup.backend(framework)
    found = call(framework, mode, lambda tree: gx.norms(tree), TREE)
    assert {path: float(norm) for path, norm in found.items()} == {"dense/kernel": 5.0, "dense/bias": 2.0}
    assert all(backend.dtype(norm) == "float32" and backend.shape(norm) == () for norm in found.values())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("ord", [1, 2, 3, float("inf")])
def test_norms_of_any_order_and_dtype(ord: float, framework: str) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        tree = gradients(dtype)
        found = gx.norms(tensors(framework, tree), ord=ord)
        for path, leaf in parity.named_leaves(tree).items():
            wide = dtype in ("float64", "complex128")
            wanted = reference.norm([leaf], ord) if leaf.size else 0.0
            of_powers = wide and ord == 3  # the framework's own root
            right = np.asarray(wanted, "float64" if wide else "float32")
            assert_ulp(found[path], right, 2 if of_powers else 1, f"{dtype} {path}")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nonfinite_paths(framework: str) -> None:
    tree = {
        "a": {"v": np.float32([1.0, math.nan]), "w": np.float32([3e38, -3e38])},
        "b": [np.float16([-math.inf]), None, np.int32([3]), np.float64([1e308, 1e308])],
        "c": np.complex64([complex(1.0, math.inf)]),
        "d": np.zeros((0, 3), np.float32),
    }
    assert gx.nonfinite_paths(tensors(framework, tree)) == ["a/v", "b/0", "c"]
    del tree["a"]["v"], tree["b"][0], tree["c"]
    assert gx.nonfinite_paths(tensors(framework, tree)) == []


def test_norms_of_two_leaves_of_one_path_are_refused() -> None:
    with pytest.raises(ValueError, match=r"norms: two leaves have the path 'a/b'"):
        gx.norms({"a": {"b": np.ones(1)}, "a/b": np.ones(4)})


def test_nonfinite_paths_of_nothing() -> None:
    assert gx.nonfinite_paths({}) == gx.nonfinite_paths([None]) == gx.nonfinite_paths([np.int32([1])]) == []


def test_nonfinite_paths_of_sparse_gradients() -> None:
    tf = pytest.importorskip("tensorflow")
    slices = tf.IndexedSlices(tf.constant([[1.0], [math.inf]]), tf.constant([0, 2]), tf.constant([4, 1]))
    assert gx.nonfinite_paths({"table": slices, "w": tf.ones(2)}) == ["table"]


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("jax", "tensorflow")])
def test_nonfinite_paths_within_traced_code_say_what_to_do(framework: str) -> None:
    with pytest.raises(TypeError, match=r"nonfinite_paths: traced arrays have no values.*gx\.norms"):
        call(framework, "compiled", lambda tree: gx.nonfinite_paths(tree) and tree, TREE)


@pytest.mark.parametrize("function", [gx.norms, gx.global_norm])
def test_integers_have_no_gradient_norm(function: Any) -> None:
    with pytest.raises(TypeError, match=r"'b'.*int64"):
        function({"a": np.ones(2), "b": np.array([1, 2])})
    with pytest.raises(ValueError, match="ord must be at least 1"):
        function({"a": np.ones(2)}, ord=0.5)
