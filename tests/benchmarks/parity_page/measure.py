"""Measure gradxform and the frameworks' own functions against one reference."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from parity_page.groups import Sizes, elements, groups
from parity_page.native import Native
from parity_page.tally import Tally

from gradxform.backend import lookup
from gradxform.cli.console import quiet
from gradxform.proof import parity
from gradxform.proof.cases import Group
from gradxform.proof.judge import Verdict, judge
from gradxform.proof.place import Place
from gradxform.proof.registry import ROWS, Row


class Where(NamedTuple):
    """A framework in one of its modes."""

    framework: str
    mode: str


class Key(NamedTuple):
    """The key of a tally."""

    row: Row
    column: str
    """The dtype, or "mixed"."""
    where: Where


class NativeKey(NamedTuple):
    """The key of a native function's tally."""

    native: Native
    row: Row
    column: str


@dataclass
class Numbers:
    """All measurements."""

    results: dict[Key, Tally] = field(default_factory=dict)
    natives: dict[NativeKey, Tally] = field(default_factory=dict)

    @property
    def over(self) -> list[str]:
        """Descriptions of the results that are wrong or over budget."""
        found = []
        for (row, column, where), tally in self.results.items():
            name = f"{row.expression}, {column}, {where.framework} {where.mode}"
            for wrong, cases in tally.wrong.items():
                trees = f"all {tally.cases} trees" if len(cases) == tally.cases else ", ".join(cases)
                found.append(f"{name}: {wrong} in {trees}{tally.why}")
            found.extend(f"{name}: over budget at {over}" for over in tally.over[:1])
        return found


class Step(NamedTuple):
    """One unit of progress."""

    words: str
    run: Callable[[], None]


def modes(frameworks: Sequence[str]) -> list[Where]:
    """List each framework in all of its modes."""
    return [Where(name, mode) for name in frameworks for mode in parity.modes_of(name)]


def rounds(
    frameworks: Sequence[str],
    natives: Sequence[Native],
    sizes: Sizes,
    numbers: Numbers,
    places: Mapping[str, Place],
) -> Iterator[list[Step]]:
    """Yield the steps of each transform; `places` holds the devices of `--device`."""
    for row in ROWS:
        peers = [native for native in natives if _same(native, row)]
        yield [
            step
            for group in groups(row, sizes)
            for step in _Trees(row, group, numbers, places).steps(modes(frameworks), peers)
        ]


def _same(native: Native, row: Row) -> bool:
    """Whether a native function corresponds to a transform with a single limit."""
    arguments = row.tx.arguments
    return native.transform == row.tx.name and len(arguments) == 1 and arguments[0][0] is None


class _Trees:
    """A transform on runs of equal shapes and dtypes."""

    def __init__(self, row: Row, group: Group, numbers: Numbers, places: Mapping[str, Place]) -> None:
        self.row, self.group, self.numbers, self.places = row, group, numbers, places
        self.wanted: dict[str, list[parity.Leaves]] = {}

    def steps(self, places: Sequence[Where], natives: Sequence[Native]) -> Iterator[Step]:
        words = f"{self.row.expression}, {self.group.column} {self.group.words}"
        yield Step(f"{words}, the reference", self.refer)
        for where in places:
            if where.framework in self.places and self.places[where.framework].lacks(self._first()):
                continue
            yield Step(f"{words}, {where.framework} {where.mode}", functools.partial(self.measure, where))
        for native in natives:
            if self.group.column in native.columns:
                yield Step(f"{words}, {native.name} {native.mode}", functools.partial(self.native, native))
        yield Step(words, self.wanted.clear)

    def _first(self) -> Any:
        """The gradients of one run; the others have the same dtypes."""
        return next(iter(self.group.runs.values())).steps[0]

    def refer(self) -> None:
        self.wanted |= {case: parity.expected_steps(self.row.tx, *run) for case, run in self.group.runs.items()}

    def measure(self, where: Where) -> None:
        """Measure one framework and mode; after an error, skip the other runs."""
        runner = parity.runner(self.row.tx, *where, self.places.get(where.framework))
        tally = self.numbers.results.setdefault(Key(self.row, self.group.column, where), Tally())
        problem = ""
        for case, run in self.group.runs.items():
            results: list[parity.Result] = []
            if not problem:
                try:
                    with _silence():
                        results, _ = runner(*run)
                    problem = next((result.problem for result in results if result.problem), "")
                except Exception as error:
                    problem = f"{type(error).__name__}: {_short(error)}"
            if problem:
                tally.refuse(case, elements(run), problem)
            else:
                self._hold(case, results, tally)

    def _hold(self, case: str, results: Sequence[parity.Result], tally: Tally) -> None:
        verdict = Verdict()
        for result, wanted in zip(results, self.wanted[case], strict=True):
            verdict = verdict.and_then(judge(result.leaves, wanted, result.framework, self.row))
            if self._is_untouched(case, wanted):
                tally.within += 1
                if not _equal(result.leaves, wanted):
                    verdict = verdict._replace(wrong="changed within its limit")
        tally.add(case, elements(self.group.runs[case]), verdict)

    def native(self, native: Native) -> None:
        call = native.make(self.row.tx.arguments[0][1])
        tally = self.numbers.natives.setdefault(NativeKey(native, self.row, self.group.column), Tally())
        for case, run in self.group.runs.items():
            given = leaves_of(run.steps[0])
            try:
                with _silence():
                    got = dict(zip(given, map(_like, call(list(given.values())), given.values()), strict=True))
            except Exception as error:
                tally.refuse(case, elements(run), _short(error))
                continue
            tally.add(case, elements(run), judge(got, self.wanted[case][0], native.framework, self.row))

    def _is_untouched(self, case: str, wanted: parity.Leaves) -> bool:
        """Whether the run clips gradients that are within the limit."""
        clip = case.startswith("within") and self.row.tx.name.startswith("clip")
        return clip and _equal(leaves_of(self.group.runs[case].steps[0]), wanted)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with quiet(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def leaves_of(tree: Any) -> parity.Leaves:
    """The leaves of a tree of NumPy arrays by path, without None."""
    return parity.named_leaves(tree, lookup.backend("numpy"))


def _like(got: Any, given: Any) -> Any:
    """Cast a native result to the dtype of its input."""
    return np.asarray(got).astype(given.dtype)


def _short(error: Exception) -> str:
    """Shorten an error's text and drop paths."""
    words = str(error).replace("`", "'").split()
    return " ".join(word for word in words if "/" not in word)[:120]


def _equal(got: parity.Leaves, wanted: parity.Leaves) -> bool:
    """Whether two results are bit-identical."""
    return all(got[path].tobytes() == leaf.tobytes() for path, leaf in wanted.items())
