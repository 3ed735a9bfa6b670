"""The figures of docs/numbers/speed.md that `gradxform bench` does not print: why some goals are missed.

    python tests/benchmarks/limits.py [attach] [muon] [graph] [compile] [compiled] [trace] [--slow]

Each name is a table. Without names, all are printed except `compile`, `compiled` and `trace`, which take minutes and
need `--slow`.
Times in one table are measured alternately in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from typing import Any
from unittest import mock

import numpy as np

import gradxform as gx
from gradxform.cli.bench import timing
from gradxform.cli.bench.timing import Side
from gradxform.cli.bench.workloads import CHAINS, TREES, gradients, transformation
from gradxform.cli.console import quiet
from gradxform.cli.frameworks.interface import Array

Table = list[list[str]]
"""Rows of cells; the first row is the header."""

EFFORT = timing.Effort(seconds=4.0, least=15, most=5000)


def _imported(module: str) -> Any:
    """Import a module and its framework without the framework's messages."""
    with quiet():
        return importlib.import_module(module)


def _times(sides: Sequence[Side]) -> Array:
    """Time the sides alternately, one row per repetition, without their first calls."""
    for side in sides:
        timing.timed(side)
    return timing.in_turn(sides, EFFORT)


# --- attach: a step in PyTorch ---------------------------------------------------------------------------------------


def attach() -> Table:
    """A step of torch.optim.SGD on six small leaves (mlp) with one clip, whose gradients exceed the limit."""
    torch = _imported("torch")
    own, native = _times((_sgd(torch, attached=True), _sgd(torch, attached=False))).T
    cells = (f"{np.median(times) * 1e6:.0f}" for times in (own, native))
    header = ["", "`gx.torch.attach`, microseconds", "`clip_grad_norm_`", "ratio"]
    return [header, ["step", *cells, f"{np.median(own / native):.2f}"]]


def _sgd(torch: Any, attached: bool) -> Side:
    """A step of an optimizer of its own, and what restores the gradients."""
    given = [torch.from_numpy(leaf) for leaf in gradients(TREES["mlp"]()).values()]
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in given]
    optimizer, limit = torch.optim.SGD(parameters, lr=0.01), CHAINS[1][0].value

    def restore() -> None:
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = gradient.clone()

    def clipped() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()

    if not attached:
        return Side(clipped, list, restore)
    _imported("gradxform_torch").attach(optimizer, gx.clip_global_norm(limit))
    return Side(optimizer.step, list, restore)


# --- compile: what XLA makes of a chain -----------------------------------------------------------------------


def compile_() -> Table:
    """CPU seconds to trace and compile a chain under jax.jit."""
    table = [["leaves", "chain", "gradxform", "optax", "ratio"]]
    for name in ("resnet50", "gpt2"):
        shapes = list(TREES[name]().values())
        for length in (1, 3):
            runs = np.array([[_seconds(tx, shapes) for tx in _chains(length)] for _ in range(5)])
            cells = (*(f"{s:.2f}" for s in np.median(runs, axis=0)), f"{np.median(runs[:, 0] / runs[:, 1]):.2f}")
            table.append([f"{name}, {len(shapes)}", str(length), *cells])
    return table


def _chains(length: int) -> Sequence[Any]:
    """A chain, and optax's."""
    gx, optax = _imported("gradxform"), _imported("optax")
    if length == 1:
        return gx.clip_global_norm(1.0), optax.clip_by_global_norm(1.0)
    own = gx.chain(gx.clip_value(0.5), gx.clip_global_norm(1.0), gx.scale(-0.1))
    return own, optax.chain(optax.clip(0.5), optax.clip_by_global_norm(1.0), optax.scale(-0.1))


def _seconds(tx: Any, shapes: Sequence[tuple[int, ...]]) -> float:
    """CPU seconds to trace and compile a transform for leaves of some shapes, with nothing cached."""
    jax = _imported("jax")
    tree = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    state = jax.eval_shape(tx.init, tree)
    jax.clear_caches()
    start = time.process_time()
    jax.jit(lambda grads, state: tx.update(grads, state)).lower(tree, state).compile()
    return time.process_time() - start


# --- compiled: the first call of torch.compile ------------------------------------------------------------------------

COUNTS = (1, 3, 10)
"""How many leaves, of up to 8,192 numbers."""


def compiled() -> Table:
    """torch.compile of `clip_global_norm(1.0)`: CPU seconds of the first call, microseconds of a later one."""
    shapes = [(64, 32), (32,), (128, 64), (7,), (3, 3, 16, 8), (100, 10), (10,), (33, 65), (5, 5), (1000,)]
    table = [["dtype", "leaves", "first call, s", "later, microseconds"]]
    for dtype in (np.float64, np.float32):
        for count in COUNTS:
            with tempfile.TemporaryDirectory() as cache:  # nothing compiled before helps
                first, later = _compiled([(np.ones(shape) * 0.1).astype(dtype) for shape in shapes[:count]], cache)
            table.append([np.dtype(dtype).name, str(count), f"{first:.1f}", f"{later * 1e6:.0f}"])
    return table


def _compiled(leaves: Sequence[Array], cache: str) -> tuple[float, float]:
    """Compile a clip in one graph, after a graph that finds the compiler; return CPU seconds and seconds of a call."""
    torch = _imported("torch")
    torch.compiler.reset()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch.compile(lambda x: x.sum() * 2.0)(torch.ones(3))
    tx, given = gx.clip_global_norm(1.0), [torch.from_numpy(leaf) for leaf in leaves]
    clip = torch.compile(lambda grads: tx(grads), fullgraph=True, dynamic=False)
    start = _cpu_seconds()
    clip(given)
    first = _cpu_seconds() - start
    return first, float(np.percentile(_times([Side(functools.partial(clip, given), list)]), 10))


def _cpu_seconds() -> float:
    """CPU seconds of this process and of compilers that it ran."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


# --- muon: a library that the benchmark leaves out -------------------------------------------------------------------


def muon() -> Table:
    """`orthogonalize` beside the iteration of mlx.optimizers.Muon, on four matrices of `gradxform bench`, in MLX."""
    mx, optimizers = _imported("mlx.core"), _imported("mlx.optimizers")
    grads = {path: mx.array(leaf) for path, leaf in gradients(TREES["matrices"]()).items() if "h/0" in path}
    tx, native = gx.orthogonalize(scale=None, like="mlx"), optimizers.Muon(0.02)._zeropower_via_newtonschulz5

    def by_native(tree: Any) -> Any:
        return {path: native(leaf, 5) for path, leaf in tree.items()}

    table = [["mode", "gradxform, ms", "native, ms", "ratio"]]
    for mode, wrap in (("eager", lambda step: step), ("compiled", mx.compile)):
        steps = [wrap(tx), wrap(by_native)]
        sides = [Side(lambda step=step: mx.eval(step(grads)), leaves=lambda _: []) for step in steps]
        times = _times(sides)
        own, other = np.median(times, axis=0) * 1e3
        table.append([mode, f"{own:.0f}", f"{other:.0f}", f"{np.median(times[:, 0] / times[:, 1]):.2f}"])
    return table


# --- graph, trace: what the branches cost in TensorFlow's graph -------------------------------------------------------


def graph_() -> Table:
    """A step of one clip in TensorFlow's graph, in multiples of tf.clip_by_global_norm's; then without branches."""
    table = [["tree", "gradxform", "without branches"]]
    trees = {name: TREES[name]() for name in ("mlp", "resnet50", "gpt2")}
    trees["width 256"] = {f"{i}/{part}": shape for i in range(4) for part, shape in _WIDTH_256.items()}
    for name, shapes in trees.items():
        leaves = [_imported("tensorflow").constant(leaf) for leaf in gradients(shapes).values()]
        times = _times([Side(functools.partial(_graph_of(way, 1), leaves), list) for way in WAYS])
        ratios = np.median(times / times[:, -1:], axis=0)
        table.append([name, *(f"{ratio:.2f}" for ratio in ratios[:-1])])
    return table


WAYS = ("gradxform", "without branches", "TensorFlow")
_WIDTH_256 = {
    **{f"attention{i}": (256, 256) for i in range(4)},
    **{f"bias{i}": (256,) for i in range(6)},
    **{f"mlp{i}": (256, 480) for i in range(2)},
}
"""A layer of a small transformer; four of them have leaves of 65,536 and 122,880 elements."""


def _graph_of(way: str, length: int) -> Callable[[Any], Any]:
    """A chain as a `tf.function`, which is traced where it is first called."""
    tf, bench = _imported("tensorflow"), _imported("gradxform.cli.frameworks.tensorflow")

    def native(leaves: Any) -> Any:
        for step in CHAINS[length]:
            leaves = bench.NATIVE[step.name](leaves, step.value)
        return leaves

    def own(leaves: Any) -> Any:
        return transformation(CHAINS[length])(leaves)

    def bare(leaves: Any) -> Any:
        with _without_branches():
            return own(leaves)

    work = {"gradxform": own, "without branches": bare, "TensorFlow": native}[way]
    return tf.function(work, autograph=False)


@contextlib.contextmanager
def _without_branches() -> Iterator[None]:
    """Never look whether a sum is right, a gradient unchanged or a factor extreme, nor keep another kernel for XLA."""
    running = _imported("gradxform_tensorflow.running")
    with (
        mock.patch.object(running, "on_cpus", lambda function, for_xla, *leaves: function(*leaves)),
        mock.patch.object(running, "cond", lambda _, yes, no: no()),
    ):
        yield


def trace() -> Table:
    """CPU seconds of first calls of a `tf.function`, without a step's; medians of five processes of their own."""
    header = ["tree", "chain", *WAYS, "ratio", "ratio without branches"]
    table, spawn = [header], multiprocessing.get_context("spawn")
    for name, length in itertools.product(("mlp", "resnet50", "gpt2", "many"), (1, 3)):
        runs = []
        for i in range(5):
            with ProcessPoolExecutor(1, spawn) as pool:
                runs.append(pool.submit(_first_calls, name, length, i).result())
        seconds, ratios = np.median(runs, axis=0), np.median(np.array(runs) / np.array(runs)[:, -1:], axis=0)
        table.append([name, str(length), *(f"{s:.2f}" for s in seconds), *(f"{ratio:.2f}" for ratio in ratios[:-1])])
    return table


def _first_calls(name: str, length: int, turn: int) -> list[float]:
    """The first call of each way less its second, in another order each turn; what all ways load is loaded before."""
    tf, found = _imported("tensorflow"), {}
    for shapes in (TREES["mlp"](), TREES[name]()):
        leaves = [tf.constant(leaf) for leaf in gradients(shapes).values()]
        for way in np.roll(WAYS, turn):
            work, times = _graph_of(way, length), [time.process_time()]
            for _ in range(2):
                work(leaves)
                times.append(time.process_time())
            found[way] = 2 * times[1] - times[0] - times[2]
    return [found[way] for way in WAYS]


# --- the command -----------------------------------------------------------------------------------------------------

TABLES = {table.__name__.rstrip("_"): table for table in (attach, muon, graph_, compile_, compiled, trace)}
SLOW = {"compile", "compiled", "trace"}


def main(arguments: Sequence[str]) -> None:
    """Measure the requested tables and print them as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the tables; without, all the quick ones")
    parser.add_argument("--slow", action="store_true", help="of all tables, the slow ones too")
    options = parser.parse_args(arguments)
    if unknown := set(options.names).difference(TABLES):
        parser.error(f"no table is named {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    versions = (f"{name} {metadata.version(name)}" for name in ("numpy", "jax", "optax", "tensorflow", "torch"))
    print(f"python {platform.python_version()}, {', '.join(versions)}")
    for name in options.names or [name for name in TABLES if options.slow or name not in SLOW]:
        measure = TABLES[name]
        header, *rows = measure()
        lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
        print(f"\n**{name}**: {measure.__doc__}\n")
        print("\n".join(f"| {' | '.join(line)} |" for line in lines), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
