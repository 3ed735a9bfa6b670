"""The contracts, and the runners of contracts and cosmic-ray's mutants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contracts_backends import CONTRACTS
from mutants import verdict
from mutants_cosmic import Equivalent, Mutant, drawn
from mutants_page import page

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core.transformation import factories

NEEDS_NONE = {"compile", "planned", "signature", "scope", "namespace_of", "number", "custom_backward"}
"""Primitives that compute nothing; contracts of kernels and of backward passes run through them."""
NEEDS_NONE_HERE = {
    *("numpy.dense", "numpy.densify", "jax.dense", "jax.densify"),  # no sparse arrays
    *("jax.copied", "tensorflow.copied"),  # read-only arrays
    *("jax.as_given", "tensorflow.as_given", "torch.as_given"),  # no scalars, and JAX's kernels are typed
    *("numpy.peer_norm", "numpy.on_backward", "numpy.stop_gradient", "numpy.straight_through"),  # missing in NumPy
}


def test_contracts_are_told_apart() -> None:
    assert len({contract.name for contract in CONTRACTS}) == len(CONTRACTS)


def test_every_transform_has_a_contract() -> None:
    assert set(factories) <= {contract.target for contract in CONTRACTS}


@pytest.mark.parametrize("framework", lookup.FRAMEWORKS)
def test_every_primitive_has_a_contract(framework: str) -> None:
    primitives = {name for name, value in vars(Backend).items() if callable(value) and name[0] != "_"}
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
    mutant = Mutant("gradxform/a.py", "core/AddNot", 0, 7, "first", "if x[0] > 1:", new="if not x[0] > 1:")
    assert Equivalent(".*", "Add.*", r"if not x\[0\] > .*:", "").matches(mutant)
    assert Equivalent(".*", "Add.*", r"first: if not x\[0\] > .*:", "").matches(mutant)
    assert not Equivalent(".*", "Add.*", r"second: if not x\[0\] > .*:", "").matches(mutant)
    assert not Equivalent("gradxform/b.py", "AddNot", ".*", "").matches(mutant)
    assert not Equivalent(".*", "AddNot", "if x", "").matches(mutant)


def test_one_mutant_is_drawn_for_each_line_whatever_the_other_lines_are() -> None:
    found = [Mutant("a.py", "core/AddNot", i, line, "", f"text {line}") for line in range(20) for i in range(5)]
    some = drawn(found)
    assert [mutant.line for mutant in some] == list(range(20))
    assert len({mutant.occurrence for mutant in some}) > 1
    assert drawn(found[50:]) == some[10:]


def test_the_page_names_survivors_and_entries_that_match_nothing() -> None:
    mutant = Mutant("a.py", "core/AddNot", 0, 7, "", "if x:", new="if not x:")
    mutants = [mutant._replace(word=word) for word in ("killed", "survived", "equivalent", "out of time")]
    text = page([], mutants, [Equivalent("b.py", ".*", "if y:", "a reason")], "in a minute")
    assert "**1 of 3 mutants were killed**, 1 ran out of time, 1 survived. Another 1 are equivalent" in text
    assert "- `a.py`: `if x:` became `if not x:`" in text
    assert "matches these entries:\n\n- `b.py`: `if y:`" in text
