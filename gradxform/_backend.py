"""The backend protocol and its lookup: the only door to a framework."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

Array = Any
"""An array of some framework, traced or concrete."""


class Backend(Protocol):
    """What a framework must bring: a module of functions with these names.

    A *vector* is a float64 array with one number a leaf, or a 0-d one for all of them. Primitives take
    lists of dense leaves, so that a framework can use its fused form; under tracing none reads a value.
    """

    name: str
    types: tuple[type, ...]
    """The array types that belong to this framework. A backend may name those of variables: `variables`."""

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Leaves (None may be among them) and structure, by the framework's own tree engine; structures have ``==``."""

    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """The tree again."""

    def paths(self, tree: Any) -> list[str]:
        """One path a leaf of `flatten`, its keys joined by "/"."""

    def adopt(self, leaf: Any) -> Array:
        """A NumPy array or a Python number as an array of this framework."""

    def dtype(self, leaf: Array) -> str:
        """The name of a leaf's dtype: "float32", "bfloat16", "complex64", "float0"."""

    def shape(self, leaf: Array) -> tuple[int | None, ...] | None:
        """The static shape; None for a dimension, or for all of it, that is unknown until run time."""

    def dense(
        self, leaves: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Callable[[Array], Array] | None] | None]:
        """The leaves' values, duplicates summed, and how to put new values back; None for a dense leaf, or for all."""

    def densify(self, leaf: Array) -> Array:
        """A sparse leaf, whole, as a dense one."""

    def norms(self, leaves: Sequence[Array], ord: float) -> Array:
        """The vector of the leaves' norms."""

    def norm_over(self, leaf: Array, axes: tuple[int, ...], ord: float) -> Array:
        """Norms over some axes of one leaf, float64, with the axes kept as ones."""

    def multiply(self, leaves: Sequence[Array], factors: Array, inplace: bool) -> list[Array]:
        """Each leaf times its factor, rounded to the leaf's dtype once; a factor of one changes no bit."""

    def multiply_over(self, leaf: Array, factor: Array, inplace: bool) -> Array:
        """One leaf times a float64 array that broadcasts against it, under the rules of `multiply`."""

    def divide(self, function: str, leaves: Sequence[Array], divisors: Sequence[Array]) -> list[Array]:
        """Each leaf divided by a number, or an array that broadcasts, in its dtype; complex ones by their parts.

        Correctly rounded, unless the framework has a function of this name that divides otherwise.
        """

    def peer_norm(
        self, function: str, leaves: Sequence[Array], ord: float, axes: tuple[int, ...] | None
    ) -> Array | None:
        """The norm of leaves together, or over axes of one, as one of the framework's own functions computes it.

        In float64; None for a function of another framework, and where the function cannot be followed.
        """

    def clip(self, leaves: Sequence[Array], low: Any, high: Any, factors: Array | None, inplace: bool) -> list[Array]:
        """min(max(factor * leaf, low), high), the bounds in the leaf's dtype; NaN stays NaN; None is no bound.

        With factors, float16 and bfloat16 leaves may come back in float32, not rounded yet: see `cast`.
        """

    def elementwise(
        self,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """`formula(xp, *elements, *numbers, **static)` for each leaf of the first column, beside those of the others.

        With factors, the formula is given the leaf's elements times its factor.

        Computed in float64, with twice that precision for float64 leaves, and rounded once to the dtype that sums of
        the leaf are kept in: float32, or float64 for float64 leaves; complex leaves by their parts. The others are
        arrays that broadcast to the leaf.
        """

    def each(
        self, formula: Callable[..., Array], columns: Sequence[Sequence[Array]], numbers: Sequence[Any]
    ) -> list[Array]:
        """The same in the leaves' own dtypes, for formulas that choose and do not round."""

    def alongside(self, arrays: Sequence[Array], leaves: Sequence[Array]) -> Sequence[Array]:
        """Arrays of the leaves' shapes, spread over devices as the leaves are, where that is the caller's affair."""

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Array:
        """The sums of a real leaf, times weights that broadcast, over some axes: float64, the axes kept as ones."""

    def count(self, leaf: Array, axes: tuple[int, ...] | None) -> Any:
        """The number of elements over some axes, or of all: a Python float if it is known."""

    def copied(self, leaves: Sequence[Array]) -> list[Array]:
        """The leaves in memory of their own, if they could be written to."""

    def stored(self, value: Any, dtype: str, beside: Array) -> Array:
        """A number, or a NumPy array or a vector of them, as an array of a dtype on the device of another."""

    def namespace(self) -> ModuleType:
        """The framework's functions under NumPy's names, as far as it has them."""

    def cast(self, leaf: Array, like: Array) -> Array:
        """A leaf rounded to the dtype of another."""

    def zeros(self, leaves: Sequence[Array]) -> list[Array]:
        """Fresh zeros of the leaves' shapes, dtypes and devices."""

    def compute(self, formula: Callable[..., Array], *operands: Any, **static: Any) -> Array:
        """`formula(xp, *operands, **static)` in float64: arithmetic on vectors, written with operators and `xp`.

        Of a formula that returns a tuple, a tuple.
        """

    def on_backward(
        self, leaves: Sequence[Array], numbers: Sequence[Array], function: Callable[[list[Array], list[Array]], Any]
    ) -> list[Array]:
        """The leaves as they are; what flows back to them is `function(what flows back, numbers)`.

        The numbers are the arrays that the function computes with; no derivative is asked of them.
        """

    def stop_gradient(self, leaf: Array) -> Array:
        """The leaf as it is, to which nothing flows back."""

    def straight_through(self, values: Sequence[Array], leaves: Sequence[Array]) -> list[Array]:
        """The values as they are; what flows back to each flows to the leaf beside it, of its shape and dtype."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """The function under the framework's compiler; None if it has none."""

    def from_numpy(self, array: Any) -> Array:
        """An array of this framework with the values and the dtype of a NumPy array."""

    def placed(self, array: Any, like: Array) -> Array:
        """The same, where another array lies: on its device, or spread over devices as it is."""

    def to_numpy(self, leaf: Array) -> Any:
        """A NumPy array with the values and the dtype of a leaf."""


FRAMEWORKS = ("numpy", "jax", "tensorflow", "torch")
_ALIASES = {"jaxlib": "jax", "ml_dtypes": "numpy"}
_NO_ARRAYS = {"builtins", "gradxform", "keras"}
"""Modules whose types are no arrays, of which no backend is looked for; Keras has an adapter, and no arrays."""
_NUMBERS = (int, float, complex)
_by_type: dict[type, Backend] = {}
_others: dict[str, Backend] = {}
"""Backends of other frameworks, which have been imported, by their names."""


def installed() -> tuple[str, ...]:
    """The names of the frameworks that can be imported here, NumPy first; without those of other backends."""
    return tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None)


def known() -> tuple[str, ...]:
    """The names of the frameworks, and of those whose backends have been imported."""
    return *FRAMEWORKS, *_others


def extends(name: str) -> bool:
    """Whether there is a backend of another framework: one that has been imported, or a package `gradxform_<name>`."""
    if name in _others or name in _NO_ARRAYS:
        return name in _others
    return name.isidentifier() and _is_package(f"gradxform_{name}", tuple(sys.path))


@functools.lru_cache(maxsize=256)
def _is_package(name: str, path: tuple[str, ...]) -> bool:
    """Whether there is a package of that name with a file `backend.py`; a mere folder may be called so too."""
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec is not None and spec.origin is not None else None
    return any(os.path.exists(os.path.join(folder, "backend.py")) for folder in folders or ())


def adapter(name: str) -> ModuleType:
    """The package `gradxform_<name>`; an ImportError that says what to install if it cannot be had."""
    try:
        return importlib.import_module(f"gradxform_{name}")
    except ModuleNotFoundError as error:
        missing = error.name or name
        hint = f": pip install 'gradxform[{name}]'" if name in FRAMEWORKS or name == "keras" else ""
        raise ImportError(f"gradxform.{name} needs {missing!r}, which is not installed{hint}") from error


def backend(name: str) -> Backend:
    """The backend of a framework by its name."""
    return _others[name] if name in _others else cast(Backend, adapter(name).backend)


def register(backend: Backend) -> None:
    """Make a backend and its own types known; each backend package does so when it is imported."""
    _by_type.update(dict.fromkeys(backend.types, backend))
    if backend.name not in FRAMEWORKS:
        _others[backend.name] = backend


def preload() -> None:
    """Import PyTorch's backend if the user has imported PyTorch, so that `torch.compile` meets no import by name.

    It follows an import statement inside of what it traces, but not importlib, which serves the other frameworks.
    """
    if "torch" in sys.modules:
        import gradxform_torch  # noqa: F401


def belong(backend: Backend, leaves: Sequence[Any]) -> bool:
    """Whether all leaves but None are arrays of a backend, of types that have been seen before."""
    return all(kind is type(None) or _by_type.get(kind) is backend for kind in {type(leaf) for leaf in leaves})


def owner(leaf: Any) -> Backend | None:
    """The backend that owns an array, found by its type; None for a Python number and for what is no array."""
    kind = type(leaf)
    known = _by_type.get(kind)
    return known if known is not None else _search(kind)


def _search(kind: type) -> Backend | None:
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        name = _ALIASES.get(root, root)
        if name in sys.modules and (name in FRAMEWORKS or extends(name)):
            found = backend(name)
            if issubclass(kind, found.types):
                if not issubclass(kind, np.ma.MaskedArray):  # which each tree is searched for
                    _by_type[kind] = found
                return found
    return None


def unwrapped(leaf: Any) -> Any:
    """The array in a variable of Keras, of the framework that Keras runs on, or of Flax NNX; others are themselves."""
    root = type(leaf).__module__.partition(".")[0]
    if root == "keras" and hasattr(leaf, "assign") and hasattr(leaf, "value"):
        return leaf.value
    return leaf[...] if root == "flax" and hasattr(type(leaf), "get_value") else leaf


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a bare Python number, which every framework adopts."""
    return isinstance(leaf, _NUMBERS) and not isinstance(leaf, bool)


def lookup(tree: Any) -> Backend | None:
    """The backend that owns a tree; None if the tree has no leaves.

    Raises:
        TypeError: a leaf that no framework here knows.
    """
    return opened(tree)[0]


def opened(tree: Any) -> tuple[Backend | None, tuple[list[Any], Any]]:
    """The backend that owns a tree, with the leaves and the structure that it finds; None if there are no leaves."""
    first = unwrapped(first_leaf(tree))
    found = None if first is None else owner(first)
    if found is None or found.name == "numpy":
        if first is None or (found is None and not is_number(first)):
            found = _by_engine(tree)
        else:
            numpy = backend("numpy")
            flat = numpy.flatten(tree)
            if belong(numpy, flat[0]):
                return numpy, flat
            found = _beside_numpy(tree, numpy, flat[0])
    if found is None:
        return None, ([], None)
    leaves, structure = found.flatten(tree)
    return found, (leaves if belong(found, leaves) else list(map(unwrapped, leaves)), structure)


def first_leaf(tree: Any) -> Any:
    """The first leaf found through Python's own containers alone; None if there is none."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return tree
    for child in tree:
        leaf = first_leaf(child)
        if leaf is not None:
            return leaf
    return None


def _beside_numpy(tree: Any, numpy: Backend, leaves: Sequence[Any]) -> Backend:
    """NumPy's backend, or the one of a framework whose arrays stand beside NumPy's in the tree."""
    for leaf in leaves:
        found = owner(leaf)
        if found is not None and found is not numpy:
            return found
        if found is None and leaf is not None and not is_number(leaf):
            engine = _by_engine(tree)
            if engine is not None:
                return engine
    return numpy


def _by_engine(tree: Any) -> Backend | None:
    """The first imported framework whose tree engine opens the tree down to arrays, its own rather than NumPy's."""
    opaque = container = None
    for name in known():
        if name in sys.modules or name in _others:
            candidate = backend(name)
            leaves = [leaf for leaf in candidate.flatten(tree)[0] if leaf is not None]
            if not leaves:
                return None
            strange = [leaf for leaf in leaves if owner(leaf) is None and not is_number(leaf)]
            owners = {found.name for found in map(owner, leaves) if found is not None}
            if not strange and (candidate.name in owners or (candidate.name == "numpy" and not owners)):
                return candidate
            if owners == {"numpy"} and not strange and container is None:
                container = candidate
            if strange and (opaque is None or owners):  # one that finds arrays has looked deeper
                path = candidate.paths(tree)[[leaf is strange[0] for leaf in candidate.flatten(tree)[0]].index(True)]
                opaque = (path, strange[0])
    if opaque is None or container is not None:
        return container
    path, leaf = opaque
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
    raise TypeError(
        f"the leaf at {path!r} is a {kind} ({leaf!r:.60}), which is no array of an imported framework "
        f"({', '.join(known())}); {_advice(leaf)}"
    )


def _advice(leaf: Any) -> str:
    """What to do about a leaf that is no array."""
    if type(leaf).__name__ == "KerasTensor":
        return "it is symbolic and has no values: put a layer there, such as gx.keras.GradientTransform"
    if callable(leaf):
        return "leave it out: hand in the arrays of a model, such as equinox.filter(model, equinox.is_inexact_array)"
    return "hand in a pytree of arrays, with None where there is no gradient"
