"""Find the backend that owns an array by its type, without importing a framework."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np

from gradxform.backend.extras import install
from gradxform.backend.misplaced import as_leaf, is_iterator, short
from gradxform.backend.protocol import Backend

FRAMEWORKS = ("numpy", "jax", "tensorflow", "torch")
_ALIASES = {"jaxlib": "jax", "ml_dtypes": "numpy"}
_NO_ARRAYS = {"builtins", "gradxform", "keras"}
"""Modules without array types, for which no backend is searched; Keras has an adapter but no arrays."""
_EXTRAS = ("keras", "mlx")
"""Other packages of this project, with the framework to install."""
_NUMBERS = (int, float, complex)
_by_type: dict[type, Backend] = {}
_others: dict[str, Backend] = {}
"""Imported backends of other frameworks, by name."""


def installed() -> tuple[str, ...]:
    """Return the names of the installed frameworks, NumPy first; without other backends."""
    return tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None)


def known() -> tuple[str, ...]:
    """Return the names of the frameworks, including imported other backends."""
    return *FRAMEWORKS, *_others


def extends(name: str) -> bool:
    """Whether another framework has a backend: an imported one, or a package `gradxform_<name>`."""
    if name in _others or name in _NO_ARRAYS:
        return name in _others
    return name.isidentifier() and _is_package(f"gradxform_{name}", tuple(sys.path))


@functools.lru_cache(maxsize=256)
def _is_package(name: str, path: tuple[str, ...]) -> bool:
    """Whether a package of that name has a file `backend.py`; a plain folder may have the same name."""
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec is not None and spec.origin is not None else None
    return any(os.path.exists(os.path.join(folder, "backend.py")) for folder in folders or ())


def adapter(name: str) -> ModuleType:
    """Import the package `gradxform_<name>`; the ImportError says what to install."""
    try:
        return importlib.import_module(f"gradxform_{name}")
    except ModuleNotFoundError as error:
        missing = error.name or name
        hint = f": {install(name)}" if name in (*FRAMEWORKS, *_EXTRAS) else ""
        raise ImportError(f"gradxform.{name} needs {missing!r}, which is not installed{hint}") from error


def backend(name: str) -> Backend:
    """Return the backend of a framework by name."""
    return _others[name] if name in _others else cast(Backend, adapter(name).backend)


def register(backend: Backend) -> None:
    """Register a backend and its types; each backend package does so on import."""
    _by_type.update(dict.fromkeys(backend.types, backend))
    if backend.name not in FRAMEWORKS:
        _others[backend.name] = backend


def preload() -> None:
    """Import PyTorch's backend if the user has imported PyTorch, so that `torch.compile` traces no dynamic import.

    It can trace an import statement, but not importlib, which the other frameworks use.
    """
    if "torch" in sys.modules:
        import gradxform_torch  # noqa: F401


def belong(backend: Backend, leaves: Sequence[Any]) -> bool:
    """Whether all leaves except None are arrays of a backend, of known types."""
    return all_of(backend, set(map(type, leaves)))


def all_of(backend: Backend, kinds: Iterable[type]) -> bool:
    """Whether all types except that of None are known ones of a backend."""
    for kind in kinds:
        if _by_type.get(kind) is not backend and kind is not type(None):
            return False
    return True


def kind_of(leaf: Any) -> Backend | None:
    """Return the backend of an array of a type that was met before; None for others."""
    return _by_type.get(type(leaf))


def owner(leaf: Any) -> Backend | None:
    """Return the backend that owns an array, by its type; None for Python numbers and other objects."""
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
                if not issubclass(kind, np.ma.MaskedArray):  # checked separately in each tree
                    _by_type[kind] = found
                return found
    return None


def unwrapped(leaf: Any) -> Any:
    """Return the array in a Keras or Flax NNX variable; return other objects unchanged."""
    root = type(leaf).__module__.partition(".")[0]
    if root == "keras" and hasattr(leaf, "assign") and hasattr(leaf, "value"):
        return leaf.value
    is_variable = root == "flax" and (hasattr(type(leaf), "get_value") or hasattr(type(leaf), "raw_value"))  # 0.12.0
    return leaf[...] if is_variable else leaf


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a plain Python number, which every framework accepts."""
    return isinstance(leaf, _NUMBERS) and not isinstance(leaf, bool)


def holds_arrays(value: Any) -> bool:
    """Whether a value is an array with axes, or a Python container whose first leaf is an array."""
    leaf = first_leaf(value)
    found = None if leaf is None else owner(unwrapped(leaf))
    return found is not None and (leaf is not value or bool(found.shape(unwrapped(leaf))))


def lookup(tree: Any) -> Backend | None:
    """Return the backend that owns a tree; None if the tree has no leaves.

    Raises:
        TypeError: no known framework owns a leaf.
    """
    return opened(tree)[0]


def opened(tree: Any) -> tuple[Backend | None, tuple[list[Any], Any]]:
    """Return the backend that owns a tree, with leaves and structure; None if there are no leaves."""
    first = first_leaf(tree)
    found = _by_type.get(type(first))
    if found is not None:
        flat = found.flatten(tree)
        if belong(found, flat[0]):
            return found, flat
    first = unwrapped(first)
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
    """Return the first leaf inside Python containers, or None."""
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
    """Return NumPy's backend, or the framework whose arrays are also in the tree."""
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
    """Return the first imported framework whose tree engine finds arrays in the tree, preferably its own."""
    opaque = container = None
    for name in known():
        if name in sys.modules or name in _others:
            candidate = backend(name)
            leaves = [leaf for leaf in candidate.flatten(tree)[0] if leaf is not None]
            if not leaves:
                return None
            strange = [leaf for leaf in leaves if owner(leaf) is None and not is_number(leaf)]
            iterator = next(filter(is_iterator, strange), None)
            if iterator is not None:  # JAX warns about it
                opaque, container = _located(candidate, tree, iterator), None
                break
            owners = {found.name for found in map(owner, leaves) if found is not None}
            if not strange and (candidate.name in owners or (candidate.name == "numpy" and not owners)):
                return candidate
            if owners == {"numpy"} and not strange and container is None:
                container = candidate
            if strange and (opaque is None or owners):  # finding arrays means it looked deeper
                opaque = _located(candidate, tree, strange[0])
    if opaque is None or container is not None:
        return container
    path, leaf = opaque
    known_as = as_leaf(path, leaf)
    if known_as is not None:
        raise TypeError(known_as)
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
    raise TypeError(
        f"the leaf at {path!r} is a {kind} ({short(leaf)}), which is no array of an imported framework "
        f"({', '.join(known())}); {_advice(leaf)}"
    )


def _located(backend: Backend, tree: Any, leaf: Any) -> tuple[str, Any]:
    """Return the path of a leaf, and the leaf."""
    return backend.paths(tree)[[other is leaf for other in backend.flatten(tree)[0]].index(True)], leaf


def _advice(leaf: Any) -> str:
    """Say what to do about a leaf that is not an array."""
    if type(leaf).__name__ == "KerasTensor":
        return "it is symbolic and has no values: put a layer there, such as gx.keras.GradientTransform"
    if callable(getattr(leaf, "init", None)) and callable(getattr(leaf, "update", None)):
        return "it is a transformation, whose state is what tx.init(params) returns"
    if callable(leaf):
        return "leave it out: hand in the arrays of a model, such as equinox.filter(model, equinox.is_inexact_array)"
    return "hand in a pytree of arrays, with None where there is no gradient"
