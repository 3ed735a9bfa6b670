"""Plans: what is repeated for trees of one structure gives what the rule gives, and sees every change."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import arrays, assert_bits, tensors

import gradxform as gx
from gradxform.backend import lookup
from gradxform.core import plan
from gradxform.core.flat import flat_view
from gradxform.core.transformation import Context
from gradxform.proof.rows import STATELESS

PLANNED = ("numpy", "torch")
TREE = {"a/kernel": np.float32([[3.0, -4.0], [0.5, 2.0]]), "a/bias": np.float32([1.0, np.pi]), "none": None}
EXPRESSIONS = (
    "identity()",
    "clip_value(0.75)",
    "clip_norm(1.0)",
    "clip_norm(1.0, ord=1)",
    "clip_global_norm(1.0)",
    "clip_global_norm(1e9)",
    "normalize_global_norm()",
    "scale(-0.1)",
    "freeze('**/bias')",
    "masked(clip_norm(0.5), '**/kernel')",
    "partition({'**/bias': stop(), re.compile('kernel'): clip_value(1.0)}, default=scale(2.0))",
    "chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))",
    "chain(clip_norm(5.0), clip_global_norm(1.0), masked(scale(3.0), '**/bias'), clip_value(0.1), normalize_norm())",
)
"""What has a plan."""
UNPLANNED = (
    gx.ema(0.5),
    gx.clip_norm(lambda step: 1.0),
    gx.clip_norm(np.array(1.0)),
    gx.elementwise(lambda x: x),
    gx.transform(lambda g: g),
    gx.add_decayed_weights(0.1),
    gx.clip_adaptive(0.1),
    gx.masked(gx.scale(2.0), {"a/kernel": True, "a/bias": False, "none": False}),
    gx.across(gx.clip_norm(1.0), "data"),
)


@pytest.fixture(autouse=True)
def without_plans() -> Iterator[None]:
    plan.plan_of.cache_clear()
    yield


def made() -> int:
    """How many plans there are, of trees that have none too."""
    return plan.plan_of.cache_info().currsize


def by_rule(tx: gx.GradientTransformation, tree: Any) -> Any:
    """The result without a plan."""
    view, _ = tx.rule(flat_view(tree), None, Context(None, {}))
    return view.tree()


@pytest.mark.parametrize("framework", PLANNED)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_plan_gives_what_the_rule_gives(expression: str, framework: str) -> None:
    pytest.importorskip(framework)
    tx, tree = gx.parse(expression), tensors(framework, TREE)
    for factor in (1.0, 1e30, 1e-30, np.inf, np.nan):
        with np.errstate(all="ignore"):
            scaled = tensors(
                framework, {path: leaf if leaf is None else leaf * np.float32(factor) for path, leaf in TREE.items()}
            )
        assert_bits(arrays(tx(scaled)), arrays(by_rule(tx, scaled)))
    assert list(tx(tree)) == list(TREE) and tx(tree)["none"] is None
    assert plan.plan_of.cache_info().misses == 1, "the structure is the same"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_in_place(expression: str) -> None:
    tx = gx.parse(expression)
    tree = {path: leaf if leaf is None else leaf.copy() for path, leaf in TREE.items()}
    wanted = by_rule(tx, TREE)
    given = list(tree.values())
    gx.numpy.apply_(tx, tree)
    assert_bits(tree, wanted)
    assert all(old is new for old, new in zip(given, tree.values(), strict=True))
    assert tx.may_stop or plan.plan_of.cache_info().currsize == 1


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_parameters_of_pytorch(expression: str) -> None:
    torch = pytest.importorskip("torch")
    tx = gx.parse(expression)
    given = {path: leaf for path, leaf in TREE.items() if leaf is not None}
    parameters = {path: torch.nn.Parameter(torch.zeros(leaf.shape)) for path, leaf in given.items()}
    parameters["none"] = torch.nn.Parameter(torch.zeros(2))
    for path, leaf in given.items():
        parameters[path].grad = torch.from_numpy(leaf.copy())
    before = {path: parameter.grad for path, parameter in parameters.items()}
    gx.torch.apply_(tx, parameters)
    assert made() == 1
    wanted = by_rule(tx, TREE)
    for path, parameter in parameters.items():
        if path == "none" or ("bias" in path and tx.may_stop):
            assert parameter.grad is None
        else:
            assert parameter.grad is before[path]
            assert_bits(arrays(parameter.grad), arrays(wanted[path]))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_has_a_plan(expression: str) -> None:
    found = plan.plan_of(gx.parse(expression), *signature(TREE))
    assert found is not None


@pytest.mark.parametrize("tx", UNPLANNED, ids=lambda tx: tx.name)
def test_what_has_none(tx: gx.GradientTransformation) -> None:
    """Hyperparameters that can change, functions of the user, states."""
    assert plan.plan_of(tx, *signature(TREE)) is None


def test_float64_and_half_precision_have_none_or_the_right_one() -> None:
    """Factors of float64 leaves may need several kernels; clips of half precision return float32 for a while."""
    for dtype in (np.float64, np.float16, np.complex64):
        tree = {"a": np.arange(1, 5).astype(dtype), "b": np.float32([30.0])}
        for expression in (
            "clip_global_norm(1.0)",
            "chain(scale(0.1), clip_norm(0.5), scale(-3.0))",
            "chain(scale(0.1), clip_value(0.2))",
        ):
            if dtype is np.complex64 and "value" in expression:
                continue
            tx = gx.parse(expression)
            assert_bits(tx(tree), by_rule(tx, tree))


def signature(tree: Any) -> tuple[Any, ...]:
    backend = lookup.backend("numpy")
    _, structure, dtypes = backend.planned(tree)
    return backend, structure, dtypes


def test_every_change_is_seen() -> None:
    """Dtype, structure, None, order, subclass; the shape alone needs no new plan."""
    tx = gx.clip_global_norm(1.0)
    trees = [
        {"a": np.float32([3, 4]), "b": np.float32([1])},
        {"b": np.float32([1]), "a": np.float32([3, 4])},
        {"a": np.float64([3, 4]), "b": np.float32([1])},
        {"a": None, "b": np.float32([1])},
        [np.float32([3, 4]), np.float32([1])],
        (np.float32([3, 4]), np.float32([1])),
        {"a": {"c": np.float32([3, 4])}, "b": np.float32([1])},
        np.float32([3, 4]),
    ]
    for tree in trees * 2:
        assert_bits(tx(tree), by_rule(tx, tree))
    count = made()
    tx({"a": np.ones((5, 7), np.float32), "b": np.float32(1)[None]})
    assert made() == count
    with pytest.raises(TypeError, match="int32"):
        tx({"a": np.int32([3, 4]), "b": np.float32([1])})
    with pytest.raises(TypeError, match="masked array"):
        tx({"a": np.ma.masked_array(np.float32([3, 4])), "b": np.float32([1])})
    assert type(tx({"a": np.float32(3.0), "b": np.float32([4])})["a"]) is np.float32


def test_equal_numbers_that_are_not_the_same_have_plans_of_their_own() -> None:
    tree = {"w": np.float32([2.0])}
    assert np.signbit(gx.scale(-0.0)(tree)["w"]) and not np.signbit(gx.scale(0.0)(tree)["w"])
    assert gx.scale(2)(tree)["w"].dtype == np.float32


def test_errors_are_those_of_the_rule() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=r"masked: the pattern 'nothing' matches no path"):
            gx.masked(gx.scale(2.0), "nothing")(TREE)


def test_equal_transformations_share_plans_and_there_is_a_limit() -> None:
    for _ in range(3):
        gx.clip_norm(1.0)(TREE)
    assert made() == 1
    for i in range(plan._KEPT + 10):
        gx.clip_norm(1.0 + i)(TREE)
    assert made() == plan._KEPT


def test_a_plan_keeps_no_array() -> None:
    leaf = np.ones(3, np.float32)
    tree = {"w": leaf}
    kept = weakref.ref(leaf)
    result = gx.clip_norm(1.0)(tree)
    del leaf, tree
    gc.collect()
    assert kept() is None and result["w"].shape == (3,)


def test_a_rule_that_reads_numbers_has_no_plan() -> None:
    """A rule of someone else's that decides by a value is run each time."""

    def rule(view: Any, state: Any, context: Any) -> Any:
        return (view.scaled(2.0) if view.global_norm().value > 1.0 else view), state

    tx = gx.GradientTransformation(rule, None, "double_large", ())
    assert plan.plan_of(tx, *signature(TREE)) is None
    for size in (10.0, 0.01):
        assert tx({"w": np.float32([size])})["w"][0] == np.float32(2 * size if size > 1 else size)


def test_most_rows_have_plans() -> None:
    """So that the table's tests run them."""
    trees = {"w": np.float32([[3.0, -4.0]]), "b": np.float32([1.0])}
    rows = {row.expression for row in STATELESS}
    planned = set()
    for expression in rows:
        tx = gx.parse(expression) if "(" in expression else None
        if tx is not None and not tx.wheres and plan.plan_of(tx, *signature(trees)) is not None:
            planned.add(expression)
    assert len(planned) > 20, sorted(planned)


def test_tensors_that_need_more_have_no_plan() -> None:
    """Sparse ones, those with a gradient, and whatever a transformation of torch.func passes."""
    torch = pytest.importorskip("torch")
    tx, dense = gx.clip_global_norm(1.0), torch.tensor([3.0, 4.0])
    backend = lookup.backend("torch")
    for leaf in (dense.clone().requires_grad_(), torch.nn.Parameter(dense)):
        assert backend.planned({"w": leaf}) is None
    assert backend.planned({"w": dense.to_sparse()}) is None and backend.planned({"w": dense.to("meta")}) is None
    assert backend.planned({"w": dense}) is not None
    asked = dense.clone().requires_grad_()
    tx({"w": asked})["w"].sum().backward()
    assert asked.grad is not None
    found = torch.func.vmap(lambda g: tx({"w": g})["w"])(torch.stack([dense, 2 * dense]))
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.6, 0.8]]))
