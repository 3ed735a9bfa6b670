"""Align a tree with gradients by path: parameters, a state, or the gradients of another task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core.tree import Tree


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


def aligned(view: Tree, tree: Any, names: tuple[str, str], advice: str = "") -> Aligned:
    """Match the leaves of another tree with a view's slots, by path if the structures differ.

    Dicts may have another order, PyTorch keys dots or slashes, and containers other types.

    Args:
        view: the gradients.
        tree: the other tree.
        names: what an error calls the gradients and the other tree: "the gradients", "trace: the traces".
        advice: what an error says to do.

    Raises:
        ValueError: a tree has a leaf at a path where the other one has none; names the first such path.
    """
    backend, source = view.backend, view.source
    leaves, structure = backend.flatten(tree)
    if len(leaves) == len(source.slots) and _same(source.structure, structure):
        return Aligned(list(leaves), structure, None)
    wanted, given = backend.paths(backend.unflatten(source.structure, list(source.slots))), backend.paths(tree)
    if wanted == given:
        return Aligned(list(leaves), structure, None)
    if set(wanted) != set(given):
        wanted, given = ([path.replace(".", "/") for path in paths] for paths in (wanted, given))
    if len(set(wanted)) == len(wanted) and sorted(wanted) == sorted(given):
        order = [given.index(path) for path in wanted]
        return Aligned([leaves[place] for place in order], structure, order)
    one, other = (name.rpartition(": ")[2] for name in names)
    text = f"{names[1]} must have the keys of {one}; they differ at {difference(wanted, given, one, other)}"
    raise ValueError(f"{text}. {advice}" if advice else text)


def _same(one: Any, other: Any) -> bool:
    """Whether two structures are equal; False if they cannot be compared."""
    try:
        return one is other or (type(one) is type(other) and bool(one == other))
    except Exception:  # a node with arrays in its static data
        return False


def difference(paths: Sequence[str], others: Sequence[str], one: str, other: str) -> str:
    """Describe the first path that one of two trees lacks, and what each has there."""
    for path in (*paths, *others):
        if path not in paths or path not in others:
            where = repr(path) if path else "the root"
            return f"{where}: {_there(path, paths)} in {one}, {_there(path, others)} in {other}"
    return f"{paths[0]!r}: the same leaves in another order"


def _there(path: str, paths: Sequence[str]) -> str:
    if path in paths:
        return "a leaf"
    return "keys" if any(not path or each.startswith(f"{path}/") for each in paths) else "nothing"


def check_state(view: Tree, state: Any) -> None:
    """Reject a state and gradients of different frameworks; NumPy arrays are converted, by JAX both ways.

    Raises:
        ValueError: says how to move the state.
    """
    leaf, own = lookup.first_leaf(state), view.backend
    found = None if leaf is None else lookup.owner(leaf)
    if found is None or found is own or found.name == "numpy" or (found.name, own.name) == ("jax", "numpy"):  # as optax
        return
    raise ValueError(
        f"the state is {found.title}'s, the gradients {own.title}'s; move the state: "
        "gx.from_numpy(gx.to_numpy(state), like=tx.init(params)), with the parameters of this framework"
    )


def check_gradients(view: Tree, tree: Any) -> None:
    """Reject variables among the gradients, such as a list of (gradient, variable) pairs.

    A tree of variables only is transformed.

    Raises:
        ValueError: names the path of the first variable and what to write instead.
    """
    slots, kinds = view.source.slots, view.backend.variables
    types = {type(slot) for slot in slots if slot is not None}
    if len({issubclass(kind, kinds) for kind in types}) < 2 and not _is_pairs(tree, kinds):
        return
    found = zip(view.source.find_paths(), slots, strict=True)
    path = next((path for path, slot in found if isinstance(slot, kinds)), "0/1")
    raise ValueError(
        f"there are variables among the gradients; the first is at {path!r}. Pass the gradients only: "
        "tx([gradient for gradient, _ in pairs]); or (gradient, variable) pairs to gx.tensorflow.apply(tx, pairs), and "
        "parameters to gx.torch.apply_(tx, parameters)"
    )


def gradients_view(what: str, tree: Any) -> Tree | None:
    """Return the view of a tree of gradients; None if there is no leaf.

    Raises:
        TypeError: a list of (gradient, variable) pairs, of which both would count.
    """
    view = Tree.read(tree)
    if view is not None and _is_pairs(tree, view.backend.variables):
        raise TypeError(f"{what}: got (gradient, variable) pairs; write [gradient for gradient, _ in pairs]")
    return view


def _is_pairs(tree: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a tree is a list whose first item is a (gradient or None, variable) pair."""
    first = tree[0] if isinstance(tree, (list, tuple)) and tree else None
    if not (isinstance(first, (list, tuple)) and len(first) == 2) or hasattr(first, "_fields"):
        return False
    gradient, variable = [isinstance(item, kinds) or lookup.unwrapped(item) is not item for item in first]
    return variable and not gradient
