"""Align a tree with gradients by path: parameters, a state, or the gradients of another task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import optree

from gradxform.backend import lookup
from gradxform.backend.errors import parameter
from gradxform.backend.protocol import Axes, Backend
from gradxform.core.leaves import put
from gradxform.core.tree import Tree
from gradxform.numerics import Array, dtype_name

_STATE = "Start again with tx.init(params), or pass the tree that the state was made for"
"""The advice for a state with other keys."""
_CALLS = {
    "parameters": "call tx.update(updates, state, params)",
    "gradients": "write tx.update(..., gradients=gradients), in optax gx.jax.as_optax(tx); or "
    "gx.torch.attach(optimizer, tx, on='updates'), or gx.keras.wrap likewise",
}
"""How a tree beside the updates is handed in."""


class Aligned(NamedTuple):
    """The leaves of another tree in the order of a view's slots, and the structure to rebuild that tree."""

    leaves: list[Any]
    structure: Any
    order: list[int] | None
    """For each slot, the position of its leaf in the other tree; None if the order is the same."""

    def tree(self, backend: Backend, leaves: Sequence[Any]) -> Any:
        """Rebuild the other tree with new leaves, given in the order of the slots."""
        return backend.unflatten(self.structure, leaves if self.order is None else put(leaves, self.order, leaves))

    def replaced(self, view: Tree, new: Sequence[Array]) -> Any:
        """Rebuild the other tree, a state, with new leaves in the active places of a view, in the dtypes of the old."""
        leaves, backend = list(self.leaves), view.backend
        for i, leaf in zip(view.chosen, new, strict=True):
            slot = view.source.kept[i]
            old = leaves[slot]
            if leaf.dtype != old.dtype and backend.dtype(leaf) != dtype_name(old):  # of a state that may be NumPy's
                leaf = backend.cast([leaf], [backend.xp.asarray(old)])[0]
            leaves[slot] = leaf
        return self.tree(backend, leaves)


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
    """Describe the first path that one of two trees lacks."""
    for path in (*paths, *others):
        if path not in paths or path not in others:
            return f"{repr(path) if path else 'the root'}: a leaf in {one if path in paths else other} only"
    return f"{paths[0]!r}: the same leaves in another order"


# --- the leaves beside the active ones -------------------------------------------------------------------------------


def of_state(view: Tree, tree: Any, what: str, reduced: Axes = ()) -> tuple[list[Array], Aligned]:
    """Return the leaves of a state that match the active leaves, and what rebuilds the state with new ones.

    `reduced` has the axes of each that have length one.

    Raises:
        ValueError: the state was made for another tree.
    """
    return _active(view, tree, ("the gradients", what), _STATE, reduced)


def beside(view: Tree, tree: Any, transform: str, what: str) -> Sequence[Array]:
    """Return the leaves of another tree that match the active leaves, sharded like these.

    Args:
        view: the gradients; if the other tree has gradients, the updates.
        tree: the other tree.
        transform: the transform that needs it.
        what: "parameters" or "gradients".

    Raises:
        ValueError: no tree, or one of another structure.
    """
    if tree is None:
        raise ValueError(f"{transform} needs the {what}: {_CALLS[what]}")
    own = "updates" if what == "gradients" else "gradients"
    found, _ = _active(view, tree, (f"the {own}", f"{transform}: the {what}"), f"Pass the {what} of these {own}")
    return view.backend.alongside(found, [view.leaves[i] for i in view.chosen])


def _active(
    view: Tree, tree: Any, names: tuple[str, str], advice: str, reduced: Axes = ()
) -> tuple[list[Array], Aligned]:
    """Align another tree; its leaves that match the active ones are dense and of the view's framework.

    Raises:
        ValueError: the tree lacks a leaf where there is a gradient, or it has another shape; names the path.
    """
    backend, source, (own, what) = view.backend, view.source, names
    other = aligned(view, tree, names, advice)
    found = [other.leaves[source.kept[i]] for i in view.chosen]
    for i, leaf in zip(view.chosen, found, strict=True):
        if leaf is None:
            raise ValueError(f"{what} have None at {source.path(i)!r}, where {own} have an array. {advice}")
    if not lookup.belong(backend, set(map(type, found))):
        asarray = backend.xp.asarray  # of a NumPy array, or of the value of a variable
        found = [x if isinstance(x, backend.types) else asarray(getattr(x, "value", x)) for x in found]
    dense = found if backend.dense is None else backend.dense(found, whole=True)[0]
    for i, leaf, over in zip(view.chosen, dense, reduced or [()] * len(dense), strict=True):
        if source.rebuild is None and (over or leaf.shape != view.leaves[i].shape):
            shapes = backend.shape(leaf), backend.shape(view.leaves[i])
            wanted = shapes[1] and tuple([1 if axis in over else size for axis, size in enumerate(shapes[1])])
            if not may_agree(shapes[0], wanted):
                where = f"{shapes[0]} at {source.path(i)!r}, where {own.rstrip('s')} has {shapes[1]}"
                raise ValueError(f"{what} have shape {where}. {advice}")
    return list(dense), other


def may_agree(one: Any, other: Any) -> bool:
    """Whether two shapes may be equal; None is unknown."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))


# --- checks ----------------------------------------------------------------------------------------------------------


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


def check_nothing(tree: Any, state: Any, start: Callable[[Any], Any]) -> None:
    """Reject a tree with neither gradients nor None in their places beside a state of some, as optax does.

    Raises:
        ValueError: shows the tree.
    """

    def differ(one: Any, other: Any) -> bool:
        if getattr(one, "shape", ()) != getattr(other, "shape", ()):
            return True
        owner = None if lookup.in_torch() else lookup.owner(one)
        try:  # a state of numbers alone tells by its values, unless they are traced
            return owner is not None and not np.array_equal(owner.to_numpy(one), other, equal_nan=True)
        except Exception:
            return False

    if tree is not None and optree.tree_leaves(tree, none_is_leaf=True):
        return
    try:
        fresh = start(tree)
    except Exception:  # of a transform of the user's own, which says what it needs where it is asked
        return
    own, new = optree.tree_leaves(state), optree.tree_leaves(fresh)
    if len(own) != len(new) or any(map(differ, own, new)):
        raise ValueError(f"there are no gradients in {tree!r}, but the state is of some. {_STATE}")


def check_gradients(view: Tree, tree: Any) -> None:
    """Reject variables among the gradients, such as a list of (gradient, variable) pairs, and PyTorch's parameters.

    A tree of variables only is transformed, as TensorFlow may keep gradients in variables.

    Raises:
        TypeError: a parameter that has its gradient in `.grad`; names its path and what to write instead.
        ValueError: names the path of the first variable and what to write instead.
    """
    slots, kinds = view.source.slots, view.backend.variables
    types = set(map(type, slots)) - {type(None)}
    if not _is_pairs(tree, kinds) and (len(types) == 1 or len({issubclass(kind, kinds) for kind in types}) < 2):
        return _check_parameters(view, tree)
    found = zip(view.source.find_paths(), slots, strict=True)
    path = next((path for path, slot in found if isinstance(slot, kinds)), "0/1")
    raise ValueError(
        f"there are variables among the gradients, as at {path!r}; write tx([gradient for gradient, _ in pairs]), "
        "gx.tensorflow.apply(tx, pairs) or gx.torch.apply_(tx, parameters)"
    )


def gradients_view(what: str, tree: Any) -> Tree | None:
    """Return the view of a tree of gradients; None if there is no leaf.

    Raises:
        TypeError: a list of (gradient, variable) pairs, of which both would count; or PyTorch's parameters.
    """
    view = Tree.read(tree)
    if view is not None and _is_pairs(tree, view.backend.variables):
        raise TypeError(f"{what}: got (gradient, variable) pairs; write [gradient for gradient, _ in pairs]")
    if view is not None:
        _check_parameters(view, tree)
    return view


def _check_parameters(view: Tree, tree: Any) -> None:
    """Reject PyTorch's parameters, which have their gradients in `.grad`, and may be DTensors by type.

    Those within variables of Keras are taken, as on its other backends.
    """
    slots, backend = view.source.slots, view.backend
    if set(map(type, slots)) <= {backend.types[0], type(None)}:
        return
    for i, slot in enumerate(slots):
        if is_parameter(slot, backend) and (isinstance(tree, Tree) or backend.flatten(tree)[0][i] is slot):
            raise parameter(view.source.find_paths()[i] or "(the only leaf)")


def is_parameter(leaf: Any, backend: Backend) -> bool:
    """Whether a leaf is a parameter of PyTorch, which has its gradient in `.grad`."""
    return isinstance(leaf, backend.variables) and hasattr(leaf, "grad")


def _is_pairs(tree: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a tree is a list whose first item is a (gradient or None, variable) pair."""
    first = tree[0] if isinstance(tree, (list, tuple)) and tree else None
    if not (isinstance(first, (list, tuple)) and len(first) == 2) or hasattr(first, "_fields"):
        return False
    gradient, variable = [isinstance(item, kinds) or lookup.unwrapped(item) is not item for item in first]
    return variable and not gradient
