"""Time transforms that no framework has beside the lines that people write for them, on this machine.

    python tests/benchmarks/catalogue.py [--tree resnet50] [--only NAME] [--out FILE]

Without `--tree`, measures six small leaves (mlp) and ResNet-50's. The lines are the formulas of the papers, in
operations_natives.py, and round at each operation. Both sides return new arrays and a new state. Times of a pair are
measured alternately in one process.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from operations_natives import CONFLICTS, FORMULAS, Ops, is_scalar

import gradxform as gx
from gradxform.cli.bench import timing
from gradxform.cli.bench.timing import Side
from gradxform.cli.bench.workloads import TREES, gradients
from gradxform.cli.console import quiet

EFFORT = timing.Effort(seconds=1.0, least=7, most=2000)
FRACTION = 0.1
NEURONS = "normalize_neurons()"
"""A transform of matrices; other leaves are left out."""
Step = Callable[[Any, Any], tuple[Any, Any]]
"""Maps gradients and a state to new gradients and a new state."""


# --- frameworks ------------------------------------------------------------------------------------------------------


class Framework(NamedTuple):
    """A framework in one mode."""

    title: str
    load: Callable[[], tuple[Ops, Any]]
    """Its functions, and itself."""
    array: Callable[[Any, Any], Any]
    """Makes an array of its own from a NumPy array."""
    compiled: Callable[[Any, Step], Step] = lambda _, step: step
    wait: Callable[[Any, Any], Any] = lambda _, found: found
    kth: Callable[[Any, Any, int], Any] = lambda *_: None
    """The k-th largest of an array's elements."""


def _no_muon(_: Any) -> Any:
    raise NotImplementedError


def _ops(module: str, norm: str, mean: str, cast: Callable[[Any, Any, Any], Any], xp: str = "") -> Any:
    def load() -> tuple[Ops, Any]:
        with quiet():
            framework = importlib.import_module(module)
        find = functools.partial(functools.reduce, getattr)
        functions = importlib.import_module(xp) if xp else framework
        own = [find(name.split("."), functions) for name in (norm, mean)]
        return Ops(functions, *own, functools.partial(cast, framework), _no_muon), framework

    return load


FRAMEWORKS = {
    "numpy": Framework(
        "NumPy",
        _ops("numpy", "linalg.norm", "mean", lambda _, x, dtype: x.astype(dtype)),
        lambda np, leaf: leaf.copy(),
        kth=lambda np, x, k: np.partition(x.ravel(), -k)[-k],
    ),
    "torch": Framework(
        "PyTorch",
        _ops("torch", "linalg.vector_norm", "mean", lambda _, x, dtype: x.to(dtype)),
        lambda torch, leaf: torch.from_numpy(leaf.copy()),
        kth=lambda torch, x, k: x.flatten().topk(k, sorted=False).values.min(),
    ),
    "jax": Framework(
        "JAX jit",
        _ops("jax", "linalg.norm", "mean", lambda _, x, dtype: x.astype(dtype), xp="jax.numpy"),
        lambda jax, leaf: jax.numpy.asarray(leaf),
        lambda jax, step: jax.jit(step),
        lambda jax, found: jax.block_until_ready(found),
        kth=lambda jax, x, k: jax.lax.top_k(x.ravel(), k)[0].min(),
    ),
    "tensorflow": Framework(
        "TensorFlow graph",
        _ops("tensorflow", "norm", "reduce_mean", lambda tf, x, dtype: tf.cast(x, dtype)),
        lambda tf, leaf: tf.constant(leaf),
        lambda tf, step: tf.function(step, autograph=False),
        kth=lambda tf, x, k: tf.reduce_min(tf.math.top_k(tf.reshape(x, [-1]), k, sorted=False)[0]),
    ),
}


# --- what is compared ------------------------------------------------------------------------------------------------


def _trace(o: Ops, g: Any, m: Any) -> tuple[Any, ...]:
    m = 0.9 * m + g
    return m, m


def _ema(o: Ops, g: Any, m: Any) -> tuple[Any, ...]:
    m = 0.9 * m + 0.1 * g
    return m, m


def _accumulate(o: Ops, g: Any, total: Any) -> tuple[Any, ...]:
    """A step without an update: adds to the sum, and returns zeros."""
    return o.xp.zeros_like(g), total + g


def _decayed(o: Ops, g: Any, p: Any) -> tuple[Any, ...]:
    return (g + 0.1 * p,)


def _neurons(o: Ops, g: Any, average: Any) -> tuple[Any, ...]:
    """NorMuon's division, which keeps the norm."""
    average = 0.95 * average + 0.05 * o.mean(g * g, axis=1, keepdims=True)
    divided = g / o.xp.sqrt(average)
    return divided * (o.norm(g) / o.norm(divided)), average


LINES: dict[str, Callable[[Ops, Any, Any], tuple[Any, ...]]] = {
    "trace(0.9)": _trace,
    "ema(0.9, debias=False)": _ema,
    "accumulate(identity(), 1000000)": _accumulate,
    "add_decayed_weights(0.1)": _decayed,
    NEURONS: _neurons,
    **{name: formula for name, formula in FORMULAS.items() if "orthogonalize" not in name},
}
TOP_K = f"top_k({FRACTION})"
BESIDE = ("cautious()", "add_decayed_weights(0.1)")
"""Their second argument is a tree beside the gradients, not a state."""


def own(name: str) -> tuple[Step, Callable[[Any], Any]]:
    """Return a transform's step, and what starts its state."""
    tx = gx.parse(name)
    if "gradients" in tx.traits.needs:
        return lambda grads, beside: (tx.update(grads, gradients=beside)[0], beside), lambda grads: grads
    if name in BESIDE:
        return lambda grads, beside: (tx.update(grads, tx.init(grads), beside)[0], beside), lambda grads: grads
    return tx.update, tx.init


def by_lines(name: str, ops: Ops, kth: Callable[[Any, int], Any]) -> tuple[Step, Callable[[Any], Any]]:
    """Return the handwritten step, and what starts its state."""

    def largest(o: Ops, g: Any, _: Any) -> tuple[Any, ...]:
        size = o.xp.abs(g)
        least = kth(size, max(1, int(FRACTION * np.prod(g.shape) + 0.5)))
        return (o.xp.where(size >= least, g, o.xp.zeros_like(g)),)

    line = largest if name == TOP_K else LINES[name]

    def step(grads: Any, state: Any) -> Any:
        found = {path: line(ops, g, state[path]) for path, g in grads.items()}
        new = {path: parts[1] if len(parts) > 1 else state[path] for path, parts in found.items()}
        return {path: parts[0] for path, parts in found.items()}, new

    def start(grads: Any) -> Any:
        if name in (*BESIDE, TOP_K):
            return grads
        if name == NEURONS:
            return {path: g[:, :1] * 0.0 for path, g in grads.items()}
        return {path: ops.norm(g) if is_scalar(name) else g * 0.0 + 1e-6 for path, g in grads.items()}

    return step, start


def _stepping(made: tuple[Step, Callable[[Any], Any]], grads: Any, framework: Framework, module: Any) -> Side:
    """Return what is timed: one step, from the state of the one before."""
    step, state = framework.compiled(module, made[0]), made[1](grads)

    def run() -> Any:
        nonlocal state
        out, state = step(grads, state)
        framework.wait(module, (out, state))
        return out

    return Side(run, list)


def pairs(name: str, tree: Any) -> Iterator[tuple[Side, Side]]:
    """Return gradxform's side and the other for each framework."""
    for framework in FRAMEWORKS.values():
        ops, module = framework.load()
        grads = {path: framework.array(module, leaf) for path, leaf in tree.items()}
        kth = functools.partial(framework.kth, module)
        first, second = (_stepping(made, grads, framework, module) for made in (own(name), by_lines(name, ops, kth)))
        yield first, second


def conflict(name: str, tree: Any) -> tuple[Side, Side]:
    """Return the sides of a function of three tasks in PyTorch: gradxform's, and TorchJD's on a matrix."""
    torch, aggregation = (importlib.import_module(module) for module in ("torch", "torchjd.aggregation"))
    rng = np.random.default_rng(0)
    trees = [
        {path: torch.from_numpy(leaf + rng.standard_normal(leaf.shape, np.float32)) for path, leaf in tree.items()}
        for _ in range(3)
    ]
    function, aggregator = getattr(gx, name), {"mgda": "MGDA", "upgrad": "UPGrad"}[name]
    combine = getattr(aggregation, aggregator)()

    def by_torchjd() -> Any:
        rows = torch.stack([torch.cat([leaf.flatten() for leaf in one.values()]) for one in trees])
        flat = combine(rows).split([leaf.size for leaf in tree.values()])
        return [part.view(leaf.shape) for part, leaf in zip(flat, trees[0].values(), strict=True)]

    return Side(lambda: function(trees), list), Side(by_torchjd, list)


# --- the command -----------------------------------------------------------------------------------------------------


def cell(sides: tuple[Side, Side]) -> str:
    """Measure one pair: milliseconds of gradxform, and the median ratio."""
    with np.errstate(all="ignore"):
        for side in (*sides, *sides):
            timing.timed(side)
        times = timing.in_turn(sides, EFFORT)
    return f"{np.median(times[:, 0]) * 1e3:.3g} ({np.median(times[:, 0] / times[:, 1]):.2f})"


def table(tree: str, only: str) -> list[str]:
    """Return the lines of a Markdown table."""
    given = gradients(TREES[tree]())
    titles = [framework.title for framework in FRAMEWORKS.values()]
    size = f"{len(given)} leaves, {4 * sum(map(math.prod, TREES[tree]().values())) / 1e6:.3g} MB"
    lines = [f"| {tree}: {size} | {' | '.join(titles)} |", f"| --- |{' ---: |' * len(titles)}"]
    for name in (*LINES, TOP_K):
        if only in name:
            some = {path: leaf for path, leaf in given.items() if name != NEURONS or leaf.ndim == 2}
            lines.append(f"| `{name}` | {' | '.join(map(cell, pairs(name, some)))} |")
            print(lines[-1], flush=True)
    for name in CONFLICTS:
        if only in name and name != "cagrad":  # TorchJD's needs CVXPY
            lines.append(f"| `{name}` of three tasks | - | {cell(conflict(name, given))} | - | - |")
            print(lines[-1], flush=True)
    return lines


def about() -> str:
    """Return when and with what the tables were made."""
    names = ("numpy", "jax", "tensorflow", "torch", "torchjd")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return f"Written on {time.strftime('%Y-%m-%d')} with {versions}; {os.cpu_count()} cores, {platform.machine()}."


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", choices=TREES, help="one tree; without, mlp and resnet50")
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--out", type=Path, help="the Markdown file to write")
    options = parser.parse_args(arguments)
    tables = [table(tree, options.only) for tree in ([options.tree] if options.tree else ["mlp", "resnet50"])]
    if options.out is not None:
        parts = [*("\n".join(lines) for lines in tables), about()]
        options.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
