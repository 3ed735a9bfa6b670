"""Measure the gain of each kernel override: the same call with and without it, alternately, in one process.

    python tests/benchmarks/overrides.py [--frameworks numpy,jax] [--only norms] [--out FILE]

An override is a method in a backend's `kernels.py` that replaces the shared kernel, or a fast path inside one. It stays
if it is at least 1.1 times faster somewhere, or compiles that much sooner. The command fails if one is not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from parity_page.report import folded

import gradxform as gx
from gradxform.backend import lookup
from gradxform.backend.host import namespace, threads
from gradxform.cli.bench.workloads import TREES, gradients
from gradxform.cli.console import quiet, table

SECONDS, LEAST, MOST = 0.5, 5, 2000
WORTH = 1.1
"""The least gain that justifies an override."""
NOT_FOR_TIME = {
    ("torch", "multiply_over"),  # writes in place, which saves a copy of all gradients
    ("torch", "divide"),  # the shared kernel, where its leaves are
    ("torch", "each"),  # fewer launches on accelerators, docs/numbers/devices.md
    ("jax", "divide"),  # accuracy: eager JAX divides by multiplying with the inverse
}
SHARED = ("norms_over", "elementwise", "each", "compute")
"""Overrides in a class that NumPy, PyTorch and TensorFlow inherit; a gain in one of them counts for all."""

CHAINS = {
    "norms": "clip_global_norm(1.0)",
    "norms_over": "clip_norm(0.01, axes=0)",
    "multiply": "scale(0.5)",
    "multiply_over": "clip_norm(0.01, axes=0)",
    "divide": 'clip_global_norm(1.0, like="optax")',
    "clip": "clip_value(0.5)",
    "elementwise": "add_decayed_weights(0.1)",
    "each": "zero_nonfinite()",
    "compute": "clip_norm(0.01)",
}
"""A chain that calls each kernel."""


class Override(NamedTuple):
    """A fast path and its replacement."""

    framework: str
    name: str
    chain: str
    owner: Any
    attribute: str
    plain: Any
    dtype: str = "float32"

    @property
    def is_inside_jax(self) -> bool:
        """Whether JAX traces it only once, even in eager mode."""
        return self.framework == "jax" and not isinstance(self.owner, type)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Switch the fast path off."""
        inherited = self.attribute not in vars(self.owner)
        own = None if inherited else vars(self.owner)[self.attribute]
        setattr(self.owner, self.attribute, self.plain)
        try:
            yield
        finally:
            delattr(self.owner, self.attribute) if inherited else setattr(self.owner, self.attribute, own)


class Result(NamedTuple):
    """Median seconds and first calls, with an override and without."""

    override: Override
    mode: str
    tree: str
    seconds: tuple[float, float]
    first: tuple[float, float]

    @property
    def gain(self) -> float:
        """How many times faster the override is."""
        return self.seconds[1] / self.seconds[0]


def kernels(framework: str) -> Iterator[Override]:
    """The kernels that a backend overrides, and the fast paths inside them."""
    module = importlib.import_module(f"gradxform_{framework}.kernels")
    fast = next(found for found in vars(module).values() if isinstance(found, type) and _is_of(found, module))
    plain = next(kind for kind in fast.__mro__ if kind.__name__ == "Plain")
    for name, chain in CHAINS.items():
        if getattr(fast, name) is not getattr(plain, name):
            for dtype in ("float32", "float64"):
                without = getattr(plain, name)
                without = _of_vectors(without) if name == "compute" else without
                yield Override(framework, name, chain, fast, name, without, dtype)
    yield from _inside(framework)


def _of_vectors(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Pass norms that JAX keeps apart as a vector, as the plain kernel expects."""

    def plain(self: Any, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        return compute(self, formula, *(getattr(operand, "vector", operand) for operand in operands), **static)

    return plain


def _is_of(found: type, module: Any) -> bool:
    return found.__module__ == module.__name__


def _inside(framework: str) -> Iterator[Override]:
    clip = CHAINS["norms"]
    if framework == "numpy":
        yield Override(framework, "norms: float32 rows", clip, namespace, "_norm_by_rows", _norm_in_blocks)
        yield Override(framework, "norms and multiply: threads", clip, threads, "spread", _one_by_one)
        yield Override(framework, "elementwise: threads", "sign()", threads, "spread", _one_by_one)
        selects = "add_decayed_weights(0.1, cautious=True)"
        plain = staticmethod(np.where)
        yield Override(framework, "selection by bits", selects, namespace.Namespace, "where", plain)
    if framework == "jax":
        rows = importlib.import_module("gradxform_jax.norms")
        yield Override(framework, "norms: one axis in rows", clip, rows, "cut", lambda leaf: None)
    if framework == "tensorflow":
        own, products = (importlib.import_module(f"gradxform_tensorflow.{name}") for name in ("norms", "products"))
        yield Override(framework, "norms: large leaves in rows", clip, own, "_is_large", lambda leaf: False)
        yield Override(framework, "small leaves together", clip, products, "_FEW", math.inf)


def _one_by_one(function: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    return [function(item) for item in items]


def _norm_in_blocks(flat: Any) -> float:
    return math.sqrt(sum(map(namespace._dot64, namespace._blocks(flat))))


# --- times -----------------------------------------------------------------------------------------------------------


def measured(override: Override, mode: str, name: str) -> Result:
    """Measure one override on one tree."""
    backend = lookup.backend(override.framework)
    tree = {path: leaf.astype(override.dtype) for path, leaf in gradients(TREES[name]()).items()}
    given, params = ({path: backend.from_numpy(np.roll(leaf, by)) for path, leaf in tree.items()} for by in (0, 1))
    sides: list[Callable[[], Any]] = []
    firsts, times = [], []
    for state in (contextlib.nullcontext(), override.off()):
        with state:
            if override.is_inside_jax:  # or the other side's trace would run
                importlib.import_module("jax").clear_caches()
            sides.append(_runner(override, mode, given, params))
            firsts.append(_timed(sides[-1]))
            if override.is_inside_jax:
                times.append([_timed(sides[-1]) for _ in _repeated()])
    if not times:
        times = [list(side) for side in zip(*(_both(override, sides) for _ in _repeated()), strict=True)]
    on, off = map(np.median, times)
    return Result(override, mode, name, (float(on), float(off)), (firsts[0], firsts[1]))


def _repeated() -> Iterator[None]:
    """Yield until the time or the repetitions suffice."""
    end, count = time.perf_counter() + SECONDS, 0
    while count < LEAST or (count < MOST and time.perf_counter() < end):
        yield
        count += 1


def _both(override: Override, sides: Sequence[Callable[[], Any]]) -> tuple[float, float]:
    """Time one call with the override and one without."""
    with_it = _timed(sides[0])
    with override.off():
        return with_it, _timed(sides[1])


def _runner(override: Override, mode: str, given: Any, params: Any) -> Callable[[], Any]:
    """Return a call of the chain that waits for its result."""
    tx = gx.parse(override.chain)

    def step(grads: Any, params: Any) -> Any:  # of its own: what equal transforms compile to is shared
        return tx(grads, params)

    if mode == "in place":
        return lambda: gx.numpy.apply_(tx, given)
    run: Any = lookup.backend(override.framework).compile(step) if mode == "compiled" else step
    wait = importlib.import_module("jax").block_until_ready if override.framework == "jax" else lambda result: result
    return lambda: wait(run(given, params))


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - start
    del result
    return seconds


def results(frameworks: Sequence[str], only: str) -> Iterator[Result]:
    """Measure all overrides; compiled mode only in JAX and TensorFlow, since PyTorch's overrides are eager only."""
    for framework in frameworks:
        with quiet():
            overrides = [override for override in kernels(framework) if only in override.name]
        for override in overrides:
            for mode in _modes(override):
                for tree in _trees(override, mode):
                    yield measured(override, mode, tree)


def _modes(override: Override) -> Sequence[str]:
    if override.framework in ("jax", "tensorflow"):
        return "eager", "compiled"
    return ("eager", "in place") if override.owner is threads else ("eager",)


def _trees(override: Override, mode: str) -> Sequence[str]:
    if override.dtype == "float64":
        return ("mlp",)
    many = ("many",) if mode != "compiled" or override.is_inside_jax else ()
    return ("mlp", *many, "resnet50", "gpt2")


# --- the page --------------------------------------------------------------------------------------------------------

HEADER = ("framework", "override", "chain", "mode", "tree", "dtype", "ms with", "ms without", "gain", "first call, s")
GAIN = HEADER.index("gain")


def cells(one: Result) -> list[str]:
    """The cells of one measurement."""
    with_it, without = (f"{seconds * 1e3:.3g}" for seconds in one.seconds)
    first = " / ".join(f"{seconds:.2g}" for seconds in one.first)
    override = one.override
    names = [override.framework, override.name, f"`{override.chain}`", one.mode, one.tree, override.dtype]
    return [*names, with_it, without, f"{one.gain:.2f}", first]


def tables(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The largest gain of each override, then all rows, one folded table per framework."""
    best: dict[tuple[str, str], Sequence[str]] = {}
    for row in rows:
        known = best.setdefault((row[0], row[1]), row)
        if float(row[GAIN]) > float(known[GAIN]):
            best[row[0], row[1]] = row
    summary = [[*key, f"{row[3]}, {row[4]}, {row[5]}", row[GAIN]] for key, row in best.items()]
    yield table(["framework", "override", "largest gain in", "gain"], summary)
    for framework in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == framework]
        yield folded(f"{framework}: all {len(own)} measurements", table(HEADER, own))


def idle(found: Sequence[Result]) -> list[str]:
    """The overrides without a gain anywhere."""
    best: dict[tuple[str, str], float] = {}
    for one in found:
        key = one.override.framework, one.override.name
        if key[1] in SHARED and key[0] != "jax":
            key = "NumPy's memory", key[1]
        sooner = one.first[1] / one.first[0] if one.first[0] > 1.0 else 0.0  # shorter calls vary by chance
        best[key] = max(best.get(key, 0.0), one.gain, sooner)
    return [
        f"{framework}: {name} ({gain:.2f})"
        for (framework, name), gain in best.items()
        if gain < WORTH and (framework, name) not in NOT_FOR_TIME
    ]


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", default=",".join(lookup.FRAMEWORKS))
    parser.add_argument("--only", default="", help="a part of an override's name")
    parser.add_argument("--out", help="the Markdown file to write")
    options = parser.parse_args(arguments)
    found = []
    for one in results(options.frameworks.split(","), options.only):
        found.append(one)
        print(" | ".join(cells(one)), flush=True)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in lookup.FRAMEWORKS)
    if options.out:
        command = "`python tests/benchmarks/overrides.py`"
        about = f"Written by {command} on {time.strftime('%Y-%m-%d')}: two cores, {platform.machine()}; {versions}."
        parts = [*tables([cells(one) for one in found]), about]
        Path(options.out).write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    nothing = idle(found)
    print("\n".join(["overrides without a gain:", *nothing]) if nothing else "every override has a gain")
    return bool(nothing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
