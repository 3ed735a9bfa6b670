"""The contracts and what runs them; and tests that mutation testing found missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from operator import add, mul, sub, truediv
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest
from contracts_backends import CONTRACTS
from mutants import verdict
from mutants_cosmic import Equivalent, Mutant

import gradxform as gx
from gradxform import _backend, _flat
from gradxform import _pairs as pairs
from gradxform import _stateful as stateful
from gradxform import _threefry as threefry
from gradxform._host_elements import Block
from gradxform._pairs import Exact, Number, Pair
from gradxform._transformation import Context, factories

NEEDS_NONE = {"compile"}
"""It computes nothing: the contracts that are seen compiled alone run through it."""
NEEDS_NONE_HERE = {
    *("numpy.dense", "numpy.densify", "jax.dense", "jax.densify"),  # they have no sparse arrays
    *("jax.copied", "tensorflow.copied"),  # arrays that cannot be written to
    *("numpy.peer_norm", "numpy.on_backward", "numpy.stop_gradient", "numpy.straight_through"),  # NumPy has none
}


def test_contracts_are_told_apart() -> None:
    assert len({contract.name for contract in CONTRACTS}) == len(CONTRACTS)


def test_every_transform_has_a_contract() -> None:
    assert set(factories) <= {contract.target for contract in CONTRACTS}


@pytest.mark.parametrize("framework", _backend.FRAMEWORKS)
def test_every_primitive_has_a_contract(framework: str) -> None:
    primitives = {name for name, value in vars(_backend.Backend).items() if callable(value) and name[0] != "_"}
    wanted = {name for name in primitives - NEEDS_NONE if f"{framework}.{name}" not in NEEDS_NONE_HERE}
    assert {f"kernel.{name}" for name in wanted} <= {c.target for c in CONTRACTS if framework in c.frameworks}


def test_a_broken_contract_is_caught(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("mutants.py")), "--here", "--framework", "numpy"]
    command += ["--only", "clip_rms", "--jobs", "1", "--out", str(tmp_path / "page.md")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 faults caught" in done.stdout
    assert "| clip_rms: the root mean square is the norm | `test_table: test_right_numbers`" in (
        tmp_path / "page.md"
    ).read_text(encoding="utf-8")


FAILED = {"code": 1, "when": "call", "test": "a", "error": "AssertionError", "where": "test_a.py", "calls": 1}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, "caught"),
        ({"error": "TypeError"}, "caught"),
        ({"code": 0}, "survived"),
        ({"code": 0, "calls": 0}, "not reached"),
        ({"calls": 0}, "broken"),
        ({"when": "setup"}, "broken"),
        ({"code": 2, "when": ""}, "broken"),
        ({"error": "TypeError", "where": "contracts.py"}, "broken"),
    ],
    ids=repr,
)
def test_what_counts_as_caught(change: dict[str, Any], word: str) -> None:
    assert verdict("a", "numpy", FAILED | change).word == word
    assert verdict("a", "numpy", None).word == "out of time"


def test_equivalent_mutants_are_known_by_what_stands_in_their_line() -> None:
    mutant = Mutant("gradxform/a.py", "core/AddNot", 0, 7, "if x[0] > 1:", new="if not x[0] > 1:")
    assert Equivalent(".*", "Add.*", r"if not x\[0\] > .*:", "").matches(mutant)
    assert not Equivalent("gradxform/b.py", "AddNot", ".*", "").matches(mutant)
    assert not Equivalent(".*", "AddNot", "if x", "").matches(mutant)


# --- what mutation testing found no test for -------------------------------------------------------------------------

XP = Block(0)
"""NumPy's functions, in which pairs of numbers are computed as they are elsewhere."""
EXACT = Exact(XP)
DIGITS = Fraction(1, 2**100)


def some_numbers(seed: int, count: int = 200, widest: int = 60) -> Number:
    rng = np.random.default_rng(seed)
    high = rng.standard_normal(count) * 2.0 ** rng.integers(-widest, widest, count)
    return Number(XP, high, high * 2.0**-54 * rng.uniform(-1.0, 1.0, count))


def exactly(number: Any) -> list[Fraction]:
    both = zip(np.ravel(number.high), np.ravel(np.broadcast_to(number.low, np.shape(number.high))), strict=True)
    return [Fraction(float(high)) + Fraction(float(low)) for high, low in both]


@pytest.mark.parametrize("plain", [False, True], ids=["pairs", "plain"])
def test_arithmetic_on_pairs_has_twice_the_digits(plain: bool) -> None:
    a, b = some_numbers(0), some_numbers(1)
    second = b.high if plain else b
    x, y = exactly(a), exactly(EXACT.number(second))
    size = [max(abs(one), abs(other)) for one, other in zip(x, y, strict=True)]
    for found, operator, to in (
        (a + second, add, size),
        (a - second, sub, size),
        (a * second, mul, None),
        (a / second, truediv, None),
    ):
        wanted = list(map(operator, x, y))
        for got, right, of in zip(exactly(found), wanted, to or map(abs, wanted), strict=True):
            assert abs(got - right) <= DIGITS * of
        assert np.all(np.abs(found.rest) <= np.spacing(np.abs(found.high)))
    assert exactly(2.0 - a) == exactly(Number(XP, np.full(200, 2.0)) - a)
    assert exactly(2.0 / a) == exactly(Number(XP, np.full(200, 2.0)) / a)
    assert exactly(2.0 * a) == exactly(a + a) == exactly(a * 2.0)
    assert exactly(2.0 + a) == exactly(a + 2.0)
    assert exactly(-a) == [-one for one in x]
    assert (a**3.0).high.tolist() == (a.high**3.0).tolist()


def test_roots_of_pairs() -> None:
    squares = EXACT.abs(some_numbers(2))
    for found in (
        EXACT.sqrt(squares),
        EXACT.root(squares),
        EXACT.number(pairs.root(XP, Pair(squares.high, squares.low))),
    ):
        for got, right in zip(exactly(found), exactly(squares), strict=True):
            assert abs(got * got - right) <= DIGITS * right
    odd = pairs.root(XP, np.array([0.0, np.inf, np.nan, 4.0]))
    np.testing.assert_array_equal(odd.high, [0.0, np.inf, np.nan, 2.0])
    np.testing.assert_array_equal(odd.low, [0.0] * 4)


def test_products_of_tiny_numbers_are_those_of_float64() -> None:
    tiny = np.array([2.0**-1000, 2.0**-899, 1.5 * 2.0**-900, 3.0])
    found = Number(XP, tiny) * Number(XP, np.full(4, 1.0 + 2.0**-52))
    assert found.high.tolist() == (tiny * (1.0 + 2.0**-52)).tolist()
    assert found.low[0] == 0.0


def test_pairs_are_compared_to_their_last_digit() -> None:
    one, more, other = (
        Number(XP, np.array([high]), np.array([low])) for high, low in ((1, 0), (1, 1e-20), (2, -1e-17))
    )
    for small, large in ((one, more), (more, other), (one, other), (-other, -one)):
        right = small < large, small <= large, large > small, large >= small
        wrong = large < small, large <= small, small > large, small >= large
        assert [bool(found[0]) for found in (*right, *wrong)] == [True] * 4 + [False] * 4
        assert [bool((small == large)[0]), bool((small != large)[0]), bool((small == small)[0])] == [False, True, True]
        assert [bool((small <= small)[0]), bool((small >= small)[0])] == [True, True]
        assert [bool((small < small)[0]), bool((small > small)[0])] == [False, False]


def test_functions_of_pairs() -> None:
    a = some_numbers(3, 7)
    signs = np.sign(a.high)
    assert exactly(EXACT.abs(a)) == list(map(abs, exactly(a)))
    assert exactly(EXACT.where(signs > 0, a, 0.5)) == [
        one if sign > 0 else Fraction(1, 2) for one, sign in zip(exactly(a), signs, strict=True)
    ]
    assert exactly(EXACT.take(a, (4, 2))) == [exactly(a)[4], exactly(a)[2]]
    assert exactly(EXACT.reshape(a, (7, 1))) == exactly(a) == exactly(EXACT.stop_gradient(a))
    assert EXACT.reshape(a, (7, 1)).shape == (7, 1)
    assert EXACT.max(a).high == a.high.max()
    assert EXACT.isfinite(Number(XP, np.array([1.0, np.inf, np.nan]))).tolist() == [True, False, False]
    assert EXACT.any(np.array([False, True])) and not EXACT.any(np.array([False]))
    assert EXACT.rounded(a, "float32").high.tolist() == a.high.astype(np.float32).astype(np.float64).tolist()
    assert EXACT.mask((True, False)).tolist() == [True, False]
    assert EXACT.stack([1.0, 2.0]).high.tolist() == [1.0, 2.0]
    both = EXACT.stack([Number(XP, np.array(1.0), np.array(1e-20)), 2.0])
    assert (both.high.tolist(), both.low.tolist()) == ([1.0, 2.0], [1e-20, 0.0])
    for count in range(1, 10):
        numbers = some_numbers(count, count, 3)
        assert abs(exactly(EXACT.sum(numbers))[0] - sum(exactly(numbers))) <= DIGITS * sum(map(abs, exactly(numbers)))


def test_sums_that_are_cut_have_twice_the_digits() -> None:
    def all_of(values: Any) -> Any:
        return np.sum(values, keepdims=True)

    a, b = some_numbers(5, 100, 20), some_numbers(6, 100, 20)
    x, y, z = list(map(Fraction, a.high.tolist())), list(map(Fraction, b.high.tolist())), exactly(b)
    for found, terms in (
        (pairs.total(XP, np.abs(a.high), all_of), list(map(abs, x))),
        (pairs.total_signed(XP, a.high, all_of), x),
        (pairs.total_squares(XP, [a.high, b.high], all_of), [one * one for one in (*x, *y)]),
        (pairs.total_products(XP, a.high, b.high, all_of), list(map(mul, x, y))),
        (pairs.total_products(XP, a.high, Pair(b.high, b.low), all_of), list(map(mul, x, z))),
    ):
        assert abs(exactly(found)[0] - sum(terms)) <= Fraction(1, 2**74) * sum(map(abs, terms))
        assert np.all(np.abs(found.low) <= np.spacing(np.abs(found.high)))
    with np.errstate(all="ignore"):
        huge = pairs.total(XP, np.array([1e308, 1e308]), all_of)
    assert (huge.high.tolist(), huge.low.tolist()) == ([np.inf], [0.0])


def test_absolute_values_are_rounded_once() -> None:
    parts = np.array([[3.0, 1.0, 0.0, 1e-5], [4.0, 1.0, 0.0, 1.0]])
    plain = np.hypot(*parts) * (1 + 2.0**-50)
    found = pairs.length(XP, plain, np.array([4.0, 1.0, 1.0, 1.0]), parts)
    wide = parts.astype(np.longdouble)
    assert found.tolist() == np.sqrt(wide[0] ** 2 + wide[1] ** 2).astype(np.float64).tolist()
    with np.errstate(all="ignore"):
        odd = pairs.length(XP, np.array([np.inf, np.nan]), np.ones(2), np.array([[np.inf, np.nan], [1.0, 1.0]]))
    np.testing.assert_array_equal(odd, [np.inf, np.nan])


def test_a_formula_is_computed_in_pairs_if_an_operand_is_one() -> None:
    def third(xp: Any, x: Any, *, by: float) -> Any:
        return x / by

    found = pairs.evaluate(third, XP, [Pair(np.array([1.0]), np.array([1e-20]))], {"by": 3.0})
    assert isinstance(found, Pair)
    assert abs(exactly(found)[0] - (1 + Fraction(1e-20)) / 3) <= DIGITS
    assert pairs.evaluate(third, XP, [np.array([1.0])], {"by": 3.0}).tolist() == [1.0 / 3.0]
    wide = np.array([1.0], np.longdouble) / 3
    assert abs(exactly(pairs.pair(wide))[0] * 3 - 1) <= Fraction(1, 2**60)
    assert pairs.rounded(pairs.pair(wide)).tolist() == pairs.rounded(wide).tolist() == [1.0 / 3.0]


@pytest.mark.parametrize("condition", [0.0, 1.0])
def test_a_condition_that_cannot_be_read_chooses_between_two_outcomes(condition: float) -> None:
    tx = gx.trace(0.5)
    grads, flag = [np.float32([2.0, 4.0])], np.array(condition)
    state = tx.init(grads)
    view = _flat.view(grads)
    out, new = stateful.applied_if(view, flag, tx, lambda: view, state, Context(None, {}))
    assert [leaf.tolist() for leaf in out.results()] == [[2.0 * condition, 4.0 * condition]]
    assert new.trace[0].tolist() == [2.0 * condition, 4.0 * condition]


def test_counters_reach_the_largest_int32_and_stay_there() -> None:
    most, grads = 2**31 - 1, [np.float32([1.0])]
    for tx, name in (
        (gx.clip_norm(lambda t: 1.0), "count"),
        (gx.clip_percentile(50.0, 3), "count"),
        (gx.clip_zscore(), "count"),
        (gx.skip_nonfinite(gx.identity()), "total"),
        (gx.skip_large(gx.identity(), 0.5), "total"),
    ):
        given = [np.float32([np.nan])] if "nonfinite" in repr(tx) else grads
        state = tx.init(grads)
        state = state._replace(**{name: np.full_like(getattr(state, name), most - 1)})
        for _ in range(2):
            _, state = tx.update(given, state)
            assert np.ravel(getattr(state, name)).tolist() == [most], tx


def test_states_of_schedules_keep_their_shapes() -> None:
    tx = gx.ema(lambda t: 0.9)
    state = tx.init([np.zeros(3)])
    _, new = tx.update([np.ones(3)], state)
    assert [np.shape(leaf) for leaf in optree.tree_leaves(new)] == [
        np.shape(leaf) for leaf in optree.tree_leaves(state)
    ]


def test_parameters_of_one_other_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the parameters have shape \(2, 4\) at '0', where the gradient has \(2, 3\)"):
        gx.add_decayed_weights(0.1)([np.ones((2, 3))], params=[np.ones((2, 4))])


@pytest.mark.parametrize("framework", _backend.installed())
@pytest.mark.parametrize(("ord", "wanted"), [(None, 5.0), (1, 7.0), (float("inf"), 4.0)])
def test_the_norm_of_all_leaves(ord: Any, wanted: float, framework: str) -> None:
    backend = _backend.backend(framework)
    tree = [backend.from_numpy(np.float32([3.0, 0.0])), None, backend.from_numpy(np.float32([-4.0]))]
    found = backend.to_numpy(gx.global_norm(tree, ord=ord))
    assert (found.dtype, float(found)) == (np.float32, wanted)


def test_arrays_out_of_range_are_brought_back() -> None:
    params, steps = [np.full((2, 2), 0.1)], [np.full((2, 2), value) for value in (1.0, 3.0, 2.0, 9.0)]

    def last(tx: gx.GradientTransformation) -> Any:
        state = tx.init(params)
        for step in steps:
            updates, state = tx.update([step], state, params)
        return updates[0].tolist()

    makes: tuple[tuple[Callable[[Any], gx.GradientTransformation], float, float], ...] = (
        (lambda eps: gx.clip_adaptive(0.1, eps=eps, axes="torch"), 0.0, np.inf),
        (lambda p: gx.clip_percentile(p, 3), 0.0, 100.0),
        (lambda z: gx.clip_zscore(z, warmup=2), 0.0, np.inf),
        (lambda d: gx.clip_zscore(0.1, d, warmup=2), 0.0, 1.0),
        (lambda d: gx.ema(d, debias=False), 0.0, 1.0),
        (gx.trace, 0.0, 1.0),
        (lambda s: gx.add_noise(s, 1), 0.0, np.inf),
    )
    for make, low, high in makes:
        for given, bound in ((low - 0.5, low), (high + 0.5, high)):
            if np.isfinite(given):
                assert last(make(np.array(given))) == last(make(np.array(bound))), make(bound)
                assert last(make(np.array(bound))) == last(make(bound)), make(bound)


def test_the_cosine_is_right_near_its_zeros() -> None:
    turns = np.concatenate([np.linspace(-0.5, 0.5, 101), *(at + np.logspace(-12, -2, 30) for at in (-0.25, 0.25, 0.0))])
    from_zero = turns.astype(np.longdouble) - np.where(turns < 0, -0.25, 0.25)  # exact, and small where the cosine is
    right = np.sin(2 * np.pi * from_zero) * np.where(turns < 0, 1, -1)
    error = np.abs(threefry._cosine(XP, turns) - right)
    assert np.all(error <= 2.0**-50 * np.abs(right))


def test_an_example_of_zeros_is_not_clipped() -> None:
    grads = {"w": np.array([[0.0, 0.0], [3.0, 4.0]]), "b": np.zeros((2, 1))}
    sums, count = gx.per_example_clip_global_norm(grads, 0.5)
    assert (sums["w"].tolist(), int(count)) == ([0.3, 0.4], 1)
    assert {path: int(number) for path, number in gx.per_example_clip_norm(grads, 0.5)[1].items()} == {"w": 1, "b": 0}


def test_a_mask_that_chooses_nothing_keeps_no_state() -> None:
    tx, grads = gx.masked(gx.trace(0.5), lambda path, leaf: False), {"w": np.ones(2), "b": np.ones(1)}
    updates, state = tx.update(grads, tx.init(grads))
    assert updates["w"].tolist() == [1.0, 1.0]
    assert optree.tree_leaves(state) == []


def test_a_tree_of_none_among_others_counts_as_zeros() -> None:
    trees = [{"w": np.array([3.0])}, {"w": None}, {"w": np.array([6.0])}]
    assert gx.mean(trees)["w"].tolist() == [3.0]
    assert gx.pcgrad(trees, 0)["w"].tolist() == [9.0]


def test_a_seed_that_is_an_array_has_two_words() -> None:
    trees = [[np.array([1.0, 0.2, -0.3])], [np.array([-1.0, 0.5, 0.1])], [np.array([0.2, -1.0, 0.4])]]
    for seed in (5, 2**31 + 9, 2**33 + 7, 2**40 + 1):
        assert gx.pcgrad(trees, np.array(float(seed)))[0].tolist() == gx.pcgrad(trees, seed)[0].tolist(), seed
    for what in (None, object(), True, 1.0, "1", np.ones(2)):
        with pytest.raises(TypeError, match="seed must be an int"):
            gx.pcgrad(trees, what)


def test_axes_of_units_given_by_number() -> None:
    grad = np.array([[1.0, 3.0, 5.0], [2.0, 6.0, 4.0]])
    for axes in ((1,), (-1,), 1):
        assert gx.centralize(axes=axes)([grad])[0].tolist() == [[-2.0, 0.0, 2.0], [-2.0, 2.0, 0.0]]
        (clipped,) = gx.clip_adaptive(0.5, axes=axes)([grad], params=[np.ones((2, 3))])
        np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), [0.5 * 3**0.5] * 2, rtol=1e-15)
    with pytest.raises(ValueError, match="are not 2 axes of '0'"):
        gx.centralize(axes=(1, -1))([grad])


def test_what_is_broadcast_to_a_large_leaf_keeps_its_place() -> None:
    grad = np.random.default_rng(0).standard_normal((300, 200))
    np.testing.assert_allclose(gx.centralize()([grad])[0], grad - grad.mean(axis=1, keepdims=True), atol=1e-15)


def test_merged_trees_keep_their_dtype() -> None:
    trees = [[np.float16([1.0, 2.0]), np.float64([1.0])], [np.float16([3.0, 5.0]), np.float64([2.0])]]
    for found, wanted in ((gx.mean(trees), [[2.0, 3.5], [1.5]]), (gx.pcgrad(trees, 0), [[4.0, 7.0], [3.0]])):
        assert [leaf.dtype for leaf in found] == [np.float16, np.float64]
        assert [leaf.tolist() for leaf in found] == wanted


def test_a_huge_example_beside_a_small_one() -> None:
    for grads in ([np.full((1, 1), 1e200), np.full((1, 1), 1.0)], [np.full((1, 1), 1.0), np.full((1, 1), 1e200)]):
        sums, _ = gx.per_example_clip_global_norm(grads, 1.0)
        np.testing.assert_allclose(sums, [np.ravel(leaf) / 1e200 for leaf in grads], rtol=1e-15)


def test_a_mask_keeps_a_state_for_what_it_chooses_alone() -> None:
    params = {"w": np.ones(2), "b": np.ones(3)}
    for tx in (gx.masked(gx.trace(0.5), "w"), gx.partition({"w": gx.trace(0.5)})):
        assert [leaf.shape for leaf in optree.tree_leaves(tx.init(params))] == [(2,)]
