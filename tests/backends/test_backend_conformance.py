"""Each backend does what `gradxform.testing` asks of one, and so does the backend of docs/extending/backend.md.

test_table.py runs the rows in NumPy, JAX, TensorFlow and PyTorch, and test_table_without_float64.py by the functions of
the array API standard, which have the first row of each transform here. `MLX_COMPILED=all` runs every row under
`mx.compile`: half an hour the first time, since MLX passes each fused loop to a C++ compiler.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import INDUCTOR, MODES, OPERATIONS, ROOT, shared_group, slow
from trees import first

import gradxform as gx
from gradxform import numerics
from gradxform.backend import lookup
from gradxform.proof import conformance
from gradxform.proof.registry import DTYPES, ROWS
from gradxform.testing import backend_cases, check_backend

LACKS = {"mlx": ("complex128",), "array_api_strict": ("float16", "bfloat16")}
ROW_CASES = {row.expression for row in ROWS}
FIRST = {row.expression for row in first()}
COMPILED = ("chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))", "trace(0.9)")
MLX = "MLX compiles eager loops, too; each transform stays quick once"
FUSED = "MLX hands each fused loop to a C++ compiler"


def cases() -> Iterator[tuple[str, str, str]]:
    for case in backend_cases():
        if case not in ROW_CASES:
            modes = (*MODES, ("mlx", "compiled"))
            yield from ((*where, case) for where in modes if where[1] == "eager" or case in ("trees", "states"))
        yield from ((name, "eager", case) for name in LACKS if name == "mlx" or case not in ROW_CASES - FIRST)
        if case in COMPILED or os.environ.get("MLX_COMPILED") == "all":
            yield "mlx", "compiled", case


def is_slow_in_mlx(framework: str, mode: str, case: str) -> bool:
    words = "accumulate|adagc|adaptive|centralize|chain|ema|measure|normalize|percentile|skip|spikes|zscore"
    words += "|noise|orthogonal|feedback|grokfast|mars|partition"
    costly = re.search(words, case) or case not in FIRST
    return framework == "mlx" and mode == "eager" and case in ROW_CASES and bool(costly)


def is_slow_in_strict(framework: str, case: str) -> bool:
    words = "^chain|zscore|percentile|measure|accumulate|skip|spikes|feedback|masked|partition|normalize|centralize"
    words += "|^clip_(ada|ave|rms)|orthogonal|noise|mars|grokfast"
    return framework == "array_api_strict" and case in ROW_CASES and bool(re.search(words, case))


@slow(MLX, is_slow_in_mlx)
@slow(FUSED, lambda framework, mode, case: framework == "mlx" and mode == "compiled" and case != "trees")
@slow(OPERATIONS, is_slow_in_strict)
@slow(INDUCTOR, framework="torch", mode="compiled", case=("trees", "states"))
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("framework", "mode", "case"), list(cases()))
def test_conformance(framework: str, mode: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))  # conftest.py forgets the backend afterwards
    monkeypatch.setattr(conformance, "ordinary_and_hard", shared_group)
    check_backend(framework, case, mode, [dtype for dtype in DTYPES if dtype not in LACKS.get(framework, ())])


BROKEN: Any = [
    ("from_numpy", lambda old: lambda array, *like: old(np.asarray(array).T, *like), "arrays"),
    ("to_numpy", lambda old: lambda leaf: np.zeros_like(old(leaf)), "arrays"),
    ("dtype", lambda old: lambda leaf: "float32", "arrays"),
    ("shape", lambda old: lambda leaf: old(leaf)[::-1], "arrays"),
    ("flatten", lambda old: lambda tree: (old(tree)[0][::-1], old(tree)[1]), "trees"),
    ("unflatten", lambda old: lambda structure, leaves: old(structure, list(leaves)[::-1]), "trees"),
    ("paths", lambda old: lambda tree: [path.replace("/", ".") for path in old(tree)], "trees"),
    ("zeros", lambda old: lambda *leaves: [leaf + 1 for leaf in old(*leaves)], "trees"),
    ("xp", lambda old: type("Zeros", (type(old),), {"asarray": staticmethod(np.zeros_like)})(), "leaves"),
    ("stored", lambda old: lambda value, dtype, like: old(value, dtype, like) * 0, "states"),
    ("multiply", lambda old: lambda leaves, factors, inplace: list(leaves), "clip_norm(1.0)"),
]


@pytest.mark.parametrize(("member", "make", "case"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_backend_is_noticed(member: str, make: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = lookup.backend("numpy")
    monkeypatch.setattr(backend, member, make(getattr(backend, member)))
    with pytest.raises((AssertionError, ValueError, TypeError)):
        check_backend("numpy", case)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("paddle", "trees"), "paddle"), (("numpy", "tree"), "'tree'"), (("numpy", "trees", "compiled"), "mode")],
)
def test_unknown_names_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_backend(*arguments)


def test_array_api_strict_has_no_backward_pass_and_dtypes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dtypes have the hash of NumPy's, and comparing them makes array-api-strict warn."""
    strict = pytest.importorskip("array_api_strict")
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    with pytest.raises(TypeError, match="no backward pass"):
        gx.on_backward(gx.scale(2.0))(strict.asarray([1.0]))
    numerics._name.cache_clear()
    both = strict.ones(1, dtype=strict.float32), np.ones(1, np.float32)
    assert [numerics.dtype_name(array) for array in both] == ["float32", "float32"]
