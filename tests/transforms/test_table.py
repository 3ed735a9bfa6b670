"""Every row of the table, in every framework and mode, against the reference.

A test is one row in one framework, mode and dtype: random numbers of every magnitude and edge cases, in one compiled
function. `python -m pytest --collect-only -q -m "slow or not slow"` on this file"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import optree
import pytest
import trees
from support import (
    EAGER,
    MODES,
    NORM_CLIPS,
    assert_right,
    shared_group,
    shared_mixed,
    shared_pairs,
    slow,
    without_generated_code,
)
from trees import gradients

import gradxform as gx
from gradxform.core.transform import factories
from gradxform.proof import extended, parity, registry
from gradxform.proof.cases import Group, ordinary_and_hard
from gradxform.proof.registry import DTYPES, MIXED, Row

COMPILING = {where for where in MODES if where not in (("numpy", "eager"), ("torch", "eager"))}
"""Modes that trace or compile: float32 and one other dtype are quick, the rest slow. In eager PyTorch a transform's
first row is quick in all dtypes, and its others in two; in NumPy all are quick."""
OVER_ALL = re.compile("global|percentile|zscore|adagc|skip")
"""Rows whose results depend on all leaves; of the others, each dtype is a leaf of one tree."""
INDUCTOR = ("torch", "compiled")
"""Two to eight seconds per row: pairs of dtypes share a tree; float32 and one kind of half precision are quick."""
HALF = ("float16", "bfloat16")
"""Beside float32, the one dtype of a stateful row under torch.compile: 64-bit sums take inductor half a minute."""
PAIRS = (("float16", "float64"), ("bfloat16", "complex64"))
"""Slow dtypes that share a tree, so that one compilation serves both; their norms leave something of each other."""
GENERATED = ("scale(0.3)", "clip_norm(0.7, axes=-1)", "clip_global_norm(1.0)", "zero_nonfinite()")
GENERATED += ("clip_value(0.5)", "sign()", "top_k(0.1)")
"""Rows for whose float64 and complex numbers inductor generates code, one for each kind of kernel; `LARGE` as well."""
QUICK = ("scale", "clip_value", "clip_norm", "clip_global_norm", "centralize", "zero_nonfinite", "ema")
"""Transforms of which inductor generates code in the quick part; of the others its graphs run in eager mode there."""
LARGE, MIX = "clip_norm(1.0)", "clip_global_norm(1.0)"
"""Rows that run on seven leaves and on mixed dtypes in compiled code."""


def combinations() -> Iterator[Any]:
    """All rows, frameworks, modes and dtypes; the slowest first, so that parallel workers end together."""
    firsts = trees.first()
    for where, (rank, row) in itertools.product(sorted(MODES, key=_slowest_first), enumerate(registry.ROWS)):
        quick, slow = _by_inductor(row, rank) if where == INDUCTOR else _otherwise(row, rank, where)
        if where == INDUCTOR and (row not in firsts or row.tx.name not in QUICK):
            quick, slow = [], [*quick, *slow]
        for dtype in (*quick, *slow):
            reason = "a compiler takes seconds for each row and dtype; each transform is quick in float32 and one other"
            marks = (pytest.mark.slow(reason=reason),) if dtype in slow else ()
            yield pytest.param(*where, dtype, row, marks=marks, id=f"{'-'.join(where)}-{dtype}-{row}")


def _by_inductor(row: Row, rank: int) -> tuple[list[str], list[str]]:
    """Split the cases under torch.compile into quick and slow.

    Float64 and complex128 may be so large that a norm over all leaves leaves nothing of float32 and its range. Of a row
    that is not the first of its transform, one further graph is traced, none if it has a state: its operations are
    those of eager PyTorch, where the row runs in each dtype.
    """
    over_all = "global" in row.expression
    half, other = HALF if rank % 2 == 0 and not over_all else reversed(HALF)
    pairs = [("float32", half), (other, "float64"), ("complex64", "complex128")]
    if row in trees.STATEFUL:
        pairs = [("float32", half)]
    elif row not in trees.first() and row.expression not in GENERATED:
        pairs = [("float32", half), pairs[1 + rank // 2 % 2]]
    taken = [[dtype for dtype in pair if dtype in row.dtypes] for pair in pairs]
    apart = [row.expression == LARGE or (over_all and "complex64" in pair) for pair in taken]
    (*quick,), *slow = [pair if alone else ["+".join(pair)] for pair, alone in zip(taken, apart, strict=True) if pair]
    return quick, [*itertools.chain(*slow), *([MIXED] if row.expression == MIX else [])]


def is_generated(row: Row, dtype: str) -> bool:
    """Whether inductor generates code of a case; it takes half a minute for some, and has none for complex numbers.

    Of a stateful transform, the first row in float32 and one kind of half precision is enough: the others differ in
    numbers, order and conversions. So is one row for each kind of kernel in float64.
    """
    if "complex" in dtype or "float64" in dtype:
        return row.expression in (LARGE, *GENERATED)
    return row not in trees.STATEFUL or (row in trees.first() and dtype not in HALF)


def _otherwise(row: Row, rank: int, where: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Split the cases of the other modes into quick and slow.

    JAX's eager mode jits the same kernels, so of a row that is not the first it has float32 and every second dtype, and
    compiled mode the rest.
    """
    every = [*row.dtypes, *([MIXED] if row.mixed else [])]
    if where[0] == "jax" and row not in trees.first():
        every = ["float32", *every[1 + (rank + (where[1] == "eager")) % 2 :: 2]]
    others = [dtype for dtype in reversed(row.dtypes) if dtype != "float32" and not (dtype == "complex128" and row.ulp)]
    if where not in COMPILING:
        quick = every if row in trees.first() or where[0] == "numpy" else ["float32", others[rank % len(others)]]
        return quick, [dtype for dtype in every if dtype not in quick]
    other = others[rank % len(others)]
    quick = ["float32", other] if row in trees.first() else []
    if quick and row.expression != LARGE and other in ("bfloat16", "complex64"):  # with norms like those of float32
        quick = [f"float32+{other}"]
    quick += [MIXED] if row.expression == MIX else []
    slow = [dtype for dtype in every if dtype not in dtypes_of("+".join(quick))]
    if row.expression != LARGE and not OVER_ALL.search(row.expression):
        return quick, ["+".join(one for one in slow if one != MIXED)]
    for pair in PAIRS:
        if {*pair} <= {*slow} and row.expression != LARGE:
            slow = ["+".join(pair), *(dtype for dtype in slow if dtype not in pair)]
    return quick, slow


def dtypes_of(dtype: str) -> list[str]:
    """The dtypes of a combination's gradients."""
    return dtype.split("+")


def _slowest_first(where: tuple[str, str]) -> int:
    order = [INDUCTOR, ("torch", "eager"), ("numpy", "eager")]
    return order.index(where) if where in order else len(order)


def group_of(row: Row, dtype: str, where: tuple[str, str]) -> Group:
    """The runs of a row in one dtype; few leaves if compilation is slow."""
    if dtype == MIXED:
        return shared_mixed(row)
    if "+" in dtype or (where == INDUCTOR and row.expression != LARGE):
        return shared_pairs(row, *dtypes_of(dtype))
    if where in COMPILING and row.expression != LARGE:
        return shared_group(row, dtype)
    return shared_group(row, dtype, large=True)


@pytest.mark.parametrize(("framework", "mode", "dtype", "row"), list(combinations()))
def test_right_numbers(framework: str, mode: str, dtype: str, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    if (framework, mode) == INDUCTOR and not is_generated(row, dtype):
        without_generated_code(monkeypatch)
    assert_right(row, group_of(row, dtype, (framework, mode)), framework, mode)


@pytest.mark.parametrize("row", [r for r in trees.first() if not (r.tx.stateful or r.tx.name in QUICK)], ids=str)
def test_right_numbers_of_inductors_graph_in_eager_mode(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    if INDUCTOR not in MODES:
        pytest.skip("PyTorch is not installed")
    without_generated_code(monkeypatch)
    (dtype, *_), _ = _by_inductor(row, registry.ROWS.index(row))
    assert_right(row, group_of(row, dtype, INDUCTOR), *INDUCTOR)


def test_the_quick_part_has_every_transform_in_every_mode_and_two_dtypes() -> None:
    quick = [parameter.values for parameter in combinations() if not parameter.marks]
    for where in MODES:
        dtypes = {own for *mode, dtype, _ in quick if tuple(mode) == where for own in dtypes_of(dtype)}
        assert set(DTYPES) <= dtypes or where == INDUCTOR
        for row in trees.first():
            if where == INDUCTOR and row.tx.name not in QUICK:
                continue
            given = (dtype for *mode, dtype, found in quick if (*mode, found) == (*where, row))
            dtypes = {own for dtype in given for own in dtypes_of(dtype)}
            assert "float32" in dtypes
            assert len(dtypes) >= 2
    text = " ".join(row.expression for row in trees.first())
    for name in set(factories) - {"across", "elementwise", "transform", "scale_by_schedule"}:  # not in any row
        assert f"{name}(" in text


@pytest.mark.parametrize("row", registry.ROWS, ids=str)
def test_repr_builds_an_equal_transform(row: Row) -> None:
    assert gx.parse(repr(row.tx)) == row.tx
    assert hash(gx.parse(repr(row.tx))) == hash(row.tx)


@slow(EAGER, lambda framework, row: framework == "jax" and row not in trees.first())
@pytest.mark.parametrize("row", NORM_CLIPS, ids=str)
def test_unclipped_is_untouched(row: Row, framework: str) -> None:
    tree = optree.tree_map(lambda leaf: leaf * np.float32(1e-6), gradients("float32", matrix=row.matrix))
    (result,) = parity.run(row.tx, [tree], framework, "eager")
    for path, leaf in parity.named_leaves(tree).items():
        assert leaf.tobytes() == result.leaves[path].tobytes(), path


FOUND = [  # found by write_parity.py: an element near its row's mean; float32 factors rounded repeatedly
    ("chain(scale(3.0), centralize(axes='keras'), clip_norm(1.0))", "float64"),
    ("chain(scale(3.0), clip_adaptive(0.05, axes={'**': 'torch'}), clip_global_norm(1.0))", "complex64"),
]


@pytest.mark.parametrize(("framework", "mode"), [where for where in MODES if where != INDUCTOR])
@pytest.mark.parametrize(("expression", "dtype"), FOUND, ids=["float64", "complex64"])
def test_what_the_published_table_found(expression: str, dtype: str, framework: str, mode: str) -> None:
    if dtype == "float64" and extended.bits() < 100:
        pytest.skip("the difference from the mean has 35 ULP of error in NumPy's longdouble; install numpy-quaddtype")
    row = next(row for row in registry.ROWS if row.expression == expression)
    group, name = ordinary_and_hard(row, dtype, {"uneven leaves": 3}), "uneven leaves 3"
    assert_right(row, Group(group.column, group.words, {name: group.runs[name]}), framework, mode)
