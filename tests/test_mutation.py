"""The table of mutants: each can be made today, and nothing that computes is without one."""

from __future__ import annotations

import pytest
from mutants import Mutant
from mutation import MUTANTS, ROOT, Outcome, markdown

from gradxform import _backend
from gradxform._transformation import factories

NEEDS_NONE = {
    "unflatten",  # the inverse of flatten, in the framework's own code
    "compile",  # computes nothing: the tests in compiled modes run through it
}
"""Functions of the protocol that need no mutant in any backend."""
NEEDS_NONE_HERE = {
    *("numpy.dense", "numpy.densify", "jax.dense", "jax.densify"),  # they give back what they are given
    *("jax.copied", "tensorflow.copied", "numpy.alongside", "jax.alongside", "tensorflow.alongside"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.title)
def test_a_mutant_can_be_made(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert mutant.applied(text) != text
    compile(mutant.applied(text), mutant.file, "exec")


def test_titles_are_told_apart() -> None:
    assert len({mutant.title for mutant in MUTANTS}) == len(MUTANTS)


def test_every_transform_has_a_mutant() -> None:
    assert set(factories) <= {mutant.target for mutant in MUTANTS}


@pytest.mark.parametrize("framework", _backend.FRAMEWORKS)
def test_every_primitive_has_a_mutant(framework: str) -> None:
    primitives = {name for name, value in vars(_backend.Backend).items() if callable(value) and name[0] != "_"}
    wanted = {f"{framework}.{name}" for name in primitives - NEEDS_NONE} - NEEDS_NONE_HERE
    assert wanted <= {mutant.target for mutant in MUTANTS}


@pytest.mark.parametrize(
    ("code", "first", "verdict"),
    [
        (0, "", "survived"),
        (1, "test_a", "killed"),
        (1, "", "broken"),
        (2, "", "broken"),
        (70, "test_a", "broken"),
        (None, "", "broken"),
    ],
)
def test_a_mutant_that_runs_no_test_is_not_killed(code: int | None, first: str, verdict: str) -> None:
    outcome = Outcome(code, first)
    assert outcome.verdict == verdict
    page = markdown([(MUTANTS[0], outcome)], "clip")
    assert f"{int(verdict == 'killed')} of 1 mutants were killed." in page
    assert (f"`{first}`" if verdict == "killed" else f"**{verdict}**") in page
