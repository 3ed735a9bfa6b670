"""Shared set-up: quiet frameworks, compiler caches, the order of tests, and no leftover backends."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import EVERYWHERE, FRAMEWORKS, MODES, is_slow_case, without_generated_code

from gradxform.backend import lookup

CACHE = Path(__file__).parent.parent / ".cache"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# A second run reuses compiled code. pytest's workers provide the parallelism, so compilers need no pool.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE / "inductor"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Idle threads of OpenMP spin otherwise, and take the cores from the other workers.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# PyTorch's CUDA wheel brings Triton, which torch.compile imports. Triton and TensorFlow both register the options of
# their LLVM: Triton's library, if loaded second, aborts the process ("registered more than once").
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

COSTLY_FIRST = ("torch", "numpy", "", "jax", "tensorflow")
"""The order of frameworks. pytest-xdist gives each worker a contiguous part, so few workers import each framework."""

DEPRECATED = [f"error::{kind}:gradxform" for kind in ("DeprecationWarning", "FutureWarning")]
"""Deprecated calls that this library makes are errors, also in tests that ignore the frameworks' own."""


def pytest_configure(config: pytest.Config) -> None:
    """Deprecated calls in the modules of the tests are errors too; a test may ignore them."""
    names = "|".join(sorted({path.stem for path in Path(__file__).parent.rglob("*.py")}))
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning"):
        config.addinivalue_line("filterwarnings", rf"error::{kind}:({names})\Z")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip programs when looking for doctests, which would import them; test_programs.py runs them."""
    return True if collection_path.parent.name == "programs" and not collection_path.name.startswith("test_") else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `framework`, or of `framework` and `mode`, that chooses none runs in all of them."""
    chosen = "".join(str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    wanted = [name for name in ("framework", "mode") if name in metafunc.fixturenames and name not in chosen]
    if wanted:
        metafunc.parametrize(",".join(wanted), MODES if len(wanted) == 2 else FRAMEWORKS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow cases, make this library's deprecated calls errors, and sort the tests by framework."""
    _mark_slow_cases(config, items)
    for item in items[:1]:  # pytest applies the session's filters last, so they win
        item.session.add_marker(pytest.mark.filterwarnings(*DEPRECATED))
    items.sort(key=_rank)


def _mark_slow_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that `support.slow` chooses; in whole files with all frameworks, every choice finds some."""
    unused = {}
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if given.get("framework") in {*lookup.FRAMEWORKS, "mlx"} - {*EVERYWHERE}:
            item.add_marker(pytest.mark.skip(reason=f"{given['framework']} is not installed"))
        for mark in item.iter_markers("slow_case"):
            unused.setdefault(id(mark), (item, mark))
            if is_slow_case(mark, given):
                item.add_marker(pytest.mark.slow(reason=mark.args[0]))
                unused[id(mark)] = None
    stale = [f"{_function(item)}: {mark.args}" for item, mark in filter(None, unused.values())]
    if stale and {*EVERYWHERE} >= {*lookup.FRAMEWORKS, "mlx"} and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"no case is slow as marked: {stale}")


def pytest_collection_finish() -> None:
    """Collect garbage rarely, and not among the objects of imports and collection: that takes a third of the CPU time.

    Frameworks that are imported later bring millions of objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _rank(item: pytest.Item) -> int:
    named = [rank for rank, name in enumerate(COSTLY_FIRST) if name and name in item.nodeid]
    return named[0] if named else COSTLY_FIRST.index("")


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0].removeprefix("tests/")


def _imported(module: str) -> Any:
    """Make a fixture of a module, without which a test is skipped."""
    return pytest.fixture(scope="session")(lambda: pytest.importorskip(module))


torch, tf, keras, typer = map(_imported, ("torch", "tensorflow", "keras", "typer"))
jax, jnp, optax, flax, nnx = map(_imported, ("jax", "jax.numpy", "optax", "flax", "flax.nnx"))


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with the same numbers in each test."""
    return np.random.default_rng(0)


@pytest.fixture
def graph_alone(framework: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor generates no code; the graph that torch.compile traced is run by the operations of eager mode."""
    if (framework, mode) == ("torch", "compiled"):
        without_generated_code(monkeypatch)


@pytest.fixture(autouse=True)
def backends_of_other_frameworks_are_forgotten() -> Iterator[None]:
    """Forget the backends that a test has added."""
    yield
    import gradxform

    for name, found in list(lookup._others.items()):
        del lookup._others[name]
        vars(gradxform).pop(name, None)
        for kind in [kind for kind, owner in lookup._by_type.items() if owner is found]:
            del lookup._by_type[kind]
        for module in [module for module in sys.modules if module.partition(".")[0] == f"gradxform_{name}"]:
            del sys.modules[module]
