"""Train for long in each framework: memory must stay flat, nothing be traced again, and the last steps be as fast.

    python tests/benchmarks/soak.py [--minutes 60] [numpy jax tensorflow torch keras-jax mlx ...]

The minutes are shared by the programs, each of which runs in a process of its own. Prints a table; ends with 1 if a
program grew, traced again or became slower.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import gradxform as gx

WINDOWS = 20
GROWTH = 4 << 20, 0.02
"""Allowed growth after the first quarter: bytes, and a part of the memory. Allocators keep what they have had."""
SLOWER = 1.2
"""Allowed ratio of the last quarter's step to the second's. A window's CPU time is its fastest tenth."""
SHAPES = {"dense/kernel": (64, 128), "dense/bias": (128,), "head/kernel": (128, 10), "head/bias": (10,)}
TEXT = (
    "skip_nonfinite(chain(partition({'**/bias': clip_value(0.5)}, measure(clip_norm(5.0))), "
    "clip_zscore(2.5), clip_global_norm(1.0), ema(0.9), add_noise(0.001, 3)))"
)
Step = Callable[[int], Any]


class Program(NamedTuple):
    """One step of training, and how often it was traced."""

    step: Step
    traces: Callable[[], int] = lambda: 1


def some(step: int) -> dict[str, Any]:
    """Gradients by path, of eight kinds. One in a thousand holds NaN."""
    rng = np.random.default_rng(step % 8)
    found = {path: rng.standard_normal(shape, np.float32) for path, shape in SHAPES.items()}
    if step % 1000 == 999:
        found["head/bias"][0] = np.nan
    return found


# --- programs: the transformation is built anew in each step, as in code that builds it inside of a function ----------


def with_numpy() -> Program:
    """Run eagerly."""
    state = gx.parse(TEXT).init(some(0))

    def step(i: int) -> None:
        nonlocal state
        _, state = gx.parse(TEXT).update(some(i), state)
        gx.metrics(state)

    return Program(step)


def with_jax(jit: bool = True) -> Program:
    """Run compiled, with a limit that changes, or eagerly."""
    jax = importlib.import_module("jax")
    traces = 0

    def transformation(limit: Any) -> Any:
        return gx.chain(gx.parse(TEXT), gx.clip_norm(limit))

    def update(gradients: Any, state: Any, limit: Any) -> Any:
        nonlocal traces
        traces += 1
        return transformation(limit).update(gradients, state)

    run, state = jax.jit(update) if jit else update, transformation(1.0).init(jax.tree.map(jax.numpy.asarray, some(0)))

    def step(i: int) -> None:
        nonlocal state
        updates, state = run(jax.tree.map(jax.numpy.asarray, some(i)), state, jax.numpy.float32(1 + i % 7))
        jax.block_until_ready(updates)

    return Program(step, lambda: traces if jit else 1)


def with_tensorflow(graph: bool = True) -> Program:
    """Run a GradientProcessor with an optimizer."""
    tf = importlib.import_module("tensorflow")
    variables = [tf.Variable(tf.zeros(shape), name=path.replace("/", "_")) for path, shape in SHAPES.items()]
    text = TEXT.replace("**/bias", "*_bias")
    processor = gx.tensorflow.GradientProcessor(gx.parse(text), variables)
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    traces = 0

    def update(*gradients: Any) -> None:
        nonlocal traces
        traces += 1
        pairs = zip(gradients, variables, strict=True)
        processor.apply_gradients(optimizer, gx.tensorflow.apply(gx.clip_global_norm(9.0), list(pairs)))

    run = tf.function(update) if graph else update
    return Program(lambda i: run(*map(tf.constant, some(i).values())), lambda: traces if graph else 1)


def with_torch(compiled: bool = False) -> Program:
    """Attach to an optimizer, train, and save the optimizer now and then; or compile the step."""
    torch = importlib.import_module("torch")
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(network.named_parameters(), 1e-3)
    handle = gx.torch.attach(optimizer, gx.parse(TEXT))
    counter = importlib.import_module("torch._dynamo.testing").CompileCounter() if compiled else None

    def update(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()

    run = torch.compile(update, backend=counter) if compiled else update
    generator = torch.Generator().manual_seed(0)

    def step(i: int) -> None:
        run(torch.randn(32, 64, generator=generator), torch.randint(10, (32,), generator=generator))
        gx.metrics(handle.state)
        if i % 1000 == 0:
            optimizer.load_state_dict(optimizer.state_dict())

    return Program(step, lambda: counter.frame_count if counter else 1)


def with_keras() -> Program:
    """Train a compiled model with a wrapped optimizer."""
    keras = importlib.import_module("keras")
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
    optimizer = gx.keras.wrap(keras.optimizers.Adam(1e-3), gx.parse(TEXT))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    return Program(lambda _: model.train_on_batch(rng.random((32, 64), np.float32), rng.integers(0, 10, 32)))


def with_mlx() -> Program:
    """Run eagerly on arrays of MLX."""
    mx = importlib.import_module("mlx.core")
    state = gx.parse(TEXT).init({path: mx.array(leaf) for path, leaf in some(0).items()})

    def step(i: int) -> None:
        nonlocal state
        updates, state = gx.parse(TEXT).update({path: mx.array(leaf) for path, leaf in some(i).items()}, state)
        mx.eval(updates, state)

    return Program(step)


def with_recorder() -> Program:
    """Record each step, and remove the files now and then."""
    folder = Path(tempfile.mkdtemp())
    recorder = gx.record(folder / "run")

    def step(i: int) -> None:
        recorder(i, gradients=some(i), loss=float(i))
        if i % 500 == 499:
            shutil.rmtree(folder / "run")
            (folder / "run").mkdir()

    return Program(step)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "numpy": with_numpy,
    "jax": with_jax,
    "jax-eager": lambda: with_jax(jit=False),
    "tensorflow": with_tensorflow,
    "tensorflow-eager": lambda: with_tensorflow(graph=False),
    "torch": with_torch,
    "torch-compile": lambda: with_torch(compiled=True),
    "keras-tensorflow": with_keras,
    "keras-jax": with_keras,
    "keras-torch": with_keras,
    "mlx": with_mlx,
    "record": with_recorder,
}


# --- measuring -------------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """A part of a run: its steps, a step's milliseconds of CPU, the memory and the traces at its end."""

    steps: int
    milliseconds: float
    memory: int
    traces: int


def windows(program: Program, seconds: float) -> Iterator[Window]:
    """Run a program's steps."""
    process, i = psutil.Process(), 0
    for _ in range(50):  # first calls
        program.step(i)
        i += 1
    for _ in range(WINDOWS):
        times, end = [], time.perf_counter() + seconds / WINDOWS
        while time.perf_counter() < end or len(times) < 10:
            start = time.process_time()
            program.step(i)
            times.append(time.process_time() - start)
            i += 1
        gc.collect()
        yield Window(len(times), 1e3 * float(np.quantile(times, 0.1)), process.memory_info().rss, program.traces())


def faults(found: list[Window]) -> list[str]:
    """What went wrong."""
    quarter = len(found) // 4
    early, late = found[quarter : 2 * quarter], found[-quarter:]
    grown = late[-1].memory - early[0].memory
    slower = min(window.milliseconds for window in late) / min(window.milliseconds for window in early)
    told = {
        f"grew by {grown / 1e6:.1f} MB": grown > GROWTH[0] + GROWTH[1] * early[0].memory,
        f"traced {late[-1].traces - early[0].traces} times more": late[-1].traces > early[0].traces,
        f"slower by {slower:.2f}": slower > SLOWER,
    }
    return [words for words, wrong in told.items() if wrong]


def run(name: str, seconds: float) -> list[Window]:
    """Run a program in a process of its own."""
    keras = name.removeprefix("keras-") if name.startswith("keras-") else "tensorflow"
    told = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": keras}
    command = [sys.executable, __file__, "--alone", name, "--minutes", str(seconds / 60)]
    ended = subprocess.run(command, env=told, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{name} failed:\n{ended.stderr}")
    lines = ended.stdout.splitlines()
    return [Window(*window) for window in json.loads(lines[-1])]


def main() -> int:
    """Run all or some, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(PROGRAMS)}")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(list(windows(PROGRAMS[given.alone](), 60 * given.minutes))))
        return 0
    if unknown := set(given.names) - set(PROGRAMS):
        parser.error(f"no program is named {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    table = Table("program", "steps", "first ms", "last ms", "first MB", "last MB", "traces", "verdict")
    names, bad = given.names or list(PROGRAMS), 0
    for name in names:
        found = run(name, 60 * given.minutes / len(names))
        first, last, wrong = found[len(found) // 4], found[-1], faults(found)
        bad += bool(wrong)
        times = (f"{window.milliseconds:.3f}" for window in (first, last))
        sizes = (f"{window.memory / 1e6:.1f}" for window in (first, last))
        steps = sum(window.steps for window in found)
        table.add_row(name, f"{steps:,}", *times, *sizes, str(last.traces), "; ".join(wrong) or "flat")
    Console(width=120).print(table)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
