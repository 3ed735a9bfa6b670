"""The table without fast paths: the shared kernels alone meet the budgets, in every framework.

A fast path may be removed, and a new device may have none.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import trees
from support import EAGER, FRAMEWORKS, PLAIN, assert_right, shared_group, slow

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.proof import registry
from gradxform.proof.registry import Row

REASON = "compiles, or looks up, each operation of a row that differs from a quick one in its arguments"
QUICK_DTYPES = ("float32", "float64", "bfloat16")
HOST = ("numpy", "torch")
"""Every row runs here; the shared kernels are the same code in JAX and TensorFlow, which run each transform once."""


@pytest.fixture
def plain(framework: str, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Replace the framework's backend with one without its own kernels."""
    package, mine = importlib.import_module(f"gradxform_{framework}"), lookup.backend(framework)
    backend: Backend = next(kind for kind in type(mine).__mro__ if kind.__name__ == "Plain")()
    monkeypatch.setattr(package, "backend", backend)
    owners = {kind: backend if owner is mine else owner for kind, owner in lookup._by_type.items()}
    monkeypatch.setattr(lookup, "_by_type", owners)
    return backend


@slow(EAGER, framework="jax")
@slow(PLAIN, lambda row: not str(row).startswith(("clip_n", "clip_v", "chain", "ema", "scale")), framework="tensorflow")
@slow(REASON, lambda row: row not in trees.first())
@pytest.mark.parametrize(
    ("framework", "row"),
    [(name, row) for name in FRAMEWORKS for row in (registry.ROWS if name in HOST else trees.first())],
    ids=str,
)
def test_right_numbers_without_fast_paths(row: Row, framework: str, plain: Backend) -> None:
    large = {"large": True} if framework in HOST else {}  # as test_table.py, which shares them
    for dtype in QUICK_DTYPES:
        if dtype in row.dtypes:
            assert_right(row, shared_group(row, dtype, **large), framework, "eager")


@slow(PLAIN)
@pytest.mark.parametrize("framework", [name for name in ("jax", "tensorflow") if name in FRAMEWORKS])
@pytest.mark.parametrize("row", trees.first(), ids=str)
def test_right_numbers_without_fast_paths_compiled(row: Row, framework: str, plain: Backend) -> None:
    """Each transform once; inductor uses PyTorch's defaults anyway."""
    assert_right(row, shared_group(row, "float32"), framework, "compiled")


def test_a_backend_without_fast_paths_overrides_no_kernel(framework: str, plain: Backend) -> None:
    kernels = {"norms", "norms_over", "sum_over", "multiply", "multiply_over", "divide", "clip", "elementwise", "each"}
    assert len(Backend.__abstractmethods__) == 10
    for name in kernels:
        assert getattr(type(plain), name) is getattr(Backend, name), name


def test_what_is_missing_is_named() -> None:
    unfinished: Any = type("Unfinished", (Backend,), {"name": "none", "types": (), "xp": None, "module": None})
    with pytest.raises(TypeError, match=r"custom_backward.*flatten.*from_numpy.*paths.*to_numpy.*unflatten"):
        unfinished()
