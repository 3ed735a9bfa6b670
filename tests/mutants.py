"""What a mutant is, and the names of the tests that ought to notice it."""

from __future__ import annotations

from dataclasses import dataclass

Tests = tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    """One thing broken: `old`, which stands in the file once, becomes `new`."""

    target: str
    """The transform ("clip_norm"), the primitive ("numpy.multiply"), or the part of the core that is broken."""
    name: str
    file: str
    old: str
    new: str
    tests: Tests
    """Arguments of pytest that select the tests that ought to notice."""

    @property
    def title(self) -> str:
        """What is broken, in words."""
        return f"{self.target}: {self.name}"

    def applied(self, text: str) -> str:
        """The text of the file, broken."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.title}: the old text is {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


def table(mode: str, *expressions: str) -> Tests:
    """Rows of the table in one framework and mode."""
    return tuple(f"tests/test_table.py::test_right_numbers[{expression}-{mode}]" for expression in expressions)


def flat(framework: str, *expressions: str) -> Tests:
    """Cases of the flat view in one framework."""
    return tuple(f"tests/test_flat.py::test_cases[{expression}-{framework}]" for expression in expressions)


def of(file: str, *names: str) -> Tests:
    """Tests of one file by their names."""
    return tuple(f"tests/test_{file}.py::{name}" for name in names)


def steps(mode: str, *expressions: str) -> Tests:
    """Rows of the table that run over several steps, in one framework and mode."""
    return tuple(
        f"tests/test_table.py::test_right_numbers_over_steps[{expression}-{mode}]" for expression in expressions
    )
