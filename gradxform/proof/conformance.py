"""What a backend must do, as named cases: see `gradxform.testing.check_backend`."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.core.factory import parse
from gradxform.functions.convert import from_numpy, to_numpy
from gradxform.proof import parity
from gradxform.proof.cases import Group, Run, mixed, ordinary_and_hard
from gradxform.proof.gradients import zeros
from gradxform.proof.judge import judge
from gradxform.proof.registry import ROWS, Row
from gradxform.proof.ulp import SUMS
from gradxform.transforms.combining import masked
from gradxform.transforms.custom import xp

Case = Callable[[str, str, Sequence[str]], None]
"""Takes a framework, a mode, and the framework's dtypes."""


_NORMS = re.compile("norm|rms|adaptive|adagc|percentile|zscore|orthogonal|skip|mars")
"""Transforms that take norms."""


_TWICE = "zscore|adagc|mars|centralize.*norm"
"""Norms that make a limit, and norms of sums: errors of two computations in float32."""


def right_numbers(
    row: Row, group: Group, framework: str, mode: str, run: parity.Runner | None = None, float64: bool = True
) -> None:
    """Assert that all runs of a group, through one compiled function, are within the budget of the reference.

    Without float64 everything rescaled has the budget of sums, and norms beyond 1e-18 and 1e18 may count as zero and
    infinite. A run with a state that depends on them is then judged up to the first one.
    """
    run = run or parity.runner(row.tx, framework, mode)
    several = row.ulp > 2 or re.search(_TWICE, row.expression)
    judged, most = row, SUMS * (2 if several else 1)
    if row.ulp and not float64:
        judged = dataclasses.replace(row, ulp=max(row.ulp, most))
    norms = not float64 and _NORMS.search(row.expression) is not None
    for name, (steps, params) in group.runs.items():
        results, _ = run(steps, params)
        for step, wanted in enumerate(group.wanted(row, name)):
            where, got = f"{name}, step {step}", results[step].leaves
            assert not results[step].problem, f"{where}: {results[step].problem}"
            if norms and _far(steps[step], params):
                if row.tx.stateful:
                    break
                got = _counted(got, wanted, parity.named_leaves(steps[step]), parity.named_leaves(params))
            verdict = judge(got, wanted, framework, judged)
            assert not verdict.wrong, f"{where}: {verdict.wrong} at {verdict.worst}"
            assert not verdict.over, f"{where}: {verdict.over}"
            if name.startswith("within") and _bits(wanted) == _bits(parity.named_leaves(steps[step])):
                assert _bits(got) == _bits(wanted), f"{where}: changed within its limit"


def _sizes(tree: parity.Leaves) -> parity.Leaves:
    return {path: np.asarray(np.abs(leaf), np.float64) for path, leaf in tree.items()}


def _far(*trees: Any) -> bool:
    """Whether numbers are so large or small that a norm may count as infinite or zero where float32 is widest."""
    sizes = [leaf for tree in trees for leaf in _sizes(parity.named_leaves(tree)).values()]
    return any(bool((((leaf < 1e-18) & (leaf > 0)) | (leaf > 1e17)).any()) for leaf in sizes)


def _counted(got: parity.Leaves, wanted: parity.Expected, given: parity.Leaves, params: parity.Leaves) -> parity.Leaves:
    """Take for right what counted a norm as infinite, NaN, or as zero: an element that is not made larger.

    Parameters whose norm counts as infinite set no limit.
    """
    large, free = (any(bool((leaf > 1e17).any()) for leaf in _sizes(tree).values()) for tree in (given, params))
    found, before, after = {}, _sizes(given), _sizes(got)
    for path, right in wanted.items():
        tiny = (before[path] <= 1e-18) & (after[path] <= 1e-17)
        same = free & (got[path] == given[path])
        found[path] = np.asarray(np.where(tiny | same | (large & np.isnan(got[path])), right, got[path]), right.dtype)
    return found


def _bits(leaves: parity.Leaves) -> Any:
    return {path: (leaf.dtype, leaf.shape, leaf.tobytes()) for path, leaf in leaves.items()}


def _row(row: Row, framework: str, mode: str, dtypes: Sequence[str]) -> None:
    """Random gradients of every magnitude and edge cases, in each dtype and in several together."""
    groups = [ordinary_and_hard(row, dtype, large=mode == "eager") for dtype in row.dtypes if dtype in dtypes]
    groups += [mixed(row)] * (row.mixed and {"float32", "float16", "bfloat16", "float64"} <= {*dtypes})
    for group in groups:
        right_numbers(row, group, framework, mode, float64="float64" in dtypes)


def _arrays(framework: str, mode: str, dtypes: Sequence[str]) -> None:
    """Arrays of each dtype go to the framework and back, and its backend is found by their type."""
    backend = lookup.backend(framework)
    for dtype in (*dtypes, "int32", "int64", "uint8", "bool"):
        for shape in ((2, 3), (), (0, 3)):
            leaf = np.full(shape, 0.5).astype(zeros(dtype).dtype)
            array = backend.from_numpy(leaf)
            assert isinstance(array, backend.types) and lookup.owner(array) is backend and xp(array) is backend.module
            assert (backend.dtype(array), tuple(backend.shape(array) or ())) == (dtype, shape)
            assert _bits({"": backend.to_numpy(array)}) == _bits({"": leaf}), dtype


def _trees(framework: str, mode: str, dtypes: Sequence[str]) -> None:
    """Trees keep their structure, None, empty and 0-d leaves; paths are keys joined by slashes."""
    ones, seen = np.ones(2, np.float32), set[str]()
    tree = {"z": [ones, (np.ones((0, 3), np.float32), None)], "a": {"w": np.array(2, np.float32), "b": None}, "n": None}

    def chosen(path: str, leaf: Any) -> bool:
        seen.add(path)
        return path == "z/0"

    tx = masked(parse("stop()"), chosen)
    ((found,), _) = parity.runner(tx, framework, mode)([tree], tree)
    assert not found.problem, found.problem
    assert seen == {"a/w", "z/0", "z/1/0"}
    assert _bits(found.leaves) == _bits(parity.named_leaves(tree) | {"z/0": 0 * ones})


def _leaves(framework: str, mode: str, dtypes: Sequence[str]) -> None:
    """NumPy arrays and Python numbers become the framework's; other leaves are refused by path."""
    backend, ones = lookup.backend(framework), np.ones(1, np.float32)
    given = {"a": backend.from_numpy(3 * ones), "b": 12 * ones, "c": 4.0}
    for leaf, wanted in zip(parse("clip_global_norm(1.0)")(given).values(), (3 / 13, 12 / 13, 4 / 13), strict=True):
        assert lookup.owner(leaf) is backend and abs(backend.to_numpy(leaf).item() - wanted) < 1e-7, leaf
    assert (backend.to_numpy(given["a"]).item(), given["b"].item()) == (3.0, 12.0), "an input was written to"
    others = [name for name in lookup.known() if name in sys.modules and "numpy" not in (name, framework)]
    foreign = [lookup.backend(name).from_numpy(ones) for name in others if name != framework]
    for leaf in (object(), backend.from_numpy(np.ones(2, np.int32)), *foreign):
        try:
            parse("clip_norm(1.0)")({**given, "w": [None, leaf]})
        except TypeError as error:
            assert "'w/1'" in str(error), error
        else:
            raise AssertionError(f"{leaf!r} is no gradient of {framework}, and is accepted")


def _states(framework: str, mode: str, dtypes: Sequence[str]) -> None:
    """A state goes to NumPy and back in the midst of a run."""
    row = Row("chain(clip_percentile(50.0, 3), skip_nonfinite(chain(trace(0.9), ema(0.5))))")
    rng = np.random.default_rng(0)
    steps, run = [{"w": rng.standard_normal(5, np.float32)} for _ in range(4)], parity.runner(row.tx, framework, mode)

    def saved(steps: Any, params: Any) -> Any:
        first, state = run(steps[:2], params)
        then, state = run(steps[2:], params, from_numpy(to_numpy(state), like=state))
        return [*first, *then], state

    right_numbers(row, Group("float32", "saved", {"saved": Run(steps, steps[0])}), framework, mode, saved)


CASES: dict[str, Case] = {
    "arrays": _arrays,
    "trees": _trees,
    "leaves": _leaves,
    "states": _states,
    **{row.expression: functools.partial(_row, row) for row in ROWS},
}
"""A row's case has its expression for a name."""
