"""Match two trees: gradients with parameters, a state, or the gradients of another task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core.flat import Flat, flat_view

_SHOWN = 5


class Difference(NamedTuple):
    """The first difference of two trees, and what each has there, in words."""

    path: str
    one: str
    other: str


class Aligned(NamedTuple):
    """The leaves of another tree in the order of a view's slots, and the structure to rebuild that tree."""

    leaves: list[Any]
    structure: Any
    order: list[int] | None
    """For each slot, the position of its leaf in the other tree; None if the order is the same."""

    def tree(self, backend: Backend, leaves: Sequence[Any]) -> Any:
        """Rebuild the other tree with new leaves, given in the order of the slots."""
        own = list(leaves)
        for leaf, place in zip(leaves, self.order or (), strict=False):
            own[place] = leaf
        return backend.unflatten(self.structure, own)


def aligned(view: Flat, tree: Any, names: tuple[str, str], advice: str = "") -> Aligned:
    """Match the leaves of another tree with a view's slots.

    Paths are computed only if the structures differ. Dicts may have another order, and PyTorch keys may have dots or
    slashes.

    Args:
        view: the gradients.
        tree: the other tree.
        names: what an error calls the gradients and the other tree: "the gradients", "trace: the traces".
        advice: what an error says to do.

    Raises:
        ValueError: the trees have different keys or containers; names the first path that differs.
    """
    backend, source = view.backend, view.source
    leaves, structure = backend.flatten(tree)
    if len(leaves) == len(source.slots) and _same(source.structure, structure):
        return Aligned(list(leaves), structure, None)
    own = backend.unflatten(source.structure, list(source.slots))
    wanted, given = backend.paths(own), backend.paths(tree)
    found = difference(own, tree)
    if found is None and wanted == given:
        return Aligned(list(leaves), structure, None)
    if found is not None and sorted(wanted) != sorted(given):  # PyTorch: names with dots, paths with slashes
        wanted, given = ([path.replace(".", "/") for path in paths] for paths in (wanted, given))
        found = found if sorted(wanted) != sorted(given) else None
    if found is None and len(set(wanted)) == len(wanted) and sorted(wanted) == sorted(given):
        order = [given.index(path) for path in wanted]
        return Aligned([leaves[place] for place in order], structure, order)
    raise ValueError(_message(names, found or _by_paths(wanted, given), advice))


def _same(one: Any, other: Any) -> bool:
    """Whether two structures are equal; False if they cannot be compared."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # a node with arrays in its static data
        return False


def difference(one: Any, other: Any, path: str = "") -> Difference | None:
    """Return the first difference of two trees in Python's own containers."""
    kinds = _kind(one), _kind(other)
    if "opaque" in kinds:
        return None if kinds[0] == kinds[1] or "dict" in kinds else Difference(path, _shown(one), _shown(other))
    if kinds[0] != kinds[1]:
        return Difference(path, _shown(one), _shown(other))
    if kinds[0] == "leaf":
        return None
    first, second = _children(one), _children(other)
    for key, child in first.items():
        there = f"{path}/{key}" if path else str(key)
        if key not in second:
            return Difference(there, _shown(child), f"nothing ({_shown(other)})")
        found = difference(child, second[key], there)
        if found is not None:
            return found
    more = next((key for key in second if key not in first), None)
    if more is None:
        return None
    return Difference(f"{path}/{more}" if path else str(more), f"nothing ({_shown(one)})", _shown(second[more]))


def _by_paths(wanted: Sequence[str], given: Sequence[str]) -> Difference:
    """Return the first path that only one of two trees has."""
    for path in wanted:
        if path not in given:
            return Difference(path, "a leaf", "nothing")
    for path in given:
        if path not in wanted:
            return Difference(path, "nothing", "a leaf")
    return Difference("", "one order of leaves", "another order")


def _kind(node: Any) -> str:
    """Classify a node: leaf, dict, list, tuple, the name of a named tuple, or opaque."""
    held = getattr(node, "value", None)  # variables hold an array
    if node is None or lookup.is_number(node):
        return "leaf"
    if any(lookup.owner(leaf) is not None for leaf in (lookup.unwrapped(node), held)):
        return "leaf"
    if isinstance(node, Mapping):
        return "dict"
    if isinstance(node, list):
        return "list"
    if isinstance(node, tuple):
        return type(node).__name__ if hasattr(node, "_fields") else "tuple"
    return "opaque"


def _children(node: Any) -> dict[Any, Any]:
    """Return the children of a Python container by key."""
    if isinstance(node, Mapping):
        return dict(node)
    names = getattr(node, "_fields", range(len(node)))
    return dict(zip(names, node, strict=True))


def _shown(node: Any) -> str:
    """Describe a node."""
    kind = _kind(node)
    if kind == "leaf":
        return "None" if node is None else "an array"
    if kind == "opaque":
        return f"a {type(node).__name__}"
    if kind in ("list", "tuple"):
        return f"a {kind} of {len(node)}"
    keys = list(_children(node))
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    shown = ", ".join(map(repr, keys[:_SHOWN])) + more if keys else "nothing"
    return f"a {kind} with {shown}"


def _message(names: tuple[str, str], found: Difference, advice: str) -> str:
    where = repr(found.path) if found.path else "the root"
    one, other = (name.rpartition(": ")[2] for name in names)
    return (
        f"{names[1]} must have the keys and containers of {one}; they differ at {where}: {found.one} in {one}, "
        f"{found.other} in {other}" + (f". {advice}" if advice else "")
    )


def check_state(view: Flat, state: Any) -> None:
    """Reject a state and gradients of different frameworks; NumPy arrays are converted, by JAX both ways.

    Raises:
        ValueError: says how to move the state.
    """
    leaf = lookup.first_leaf(state)
    found = None if leaf is None else lookup.owner(leaf)
    if found is None or found is view.backend or found.name == "numpy":
        return
    if (found.name, view.backend.name) == ("jax", "numpy"):  # optax allows it, and its tests do so
        return
    raise ValueError(
        f"the state is {found.title}'s, the gradients {view.backend.title}'s; move the state: "
        "gx.from_numpy(gx.to_numpy(state), like=tx.init(params)), with the parameters of this framework"
    )


def check_gradients(view: Flat, tree: Any) -> None:
    """Reject variables among the gradients, such as a list of (gradient, variable) pairs.

    A tree of variables only is transformed.

    Raises:
        ValueError: names the path of the first variable and what to write instead.
    """
    kinds = view.backend.variables
    found = {type(slot) for slot in view.source.slots if slot is not None} if kinds else set()
    mixed = len(found) > 1 and len({issubclass(kind, kinds) for kind in found}) > 1
    if not mixed and not _is_pairs(tree, kinds):
        return
    slots, paths = view.source.slots, view.source.find_paths()
    path = next((p for p, slot in zip(paths, slots, strict=True) if isinstance(slot, kinds)), "0/1")
    raise ValueError(
        f"there are variables among the gradients; the first is at {path!r}. They would be transformed as well. "
        "Pass the gradients only: tx([gradient for gradient, _ in pairs]); or (gradient, variable) pairs to "
        "gx.tensorflow.apply(tx, pairs), and parameters to gx.torch.apply_(tx, parameters)"
    )


def gradients_view(what: str, tree: Any) -> Flat | None:
    """The view of a tree that a function of gradients is given; None if there is no leaf.

    Raises:
        TypeError: a list of (gradient, variable) pairs, of which both would count.
    """
    view = flat_view(tree)
    if view is not None and _is_pairs(tree, view.backend.variables):
        raise TypeError(
            f"{what}: expected gradients, got (gradient, variable) pairs; write [gradient for gradient, _ in pairs]"
        )
    return view


def _is_pairs(tree: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a tree is a list whose first item is a (gradient or None, variable) pair."""
    if not (isinstance(tree, (list, tuple)) and tree):
        return False
    first = tree[0]
    if not (isinstance(first, (list, tuple)) and len(first) == 2) or hasattr(first, "_fields"):
        return False
    return _is_variable(first[1], kinds) and not _is_variable(first[0], kinds)


def _is_variable(item: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(item, kinds) or lookup.unwrapped(item) is not item
