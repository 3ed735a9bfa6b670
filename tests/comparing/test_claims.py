"""What a diagnosis must not claim: causes that always fit, one step for the run, what was not looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from more_faults import MORE, accumulating, adagrad, lion, radam, scheduled
from numpy_runs import adam, clipped, each, rmsprop, sgd, train
from support import LARGE, RUNS, slow

import gradxform as gx

STEPS = 6
SHAPES = {"first/weight": (12, 16), "first/bias": (16,), "last/weight": (16, 10), "last/scale": (1,)}


def normal(*seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {path: np.float32(rng.normal(size=shape)) for path, shape in SHAPES.items()}


def runs(folder: Path, change: Callable[[int, dict[str, Any]], dict[str, Any]], steps: int = STEPS) -> gx.Comparison:
    """Compare recordings of gradients, of which `change` makes those of B."""
    one, other = gx.record(folder / "a"), gx.record(folder / "b")
    for step in range(steps):
        one(step, gradients=normal(step), loss=np.float32(2.0))
        other(step, gradients=change(step, normal(step)), loss=np.float32(2.0))
    return gx.compare(folder / "a", folder / "b")


def trained(folder: Path, a: dict[str, Any], b: dict[str, Any]) -> gx.Comparison:
    return gx.compare(train(folder / "a", **a), train(folder / "b", **b, twin=True))


def certain(found: gx.Comparison) -> set[str]:
    return {finding.kind for finding in found.findings if finding.is_fault and finding.is_certain}


def test_a_warm_up_from_zero_is_a_schedule_where_enough_steps_show_it(tmp_path: Path) -> None:
    late = scheduled(lambda step: 0.1 * min(step, 1))
    for steps, weights in ((3, 1), (6, 0), (6, 1)):
        both = {"steps": steps, "start": lambda t, n=weights: {**t, "head.weight": n * t["head.weight"]}}
        found = trained(tmp_path / f"{steps}{weights}", both, {**both, "optimizer": late})
        assert certain(found) == ({"learning_rate"} if steps > 3 else set()), str(found)
        if steps > 3:
            assert found.findings[0].numbers == pytest.approx({"a": 0.1, "b": 0.0}, abs=1e-6)
            assert "0, 0.1, 0.1" in str(found)  # B's rates


def test_sums_of_two_batches_in_one_run_and_means_in_the_other(tmp_path: Path) -> None:
    found = trained(tmp_path, *({"optimizer": accumulating(rate), "steps": 9} for rate in (0.1, 0.2)))
    assert certain(found) == {"learning_rate"}, str(found)
    assert found.findings[0].numbers == pytest.approx({"a": 0.05, "b": 0.1}, abs=1e-6)


def test_a_run_in_which_nothing_moves_may_begin_later(tmp_path: Path) -> None:
    found = trained(tmp_path, {"optimizer": sgd()}, {"optimizer": sgd(0.0)})
    assert "No parameter moves in B from step 0 to 5" in str(found) and "taken yet" in str(found), str(found)
    assert not certain(found)


def test_a_leaf_that_does_not_move_beside_others_is_frozen(tmp_path: Path) -> None:
    moves = sgd()
    found = trained(
        tmp_path, {}, {"optimizer": lambda step, name, g, p: moves(step, name, g, p) * (name != "mid.bias")}
    )
    assert "mid/bias does not move in B" in str(found) and certain(found) == {"frozen"}, str(found)


def test_a_factor_of_each_step_is_no_constant_one(tmp_path: Path) -> None:
    found = runs(tmp_path, lambda step, tree: {path: (2 + step) * g for path, g in tree.items()})
    assert "2 times larger in B at step 0, 7 times at step 5, another number at each step" in str(found)
    assert not certain(found)


def test_a_factor_says_at_how_many_steps_it_holds(tmp_path: Path) -> None:
    found = runs(tmp_path, lambda step, tree: {path: 2 * g for path, g in tree.items()})
    assert "holds at 6 of 6 steps" in str(found) and certain(found) == {"factor"}


def test_one_step_of_half_the_gradients_is_no_clip(tmp_path: Path) -> None:
    for seed in range(60):
        for name, by in (("a", 1.0), ("b", 0.5)):
            tree = {path: np.float32(by * g) for path, g in normal(seed).items()}
            gx.record(tmp_path / str(seed) / name)(0, gradients=tree, loss=1.0)
        found = gx.compare(tmp_path / str(seed) / "a", tmp_path / str(seed) / "b")
        assert found.findings[0].kind == "factor" and not certain(found), str(found)


def test_a_leaf_of_one_element_has_no_factor(tmp_path: Path) -> None:
    found = runs(tmp_path, lambda step, tree: {**tree, "last/scale": tree["last/scale"] * np.float32(0.454)})
    assert not found.within and not certain(found), str(found)


def test_few_elements_exclude_no_optimizer(tmp_path: Path) -> None:
    for name, rate in (("a", 0.1), ("b", 0.2)):
        recorder, weights = gx.record(tmp_path / name), np.float32([1.0, -2.0, 0.5])
        for step in range(3):
            gradient = np.float32([0.3, 0.2, -0.4]) * (step + 1)
            recorder(step, gradients={"w": gradient}, parameters={"w": weights})
            weights = weights - np.float32(rate * (1 + step)) * gradient**2
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert "too few elements to tell" in str(found) and not certain(found), str(found)


@pytest.mark.parametrize("trees", [("gradients", "loss"), ("gradients",)])
def test_without_parameters_the_optimizers_may_differ(trees: tuple[str, ...], tmp_path: Path) -> None:
    found = trained(tmp_path, {"optimizer": sgd(0.1)}, {"optimizer": sgd(0.4), "trees": trees})
    assert "Record parameters in both runs" in str(found) and not certain(found), str(found)


@slow(RUNS, steps=(1, 2))
@slow(RUNS, lambda name: list(MORE).index(name) % 3 > 0)
@pytest.mark.parametrize("steps", [1, 2, 6])
@pytest.mark.parametrize("name", MORE)
def test_no_fault_is_taken_for_another(name: str, steps: int, tmp_path: Path) -> None:
    fault = MORE[name]
    for side, options in (("a", fault.both), ("b", {**fault.both, **fault.options})):
        given = {key: value() if key == "optimizer" else value for key, value in options.items()}
        train(tmp_path / side, **given, steps=steps, twin=side == "a")
    vague = {"constant", "precision", "unknown", "unrelated"}
    for one, other in ("ab", "ba"):
        found = gx.compare(tmp_path / one, tmp_path / other)
        assert certain(found) - vague <= set(fault.kinds), str(found)


@slow(RUNS, steps=(3, 8))
@pytest.mark.parametrize("steps", [2, 3, 8])
@pytest.mark.parametrize("other", ["lion", "radam", "rmsprop"])
@pytest.mark.parametrize("one", ["sgd", "adam"])
def test_another_optimizer_is_no_learning_rate(one: str, other: str, steps: int, tmp_path: Path) -> None:
    make = {"sgd": sgd, "adam": lambda: adam(1e-3), "lion": lion, "radam": radam, "rmsprop": rmsprop}
    found = trained(tmp_path, {"optimizer": make[one](), "steps": steps}, {"optimizer": make[other](), "steps": steps})
    assert not found.within and certain(found) <= {"optimizer"}, str(found)


@pytest.mark.parametrize("steps", [3, 6])
def test_adam_beside_sgd(steps: int, tmp_path: Path) -> None:
    options = {"change": each(lambda name, g: 0.01 * g), "steps": steps}
    found = trained(tmp_path, {"optimizer": sgd(10.0), **options}, {"optimizer": adam(1e-3), **options})
    assert "A is SGD with learning rate 10; B is Adam with" in str(found), str(found)


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        (sgd(), adam(), {"optimizer"}),
        (adam(), adam(decay=0.01), {"weight_decay"}),
        (adam(epsilon=1e-3), adam(epsilon=1e-2), {"epsilon"}),
        (adam(), adam(epsilon=1e-3), {"epsilon"}),
        (adam(epsilon=0.0), adam(epsilon=1e-3), set()),  # the first may be Lion
        (lion(), adam(1e-3), set()),
        (sgd(), sgd(momentum=0.9, nesterov=True), set()),
        (sgd(), lambda step, name, g, p: 0.1 * np.clip(g, -1.3e-3, 1.3e-3), set()),  # 95% are signs
    ],
)
def test_what_one_step_of_an_optimizer_tells(one: Any, other: Any, kinds: set[str], tmp_path: Path) -> None:
    found = trained(tmp_path, {"optimizer": one, "steps": 2}, {"optimizer": other, "steps": 2})
    assert not found.within and certain(found) == kinds, str(found)


@pytest.mark.parametrize("steps", [2, 3])
def test_plain_sgd_has_its_own_rates(steps: int, tmp_path: Path) -> None:
    found = trained(tmp_path, {"optimizer": sgd(0.1), "steps": steps}, {"optimizer": sgd(0.2), "steps": steps})
    assert "A is SGD with learning rate 0.1; B is SGD with learning rate 0.2." in str(found)
    assert certain(found) == ({"learning_rate"} if steps == 3 else set())


@slow(RUNS, steps=(4, 6))
@pytest.mark.parametrize("steps", [3, 4, 6])
@pytest.mark.parametrize("start", [0.0, 0.03, 0.1, 1.0])
def test_adagrad_is_no_rmsprop(start: float, steps: int, tmp_path: Path) -> None:
    found = trained(tmp_path, {"optimizer": sgd(), "steps": steps}, {"optimizer": adagrad(start=start), "steps": steps})
    assert "RMSprop" not in str(found), str(found)
    told = "B is Adagrad" in str(found) and "learning rate 0.01." in str(found)
    assert certain(found) == {"optimizer"} and told if start in (0.0, 0.1) else not certain(found), str(found)


@pytest.mark.parametrize("steps", [3, 6])
def test_rmsprop_with_a_long_memory_is_no_adagrad(steps: int, tmp_path: Path) -> None:
    one, other = {"optimizer": adagrad(start=0.0), "steps": steps}, {"optimizer": rmsprop(beta=0.999), "steps": steps}
    found = trained(tmp_path, one, other)
    words = "A is Adagrad with learning rate 0.01; B is RMSprop with second beta 0.999,"
    assert words in str(found) and certain(found) == {"optimizer"}, str(found)


def test_a_large_start_of_adagrad_is_no_certain_sgd(tmp_path: Path) -> None:
    found = trained(tmp_path, {"optimizer": sgd(), "steps": 3}, {"optimizer": adagrad(start=2.0), "steps": 3})
    assert not found.within and not certain(found), str(found)


@pytest.mark.parametrize("steps", [2, 6])
@pytest.mark.parametrize("part", [0.6, 0.9, 1.1])
@pytest.mark.parametrize("size", [(17,), (24, 24)])
def test_a_clip_by_value_after_recording_is_no_certain_optimizer(
    size: tuple[int, ...], part: float, steps: int, tmp_path: Path
) -> None:
    """The limit is between gradients, or below all of few ones, which then move as by their signs."""
    for name in "ab":
        recorder, p, first = gx.record(tmp_path / name), np.float32(np.zeros(size)), normal_of(size, 0)
        limit = np.quantile(np.abs(first), 1 - part) if part < 1 else np.abs(first).min() / 2
        for step in range(steps):
            g = normal_of(size, step)
            recorder(step, gradients={"w": g}, parameters={"w": p})
            p = p - np.float32(0.1 * (np.clip(g, -limit, limit) if name == "b" else g))
    for one, other in ("ab", "ba"):
        found = gx.compare(tmp_path / one, tmp_path / other)
        assert not found.within, str(found)
        assert not certain(found) or (size, part) == ((24, 24), 1.1), str(found)


def normal_of(size: tuple[int, ...], step: int) -> Any:
    return np.float32(np.random.default_rng(step).normal(size=size))


@pytest.mark.parametrize("steps", [2, 3, 6])
@pytest.mark.parametrize("other", ["sign", "lion", "adam"])
def test_gradients_of_one_size_tell_no_sgd_from_signs(other: str, steps: int, tmp_path: Path) -> None:
    make = {"sign": lambda: lambda step, name, g, p: 3e-3 * np.sign(g), "lion": lion, "adam": lambda: adam(2e-3)}[other]
    both = {"change": each(lambda name, g: 0.01 * np.sign(g)), "steps": steps}
    for folder, one in (("sgd", sgd()), (other, make())):
        found = trained(tmp_path / folder, {"optimizer": one, **both}, {"optimizer": make(), **both})
        assert found.within == (folder == other), str(found)
        assert certain(found) <= ({"optimizer"} if other == "lion" and steps > 2 else set()), str(found)


@slow(RUNS, steps=(3, 4, 5))
@pytest.mark.parametrize("steps", [3, 4, 5, 6])
@pytest.mark.parametrize("one", ["sgd", "momentum", "adam"])
def test_first_steps_of_radam_are_no_schedule_of_sgd(one: str, steps: int, tmp_path: Path) -> None:
    make = {"sgd": sgd, "momentum": lambda: sgd(0.05, 0.9), "adam": adam}
    found = trained(tmp_path, {"optimizer": make[one](), "steps": steps}, {"optimizer": radam(), "steps": steps})
    assert not found.within and certain(found) <= {"optimizer"}, str(found)
    assert not certain(found) or "B is SGD" not in str(found), str(found)


def norm_of(tree: dict[str, Any]) -> np.float32:
    return np.float32(np.sqrt(sum((g**2).sum() for g in tree.values())))


@pytest.mark.parametrize("limit", [1.0, 0.3])
def test_a_normalization_is_no_certain_clip(limit: float, tmp_path: Path) -> None:
    found = runs(tmp_path, lambda step, tree: {path: limit * g / norm_of(tree) for path, g in tree.items()})
    assert f"B clips or normalizes by the global norm, to {limit:g}" in str(found) and not certain(found), str(found)


def test_a_step_below_the_limit_proves_a_clip(tmp_path: Path) -> None:
    middle = float(np.median([norm_of(normal(step)) for step in range(STEPS)]))
    found = runs(tmp_path, clipped(middle))
    assert "B clips by the global norm" in str(found) and certain(found) == {"clip_global_norm"}, str(found)


@pytest.mark.parametrize(("limit", "sure"), [(2.0, True), (0.01, False)])
def test_a_leaf_below_the_limit_proves_a_clip(limit: float, sure: bool, tmp_path: Path) -> None:
    shrunk = {path: g * min(1.0, limit / norm_of({"": g})) for path, g in normal(0).items()}
    found = runs(tmp_path, lambda step, tree: {path: np.float32(g) for path, g in shrunk.items()}, steps=1)
    assert f"B clips {'' if sure else 'or normalizes '}each gradient by its norm" in str(found), str(found)
    assert certain(found) == ({"clip_norm"} if sure else set()), str(found)


def test_a_weight_decay_takes_two_steps(tmp_path: Path) -> None:
    for steps in (1, 2):
        folder, options = tmp_path / str(steps), {"steps": steps}
        found = trained(folder, options, {"decay": 0.1, **options})
        assert "B adds 0.1 times the parameters to the gradients" in str(found), str(found)
        assert certain(found) == ({"weight_decay"} if steps == 2 else set()), str(found)


def anchored(moves: Any, rate: float, anchor: bool) -> Any:
    """Return moves that decay parameters beside the gradient: toward their first values, or toward zero."""
    first: dict[str, Any] = {}

    def decayed(step: int, name: str, g: Any, p: Any) -> Any:
        return moves(step, name, g, p) + rate * (p - (first.setdefault(name, p) if anchor else 0.0))

    return decayed


@slow(RUNS, steps=(3, 6))
@pytest.mark.parametrize("steps", [2, 3, 6])
@pytest.mark.parametrize("rate", [0.1, 1e-3])
@pytest.mark.parametrize("make", [sgd, lambda: sgd(0.05, 0.9), adam])
def test_a_decay_toward_initial_values_is_no_certain_weight_decay(
    make: Any, rate: float, steps: int, tmp_path: Path
) -> None:
    for name, one in (("plain", make()), ("decayed", anchored(make(), rate, False))):
        first = {"optimizer": anchored(make(), rate, True), "steps": steps}
        found = trained(tmp_path / name, {"optimizer": one, "steps": steps}, first)
        assert name == "decayed" or not certain(found), str(found)
        assert "which B does not" not in str(found) or "such as its initial ones" in str(found), str(found)


def test_later_norms_exclude_a_clip(tmp_path: Path) -> None:
    found = trained(tmp_path, {}, {"change": each(lambda name, g: 0.5 * g)})
    assert "2 times larger in A, and the losses are equal" in str(found) and certain(found) == {"factor"}, str(found)
    assert "clipped" not in str(found)


@pytest.mark.parametrize("steps", [2, 6])
def test_a_mean_over_steps_is_no_certain_factor(steps: int, tmp_path: Path) -> None:
    mean: dict[str, Any] = dict.fromkeys(SHAPES, np.float32(0.0))

    def averaged(step: int, tree: dict[str, Any]) -> dict[str, Any]:
        mean.update({path: np.float32(0.9 * mean[path] + 0.1 * g) for path, g in tree.items()})
        return dict(mean)

    assert not certain(runs(tmp_path, averaged, steps))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_parameters_recorded_after_the_step_are_no_certain_other_start(steps: int, tmp_path: Path) -> None:
    one, other, slow = (gx.record(tmp_path / name) for name in "abc")
    parameters = normal(99)
    for step in range(steps):
        gradients, before = normal(step), parameters
        still = {path: np.float32(p - 1e-6 * step * gradients[path]) for path, p in normal(99).items()}
        slow(step, gradients=gradients, parameters=still, loss=np.float32(2.0))
        parameters = {path: np.float32(p - 0.01 * gradients[path]) for path, p in before.items()}
        one(step, gradients=gradients, parameters=before, loss=np.float32(2.0))
        other(step, gradients=gradients, parameters=parameters, loss=np.float32(2.0))
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert not found.within and certain(found) == ({"late_parameters"} if steps > 1 else set()), str(found)
    assert "late_parameters" not in certain(gx.compare(tmp_path / "a", tmp_path / "c"))
    assert "late_parameters" not in certain(gx.compare(tmp_path / "c", tmp_path / "a"))


def test_rates_of_each_step_may_be_a_clip(tmp_path: Path) -> None:
    moves = sgd()
    found = trained(tmp_path, {}, {"optimizer": lambda step, name, g, p: (1 + step) * moves(step, name, g, p)})
    assert certain(found) == {"learning_rate"}, str(found)
    assert "B is SGD with learning rate 0.1, 0.2, 0.3, 0.4, 0.5 from step to step (a schedule, or a clip" in str(found)


def test_steps_on_every_third_batch(tmp_path: Path) -> None:
    moves = sgd()
    found = trained(
        tmp_path, {"steps": 8}, {"optimizer": lambda step, *given: moves(step, *given) * (step % 3 == 2), "steps": 8}
    )
    assert "one step in 3 alone" in str(found) and certain(found) == {"optimizer"}, str(found)


def test_epsilons_are_told_apart_by_their_ratio(tmp_path: Path) -> None:
    options = {"change": each(lambda name, g: 1e-6 * g), "steps": 6}
    one, other = {"optimizer": adam(epsilon=1e-8), **options}, {"optimizer": adam(epsilon=1e-10), **options}
    found = trained(tmp_path, one, other)
    assert certain(found) == {"epsilon"} and "epsilon 1e-08; B" in str(found), str(found)


def test_a_leaf_that_comes_later_is_compared(tmp_path: Path) -> None:
    for name, by in (("a", 1.0), ("b", 3.0)):
        recorder = gx.record(tmp_path / name)
        for step in range(3):
            tree = normal(step)
            recorder(step, gradients={**tree, "late/weight": by * normal(9)["last/weight"]} if step else tree)
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert not found.within and "late/weight" in str(found), str(found)


def one_step(folder: Path, *gradients: dict[str, Any]) -> gx.Comparison:
    for name, tree in zip("ab", gradients, strict=True):
        gx.record(folder / name)(0, gradients=tree)
    return gx.compare(folder / "a", folder / "b")


W = normal(0)["first/weight"]
Z = np.complex64(W + 1j * normal(1)["first/weight"])
COUNTS = np.float32(np.random.default_rng(0).integers(1, 120, size=(40, 30)))
NEARLY = COUNTS + np.float32(np.random.default_rng(1).integers(-3, 4, size=COUNTS.shape))
EMPTY, BRAIN, FLOAT8 = (
    np.zeros((0, 3), np.float32),
    ml_dtypes.bfloat16,
    (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
)
LEAVES: dict[str, tuple[Any, Any, bool, str]] = {
    "another imaginary part": (Z, Z.conj(), False, ""),
    "three times complex numbers": (Z, 3 * Z, False, "3 times larger in B"),
    "integers in float32 are no bfloat16": (COUNTS, NEARLY, False, ""),
    "no elements are not NaN": (EMPTY, EMPTY, True, ""),
    "another dtype": (W, W.astype(BRAIN), True, "The gradients are float32 in A and bfloat16 in B"),
    **{f"{kind.__name__}, equal": (W.astype(kind), W.astype(kind), True, "") for kind in FLOAT8},
    **{f"{kind.__name__}, negated": (W.astype(kind), -W.astype(kind), False, "opposite sign") for kind in FLOAT8},
}
"""A leaf of each run, whether they differ by rounding alone, and words that are said."""


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_at_one_step(name: str, tmp_path: Path) -> None:
    one, other, within, words = LEAVES[name]
    found = one_step(tmp_path, {"w": one}, {"w": other})
    assert found.within is within and words in str(found) and not certain(found) - {"factor", "sign"}, str(found)


def test_float64_beyond_the_square_root(tmp_path: Path) -> None:
    weight, beside = np.random.default_rng(0).normal(size=(8, 8)) * 1e200, np.float64([1.0, 2.0])
    for by in (1.01, 1 + 1e-15):
        found = one_step(tmp_path / str(by), {"w": weight, "v": beside}, {"w": by * weight, "v": beside})
        assert found.within == (by < 1.01) and "nan" not in str(found), str(found)
        assert by < 1.01 or max(d.relative for d in found.worst() if d) == pytest.approx(0.01 / 1.01, rel=1e-9)


def test_gates_in_another_order_are_no_other_seed(tmp_path: Path) -> None:
    weights = {name: np.random.default_rng(k).normal(size=(40, 10)) for k, name in enumerate(("ih", "hh", "head"))}
    rows = np.concatenate([np.arange(0, 40, 4) + k for k in (2, 0, 3, 1)])
    for name in "ab":
        parameters = {p: np.float32(w if name == "a" or p == "head" else w[rows]) for p, w in weights.items()}
        gradients = {p: np.float32(np.random.default_rng(ord(name)).normal(size=w.shape)) for p, w in weights.items()}
        gx.record(tmp_path / name)(0, gradients=gradients, parameters=parameters)
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert "its elements in another order" in str(found) and "seeds" not in str(found), str(found)


@pytest.mark.parametrize("norms_only", [False, True])
def test_the_bias_of_one_is_the_sum_of_two(norms_only: bool, tmp_path: Path, rng: Any) -> None:
    """Keras's LSTM has one bias, PyTorch's two, and their gradients are equal."""
    w, u, b, c = (np.float32(rng.normal(size=shape)) for shape in ((16, 6), (16, 4), (16,), (16,)))
    torch = {"lstm.weight_ih_l0": w, "lstm.weight_hh_l0": u, "lstm.bias_ih_l0": b, "lstm.bias_hh_l0": c}
    keras = {"lstm/lstm_cell/kernel": w.T, "lstm/lstm_cell/recurrent_kernel": u.T, "lstm/lstm_cell/bias": b + c}
    for name, leaves in (("a", torch), ("b", keras)):
        gradients = {path: leaf * 0 + 1 if "bias" in path else leaf**2 for path, leaf in leaves.items()}
        trees = {} if norms_only else {"parameters": list(leaves.items())}
        gx.record(tmp_path / name, norms_only=norms_only)(0, gradients=list(gradients.items()), **trees)
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert found.within, str(found)


def test_equal_losses_prove_no_place(tmp_path: Path) -> None:
    """An attention scale changes a loss by less than rounding, at first."""
    found = runs(tmp_path, lambda step, tree: {**tree, "first/weight": tree["first/weight"] ** 2})
    assert "it arises" not in str(found)


def test_one_of_many_short_leaves_has_no_factor_by_chance(tmp_path: Path, rng: Any) -> None:
    leaves, noise = rng.normal(size=(1500, 5)), 1 + 1e-3 * rng.normal(size=(1500, 5))
    found = one_step(
        tmp_path, *({f"{i}/weight": np.float32(g) for i, g in enumerate(side)} for side in (leaves, leaves * noise))
    )
    assert not found.within and not certain(found), str(found)


@slow(LARGE, place="stack/unit")
@slow(LARGE, by=2.0)
@pytest.mark.parametrize(("place", "by"), [("layer", 1.0), ("layer", 2.0), ("stack/unit", 1.0)])
def test_many_leaves_take_seconds(place: str, by: float, tmp_path: Path) -> None:
    leaves = np.random.default_rng(0).normal(size=(20000, 5)).astype(np.float32)
    for name, begin, times in (("a", "layer", 1.0), ("b", place, by)):
        tree = {f"{begin}{i // 4}/part{i % 4}": np.float32(times * leaf) for i, leaf in enumerate(leaves)}
        gx.record(tmp_path / name)(0, gradients=tree)
    start = time.process_time()
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert time.process_time() - start < 8  # 8,000 took 17 seconds
    assert found.within == (by == 1) and len(found.pairs) == 20000, str(found)
    assert all(pair.a.path.removeprefix("layer") == pair.b.path.removeprefix(place) for pair in found.pairs)
