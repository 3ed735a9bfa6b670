"""Broken contracts: break one promise of the library at run time, and run the tests that should notice.

A contract replaces the code at a *seam*: a factory, a backend's primitive (``kernel.norms``), a method of the flat view
(``view.scaled``), or a function named in `SEAMS`. No source text is read. Calls of the replacement are counted, to
distinguish a seam that is never reached from a fault that no test notices.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradxform import GradientTransformation
from gradxform.backend import lookup
from gradxform.core.flat import Flat
from gradxform.core.transformation import factories

ALL = lookup.FRAMEWORKS
SEAMS = {
    "clip_coefficient": "gradxform.core.flat:clip_coefficient",
    "clip_coefficient_single": "gradxform.numerics.formulas:clip_coefficient_single",
    "applied_if": "gradxform.core.state:applied_if",
    "either": "gradxform.core.state:either",
    "advanced": "gradxform.core.state:advanced",
    "between": "gradxform.core.state:between",
    "is_due": "gradxform.transforms.applied:is_due",
    "equality": "gradxform.core.transformation:GradientTransformation.__eq__",
    "matched": "gradxform.functions.convert:matched",
    "finiteness": "gradxform.transforms.skipping:_zero_nonfinite",
    "mean of a sum": "gradxform.transforms.accumulating:_mean",
    "rounding error": "gradxform.transforms.accumulating:_rest",
    "words of a path": "gradxform.transforms.adding:_words",
    "weights of tasks": "gradxform.functions.tasks:_weights",
    "global_norm": "gradxform.functions.inspecting:global_norm",
    "norms": "gradxform.functions.inspecting:norms",
    "nonfinite_paths": "gradxform.functions.inspecting:nonfinite_paths",
    "has_updated": "gradxform.transforms.skipping:has_updated",
    "metrics": "gradxform.transforms.measuring:metrics",
    "per_example_clip_norm": "gradxform.functions.per_example:per_example_clip_norm",
    "per_example_clip_global_norm": "gradxform.functions.per_example:per_example_clip_global_norm",
    "xp": "gradxform.transforms.custom:xp",
    "mean": "gradxform.functions.tasks:mean",
    "pcgrad": "gradxform.functions.tasks:pcgrad",
    "mgda": "gradxform.functions.conflicts:mgda",
    "cagrad": "gradxform.functions.conflicts:cagrad",
    "upgrad": "gradxform.functions.conflicts:upgrad",
    "inner products": "gradxform.functions.several:products",
    "units of gradients": "gradxform.functions.several:_units",
    "reverse_gradient": "gradxform.functions.backward:reverse_gradient",
    "numpy.apply_": "gradxform_numpy._inplace:apply_",
    "torch.apply_": "gradxform_torch._parameters:transformed",
    "torch.attach, saving": "gradxform_torch._attach:Attached._after_saving",
    "torch.attach, hook": "gradxform_torch._attach:Attached._before_step",
    "torch.attach, updates": "gradxform_torch._attach:Attached._after_updates",
    "moved parameters": "gradxform.core.updates:_moved",
    "reached": "gradxform.transforms.reach:reached",
    "rows that are alike": "gradxform_tensorflow._cpu_norms:_are_alike",
    "tensorflow.apply": "gradxform_tensorflow._apply:apply",
    "tensorflow.GradientProcessor": "gradxform_tensorflow._processor:GradientProcessor._assign",
    "jax.freeze": "gradxform_jax._optax:freeze",
    "jax.as_optax": "gradxform_jax._optax:as_optax",
    "keras.wrap": "gradxform_keras._held:Held.transformed",
    "keras.wrap, updates": "gradxform_keras._updates:HeldUpdates.finish",
    "keras.wrap, weight decay": "gradxform_keras._optimizer:Transforming._moving",
}
"""The seams besides factories, primitives and the flat view; each is named here only."""

LIKE = {"numpy": "tensorflow", "jax": "optax", "tensorflow": "tensorflow", "torch": "torch"}
"""For each framework, a library whose norm it can compute natively."""

Make = Callable[[Any, Any], Any]
"""Maps the code at a seam and the backend to a replacement."""


class Tests(NamedTuple):
    """The tests that should notice: files, and words for pytest's -k; {f} is the framework."""

    files: tuple[str, ...]
    words: str

    def arguments(self, framework: str) -> list[str]:
        """The arguments for pytest."""
        words = self.words.format(f=framework, like=LIKE[framework])
        return [*(file.format(f=framework) for file in self.files), *(["-k", words] if words else [])]


def rows(words: str, mode: str = "eager", dtype: str = "float32") -> Tests:
    """Rows of the table whose expressions contain these words, in one dtype."""
    return Tests(("tests/transforms/test_table.py",), f"{{f}} and {mode} and {dtype} and ({words})")


def each(file: str, words: str, mode: str = "") -> Tests:
    """Tests of a file that exist for each framework."""
    return Tests((f"tests/{file}.py",), f"{{f}} and {mode + ' and ' if mode else ''}({words})")


def own(file: str, words: str = "") -> Tests:
    """Tests of a framework's own file, or of no framework."""
    return Tests((f"tests/{file}.py",), words)


@dataclass(frozen=True)
class Contract:
    """One promise, broken."""

    target: str
    """A factory, "kernel.<primitive>", "view.<method>", or a seam."""
    what: str
    """The fault, in words."""
    broken: Make
    tests: Tests
    frameworks: tuple[str, ...] = ALL

    @property
    def name(self) -> str:
        """Target and fault."""
        return f"{self.target}: {self.what}"


def unchanged(original: Any, backend: Any) -> Any:
    """Keep the code at a seam: the control that counting alone breaks nothing."""
    return original


def apply(contract: Contract, framework: str, make: Make | None = None) -> list[int]:
    """Break the contract in this process for good; return the running count of calls."""
    backend = importlib.import_module(f"gradxform_{framework}").backend
    make, calls = make or contract.broken, [0]
    tick = _ticking(calls, framework)
    if contract.target in factories:
        original: Any = factories[contract.target]
        new = _named(original, make(original, backend), tick)
        factories[contract.target] = new
        _everywhere(original, new)
        return calls
    kind, _, name = contract.target.rpartition(".")
    if kind in ("kernel", "view"):
        holder = backend if kind == "kernel" else Flat
    else:
        module, _, path = SEAMS[contract.target].partition(":")
        *outer, name = path.split(".")
        holder = functools.reduce(getattr, outer, importlib.import_module(module))
    original = getattr(holder, name)
    new = _counted(original, make(original, backend), tick)
    setattr(holder, name, new)
    if not isinstance(holder, type) and kind != "kernel":
        _everywhere(original, new)
    return calls


def _ticking(calls: list[int], framework: str) -> Callable[[], int]:
    """Wrap a function to count its calls; under torch.compile it counts traces."""

    def tick() -> int:
        calls[0] += 1
        return 0

    if framework != "torch":
        return tick
    return importlib.import_module("torch._dynamo").assume_constant_result(tick)


def _counted(original: Any, new: Any, tick: Callable[[], int]) -> Any:
    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        tick()
        return new(*args, **kwargs)

    return counted


def _named(original: Any, make: Any, tick: Callable[[], int]) -> Any:
    """Wrap a factory so that its transforms keep their name and arguments, which the reference needs."""

    @functools.wraps(original)
    def named(*args: Any, **kwargs: Any) -> GradientTransformation:
        right, wrong = original(*args, **kwargs), make(*args, **kwargs)
        return GradientTransformation(_counted(wrong.rule, wrong.rule, tick), wrong.start, right.name, right.arguments)

    return named


def _everywhere(original: Any, new: Any) -> None:
    """Replace a function in each module that imported it by name."""
    for module in _modules():
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, new)


def _modules() -> Iterator[Any]:
    return iter([module for name, module in sys.modules.items() if name.startswith("gradxform") and module])


def ruled(change: Callable[..., Any]) -> Make:
    """Change a factory's rule: `change(rule, view, state, context)`."""

    def broken(make: Any, backend: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> GradientTransformation:
            tx = make(*args, **kwargs)
            return GradientTransformation(functools.partial(change, tx.rule), tx.start)

        return made

    return broken


def ignored(rule: Any, view: Any, state: Any, context: Any) -> Any:
    """Return the gradients unchanged."""
    return view, state


def still(rule: Any, view: Any, state: Any, context: Any) -> Any:
    """Return the state unchanged."""
    return rule(view, state, context)[0], state


def instead(make: Any) -> Make:
    """Replace a function by another."""
    return lambda original, backend: make


def after(change: Callable[[Any], Any]) -> Make:
    """Change the result."""
    return lambda original, backend: lambda *args, **kwargs: change(original(*args, **kwargs))
