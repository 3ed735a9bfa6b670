"""Random chains on random trees, in every framework and mode, held to the reference."""

from __future__ import annotations

import random
import warnings

import chains
import chains_run
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradxform as gx
from gradxform import _backend
from gradxform.proof import parity

EAGER = [(name, "eager") for name in _backend.installed() if name != "jax"]
"""Modes that compile nothing, and look up no operation for its shapes."""
COMPILED = [("numpy", "eager"), *(where for where in chains_run.everywhere() if where[1] == "compiled")]
QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def any_order() -> None:
    warnings.simplefilter("ignore", gx.OrderWarning)


@QUICK
@given(structure=chains.structures, seed=st.integers(0, 10**6))
def test_chains_in_eager_code(structure: chains.Structure, seed: int) -> None:
    chains_run.check(structure, range(seed, seed + 6), EAGER, chains_run.Count())


@pytest.mark.parametrize("place", range(6))
def test_chains_compiled(place: int) -> None:
    count = chains_run.Count()
    structure = chains.structure(random.Random(place))
    chains_run.check(structure, range(100 * place, 100 * place + 100), COMPILED, count)
    assert count.cases == 100


@pytest.mark.parametrize("place", range(40))
def test_more_chains_compiled(place: int) -> None:
    structure = chains.structure(random.Random(1000 + place))
    modes = chains_run.everywhere(inductor=place % 8 == 0)
    chains_run.check(structure, range(1000 * place, 1000 * place + 100), modes, chains_run.Count())


def test_a_wrong_number_is_seen() -> None:
    structure = chains.structure(random.Random(1))
    wrong = chains.Structure("scale(0.3)", structure.shapes, 1, 1)
    steps = [chains.values(structure.shapes, np.random.default_rng(0))]
    result = parity.runner(gx.scale(0.300001), "numpy", "eager")(steps, steps[0])[0]
    wanted = chains_run.Wanted(wrong.tx, steps, steps[0])
    with pytest.raises(chains_run.Wrong, match=r"numpy-eager, step 0, .*ULP\n  scale\(0\.3\)\n  .*seed 7"):
        chains_run._hold(wrong, 7, ("numpy", "eager"), result, wanted, chains_run.Count())


def test_what_is_drawn_has_every_transform() -> None:
    rng = random.Random(0)
    text = " ".join(chains.structure(rng).expression for _ in range(300))
    for name in set(parity.references.__globals__["_RULES"]) | set(parity.references.__globals__["_WITH_STATE"]):
        assert name in ("elementwise", "scale_by_schedule") or f"{name}(" in text, name
