"""Broken contracts: break one promise of the library at run time, and run the tests that should notice.

A contract replaces the code at a *seam*: a factory, a backend's primitive (``kernel.norms``), a method of the flat view
(``view.scaled``), or a function named in `SEAMS`. No source text is read. Calls of the replacement are counted, to
distinguish a seam that is never reached from a fault that no test notices.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gradxform import GradientTransformation
from gradxform.backend import lookup
from gradxform.core.transform import factories
from gradxform.core.tree import Tree

ALL = lookup.FRAMEWORKS
SEAMS = {
    "clip_coefficient": "gradxform.core.norm:clip_coefficient",
    "applied_if": "gradxform.core.state:applied_if",
    "either": "gradxform.core.state:either",
    "advanced": "gradxform.core.state:advanced",
    "between": "gradxform.core.state:between",
    "is_due": "gradxform.transforms.skipping:is_due",
    "equality": "gradxform.core.transform:GradientTransformation.__eq__",
    "matched": "gradxform.functions.convert:matched",
    "finiteness": "gradxform.transforms.skipping:_zero_nonfinite",
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
    "mgda": "gradxform.functions.tasks:mgda",
    "cagrad": "gradxform.functions.tasks:cagrad",
    "upgrad": "gradxform.functions.tasks:upgrad",
    "inner products": "gradxform.functions.tasks:products",
    "stop_gradient": "gradxform.functions.backward:_stopped",
    "reverse_gradient": "gradxform.functions.backward:reverse_gradient",
    "numpy.apply_": "gradxform_numpy.apply_:apply_",
    "torch.apply_": "gradxform_torch.apply_:Parameters.on_gradients",
    "torch.attach, saving": "gradxform_torch.attach:Attached._save",
    "torch.attach, hook": "gradxform_torch.attach:Attached._before_step",
    "torch.attach, updates": "gradxform_torch.attach:Attached._after_step",
    "moved parameters": "gradxform.core.holder:_moved",
    "reached": "gradxform.core.transform:GradientTransformation.reached",
    "tensorflow.apply": "gradxform_tensorflow.apply:apply",
    "tensorflow.GradientProcessor": "gradxform_tensorflow.processor:GradientProcessor._assign",
    "jax.freeze": "gradxform_jax.optax:freeze",
    "jax.as_optax": "gradxform_jax.optax:as_optax",
    "keras.wrap": "gradxform_keras.slots:Slots.transformed",
    "keras.wrap, updates": "gradxform_keras.slots:Slots.finish",
    "keras.wrap, weight decay": "gradxform_keras.private:_moving",
}
"""The seams besides factories, primitives and the flat view; each is named here only."""

Make = Callable[[Any, Any], Any]
"""Maps the code at a seam and the backend to a replacement."""


@dataclass(frozen=True)
class Contract:
    """One promise, broken."""

    target: str
    """A factory, "kernel.<primitive>", "devices.<function>", "view.<method>", or a seam."""
    what: str
    """The fault, in words."""
    broken: Make
    frameworks: tuple[str, ...] = ALL

    @property
    def name(self) -> str:
        """Target and fault."""
        return f"{self.target}: {self.what}"


class Seams:
    """All seams of a framework, wrapped: `called` has the targets that ran, and `break_` breaks one contract."""

    def __init__(self, contracts: Any, framework: str) -> None:
        self.backend, self.called = importlib.import_module(f"gradxform_{framework}").backend, set()
        self._breaks: dict[str, Callable[[Make], None]] = {}

        def mark(target: str) -> int:
            self.called.add(target)
            return 0

        # torch.compile counts traces
        self._mark = (
            importlib.import_module("torch._dynamo").assume_constant_result(mark) if framework == "torch" else mark
        )
        self.contracts = [contract for contract in contracts if framework in contract.frameworks]
        for target in dict.fromkeys(contract.target for contract in self.contracts):
            if target in factories:
                original: Any = factories[target]
                new = factories[target] = self._factory(target, original)
                _everywhere(original, new)
            else:
                self._seam(target)

    def break_(self, contract: Contract) -> None:
        """Break a contract in this process for good."""
        self._breaks[contract.target](contract.broken)

    def _seam(self, target: str) -> None:
        kind, _, name = target.rpartition(".")
        if kind in ("kernel", "devices", "view"):
            holder = {"kernel": self.backend, "devices": self.backend.devices, "view": Tree}[kind]
        else:
            module, _, path = SEAMS[target].partition(":")
            *outer, name = path.split(".")
            holder = functools.reduce(getattr, outer, importlib.import_module(module))
        original = getattr(holder, name)
        new, now = self._counted(target, original)
        self._breaks[target] = lambda make: now.__setitem__(0, make(original, self.backend))
        setattr(holder, name, new)
        if not isinstance(holder, type) and kind not in ("kernel", "devices"):
            _everywhere(original, new)

    def _counted(self, target: str, original: Any) -> tuple[Any, list[Any]]:
        now, mark = [original], self._mark

        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            mark(target)
            return now[0](*args, **kwargs)

        return counted, now

    def _factory(self, target: str, original: Any) -> Any:
        """Wrap a factory so that its transforms keep their name and arguments, which the reference needs."""
        made: list[Any] = []
        broken: list[Any] = []

        @functools.wraps(original)
        def factory(*args: Any, **kwargs: Any) -> GradientTransformation:
            tx = original(*args, **kwargs)
            rule, now = self._counted(target, tx.rule)
            new = GradientTransformation(rule, tx.start, tx.name, tx.arguments, tx.traits)
            if broken:
                exchange(new, now, args, kwargs)
            else:
                made.append((new, now, args, kwargs))
            return new

        def exchange(new: Any, now: Any, args: Any, kwargs: Any) -> None:
            wrong = broken[0](*args, **kwargs)
            now[0] = wrong.rule
            object.__setattr__(new, "start", wrong.start)

        def break_(make: Make) -> None:
            broken.append(make(original, self.backend))
            for one in made:
                with contextlib.suppress(Exception):  # arguments that the fault cannot take
                    exchange(*one)

        self._breaks[target] = break_
        return factory


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
