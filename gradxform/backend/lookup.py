"""Find the backend that owns an array by its type, without importing a framework."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from gradxform.backend.errors import install, is_iterator, not_an_array
from gradxform.backend.protocol import Backend

FRAMEWORKS = ("numpy", "jax", "tensorflow", "torch")
_ALIASES = {"jaxlib": "jax", "ml_dtypes": "numpy"}
_NO_ARRAYS = {"builtins", "gradxform", "keras"}
"""Modules without array types, for which no backend is searched; Keras has an adapter but no arrays."""
_by_type: dict[type, Backend] = {}
_others: dict[str, Backend] = {}
"""Imported backends of other frameworks, by name."""
preload: Callable[[], None]
"""Imports PyTorch's backend if PyTorch is imported; `gradxform` sets it. torch.compile cannot trace importlib."""


def installed() -> tuple[str, ...]:
    """Return the names of the installed frameworks, NumPy first; without other backends."""
    return tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None)


def known() -> tuple[str, ...]:
    """Return the names of the frameworks, including imported other backends."""
    return *FRAMEWORKS, *_others


def extends(name: str) -> bool:
    """Whether another framework has a backend: an imported one, or a package `gradxform_<name>`."""
    is_name = name.isidentifier() and name not in _NO_ARRAYS
    return name in _others or (is_name and _is_package(f"gradxform_{name}", tuple(sys.path)))


@functools.lru_cache(maxsize=256)
def _is_package(name: str, path: tuple[str, ...]) -> bool:
    """Whether a package of that name has a file `backend.py`; a plain folder may have the same name."""
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec is not None and spec.origin is not None else None
    return any(os.path.exists(os.path.join(folder, "backend.py")) for folder in folders or ())


def adapter(name: str) -> ModuleType:
    """Import the package `gradxform_<name>`; the ImportError says what to install."""
    package = f"gradxform_{name}"
    if in_torch() and package in sys.modules:  # torch cannot trace an import, which waits for one of another thread
        return sys.modules[package]
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        hint = f": {install(name)}" if name in (*FRAMEWORKS, "keras", "mlx") else ""
        raise ImportError(f"gradxform.{name} needs {error.name!r}, which is not installed{hint}") from error


def in_torch() -> bool:
    """Whether torch compiles the current code."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def backend(name: str) -> Backend:
    """Return the backend of a framework by name."""
    return _others[name] if name in _others else adapter(name).backend


def register(backend: Backend) -> None:
    """Register a backend and its types; each backend package does so on import."""
    _by_type.update(dict.fromkeys(backend.types, backend))
    if backend.name not in FRAMEWORKS:
        _others[backend.name] = backend


def belong(backend: Backend, kinds: Iterable[type]) -> bool:
    """Whether all types of leaves, except that of None, are known ones of a backend."""
    return all([_by_type.get(kind) is backend or kind is type(None) for kind in kinds])


def owner(leaf: Any) -> Backend | None:
    """Return the backend that owns an array, by its type; None for Python numbers and other objects."""
    found = _by_type.get(type(leaf))
    return found if found is not None else _search(type(leaf))


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
    return isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)


def holds_arrays(value: Any) -> bool:
    """Whether a value is an array with axes, or a Python container whose first leaf is an array."""
    leaf = unwrapped(first_leaf(value))
    found = owner(leaf)
    return found is not None and (leaf is not unwrapped(value) or bool(found.shape(leaf)))


def opened(tree: Any) -> tuple[Backend | None, tuple[list[Any], Any]]:
    """Return the backend that owns a tree, with leaves and structure; None if there are no leaves.

    Raises:
        TypeError: no known framework owns a leaf.
        ValueError: the tree contains itself, or is nested too deeply.
    """
    try:
        first = first_leaf(tree)
        found = _by_type.get(type(first)) or owner(unwrapped(first))
        leaves, structure = ([], None) if found is None else found.flatten(tree)
        if found is not None and belong(found, set(map(type, leaves))):
            return found, (leaves, structure)
        if found is None or found.name == "numpy":
            found = _engine(tree)
            leaves, structure = ([], None) if found is None else found.flatten(tree)
        return found, (list(map(unwrapped, leaves)), structure)
    except RecursionError:
        raise ValueError("a list or dict in the tree contains itself, or is nested too deeply") from None


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


def _engine(tree: Any) -> Backend | None:
    """Return the backend of a tree that the first leaf does not decide; None if there are no leaves.

    The first imported framework whose engine finds nothing but arrays and numbers decides: it owns the tree, unless an
    array of a framework other than NumPy is among them.

    Raises:
        TypeError: each engine finds a leaf that is not an array; names its path.
    """
    error, most = TypeError("no framework is imported"), -1
    names = ["torch"] if in_torch() else known()
    for engine in map(backend, [name for name in names if name in sys.modules or name in _others]):
        slots = engine.flatten(tree)[0]
        owners = [owner(unwrapped(slot)) for slot in slots]
        strange = [i for i, slot in enumerate(slots) if not (owners[i] or slot is None or is_number(slot))]
        if not strange:
            found = [found for found in owners if found is not None and found.name != "numpy"] or [engine]
            return found[0] if any([slot is not None for slot in slots]) else None
        if len(slots) - owners.count(None) > most:  # an engine that finds more arrays looks deeper
            most = len(slots) - owners.count(None)
            error = not_an_array(engine.paths(tree)[strange[0]], slots[strange[0]], known())
        if any([is_iterator(slots[i]) for i in strange]):  # JAX would warn
            break
    raise error
