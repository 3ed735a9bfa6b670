"""Metrics for logs, and functions that inspect gradients."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest
from support import (
    EVERY_MODE,
    FRAMEWORKS,
    GRAPHS,
    INF,
    NAN,
    XLA,
    array,
    assert_bits,
    assert_ulp,
    by_graph,
    call,
    f32,
    in_mode,
    parameter,
    slow,
    tensors,
    without_addresses,
)
from trees import few, gradients

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity, reference

FIELDS = ("norm_before", "norm_after", "factor", "clipped", "nonfinite_count")


@functools.cache
def step_of(tx: Any, framework: str, mode: str) -> Any:
    """One step that returns metrics; trees of the same shapes share compiled code."""

    def one(given: Any) -> Any:
        updates, state = tx.update(given, tx.init(given), given)
        return updates, gx.metrics(state)

    return in_mode(framework, mode, one)


def measured(tx: Any, tree: Any, framework: str = "numpy", mode: str = "eager") -> dict[str, Any]:
    """The metrics after one step as NumPy arrays; compiled code returns them."""
    found = step_of(tx, framework, mode)(tensors(framework, tree))[1]
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


@by_graph
@slow(XLA, lambda framework, mode: framework == "jax" or (framework, mode) == ("tensorflow", "compiled"))
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


@by_graph
@slow(XLA, framework="jax")
@slow(GRAPHS, framework="tensorflow", mode="compiled")
@pytest.mark.parametrize(("framework", "mode"), EVERY_MODE)
def test_the_norm_of_each_gradient_by_path(framework: str, mode: str) -> None:
    """The norm at each stage, within 1 ULP; NaN of a gradient that an earlier stage stops."""
    tree = few("float32")
    leaves = parity.named_leaves(tree)
    stopped = next(iter(leaves))
    tx = gx.chain(gx.clip_norm(0.5), gx.freeze(stopped), gx.scale(3.0))
    found = measured(gx.measure(tx, per_leaf=True), tree, framework, mode)
    norms = {path: reference.norm([leaf]) for path, leaf in leaves.items()}
    for name, by in (("clip_norm", 1.0), ("scale", None)):
        own = {path: found[f"{name}/norm_before/{path}"] for path in leaves}
        for path, norm in norms.items():
            wanted = norm if by is not None else np.nan if path == stopped else min(norm, 0.5)
            assert_ulp(own[path], np.float32(wanted), 1, f"{name} {path}")


def test_the_norm_of_a_gradient_that_is_none_or_unknown() -> None:
    params, tx = {"a": np.ones(1), "b": np.ones(2)}, gx.measure(gx.scale(2.0), per_leaf=True)
    _, state = tx.update({"a": None, "b": np.array([3.0, 4.0])}, tx.init(params))
    assert {k: str(v) for k, v in gx.metrics(state).items() if "/" in k.partition("/")[2]} == {
        "scale/norm_before/a": "nan",
        "scale/norm_before/b": "5.0",
    }
    with pytest.raises(ValueError, match=r"measure: .*'c'"):
        tx.update({"a": np.ones(1), "c": np.ones(1)}, tx.init(params))
    with pytest.raises(ValueError, match=r"measure: .*tx\.init\(params\)"):
        tx.update(params, tx.init(()))


def test_two_gradients_of_one_path_keep_their_names_where_one_is_none() -> None:
    tree, tx = {"a/b": np.ones(1), "a": {"b": np.full(4, 2.0)}}, gx.measure(gx.scale(2.0), per_leaf=True)
    _, state = tx.update({"a/b": np.ones(1), "a": {"b": None}}, tx.init(tree))
    found = {key: float(value) for key, value in gx.metrics(state).items() if "before/" in key}
    assert sorted(map(str, found.values())) == ["1.0", "nan"]
    assert set(found) == {"scale/norm_before/a/b", "scale/norm_before/a/b_1"}
    _, full = tx.update(tree, tx.init(tree))
    one = [key for key, value in gx.metrics(full).items() if "before/" in key and float(value) == 1.0]
    assert found[one[0]] == 1.0


def test_the_gradients_are_bit_by_bit_those_of_the_bare_chain(framework: str) -> None:
    tree = tensors(framework, gradients("float32"))
    tx = gx.measure(CHAIN)
    assert_bits(tx.update(tree, tx.init(tree))[0], CHAIN(tree))


# --- whether it clipped ----------------------------------------------------------------------------------------------


@by_graph
@slow(GRAPHS, framework="tensorflow", mode="compiled")
def test_one_small_gradient_that_is_clipped_beside_a_huge_one_is_seen(framework: str, mode: str) -> None:
    tree = {"large": np.full(4, 1e6, np.float32), "small": np.float32([2e-3, 0.0])}
    around = gx.measure(gx.masked(gx.clip_norm(1e-3), "small"), "around")
    found = measured(gx.chain(around, gx.masked(gx.measure(gx.clip_norm(5e-4)), "small")), tree, framework, mode)
    assert found["around/clipped"] and found["clip_norm/clipped"]
    assert (found["around/factor"], found["clip_norm/factor"]) == (1.0, 0.5)  # of all gradients in scope


SIZES = [(3,), (40,), (257, 3), (70_001,)]


@by_graph
@slow(XLA, framework="jax", mode="eager")
def test_what_is_within_its_limit_is_not_clipped(framework: str, mode: str, rng: Any) -> None:
    """Changed elements are measured again, and rounding does not count as clipping, in either precision."""
    for dtype in ("float32", "bfloat16", "float64") if mode == "eager" else ("float32",):
        numpy = few(dtype)["a"]["v"].dtype
        tree = {str(i): rng.standard_normal(size).astype(numpy) for i, size in enumerate(SIZES)}
        within = gx.chain(gx.scale(0.3), gx.clip_value(99.0), gx.zero_nonfinite(), gx.clip_norm(1e6))
        found = measured(gx.measure(gx.chain(within, gx.clip_global_norm(1e6))), tree, framework, mode)
        clipped = {name.partition("/")[0]: bool(found[name]) for name in found if name.endswith("/clipped")}
        expected = {"clip_value": False, "zero_nonfinite": False, "clip_norm": False, "clip_global_norm": False}
        assert clipped == {"scale": True} | expected, dtype


def test_the_limit_itself_is_no_clip_and_the_next_number_is_one(framework: str) -> None:
    for limit, clipped in ((5.0, False), (float(np.nextafter(np.float32(5), np.float32(0))), True)):
        for tx in (gx.clip_norm(limit), gx.clip_global_norm(limit)):
            found = measured(gx.measure(tx, "clip"), {"w": np.float32([3.0, 4.0])}, framework)
            assert bool(found["clip/clipped"]) is clipped
            assert (found["clip/factor"] < 1) == clipped


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("numpy", "torch")])
def test_in_place(framework: str) -> None:
    """A clip that is measured before and after others change the gradients."""
    grads = tensors(framework, {"w": f32(3.0, 4.0)})
    tx = gx.measure(gx.chain(gx.clip_value(3.0), gx.clip_norm(1.0), gx.clip_value(2.0)))
    given = grads if framework == "numpy" else [("w", parameter(grads["w"]))]
    found = gx.metrics(getattr(gx, framework).apply_(tx, given, tx.init(grads)))
    assert [bool(found[f"clip_value{suffix}/clipped"]) for suffix in ("", "_1")] == [True, False]
    assert_ulp([found["clip_value/norm_after"], found["clip_value_1/norm_after"]], [np.float32(18**0.5), f32(1.0)[0]])


# --- zero, and what is not finite ------------------------------------------------------------------------------------


@by_graph
def test_zero_and_what_is_not_finite(framework: str, mode: str) -> None:
    tx = gx.chain(gx.measure(gx.clip_global_norm(1.0), "clip"), gx.measure(gx.zero_nonfinite()), gx.measure(gx.stop()))
    cases = {
        "zero": ({"a": [0.0, 0.0], "b": [0.0]}, [0.0, 0.0, 1.0, False, 0]),
        "NaN": ({"a": [NAN, 1.0], "b": [2.0]}, [NAN, NAN, NAN, False, 1]),
        "inf": ({"a": [INF, 0.0], "b": [-INF]}, [INF, NAN, NAN, False, 2]),
        "huge": ({"a": [3e37, 0.0], "b": [2.0]}, [3e37, 1.0, 1 / 3e37, True, 0]),
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
    assert (found["add_noise/norm_before"], found["add_noise/factor"]) == (0.0, INF)


def test_a_step_without_gradients_leaves_the_measures_as_they_were() -> None:
    tx = gx.measure(gx.clip_norm(1.0))
    state = tx.init({"w": np.zeros(2)})
    assert [gx.metrics(state)[f"clip_norm/{field}"] for field in FIELDS] == [0.0, 0.0, 1.0, False, 0]
    _, state = tx.update({"w": np.array([3.0, 4.0])}, state)
    updates, after = tx.update({"w": None}, state)
    assert updates == {"w": None} and gx.metrics(after)["clip_norm/norm_before"] == 5.0


def test_what_comes_down_from_infinity_or_is_stopped_is_clipped(framework: str) -> None:
    tree = {"w": np.float32([INF, 1.0])}
    assert measured(gx.measure(gx.clip_value(25.0)), tree, framework)["clip_value/clipped"]
    assert measured(gx.measure(gx.zero_nonfinite()), tree, framework)["zero_nonfinite/clipped"]
    ones = {"w": np.ones(2, np.float32), "b": np.zeros(1, np.float32)}
    assert measured(gx.measure(gx.freeze("w")), ones, framework)["freeze/clipped"]
    assert not measured(gx.measure(gx.freeze("b")), ones, framework)["freeze/clipped"]
    assert measured(gx.measure(gx.stop()), {"w": f32(0.3)}, framework)["stop/clipped"]


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
        with pytest.raises(ValueError, match=r"measure: .*MeasureState"):
            gx.measure(gx.clip_norm(1.0), "b").update([np.ones(2)], wrong)


# --- names and nesting -----------------------------------------------------------------------------------------------


def is_b(path: str) -> bool:
    return path.startswith("b")


CLIP = gx.clip_norm(1.0)
ONE, OTHER = gx.masked(CLIP, "a/**"), gx.masked(gx.clip_global_norm(2.0), "**/b/*")
MANY, SEVERAL = gx.masked(CLIP, ["a/w", "b/w", "**/w", "*/w"]), gx.masked(CLIP, ["a/**", re.compile("^b/w$")])
RULES = {"a/w": CLIP, re.compile("^a"): gx.stop()}


def together(*txs: Any) -> Any:
    return gx.measure(gx.chain(*txs))


NAMES = [
    ("clip_norm", gx.measure(CLIP)),
    ("train/clip", gx.measure(CLIP, "train/clip")),
    ("clip_norm, scale, clip_norm_1", together(CLIP, gx.chain(gx.scale(2.0), CLIP))),
    ("both", gx.measure(gx.chain(CLIP, CLIP), "both")),
    ("a, a_1", gx.chain(gx.measure(CLIP, "a"), CLIP, gx.measure(CLIP, "a"))),
    ("a, a_1, a_1_1", gx.chain(gx.measure(CLIP, "a"), gx.measure(CLIP, "a"), gx.measure(CLIP, "a_1"))),
    ("skip_nonfinite, clip_norm", gx.masked(gx.measure(gx.skip_nonfinite(gx.measure(CLIP))), "a/w")),
    ("", gx.chain(CLIP, gx.trace(0.5))),
    # Masks of one chain have their patterns, without the parentheses and asterisks that MLflow rejects.
    ("masked/a/clip_norm, masked/b/clip_global_norm", together(ONE, OTHER)),
    ("masked/a/clip_norm, masked/a/clip_norm_1", together(ONE, ONE)),
    ("masked, freeze", together(ONE, gx.freeze("b/w"))),  # short names if they are unique
    ("freeze/a, freeze/b/w", together(gx.freeze("a/**"), gx.freeze("b/w"))),
    ("masked/a/clip_norm, masked/b/chain, clip_norm",
     together(gx.masked(CLIP, re.compile(r"^a/")), gx.masked(gx.chain(CLIP, CLIP), "b/**"), CLIP)),
    ("masked/a/clip_norm, masked/lambda/clip_norm, masked",
     together(ONE, gx.masked(CLIP, lambda path, _: path == "b/w"), gx.masked(CLIP, "**"))),
    ("masked/a b/w/clip_norm, masked/is_b/clip_norm", together(SEVERAL, gx.masked(CLIP, is_b))),
    ("masked/a/w b/w w 1 more/clip_norm, masked/is_b/clip_norm",
     together(MANY, gx.masked(CLIP, functools.partial(is_b)))),
    ("masked/a/clip_norm, masked", together(ONE, gx.masked(CLIP, {"a": True, "b": False}))),
    ("all", gx.measure(gx.partition(RULES), "all")),
    ("partition, partition/a/w/clip_norm, partition/a/stop", gx.measure(gx.partition(RULES))),
    ("partition, partition/0/clip_norm, partition/a/w/stop", gx.measure(gx.partition({"**": CLIP, "a/w": gx.stop()}))),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:partition. the rule:UserWarning")
@pytest.mark.parametrize(("names", "tx"), NAMES)
def test_names(names: str, tx: Any) -> None:
    found = measured(tx, {"a": {"w": np.ones(2)}, "b": {"w": np.ones(2)}})
    assert ", ".join(dict.fromkeys(name.rpartition("/")[0] for name in found if "/" in name)) == names


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


def test_variables_are_known_by_their_names(tf: Any) -> None:
    w, b = tf.Variable([3.0, 4.0], name="kernel"), tf.Variable([1.0], name="bias")
    clip = gx.clip_norm(1.0)
    tx = gx.measure(gx.chain(gx.masked(clip, [w, b]), gx.masked(clip, b), gx.masked(clip, ["kernel", b])))
    processor = gx.tensorflow.GradientProcessor(tx, [w, b])
    processor([(tf.constant([3.0, 4.0]), w), (tf.constant([2.0]), b)])
    found = list(dict.fromkeys(name.rpartition("/")[0] for name in gx.metrics(processor)))
    assert found == ["masked/kernel bias/clip_norm", "masked/bias/clip_norm", "masked/kernel bias/clip_norm_1"]


def test_names_within_dicts_are_the_same_before_and_after_a_compiled_function(jax: Any, optax: Any) -> None:
    rules = {"z": gx.measure(gx.clip_norm(1.0)), "a": gx.measure(gx.clip_norm(2.0))}
    tx = optax.partition(rules, {"one": "z", "two": "a"})
    tree = {"one": jax.numpy.array([5.0]), "two": jax.numpy.array([10.0])}
    eager = tx.update(tree, tx.init(tree))[1]
    compiled = jax.jit(tx.update)(tree, tx.init(tree))[1]
    for state in (eager, compiled):
        assert [float(gx.metrics(state)[f"{name}/norm_before"]) for name in ("clip_norm", "clip_norm_1")] == [10.0, 5.0]


def test_what_is_masked_out_or_frozen_is_not_measured() -> None:
    clip = gx.measure(gx.clip_global_norm(1.0))
    for first in (gx.freeze("b"), gx.chain(gx.measure(gx.identity()), gx.freeze("b"))):
        found = measured(gx.chain(first, clip), {"a": np.array([3.0, 4.0]), "b": np.array([np.nan])})
        assert (found["clip_global_norm/norm_before"], found["clip_global_norm/nonfinite_count"]) == (5.0, 0)
    found = measured(gx.masked(clip, "a"), {"a": np.array([3.0, 4.0]), "b": np.array([100.0])})
    assert (found["clip_global_norm/norm_before"], found["clip_global_norm/norm_after"]) == (5.0, 1.0)


@pytest.mark.parametrize(
    "given", [("clip",), (gx.clip_norm,), (gx.clip_norm(1.0), 3), (gx.clip_norm(1.0), "")], ids=without_addresses
)
def test_bad_arguments(given: Any) -> None:
    with pytest.raises(TypeError, match=rf"measure.*({re.escape(repr(given[-1]))}|call it first)"):
        gx.measure(*given)


# --- plain functions -------------------------------------------------------------------------------------------------

TREE = {"dense": {"kernel": np.float32([[3.0, 4.0]]), "bias": np.float32([2.0])}, "unused": None}


@by_graph
def test_norms_by_path(framework: str, mode: str) -> None:
    backend = lookup.backend(framework)
    found = call(framework, mode, lambda tree: gx.norms(tree), TREE)
    assert {path: float(norm) for path, norm in found.items()} == {"dense/kernel": 5.0, "dense/bias": 2.0}
    assert all(backend.dtype(norm) == "float32" and backend.shape(norm) == () for norm in found.values())


@slow(XLA, framework="jax")
@pytest.mark.parametrize("ord", [1, 2, 3, INF])
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


def test_nonfinite_paths(framework: str) -> None:
    tree = {
        "a": {"v": np.float32([1.0, NAN]), "w": np.float32([3e38, -3e38])},
        "b": [np.float16([-INF]), None, np.int32([3]), np.float64([1e308, 1e308])],
        "c": np.complex64([complex(1.0, INF)]),
        "d": np.zeros((0, 3), np.float32),
    }
    assert gx.nonfinite_paths(tensors(framework, tree)) == ["a/v", "b/0", "c"]
    del tree["a"]["v"], tree["b"][0], tree["c"]
    assert gx.nonfinite_paths(tensors(framework, tree)) == []


def test_norms_of_two_leaves_of_one_path_are_refused() -> None:
    with pytest.raises(ValueError, match="'a/b'"):
        gx.norms({"a": {"b": np.ones(1)}, "a/b": np.ones(4)})


def test_nonfinite_paths_of_sparse_gradients(tf: Any) -> None:
    slices = tf.IndexedSlices(tf.constant([[1.0], [INF]]), tf.constant([0, 2]), tf.constant([4, 1]))
    assert gx.nonfinite_paths({"table": slices, "w": tf.ones(2)}) == ["table"]
    assert gx.nonfinite_paths({}) == gx.nonfinite_paths([None]) == gx.nonfinite_paths([np.int32([1])]) == []


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("jax", "tensorflow")])
def test_nonfinite_paths_within_traced_code_say_what_to_do(framework: str) -> None:
    with pytest.raises(TypeError, match=r"nonfinite_paths: .*gx\.norms"):
        call(framework, "compiled", lambda tree: gx.nonfinite_paths(tree) and tree, TREE)


@pytest.mark.parametrize("function", [gx.norms, gx.global_norm])
def test_integers_have_no_gradient_norm(function: Any) -> None:
    with pytest.raises(TypeError, match=r"'b'.*int64"):
        function({"a": np.ones(2), "b": np.array([1, 2])})
    with pytest.raises(ValueError, match=r"ord .*0\.5"):
        function({"a": np.ones(2)}, ord=0.5)


@by_graph
@slow(XLA, framework="jax", mode="compiled")
@slow(GRAPHS, framework="tensorflow", mode="compiled")
@pytest.mark.parametrize(("framework", "mode"), EVERY_MODE)
def test_warm_ups_and_windows_that_are_not_full_are_metrics(framework: str, mode: str) -> None:
    """A plain clip of a warm-up is told by its count, for each limit that follows the past."""
    tx = gx.measure(
        gx.chain(
            gx.clip_adagc(),
            gx.clip_zscore(lambda step: 2.5 + step),
            gx.masked(gx.clip_percentile(50.0, per_leaf=True), "w"),
            gx.clip_spikes(),
            gx.skip_spikes(gx.trace(0.5)),
        )
    )
    leaves = {"b": np.float32([1.0]), "w": np.float32([3.0, 4.0])}
    state, update = tx.init(tensors(framework, leaves)), in_mode(framework, mode, tx.update)
    for step in range(1, 4):
        grads = tensors(framework, {**leaves, "b": None if step == 2 else leaves["b"]})
        state = update(grads, state)[1]
        found = {name: array(value) for name, value in gx.metrics(state).items() if name.endswith("/count")}
        assert found == dict.fromkeys(
            [f"{name}/count" for name in ("clip_adagc", "clip_zscore", "masked", "clip_spikes", "skip_spikes")],
            np.asarray(step),
        )
