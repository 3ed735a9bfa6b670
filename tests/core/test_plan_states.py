"""Plans of transformations with a state: they give what the rule gives, and see every change of gradients and state."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import optree
import pytest
from support import array, arrays, assert_bits, tensors

import gradxform as gx
from gradxform.backend import lookup
from gradxform.core import plan
from gradxform.core.flat import flat_view
from gradxform.core.transformation import Context
from gradxform.proof.rows import STATEFUL

PLANNED = (
    "ema(0.9)",
    "ema(0.9, debias=False)",
    "trace(0.9)",
    "trace(0.9, nesterov=True)",
    "grokfast()",
    "add_noise(0.1, 7)",
    "clip_adagc()",
    "measure(clip_global_norm(1.0))",
    "measure(chain(clip_value(0.5), clip_norm(1.0)))",
    "chain(clip_global_norm(1.0), ema(0.9), scale(-0.1))",
    "masked(trace(0.9), '**/w')",
    "partition({'**/b': trace(0.9)}, default=measure(clip_global_norm(1.0)))",
    "accumulate(clip_global_norm(1.0), 2)",
    "chain(accumulate(trace(0.9), 3), scale(-0.1))",
    "skip_large(trace(0.5), 3.0)",
    "skip_nonfinite(clip_global_norm(1.0))",
    "skip_nonfinite(clip_norm(1.0), 1)",
    "chain(skip_nonfinite(chain(freeze('**/b'), clip_global_norm(1.0))), scale(-0.1))",
    "chain(clip_norm(2.0), skip_large(skip_nonfinite(ema(0.9)), 4.0), scale(-0.1))",
    "masked(skip_large(scale(2.0), 3.0), '**/w')",
    "chain(accumulate(ema(0.9), 2), clip_global_norm(1.0))",
    "clip_zscore(1.0, 0.9, 2)",
    "clip_percentile(50.0, 3)",
)
ROWS = [
    row.expression for row in STATEFUL if "cautious(" not in row.expression and "orthogonalize(" not in row.expression
]
EITHER = set(ROWS) - set(PLANNED)
UNPLANNED = (
    "measure(skip_nonfinite(clip_global_norm(1.0)))",
    "chain(skip_nonfinite(identity()), clip_global_norm(1.0))",
    "chain(masked(skip_large(scale(2.0), 9.0), '**/w'), clip_norm(1.0))",
    "skip_nonfinite(clip_global_norm(1.0, ord=1))",
    "add_decayed_weights(0.1)",
)
"""Which norms are known then depends on the outcome; or parameters are asked for."""
TREE = {
    "a/w": np.float32([[3.0, -4.0, 0.1], [0.5, 2.0, 1e-3]]),
    "a/b": np.float32([1.0, np.pi]),
    "none": None,
    "empty": np.zeros((0, 2), np.float32),
    "large/w": np.linspace(-1, 1, 9000, dtype=np.float32).reshape(90, 100),
}


@pytest.fixture(autouse=True)
def without_plans() -> Iterator[None]:
    plan.plan_of.cache_clear()
    yield


def plans() -> int:
    """How many calls have run a plan's steps."""
    return plan.plan_of.cache_info().hits


def by_rule(tx: gx.GradientTransformation, tree: Any, state: Any, params: Any = None) -> Any:
    """The result without a plan."""
    view, new = tx.rule(flat_view(tree), state, Context(params, {}))
    return view.tree(), new


def has_plan(tx: gx.GradientTransformation, tree: Any, state: Any) -> bool:
    """Whether a call runs a plan: then the rule is not called again."""
    backend: Any = lookup.opened(tree)[0]
    leaves, structure, signature = backend.planned(tree)
    return plan.ready_plan(tx, backend, structure, signature, leaves, state) is not None


def steps(framework: str, tree: Any = TREE) -> list[Any]:
    """The gradients of some steps, of many sizes."""
    with np.errstate(all="ignore"):
        return [
            tensors(framework, optree.tree_map(lambda leaf: leaf * np.float32(factor), tree))  # noqa: B023
            for factor in (1.0, -0.3, 1e20, 0.0, 1e-30, np.inf, 1.0)
        ]


@pytest.mark.parametrize("framework", ("numpy", "torch"))
@pytest.mark.parametrize("expression", dict.fromkeys([*PLANNED, *UNPLANNED, *ROWS]))
def test_a_plan_gives_what_the_rule_gives(expression: str, framework: str) -> None:
    pytest.importorskip(framework)
    tx, params = gx.parse(expression), tensors(framework, TREE)
    needs = params if "decayed" in expression or "adaptive" in expression else None
    state = other = tx.init(params)
    assert has_plan(tx, params, state) is (expression in PLANNED) or expression in EITHER
    for gradients in steps(framework):
        before = arrays(state)
        found, new = tx.update(gradients, state, needs)
        wanted, other = by_rule(tx, gradients, other, needs)
        assert_bits(arrays(found), arrays(wanted))
        assert optree.tree_structure(new, none_is_leaf=True) == optree.tree_structure(other, none_is_leaf=True)
        assert_bits(arrays(new), arrays(other))
        assert_bits(before, arrays(state))
        kinds = [[type(leaf) for leaf in optree.tree_leaves(tree)] for tree in (new, other, found, wanted)]
        assert kinds[0] == kinds[1] and kinds[2] == kinds[3]
        state = new


@pytest.mark.parametrize("framework", ("numpy", "torch"))
def test_only_one_outcome_is_computed(framework: str) -> None:
    pytest.importorskip(framework)
    calls: list[float] = []
    tx = gx.chain(gx.skip_large(gx.scale(lambda step: calls.append(float(step)) or 0.5), 10.0), gx.scale(-1.0))
    small, large = (tensors(framework, {"w": np.float32([value])}) for value in (3.0, 30.0))
    state = tx.init(small)
    assert has_plan(tx, small, state)
    calls.clear()
    found = []
    for gradients in (small, large, small, large, small):
        updates, state = tx.update(gradients, state)
        found.append(float(array(updates["w"])[0]))
    assert found == [-1.5, 0, -1.5, 0, -1.5] and calls == [0, 1, 2] and plans() > 0


VALUES = (1.0, 0.3, -0.5, 0.0, 1e-60, 1e30, math.inf, math.nan, 7, np.float32(0.1))
SCHEDULED = {
    "scale": gx.scale,
    "scale_by_schedule": gx.scale_by_schedule,
    "clip_value": gx.clip_value,
    "low": lambda at: gx.clip_value(low=at),
    "high": lambda at: gx.clip_value(low=-9.0, high=at),
    "clip_norm": gx.clip_norm,
    "clip_global_norm": gx.clip_global_norm,
    "clip_rms": gx.clip_rms,
    "trace": gx.trace,
    "masked": lambda at: gx.masked(gx.scale(at), "**/w"),
    "measure": lambda at: gx.measure(gx.clip_global_norm(at)),
    "chain": lambda at: gx.chain(gx.clip_value(at), gx.clip_global_norm(1.0), gx.scale(at)),
}

BOUNDS = ("clip_value", "low", "high", "chain")
"""Their bounds are arrays then, whose order each step checks."""


@pytest.mark.parametrize("framework", ("numpy", "torch"))
@pytest.mark.parametrize("name", SCHEDULED)
def test_a_schedule_is_called_at_each_step(name: str, framework: str) -> None:
    """With whatever it returns, and once; what it depends on may change."""
    pytest.importorskip(framework)
    calls: list[tuple[type, float]] = []
    factor = 1.0

    def schedule(step: Any) -> Any:
        calls.append((type(step), float(step)))
        return VALUES[int(step)] * factor

    tx, gradients = SCHEDULED[name](schedule), tensors(framework, TREE)
    state = tx.init(gradients)
    assert has_plan(tx, gradients, state) is (name not in BOUNDS)
    for step in range(len(VALUES)):
        factor = 1.0 + step % 3
        calls.clear()
        wanted, other = by_rule(tx, gradients, state)
        by_hand = calls.copy()
        calls.clear()
        found, state = tx.update(gradients, state)
        assert calls == by_hand and {count for _, count in calls} == {step}
        assert_bits(arrays(found), arrays(wanted))
        assert_bits(arrays(state), arrays(other))


@pytest.mark.parametrize("framework", ("numpy", "torch"))
@pytest.mark.parametrize("name", SCHEDULED)
def test_a_schedule_of_several_numbers_is_refused(name: str, framework: str) -> None:
    """As the rule refuses it, not taken for a factor of each leaf."""
    pytest.importorskip(framework)
    gradients = tensors(framework, TREE)
    vector = tensors(framework, [np.float32([1, 2, 3, 4])])[0]
    for value in (np.array([1.0]), np.ones(4), np.ones((1, 1)), (1.0,), [1.0, 2.0], vector, vector[:1]):
        tx = SCHEDULED[name](lambda step: value)  # noqa: B023
        state = tx.init(gradients)
        try:
            wanted = by_rule(tx, gradients, state)
        except (TypeError, ValueError) as error:
            with pytest.raises(type(error)) as found:
                tx.update(gradients, state)
            assert str(found.value) == str(error)
            continue
        assert name in BOUNDS, "only bounds may be arrays"
        assert_bits(arrays(tx.update(gradients, state)), arrays(wanted))


def test_a_schedule_that_fails_is_called_again() -> None:
    def schedule(step: float) -> float:
        if step == 1.0:
            raise RuntimeError("no learning rate yet")
        return 0.5

    tx, gradients = gx.scale(schedule), {"w": np.float32([3, 4])}
    state = tx.init(gradients)
    for _ in range(2):
        _, later = tx.update(gradients, state)
        with pytest.raises(RuntimeError, match="no learning rate yet"):
            tx.update(gradients, later)
    assert plans() > 0


@pytest.mark.parametrize("expression", PLANNED)
def test_in_place(expression: str) -> None:
    tx, tree = gx.parse(expression), {path: leaf for path, leaf in TREE.items() if leaf is not None}
    state = other = tx.init(tree)
    for gradients in steps("numpy", tree):
        wanted, other = by_rule(tx, {path: leaf.copy() for path, leaf in gradients.items()}, other)
        given = list(gradients.values())
        state = gx.numpy.apply_(tx, gradients, state)
        assert_bits(gradients, wanted)
        assert_bits(arrays(state), arrays(other))
        assert all(old is new for old, new in zip(given, gradients.values(), strict=True))
        shared = [np.shares_memory(a, b) for a in arrays(state) for b in gradients.values()]
        assert not any(shared), "the next gradients are written there"
    assert plans() > 0


@pytest.mark.parametrize("expression", [*PLANNED, "accumulate(trace(0.5), 2)"])
def test_an_optimizer_of_pytorch(expression: str) -> None:
    """Its own state, the gradients, and the norm before, with a plan and without one."""
    torch = pytest.importorskip("torch")
    tx, tree = gx.parse(expression), {path: leaf for path, leaf in TREE.items() if leaf is not None}
    found = []
    for planned in (True, False):
        named = [(path.replace("/", "."), torch.nn.Parameter(torch.zeros(leaf.shape))) for path, leaf in tree.items()]
        optimizer = torch.optim.SGD(named, lr=1.0)
        runs = []
        with gx.torch.attach(optimizer, tx) as handle, pytest.MonkeyPatch.context() as patch:
            if not planned:
                patch.setattr("gradxform_torch._parameters.ready_plan", lambda *args, **kwargs: None)
            for gradients in steps("torch", tree):
                for path, parameter in named:
                    parameter.grad = gradients[path.replace(".", "/")].clone()
                optimizer.step()
                after = [parameter.grad for _, parameter in named if parameter.grad is not None]
                runs.append([*arrays(after), *arrays(handle.state)])
                runs.append([] if handle.norm is None else arrays(handle.norm))
        found.append(runs)
    for one, other in zip(*found, strict=True):
        assert_bits(one, other)
    assert plans() > 0 or "accumulate" in expression


def test_every_change_is_seen() -> None:
    """Of gradients and of the state: dtype, shape, structure, None, order, class."""
    tx = gx.chain(gx.clip_global_norm(1.0), gx.trace(0.5))
    trees = [
        {"a": np.float32([3, 4]), "b": np.float32([1])},
        {"b": np.float32([1]), "a": np.float32([3, 4])},
        {"a": np.float64([3, 4]), "b": np.float32([1])},
        {"a": np.float16([3, 4]), "b": np.float32([1])},
        {"a": None, "b": np.float32([1])},
        {"a": np.float32([[3, 4]]), "b": np.float32([1])},
        {"a": np.float32(3)[None][0:1].reshape(()), "b": np.float32([1])},
        [np.float32([3, 4]), np.float32([1])],
        {"a": {"c": np.float32([3, 4])}, "b": np.float32([1])},
    ]
    states = [tx.init(tree) for tree in trees]
    for _ in range(3):
        for i, tree in enumerate(trees):
            found, new = tx.update(tree, states[i])
            wanted, other = by_rule(tx, tree, states[i])
            assert_bits(found, wanted)
            assert_bits(arrays(new), arrays(other))
            states[i] = new
    for tree, state in ((trees[0], states[5]), (trees[5], states[0]), (trees[0], states[7]), (trees[0], states[8])):
        for _ in range(2):
            with pytest.raises(ValueError, match="trace: the traces"):
                tx.update(tree, state)
    with pytest.raises(ValueError, match="the state must be"):
        tx.update(trees[0], gx.chain(gx.scale(1.0), gx.ema(0.9)).init(trees[0]))
    with pytest.raises(TypeError, match="int32"):
        tx.update({"a": np.int32([3, 4]), "b": np.float32([1])}, states[0])
    wide = optree.tree_map(lambda leaf: leaf.astype(np.float64), states[0])
    assert_bits(arrays(tx.update(trees[0], wide)), arrays(by_rule(tx, trees[0], wide)))


def test_states_of_other_frameworks_and_classes() -> None:
    """A state made without parameters is NumPy's, and a subclass keeps its own ways."""
    torch = pytest.importorskip("torch")
    tx, tree = gx.measure(gx.clip_global_norm(1.0)), {"w": torch.tensor([3.0, 4.0])}
    state = tx.init({})
    for _ in range(2):
        _, state = tx.update(tree, state)
        assert gx.metrics(state)["clip_global_norm/norm_before"] == 5.0
    ema, gradients = gx.ema(0.5), {"w": np.float32([[3.0, 4.0]])}
    with pytest.raises(ValueError, match="move the state"):
        ema.update(tree, ema.init({"w": pytest.importorskip("jax").numpy.zeros(2)}))
    strange = ema.init(gradients)._replace(ema={"w": np.zeros((1, 2), np.float32).view(np.matrix)})
    assert not has_plan(ema, gradients, strange)
    asked = tree["w"].clone().requires_grad_()
    state = gx.trace(0.5).init(tree)
    gx.trace(0.5).update({"w": asked}, state)[0]["w"].sum().backward()
    assert asked.grad is not None


def test_a_plan_keeps_no_array() -> None:
    tx, leaf = gx.ema(0.5), np.ones(3, np.float32)
    state = tx.init([leaf])
    kept = [weakref.ref(leaf), weakref.ref(state.ema[0])]
    for _ in range(2):
        _, state = tx.update([leaf], state)
    del leaf, state, _
    gc.collect()
    assert [ref() for ref in kept] == [None, None] and plans() > 0


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_wider_state_of_numbers(framework: str) -> None:
    """Numbers of float64 parameters are longdouble on the host."""
    wide, narrow = ([np.ones(3, dtype), np.full(3, 2.0, dtype)] for dtype in ("float64", "float32"))
    tx = gx.chain(gx.clip_global_norm(1.0), gx.clip_adagc())
    state = tx.init(tensors(framework, wide))
    for _ in range(3):
        updates, state = tx.update(tensors(framework, narrow), state)
    for leaf, old in zip(map(array, updates), narrow, strict=True):
        np.testing.assert_allclose(leaf, old / math.sqrt(15.0), rtol=1e-6)
