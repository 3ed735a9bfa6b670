"""The contracts, and the runners of contracts and cosmic-ray's mutants."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from contracts_backends import CONTRACTS
from mutants import verdict
from mutants_run import forked
from support import python

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core.transform import factories

NEEDS_NONE = {"compile", "scope", "namespace_of", "groups"}
"""Primitives that compute nothing; contracts of kernels run through them."""
NEEDS_NONE_HERE = {
    *("numpy.dense", "jax.dense"),  # no sparse arrays
    *("jax.copied", "tensorflow.copied", "jax.overwrite", "tensorflow.overwrite"),  # read-only arrays
    *("jax.as_given", "tensorflow.as_given", "torch.as_given"),  # no scalars, and JAX's kernels are typed
    *("numpy.peer_norm", "numpy.straight_through"),  # missing in NumPy
}


def test_contracts_are_told_apart() -> None:
    assert len({contract.name for contract in CONTRACTS}) == len(CONTRACTS)


def test_every_transform_has_a_contract() -> None:
    assert set(factories) <= {contract.target for contract in CONTRACTS}


def test_backends_are_thin() -> None:
    assert len([name for name in dir(Backend) if name[0] != "_"]) <= 45


@pytest.mark.parametrize("framework", lookup.FRAMEWORKS)
def test_every_primitive_has_a_contract(framework: str) -> None:
    primitives = {name for name, value in vars(Backend).items() if callable(value) and name[0] != "_"}
    wanted = {name for name in primitives - NEEDS_NONE if f"{framework}.{name}" not in NEEDS_NONE_HERE}
    assert {f"kernel.{name}" for name in wanted} <= {c.target for c in CONTRACTS if framework in c.frameworks}


def test_a_broken_contract_is_caught(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(Path(__file__).with_name("mutants.py")),
        "--framework",
        "numpy",
        "--what",
        "contracts",
    ]
    command += ["--folder", str(tmp_path), "--only", "clip_rms", "--out", str(tmp_path / "page.md")]
    command += ["--", "tests/transforms/test_table.py", "-kclip_rms and float32"]
    for _ in range(2):
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 of 1 faults were caught" in done.stdout
    assert len((tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert "| NumPy | 1 | 1 |" in (tmp_path / "page.md").read_text(encoding="utf-8")


BROKEN = {"test": "", "word": ""}
PASSED = {"test": "a", "word": "passed", "error": ["", ""]}
FAILED = {"test": "b", "word": "failed in call", "error": ["AssertionError", "test_a.py"]}


@pytest.mark.parametrize(
    ("said", "how", "word"),
    [
        ([BROKEN, PASSED, FAILED], "", "caught"),
        ([BROKEN, FAILED | {"error": ["TypeError", "test_a.py"]}], "", "caught"),
        ([BROKEN, FAILED], "died", "caught"),
        ([BROKEN, PASSED], "", "survived"),
        ([BROKEN], "", "not reached"),
        ([BROKEN, FAILED | {"word": "failed in setup"}], "", "broken"),
        ([BROKEN, FAILED | {"error": ["TypeError", "contracts.py"]}], "", "broken"),
        ([BROKEN, PASSED], "out of time", "out of time"),
        ([{"test": "", "word": "not applied"}], "", "not applied"),
    ],
    ids=repr,
)
def test_what_counts_as_caught(said: list[Any], how: str, word: str) -> None:
    assert verdict(said, how) == word


SOURCE = """\
LIMIT = 2
def double(x: int = 1) -> int | None:
    return x * LIMIT
def adder(y):
    return lambda x: x + y
class Table:
    first = 3
"""


@pytest.mark.parametrize(
    ("operator", "occurrence", "wanted"),
    [
        ("core/NumberReplacer", 0, (3, 3, 2, 3)),
        ("core/NumberReplacer", 2, (4, 3, 1, 3)),
        ("core/NumberReplacer", 4, (2, 3, 1, 4)),
        ("core/ReplaceBinaryOperator_Mul_Add", 0, (3, 3, 1, 3)),
        ("core/ReplaceBinaryOperator_Add_Sub", 0, (2, -1, 1, 3)),
    ],
)
def test_a_mutant_changes_what_is_loaded(tmp_path: Path, operator: str, occurrence: int, wanted: Any) -> None:
    (tmp_path / "gradxform_a.py").write_text(SOURCE, encoding="utf-8")
    program = f"""\
import sys
sys.path[:0] = {[str(tmp_path), str(Path(__file__).parent)]}
import gradxform_a as a, mutants_cosmic, pathlib
held = a.adder(2)
mutant = mutants_cosmic.Mutant("gradxform_a.py", {operator!r}, {occurrence}, 1, "", "")
assert mutants_cosmic.apply(pathlib.Path({str(tmp_path)!r}), mutant)
print((a.double(), held(1), a.LIMIT - 1, a.Table.first))
"""
    assert python("-c", program).stdout.strip() == repr(wanted)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of a framework that another test has imported
def test_a_hanging_process_ends() -> None:
    def work(say: Any) -> None:
        say(1)
        time.sleep(60.0)

    assert forked(work, 0.5) == ([1], "out of time")
