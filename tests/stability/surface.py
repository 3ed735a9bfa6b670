"""What is public, as text: names and signatures, expressions, layouts of states, commands, formats of files.

`python tests/stability/surface.py` prints it; public.txt holds what was promised.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gradxform as gx

MODULES = ("", "testing", "numpy", "jax", "tensorflow", "torch", "keras")
EXPRESSIONS = (
    "accumulate(trace(0.5), 2)",
    "add_decayed_weights(0.01)",
    "add_decayed_weights(0.01, cautious=True)",
    "add_noise(0.1, seed=3)",
    "centralize(axes=-1)",
    "cautious(negated=True)",
    "chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))",
    "clip_adagc(1.1, 0.5, warmup=2, max_norm=3.0)",
    "clip_adaptive(0.01)",
    "clip_average_norm(1.0)",
    "clip_global_norm(1.0, ord=1.0, like='torch')",
    "clip_norm(1.0, axes=(0, 1))",
    "clip_percentile(50.0, 3, per_leaf=True)",
    "clip_rms(1.0)",
    "clip_spikes(1.5, 0.5, warmup=1)",
    "clip_value(low=-1.0, high=2.0)",
    "clip_zscore(1.0, 0.9, 2)",
    "ema(0.5)",
    "error_feedback(clip_norm(1.0))",
    "freeze('w')",
    "grokfast(0.5, 1.5)",
    "identity()",
    "mars(0.5, 0.5, max_norm=2.0)",
    "masked(clip_norm(1.0), ['w', re.compile('b')])",
    "measure(clip_norm(1.0))",
    "normalize_global_norm()",
    "masked(normalize_neurons(0.5, axes=(0,)), 'w')",
    "normalize_norm()",
    "orthogonalize(5, 'polar_express', scale='rms', axes=((0,), (1,)))",
    "partition({'w': stop()}, default=scale(2.0))",
    "scale(-0.5)",
    "sign()",
    "skip_large(trace(0.5), 5.0)",
    "skip_nonfinite(ema(0.5), 2)",
    "skip_spikes(trace(0.5), 0.5, 4)",
    "stop()",
    "top_k(0.1)",
    "trace(0.5, nesterov=True)",
    "zero_nonfinite()",
)
"""One of each transform that a text can build."""
STATEFUL = {
    **{expression: tx for expression in EXPRESSIONS if (tx := gx.parse(expression)).stateful},
    "clip_norm(schedule)": gx.clip_norm(lambda step: 1.0 / (1.0 + step)),
    "ema(schedule)": gx.ema(lambda step: 0.5 / (1.0 + step)),
    "scale_by_schedule": gx.scale_by_schedule(lambda step: 1.0 / (1.0 + step)),
    "all": gx.chain(gx.measure(gx.masked(gx.trace(0.5), "w")), gx.partition({"b": gx.ema(0.9)})),
}
"""One of each that keeps a state."""
INTERNAL = {"autograph_info__", "reached", "rule", "start", "traits"}
"""Attributes of transformations that the library and its backends use among themselves."""
TREE = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16)}


def surface() -> str:
    """All of it, a fact a line."""
    return "\n".join((*names(), *expressions(), *states(), *commands(), *recordings())) + "\n"


def names() -> Iterator[str]:
    """Each public name with its signature; the public members of classes; the fields of states."""
    for module in MODULES:
        owner: Any = getattr(gx, module) if module else gx
        for name in sorted(owner.__all__):
            value = getattr(owner, name)
            if inspect.ismodule(value):
                continue
            path = ".".join(filter(None, ("gx", module, name)))
            yield f"{path}{_signature(value)}"
            if inspect.isclass(value) and value.__module__.startswith("gradxform"):
                yield from (f"{path}.{member}" for member in _members(value))


def expressions() -> Iterator[str]:
    """The text of each transformation."""
    return (f"repr {gx.parse(expression)!r}" for expression in EXPRESSIONS)


def states() -> Iterator[str]:
    """The paths, dtypes and shapes that a state is saved with."""
    for name, tx in STATEFUL.items():
        state = tx.init(TREE)
        for path, leaf in sorted(gx.to_numpy(state, by_path=True).items()):
            yield f"state {name}: {path} {leaf.dtype}{list(leaf.shape)}"
        if measured := gx.metrics(state):
            yield f"metrics {name}: {' '.join(measured)}"


def commands() -> Iterator[str]:
    """Commands, their arguments and options."""
    import typer

    from gradxform.cli import app

    group: Any = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        told = sorted(option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts))
        yield f"command {name} {' '.join(told)}"


def recordings() -> Iterator[str]:
    """The file of one recorded step: its name, keys, and what its metadata says."""
    safe_open = importlib.import_module("safetensors").safe_open
    with tempfile.TemporaryDirectory() as folder:
        gx.record(folder)(3, gradients=TREE, loss=0.5)
        for path in sorted(Path(folder).iterdir()):
            with safe_open(path, framework="np") as file:
                metadata = file.metadata()
                about = json.loads(metadata["about"])
                yield f"recording {path.name}: {' '.join(sorted(file.keys()))}"
                yield f"recording metadata: {metadata['gradxform.record']} {' '.join(sorted(about))}"


def _signature(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, tuple):
        return f"({', '.join(getattr(value, '_fields', ()))})"
    if not callable(value):
        return f": {type(value).__name__}"
    try:
        return re.sub(r"<function (\w+) at \w+>", r"\1", str(inspect.signature(value)))
    except ValueError:
        return "(...)"


def _members(value: type) -> Iterator[str]:
    own = [base for base in value.__mro__ if base is value or base.__name__.startswith("_")]
    for name in sorted({name for base in own for name in vars(base)}):
        if not name.startswith("_") and name not in INTERNAL:
            member = inspect.getattr_static(value, name)
            function = getattr(member, "__func__", member)
            yield f"{name}{inspect.signature(function) if inspect.isfunction(function) else ''}"


if __name__ == "__main__":
    print(surface(), end="")
