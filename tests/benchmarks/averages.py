"""Time moving averages, traces and sums beside the plain lines that people write for them, on this machine.

    python tests/benchmarks/averages.py [--model resnet50] [--only NAME] [--out FILE]

Pure lines return updates and a state in new arrays; JAX and TensorFlow compile them. In-place lines overwrite gradients
and state. Times of a pair are measured alternately in one process.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from catalogue import FRAMEWORKS

import gradxform as gx
from gradxform.backend import lookup
from gradxform.cli import console
from gradxform.cli.bench import timing
from gradxform.cli.bench.run import machine
from gradxform.cli.bench.timing import Side
from gradxform.cli.bench.workloads import TREES, gradients
from gradxform.cli.frameworks.interface import Tree

EFFORT = timing.Effort(seconds=1.0, least=7, most=1000)
DECAYED, CAUTIOUS = "add_decayed_weights(0.01)", "add_decayed_weights(0.01, cautious=True)"
EVERY = 4
ACCUMULATED = f"accumulate(identity(), {EVERY})"
WINDOW = 128
SKIPPED = "skip_spikes(identity())"
MODES = FRAMEWORKS | {
    "torch compiled": FRAMEWORKS["torch"]._replace(
        title="PyTorch compiled", compiled=lambda torch, f: lookup.backend("torch").compile(f)
    ),
    "jax eager": FRAMEWORKS["jax"]._replace(title="JAX eager", compiled=lambda jax, step: step),
    "tensorflow eager": FRAMEWORKS["tensorflow"]._replace(title="TensorFlow eager", compiled=lambda tf, step: step),
}
"""Frameworks, eager and compiled."""

# --- pure lines ------------------------------------------------------------------------------------------------------


class Lines(NamedTuple):
    """What plain lines need of a framework."""

    zeros_like: Callable[[Any], Any]
    own: Callable[[Any], Any]
    """Copies a result that is also the state, where arrays are mutable."""
    where: Callable[[Any, Any, Any], Any]
    """Chooses one of two numbers."""
    cond: Callable[[Any, Callable[[], Any], Callable[[], Any]], Any]
    """Chooses one of two calls."""
    select: Callable[[Any, Any, Any], Any]
    """Chooses elements."""
    norm: Callable[[Any], Any]
    least: Callable[[Any, Any], Any]
    """The smaller of two numbers."""
    sum: Callable[[Any], Any]
    number: Callable[[Any], Any] = float
    """Makes the step count."""


Line = Callable[[Lines, Any, Any, Any], tuple[Any, Any]]
"""Maps a gradient, its state and a number of the step to the update and the new state."""


def _trace(o: Lines, g: Any, m: Any, _: Any) -> tuple[Any, Any]:
    m = 0.9 * m + g
    return o.own(m), m


def _nesterov(o: Lines, g: Any, m: Any, _: Any) -> tuple[Any, Any]:
    m = 0.9 * m + g
    return 0.9 * m + g, m


def _ema(o: Lines, g: Any, m: Any, weight: Any) -> tuple[Any, Any]:
    m = 0.9 * m + (1.0 - 0.9) * g
    return m / weight, m


def _grokfast(o: Lines, g: Any, m: Any, decay: Any) -> tuple[Any, Any]:
    m = decay * m + (1.0 - decay) * g
    return g + 2.0 * m, m


def _decayed(o: Lines, g: Any, p: Any, _: Any) -> tuple[Any, Any]:
    return g + 0.01 * p, p


def _cautious(o: Lines, g: Any, p: Any, _: Any) -> tuple[Any, Any]:
    return o.select(g * p >= 0.0, g + 0.01 * p, g), p


def _mars(o: Lines, g: Any, h: Any, weight: Any) -> tuple[Any, Any]:
    c = g + weight * (g - h)
    return c * o.least(1.0 / o.norm(c), 1.0), o.own(g)


NUMBERS: dict[str, Callable[[Lines, Any], Any]] = {
    "mars()": lambda o, count: o.where(count > 1.0, 0.025 * 0.95 / (1.0 - 0.95), 0.0),
    "ema(0.9)": lambda o, count: 1.0 - 0.9**count,
    "grokfast()": lambda o, count: o.where(count > 1.0, 0.98, 0.0),
    ACCUMULATED: lambda o, count: count % EVERY == 0.0,
}


def _step(name: str, o: Lines, grads: Any, state: Any) -> tuple[Any, Any]:
    count, kept = state[0] + 1.0, state[1]
    number, line = _number(name, o, count), LINES[name][0]
    if name == SKIPPED:
        due, new = _judged(o, grads, count, kept)
        return o.cond(due, lambda: grads, lambda: _zeros(o, grads)), (count, new)
    if line is None:
        return _accumulated(o, grads, count, kept, number)
    found = {path: line(o, g, kept[path], number) for path, g in grads.items()}
    updates, new = ({path: both[i] for path, both in found.items()} for i in range(2))
    return updates, (count, new)


def _accumulated(o: Lines, grads: Any, count: Any, kept: Any, due: Any) -> tuple[Any, Any]:
    sums = {path: kept[path] + g for path, g in grads.items()}

    def mean() -> tuple[Any, Any]:
        return {path: total / EVERY for path, total in sums.items()}, _zeros(o, sums)

    updates, sums = o.cond(due, mean, lambda: (_zeros(o, sums), sums))
    return updates, (count, sums)


def _judged(o: Lines, grads: Any, count: Any, kept: Any) -> tuple[Any, Any]:
    """Whether the norm is no spike among the last ones, in a ring, and the ring after it."""
    norm, (places, ring) = sum(o.norm(g) ** 2 for g in grads.values()) ** 0.5, kept
    filled = o.least(count - 1.0, 1.0 * WINDOW)
    there = places < filled
    mean = o.sum(o.select(there, ring, 0.0 * ring)) / filled
    variance = o.sum(o.select(there, (ring - mean) ** 2, 0.0 * ring)) / (filled - 1.0)
    due = (filled < WINDOW / 4) | (norm <= mean + 6.0 * variance**0.5)
    return due, (places, o.select((places == (count - 1.0) % WINDOW) & due, norm, ring))


def _number(name: str, o: Lines, count: Any) -> Any:
    return NUMBERS[name](o, count) if name in NUMBERS else None


def _zeros(o: Any, tree: Any) -> Any:
    return {path: o.zeros_like(leaf) for path, leaf in tree.items()}


def _lines(way: str, module: Any) -> Lines:
    framework = way.partition(" ")[0]
    if framework == "jax":
        xp = module.numpy
        choose = xp.where, functools.partial(_fused, xp.where), xp.where
        return Lines(xp.zeros_like, lambda x: x, *choose, xp.linalg.norm, xp.minimum, xp.sum, xp.float32)
    if framework == "tensorflow":
        choose = module.where, module.cond, module.where
        functions = module.norm, module.minimum, module.reduce_sum
        return Lines(module.zeros_like, lambda x: x, *choose, *functions, module.constant)
    norm = module.linalg.norm if framework == "numpy" else module.linalg.vector_norm
    if way == "torch compiled":
        choose = module.where, functools.partial(_fused, module.where), module.where
        least = lambda a, b: module.clamp(a, max=b)  # noqa: E731
        return Lines(module.zeros_like, module.clone, *choose, norm, least, module.sum, module.tensor)
    own = np.copy if framework == "numpy" else module.clone
    choose = lambda yes, a, b: a if yes else b, lambda yes, a, b: a() if yes else b(), module.where
    return Lines(module.zeros_like, own, *choose, norm, min, module.sum)


def _fused(where: Any, yes: Any, a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    """Choose as JAX's `lax.cond` does, which takes six times as long on ResNet-50: XLA fuses `where` with the sums."""

    def either(a: Any, b: Any) -> Any:
        if isinstance(a, tuple):
            return tuple(map(either, a, b))
        return {path: where(yes, leaf, b[path]) for path, leaf in a.items()}

    return either(a(), b())


def _kept(name: str, way: str, o: Any, beside: Any) -> Any:
    """What the lines start with: parameters, an empty ring, or zeros."""
    if name == SKIPPED:
        ring = {"places": np.arange(WINDOW, dtype=np.float32), "ring": np.zeros(WINDOW, np.float32)}
        return tuple(_arrays(way, ring).values())
    return beside if name in (DECAYED, CAUTIOUS) else _zeros(o, beside)


def pure(way: str, name: str, trees: Sequence[Tree], params: Tree) -> tuple[Side, Side]:
    """Return gradxform's side and that of the plain lines, compiled where the framework compiles."""
    kind, decays = MODES[way], name in (DECAYED, CAUTIOUS)
    module, tx = kind.load()[1], gx.parse(name)
    given, beside = [_arrays(way, tree) for tree in trees], _arrays(way, params)
    o = _lines(way, module)
    own = tx.update if not decays else lambda grads, p: (tx.update(grads, tx.init(grads), p)[0], p)

    def side(step: Callable[[Any, Any], Any], state: Any) -> Side:
        stepping, turns = kind.compiled(module, step), itertools.cycle(given)

        def run() -> Any:
            nonlocal state
            updates, state = stepping(next(turns), state)
            return kind.wait(module, (updates, state))[0]

        return Side(run, lambda updates: [np.asarray(updates[path]) for path in params])

    first, kept = beside if decays else tx.init(beside), _kept(name, way, o, beside)
    return side(own, first), side(functools.partial(_step, name, o), (o.number(0.0), kept))


def _arrays(way: str, tree: Tree) -> dict[str, Any]:
    module = MODES[way].load()[1]
    return {path: MODES[way].array(module, leaf) for path, leaf in tree.items()}


# --- in-place lines --------------------------------------------------------------------------------------------------


class Writes(NamedTuple):
    """What in-place lines need of a framework beside operators."""

    add: Callable[[Any, Any, float], Any]
    """Adds a multiple of the second array to the first."""
    copy: Callable[[Any, Any], Any]
    divide: Callable[..., Any]
    norm: Callable[[Any], Any]


def _trace_(o: Writes, g: Any, m: Any, _: Any) -> None:
    m *= 0.9
    m += g
    o.copy(g, m)


def _nesterov_(o: Writes, g: Any, m: Any, _: Any) -> None:
    m *= 0.9
    m += g
    o.add(g, m, 0.9)


def _ema_(o: Writes, g: Any, m: Any, weight: float) -> None:
    m *= 0.9
    o.add(m, g, 1.0 - 0.9)
    o.divide(m, weight, out=g)


def _grokfast_(o: Writes, g: Any, m: Any, decay: float) -> None:
    m *= decay
    o.add(m, g, 1.0 - decay)
    o.add(g, m, 2.0)


def _decayed_(o: Writes, g: Any, p: Any, _: Any) -> None:
    o.add(g, p, 0.01)


def _cautious_(o: Writes, g: Any, p: Any, _: Any) -> None:
    g += 0.01 * p * (g * p >= 0.0)


def _mars_(o: Writes, g: Any, h: Any, weight: float) -> None:
    change = g - h
    o.copy(h, g)
    o.add(g, change, weight)
    g *= min(1.0 / o.norm(g), 1.0)


def _skipped_(o: Writes, g: Any, _: Any, due: bool) -> None:
    if not due:
        g[...] = 0.0


def _accumulate_(o: Writes, g: Any, total: Any, due: bool) -> None:
    total += g
    if due:
        o.divide(total, EVERY, out=g)
    (total if due else g)[...] = 0.0


LINES: dict[str, tuple[Line | None, Callable[[Writes, Any, Any, Any], None]]] = {
    "trace(0.9)": (_trace, _trace_),
    "trace(0.9, nesterov=True)": (_nesterov, _nesterov_),
    "ema(0.9)": (_ema, _ema_),
    "grokfast()": (_grokfast, _grokfast_),
    DECAYED: (_decayed, _decayed_),
    CAUTIOUS: (_cautious, _cautious_),
    "mars()": (_mars, _mars_),
    SKIPPED: (None, _skipped_),
    ACCUMULATED: (None, _accumulate_),
}
"""Pure lines of a leaf, None for those of a tree, and lines in place."""


def in_place(way: str, name: str, trees: Sequence[Tree], params: Tree, is_own: bool) -> Side:
    """Return a side of `numpy.apply_`, `torch.apply_` or `torch.attach`; gradients are restored before each call."""
    framework, tx = way.partition(".")[0], gx.parse(name)
    module = FRAMEWORKS[framework].load()[1]
    grads, beside = _arrays(framework, trees[0]), _arrays(framework, params)
    kept, decays = _kept(name, framework, module, beside), name in (DECAYED, CAUTIOUS)
    given, counts = itertools.cycle([_arrays(framework, tree) for tree in trees]), itertools.count(1)
    o = Writes(lambda x, y, a: np.add(x, a * y, out=x), np.copyto, np.divide, np.linalg.norm)
    if framework == "torch":
        o = Writes(lambda x, y, a: x.add_(y, alpha=a), module.Tensor.copy_, module.div, module.linalg.vector_norm)
    named = [(path, module.nn.Parameter(leaf)) for path, leaf in beside.items()] if framework == "torch" else []

    def lines(*hook: Any) -> None:
        nonlocal kept
        own, count, is_tree = _lines(framework, module), next(counts), name == SKIPPED
        number, kept = _judged(own, grads, count, kept) if is_tree else (_number(name, own, count), kept)
        for path, g in grads.items():
            LINES[name][1](o, g, None if is_tree else kept[path], number)
        if way == "torch.attach" and number is False:  # no optimizer step is due
            for _, parameter in named:
                parameter.grad = None

    def restore() -> None:
        for path, leaf in next(given).items():
            o.copy(grads[path], leaf)
        for path, parameter in named:
            parameter.grad = grads[path]

    if framework == "numpy":
        apply = functools.partial(gx.numpy.apply_, tx, grads, params=beside if decays else None)
        return Side(_stateful(apply, tx.init(beside)) if is_own else lines, lambda _: list(grads.values()), restore)
    if way == "torch.apply_":
        run = _stateful(functools.partial(gx.torch.apply_, tx, named), gx.torch.init(tx, named)) if is_own else lines
    else:
        nothing = type("Nothing", (module.optim.Optimizer,), {"step": lambda self: None})(named, {})
        run = nothing.step
        gx.torch.attach(nothing, tx) if is_own else nothing.register_step_pre_hook(lines)
    return Side(run, lambda _: [_gradient(parameter) for _, parameter in named], restore)


def _stateful(apply: Callable[..., Any], state: Any) -> Callable[[], None]:
    def run() -> None:
        nonlocal state
        state = apply(state=state)

    return run


def _gradient(parameter: Any) -> Any:
    return np.zeros(parameter.shape, np.float32) if parameter.grad is None else parameter.grad.numpy()


# --- the command -----------------------------------------------------------------------------------------------------

GOALS = {"numpy": 1.5, "torch": 1.25, "torch compiled": 1.15, "jax eager": 1.25, "jax": 1.15}
GOALS |= {"tensorflow eager": 1.25, "tensorflow": 1.15}
GOALS |= dict.fromkeys(("numpy.apply_", "torch.apply_", "torch.attach"), 1.25)
"""Largest ratio to the lines by framework, or by function that works in place."""


def sides(way: str, name: str, trees: Sequence[Tree], params: Tree) -> tuple[Side, Side]:
    """Return gradxform's side and that of the lines; each call takes the next of the trees."""
    if "." not in way:
        return pure(way, name, trees, params)
    return in_place(way, name, trees, params, is_own=True), in_place(way, name, trees, params, is_own=False)


def cell(way: str, name: str, tree: Tree, params: Tree) -> str:
    """Measure one pair: milliseconds of gradxform and of the lines, and the median ratio, bold above the goal."""
    pair, steps = sides(way, name, [tree], params), EVERY if name == ACCUMULATED else 1
    timing.in_turn(pair, timing.Effort(0.0, EVERY, EVERY))  # compiles, and ends at a full window
    rows = timing.in_turn(pair, EFFORT._replace(seconds=EFFORT.seconds * steps, least=EFFORT.least * steps))
    times = rows[: len(rows) // steps * steps].reshape(-1, steps, 2).mean(axis=1)
    ratio = float(np.median(times[:, 0] / times[:, 1]))
    own, lines = (f"{seconds * 1e3:.3g}" for seconds in np.median(times, axis=0))
    return f"{own} / {lines} ({f'**{ratio:.2f}**' if ratio > GOALS[way] else f'{ratio:.2f}'})"


def table(model: str, only: Sequence[str]) -> str:
    """Return the Markdown table of one model."""
    tree = gradients(TREES[model]())
    params = {path: leaf[::-1].copy() for path, leaf in tree.items()}
    rows = [["goal", *map(str, GOALS.values())]]
    for name in (name for name in LINES if any(part in name for part in only)):
        rows.append([f"`{name}`", *(cell(way, name, tree, params) for way in GOALS)])
        print(" | ".join(rows[-1]), flush=True)
    size = f"{model}: {len(tree)} leaves, {sum(leaf.nbytes for leaf in tree.values()) / 1e6:.3g} MB"
    titles = [f"`{way}`" if "." in way else MODES[way].title for way in GOALS]
    return console.table([size, *titles], rows)


def about(options: argparse.Namespace) -> str:
    """Return command, date, commit, machine, its load at the start, and versions."""
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True, cwd=Path(__file__).parent)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "torch", "jax", "tensorflow"))
    where = "{processor}, {cores} cores, load {load_at_start:.1f} at the start".format(**machine())
    command = f"python tests/benchmarks/averages.py --model {' '.join(options.model)}"
    command += f" --only {shlex.join(options.only)}" if any(options.only) else ""
    return f"Written by `{command}` on {time.strftime('%Y-%m-%d')} at commit `{commit.strip()}`: {where}; {versions}."


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=TREES, default=["resnet50"])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of transforms' names")
    parser.add_argument("--out", type=Path, help="the Markdown file to write")
    options = parser.parse_args(arguments)
    parts = [about(options), *(table(model, options.only) for model in options.model)]
    if options.out is not None:
        options.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
