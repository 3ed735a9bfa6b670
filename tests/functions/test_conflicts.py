"""The gradients of conflicting tasks combined: their numbers in every framework, their properties, their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import conflicts
import ml_dtypes
import numpy as np
import pytest
from support import (
    EAGER,
    GRAPHS,
    XLA,
    array,
    arrays,
    assert_bits,
    assert_sums,
    by_graph,
    call,
    slow,
    tensors,
)

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity

FUNCTIONS: dict[str, Callable[..., Any]] = {"mgda": gx.mgda, "cagrad": gx.cagrad, "upgrad": gx.upgrad}
ALL = {**FUNCTIONS, "pcgrad": lambda trees, seed=0: gx.pcgrad(trees, seed)}
RIGHT: dict[str, Callable[..., Any]] = {name: getattr(conflicts, name) for name in ALL}
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


HEAVY = [("jax", "eager"), ("jax", "compiled"), ("tensorflow", "compiled")]


def all_of(*trees: Any) -> dict[str, Any]:
    """All four, so that each mode compiles once."""
    return {name: function(list(trees)) for name, function in ALL.items()}


@by_graph
@slow(XLA, framework="jax", mode="compiled")
@slow(XLA, lambda framework, mode, dtype: dtype == "float64" and (framework, mode) in HEAVY)
@slow(EAGER, framework="jax", mode="eager")
@slow(GRAPHS, framework="tensorflow", mode="compiled", dtype=("float16", "bfloat16"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_numbers(framework: str, mode: str, dtype: str) -> None:
    """All dtypes are combined in float64, for whose pairs inductor takes up to minutes."""
    if (framework, mode) == ("torch", "compiled") and dtype != "float32":
        pytest.skip("one dtype is enough for a compiler that takes its time")
    trees = conflicts.trees(DTYPES[dtype])
    found = call(framework, mode, all_of, *trees)
    rows = np.stack([conflicts.flat(tree) for tree in trees])
    for name, tree in found.items():
        named = parity.named_leaves(tree, lookup.backend(framework))
        right = RIGHT[name](rows)
        assert np.abs(right - rows.mean(axis=0)).max() > 0.1  # they conflict
        if dtype == "float64":
            np.testing.assert_allclose(conflicts.flat(named), right, rtol=0, atol=2e-14, err_msg=name)
            continue
        wanted, terms = (
            {"a": flat[:12].reshape(3, 4), "b": flat[12:]} for flat in (right, np.max(np.abs(rows), axis=0))
        )
        rounded = {path: part.astype(np.float32).astype(DTYPES[dtype]) for path, part in wanted.items()}
        assert_sums(named, rounded, terms, times=2 if name == "pcgrad" else 1, what=name)


ROWS = {
    "two": [[1.0, 0.0], [-1.0, 1.0]],
    "no conflict": [[1.0, 0.5], [0.5, 1.0]],
    "opposite": [[1.0, 2.0], [-1.0, -2.0], [0.0, 1.0]],
    "one is a multiple": [[1.0, 2.0, 0.0], [-3.0, -6.0, 0.0], [0.0, 1.0, 1.0]],
    "equal": [[1.0, -2.0, 3.0]] * 3,
    "nearly equal": [[1.0, -2.0, 3.0], [1.0, -2.0, 3.0 + 2.0**-20]],
    "sizes": [[1e6, 0.0, 1.0], [-1.0, 1.0, 0.0], [1e-6, -2e-6, 1e-6]],
    "dependent": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, -1.0, 0.5], [-1.0, 0.5, -1.0], [0.0, -0.5, -0.5]],
    "zero": [[1.0, 2.0], [0.0, 0.0], [-1.0, 0.5]],
    "all zero": [[0.0, 0.0], [0.0, 0.0]],
    "one": [[3.0, -4.0]],
}


def rows_of(kind: str) -> Any:
    return np.array(ROWS[kind])


@pytest.mark.parametrize("kind", ROWS)
def test_the_shortest_vector(kind: str) -> None:
    """Its product with each gradient is at least its square; nothing in the hull is shorter."""
    rows = rows_of(kind)
    found = gx.mgda([[row] for row in rows])[0]
    size = np.max(np.abs(rows @ rows.T))
    assert np.min(rows @ found) >= found @ found - 4e-15 * size
    if kind not in ("zero", "all zero"):
        np.testing.assert_allclose(found, conflicts.mgda(rows), rtol=0, atol=1e-14 * np.sqrt(size))
    else:
        assert found.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ROWS)
def test_no_projection_conflicts(kind: str) -> None:
    rows = rows_of(kind)
    found = gx.upgrad([[row] for row in rows])[0]
    norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    assert np.min(rows @ found / norms) >= -1e-14 * np.max(norms)
    np.testing.assert_allclose(found, conflicts.upgrad(rows), rtol=0, atol=1e-14 * np.max(norms))
    if np.min(rows @ rows.T) >= 0:
        np.testing.assert_allclose(found, rows.mean(axis=0), rtol=4e-15)


@pytest.mark.parametrize("kind", ROWS)
def test_conflicts_are_projected_away_in_a_random_order(kind: str) -> None:
    rows, found = rows_of(kind), set()
    for seed in range(8):
        (own,) = gx.pcgrad([[row] for row in rows], seed)
        np.testing.assert_allclose(own, conflicts.pcgrad(rows, seed), rtol=0, atol=1e-14 * np.abs(rows).max())
        found.add(own.tobytes())
    assert kind != "dependent" or len(found) > 1


@pytest.mark.parametrize("c", [0.0, 0.2, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("kind", ROWS)
def test_the_worst_task_within_a_distance_of_the_mean(kind: str, c: float) -> None:
    """Each weighting w of the tasks bounds what all can have: g_w g_0 + c |g_0| |g_w|. SciPy looks for a lower one."""
    rows = rows_of(kind)
    found, mean = gx.cagrad([[row] for row in rows], c)[0], rows.mean(axis=0)
    size, radius = max(np.max(np.linalg.norm(rows, axis=1)), 1e-300), c * np.linalg.norm(mean)
    assert np.linalg.norm(found - mean) <= radius + 1e-13 * size
    if c == 0:
        np.testing.assert_allclose(found, mean, rtol=4e-15, atol=4e-15 * size)
    for start in (np.ones(len(rows)), np.arange(1.0, len(rows) + 1)):
        bound = conflicts.bound(rows / size, c, start / start.sum())
        assert np.min(rows / size @ found / size) >= bound - 1e-7


@pytest.mark.parametrize("seed", range(20))
def test_random_gradients_beside_the_papers_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = (2, 3, 4, 5, 6, 10)[seed % 6]
    rows = rng.standard_normal((count, 30)) - 0.3 * rng.standard_normal(30)
    trees = [{"w": row[:20].reshape(4, 5), "b": row[20:]} for row in rows]
    for name, function in ALL.items():
        np.testing.assert_allclose(conflicts.flat(function(trees)), RIGHT[name](rows), rtol=0, atol=1e-12, err_msg=name)
    wide = conflicts.flat(gx.cagrad(trees, c=0.9))
    np.testing.assert_allclose(wide, conflicts.cagrad(rows, 0.9), rtol=0, atol=1e-12)


@slow(EAGER, framework="jax")
@pytest.mark.parametrize(
    ("kind", "unit"), [(np.float32, 2.0**100), (np.float32, 2.0**-95), (np.float64, 2.0**664), (np.float64, 2.0**-664)]
)
def test_the_size_of_gradients_does_not_matter(framework: str, kind: Any, unit: float) -> None:
    """Products are beyond the dtype."""
    small = conflicts.trees(kind)
    large = [{path: leaf * kind(unit) for path, leaf in tree.items()} for tree in small]
    for function in ALL.values():
        one, other = function(tensors(framework, small)), function(tensors(framework, large))
        scaled = [leaf * kind(unit) for leaf in arrays(one)]
        largest = [np.max([np.abs(tree[path]) for tree in large], axis=0) for path in large[0]]
        assert_sums(arrays(other), scaled, largest, times=2)


@slow(EAGER, framework="jax")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_nonfinite_element_makes_everything_nan(framework: str, value: float) -> None:
    trees = conflicts.trees(np.float32)
    trees[1]["b"][0] = value
    trees[2]["a"] = None
    for function in FUNCTIONS.values():
        assert all(np.isnan(leaf).all() for leaf in arrays(function(tensors(framework, trees))))


@slow(EAGER, framework="jax")
def test_zeros_give_zeros_and_none_counts_as_zeros(framework: str) -> None:
    zeros = tensors(framework, [{"w": np.zeros((2, 2), np.float32), "v": np.zeros(0, np.float32)} for _ in range(3)])
    first, second = {"w": np.float32([1.0, 2.0]), "v": None}, {"w": None, "v": np.float32([1.0])}
    known = {
        path: [tree[path] if tree[path] is not None else 0 * leaf for tree in (first, second)]
        for path, leaf in (("w", first["w"]), ("v", second["v"]))
    }
    filled = [{path: leaves[i] for path, leaves in known.items()} for i in range(2)]
    for function in ALL.values():
        assert [leaf.any() for leaf in arrays(function(zeros))] == [False, False]
        assert_bits(function(tensors(framework, [first, second])), function(tensors(framework, filled)))
        nothing = function(tensors(framework, [first, {"w": None, "v": None}]))
        assert nothing["v"] is None
    assert gx.mgda([first, {"w": None, "v": None}])["w"].tolist() == [0.0, 0.0]


@slow(EAGER, framework="jax")
def test_the_radius_may_be_an_array(framework: str) -> None:
    trees, backend = tensors(framework, conflicts.trees(np.float32)), lookup.backend(framework)
    for c in (0.25, 0.0):
        found, wanted = gx.cagrad(trees, backend.from_numpy(np.array(c, np.float32))), gx.cagrad(trees, c)
        largest = {path: np.max([np.abs(array(tree[path])) for tree in trees], axis=0) for path in found}
        assert_sums(found, wanted, largest, times=2)
    for lost in (np.nan, np.inf):
        spoilt = gx.cagrad(trees, backend.from_numpy(np.array(lost, np.float32)))
        assert all(np.isnan(leaf).all() for leaf in arrays(spoilt))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_where_nothing_helps_all_tasks_the_projected_mean(count: int) -> None:
    """With a gradient of zero, no direction helps all; the nearest to the mean that harms none is unique."""
    rows = np.random.default_rng(count).standard_normal((count, 5))
    rows[-1] = 0.0
    mean = rows.mean(axis=0)
    nearest = mean + conflicts._nonnegative(rows.T, -mean) @ rows
    found = gx.cagrad([[row] for row in rows], c=1.0)[0]
    np.testing.assert_allclose(found, nearest, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors(name: str) -> None:
    function = FUNCTIONS[name]
    with pytest.raises(TypeError, match=f"{name}: expected a list of trees"):
        function({"w": np.ones(2)})
    with pytest.raises(ValueError, match=rf"{name}: .*at most 10 .*11.*pcgrad\(trees, seed\)"):
        function([[np.ones(2)]] * 11)
    with pytest.raises(ValueError, match="'w' differ in shape"):
        function([{"w": np.ones(2)}, {"w": np.ones(3)}])
    for dtype in ("complex64", "int32", "bool"):
        with pytest.raises(TypeError, match=f"{name}: .*'w' of tree 1 .*{dtype}.*cast it, or put None there"):
            function([{"w": np.ones(2)}, {"w": np.ones(2, dtype)}])
    with pytest.raises(ValueError, match="found none"):
        function([])


def test_a_radius_that_is_none() -> None:
    for c in (-0.1, np.nan, np.inf):
        with pytest.raises(ValueError, match="cagrad: c must"):
            gx.cagrad([[np.ones(2)]], c)
    with pytest.raises(TypeError, match="cagrad: c must be a real number"):
        gx.cagrad([[np.ones(2)]], "1")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8])
def test_upgrad_beside_torchjd(count: int, torch: Any) -> None:
    """The authors' library of UPGrad, without regularization."""
    aggregation, linalg = (pytest.importorskip(f"torchjd.{name}") for name in ("aggregation", "linalg"))
    rows = torch.from_numpy(np.random.default_rng(count).normal(size=(count, 2 * count - 1)).round(2))
    wanted = aggregation.UPGrad(projector=linalg.QuadprogProjector(norm_eps=0.0, reg_eps=0.0))(rows)
    np.testing.assert_allclose(gx.upgrad([[row] for row in rows])[0].numpy(), wanted.numpy(), rtol=0, atol=1e-13)
