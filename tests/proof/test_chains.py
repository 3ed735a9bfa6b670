"""Random chains on random trees in every framework and mode, compared with the reference."""

from __future__ import annotations

import random
import warnings

import chains
import chains_run
import numpy as np
import pytest
from entries import ENTRIES
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from support import CHAINS, slow

import gradxform as gx
from gradxform.backend import lookup
from gradxform.core.transform import factories
from gradxform.proof import parity

EAGER = [(name, "eager") for name in lookup.installed() if name != "jax"]
"""Modes without compilation or lookup by shape."""
COMPILED = [("numpy", "eager"), *(where for where in chains_run.everywhere() if where[1] == "compiled")]
QUICK = settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def any_order() -> None:
    warnings.simplefilter("ignore", gx.OrderWarning)


def test_chains_in_eager_code() -> None:
    count = chains_run.Count()

    @QUICK
    @seed(1)
    @given(structure=chains.structures, first=st.integers(0, 10**6))
    def drawn(structure: chains.Structure, first: int) -> None:
        chains_run.check(structure, range(first, first + 6), EAGER, count)

    drawn()
    assert count.cases >= 120
    assert count.unjudged <= count.elements / 100


def covering(most: int) -> list[chains.Structure]:
    """Structures that together contain every transform; each adds some new ones.

    Structures that are ill-conditioned too often are left to the long run. A norm of noise in float32 is sometimes next
    to the middle of two numbers, and one of the first thousand structures subtracts a mean and normalizes the rest.
    """
    seen: set[str] = set()
    found = []
    for place in range(3000):
        structure = chains.structure(random.Random(20_000 + place))
        new = structure.names - seen
        if "add_noise" in structure.names and structure.names & {"clip_percentile", "clip_zscore"}:
            continue
        if {"orthogonal_to_parameters", "top_k"} <= structure.names:  # which of two rounded numbers is larger
            continue
        if len(new) >= (3 if len(found) < most // 2 else 1) and len(structure.expression) < 300:
            found.append(structure)
            seen |= structure.names
    assert len(found) <= most
    return found


COVERING = covering(18)


@slow(CHAINS, lambda structure: structure not in COVERING[-1:])
@pytest.mark.parametrize("structure", COVERING, ids=lambda structure: structure.expression[:60])
def test_chains_compiled(structure: chains.Structure) -> None:
    count = chains_run.Count()
    chains_run.check(structure, range(30), COMPILED, count)
    assert count.cases == 30
    assert count.unjudged <= count.elements / 100


def test_every_transform_is_in_what_is_compiled() -> None:
    names = {name for structure in COVERING for name in structure.names}
    assert names >= set(factories) - {entry.name for entry in ENTRIES if "chains" in entry.left_out}


def test_a_wrong_number_is_seen() -> None:
    structure = chains.structure(random.Random(1))
    wrong = chains.Structure("scale(0.3)", structure.shapes, 1, 1)
    steps = [chains.values(structure.shapes, np.random.default_rng(0))]
    result = parity.runner(gx.scale(0.300001), "numpy", "eager")(steps, steps[0])[0]
    wanted = chains_run.Wanted(wrong.tx, steps, steps[0])
    with pytest.raises(chains_run.Wrong, match=r"numpy-eager, step 0, .*ULP\n  scale\(0\.3\)\n  .*seed 7"):
        chains_run._hold(wrong, 7, ("numpy", "eager"), result, wanted, chains_run.Count())


@pytest.mark.parametrize(
    ("expression", "value", "fake"),
    [
        ("chain(add_decayed_weights(0.5), centralize())", np.ones((2, 3), np.float32), 1e20),
        ("scale(0.99999999999999978)", np.full((1, 2), np.finfo(np.float64).max), 7.0),
        ("chain(add_decayed_weights(0.5), scale(1.0))", np.full((1, 2), np.finfo(np.float32).max), -7.0),
    ],
)
def test_what_is_ill_conditioned_is_not_taken_for_anything(expression: str, value: np.ndarray, fake: float) -> None:
    structure = chains.Structure(expression, {"w": chains.Leaf(value.dtype.name, value.shape)}, 1, 1)
    wanted = chains_run.Wanted(structure.tx, [{"w": value}], {"w": value * 0.0})
    wrong = parity.Result("numpy", "eager", {"w": np.full_like(value, fake)})
    with pytest.raises(chains_run.Wrong):
        chains_run._hold(structure, 0, ("numpy", "eager"), [wrong], wanted, chains_run.Count())


class _Wanted(chains_run.Wanted):
    """Expected results that do or do not move."""

    def __init__(self, word: bool) -> None:
        self.word = word

    def moves(self) -> bool:
        return self.word

    def cancelled(self, path: str) -> float:
        return 1.0

    def is_ill_conditioned(self, flushing: bool) -> bool:
        return self.word


def test_a_counter_that_differs_is_seen() -> None:
    structure = chains.Structure("trace(0.5)", {}, 1, 1)
    count = {"count": np.int32(3), "sum": np.float32([1.0])}
    seen, firm, ill = chains_run.Count(), _Wanted(False), _Wanted(True)
    chains_run._hold_state(structure, 0, ("numpy", "eager"), count, dict(count), firm, seen, dict)
    for other in ({"count": np.int32(4)}, {"sum": np.float64([1.0])}, {"sum": np.float32([1.00001])}):
        with pytest.raises(chains_run.Wrong, match="the state at"):
            chains_run._hold_state(structure, 0, ("numpy", "eager"), count, {**count, **other}, firm, seen, dict)
    assert seen.unjudged == 0
    chains_run._hold_state(structure, 0, ("jax", "eager"), count, {**count, "count": np.int32(4)}, ill, seen, dict)
    assert seen.unjudged == 1
    for where, other in (("numpy", {"count": np.int32(4)}), ("jax", {"sum": np.float64([1.0])})):
        with pytest.raises(chains_run.Wrong, match="the state at"):
            chains_run._hold_state(structure, 0, (where, "eager"), count, {**count, **other}, ill, seen, dict)
