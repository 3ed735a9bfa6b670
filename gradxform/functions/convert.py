"""Move states between frameworks, by way of NumPy."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.numerics import Array
from gradxform.transforms.history import AdaGCState, PercentileState, ZScoreState

Rename = Callable[[str, Any], Mapping[str, Any]]


def to_numpy(state: Any, *, by_path: bool = False) -> Any:
    """Convert a state to NumPy arrays, to save it or to continue in another framework.

    Args:
        state: State of any transform, or any tree of arrays of one framework, on any devices. DTensors are gathered:
            call it in every process.
        by_path: Whether to return a flat dict from path to array, for files: ``np.savez(file, **arrays)``.

    Returns:
        The same tree of NumPy arrays, copied, with equal shapes and dtypes; bfloat16 is the dtype of ml_dtypes. The
        result is a valid state for NumPy gradients.

    Raises:
        TypeError: A leaf has no values (traced or symbolic), or has no NumPy dtype; the message gives the path.
        ValueError: With `by_path`: two leaves have the same path.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradxform as gx
        >>> tx = gx.trace(0.5)
        >>> _, state = tx.update({"w": jnp.array([2.0, 4.0])}, tx.init({"w": jnp.zeros(2)}))
        >>> gx.to_numpy(state)
        TraceState(trace={'w': array([2., 4.], dtype=float32)})
        >>> gx.to_numpy(state, by_path=True)
        {'trace/w': array([2., 4.], dtype=float32)}

    References:
        ``flax.serialization.to_state_dict``.
    """
    backend, (leaves, structure) = lookup.opened(state)
    if backend is None:
        return {} if by_path else state
    paths = backend.paths(state)
    places = zip(paths, leaves, strict=True)
    found = [None if leaf is None else np.array(values("to_numpy", path, leaf)) for path, leaf in places]
    return _by_path("to_numpy", paths, found) if by_path else backend.unflatten(structure, found)


def _by_path(what: str, paths: Sequence[str], leaves: Sequence[Any]) -> dict[str, Any]:
    found = {path: leaf for path, leaf in zip(paths, leaves, strict=True) if leaf is not None}
    if len(found) < sum(leaf is not None for leaf in leaves):
        raise ValueError(f"{what}: two leaves of the state have the same path; rename the dict key that contains '/'")
    return found


def values(what: str, path: str, leaf: Any) -> Any:
    """Convert a leaf to a NumPy array."""
    own = lookup.owner(leaf)
    try:
        found = np.asarray(leaf if own is None else own.to_numpy(leaf))
    except Exception as error:
        advice = "call it outside compiled code; for a JAX random key, save jax.random.key_data(key)"
        raise TypeError(f"{what}: the leaf at {path!r} has no values for NumPy: {leaf!r:.100}; {advice}") from error
    if found.dtype.kind in "OSU":
        raise TypeError(f"{what}: the leaf at {path!r} is not an array of numbers: {leaf!r:.100}")
    return found


def from_numpy(state: Any, like: Any, rename: Rename | None = None) -> Any:
    """Convert a saved state, or a state from another framework, to a state for this framework.

    Leaves are matched by path. A nested dict equals one with keys joined by "/", and the order of keys does not matter.
    An ``.npz`` of paths, as loaded by NumPy, is therefore a state.

    Args:
        state: Result of `to_numpy`, or a mapping from path to array.
        like: State to replace, such as ``tx.init(params)`` of the same transform. It gives structure, framework, dtypes
            and devices. Alternatively one array: the result then has the structure of `state`, and the array's
            framework and device.
        rename: Function of a parameter's path (without the state's prefix) and its NumPy array. It returns a dict from
            new paths to new arrays: one, several to split an array, or none to drop it. Counts and other fields keep
            their names. For PyTorch's names, use `rename_from_torch`.

    Returns:
        A tree of arrays of `like`'s framework.

    Raises:
        TypeError: `like` has no arrays but `state` has; a leaf is not an array; or `rename` does not return a dict.
        ValueError: A leaf is missing on one side, differs in shape, or does not fit the dtype of `like`; the message
            gives the paths, before and after `rename`. Or `rename` maps two leaves to one path, or applies to a table
            with one row per parameter (`per_leaf`).

    Example:
        >>> import numpy as np, torch
        >>> import gradxform as gx
        >>> tx = gx.trace(0.5)
        >>> _, state = tx.update({"w": np.array([2.0, 4.0])}, tx.init({"w": np.zeros(2)}))
        >>> gx.from_numpy(state, like=tx.init({"w": torch.zeros(2)}))
        TraceState(trace={'w': tensor([2., 4.])})
        >>> like = tx.init({"kernel": torch.zeros(2)})
        >>> gx.from_numpy(state, like, rename=lambda path, array: {path.replace("w", "kernel"): array})
        TraceState(trace={'kernel': tensor([2., 4.])})

    References:
        ``flax.serialization.from_state_dict``.
    """
    return matched("from_numpy", state, like, rename)


def matched(what: str, state: Any, like: Any, rename: Rename | None = None) -> Any:
    """Fit a state into another one; errors begin with the adapter's name."""
    given = _opened(what, state)
    old: dict[str, str] = {}
    backend, (likes, structure) = lookup.opened(like)
    if backend is None:
        if given:
            raise TypeError(f"{what}: like has no arrays ({like!r:.80}), but the state has {_some(list(given))}")
        return like
    if rename is not None:
        if not callable(rename):
            raise TypeError(f"{what}: rename must be a function of path and array, got {rename!r:.80}")
        if likes[0] is like:
            raise TypeError(f"{what}: rename needs a like with paths, such as tx.init(params), not one array")
        arrays = {path: values(what, path, leaf) for path, leaf in given.items()}
        given, old = renamed(what, arrays, like, rename)
    if len(likes) == 1 and likes[0] is like:
        own, (leaves, structure) = lookup.opened(state)
        new = [None if leaf is None else backend.placed(values(what, "", leaf), like) for leaf in leaves]
        return state if own is None else own.unflatten(structure, new)
    paths = backend.paths(like)
    places = list(zip(paths, likes, strict=True))
    _check_paths(what, list(given), [path for path, leaf in places if leaf is not None], old)
    new = [None if leaf is None else _like(what, backend, path, given[path], leaf, old) for path, leaf in places]
    return backend.unflatten(structure, new)


def _opened(what: str, state: Any) -> dict[str, Any]:
    """Leaves of a state by path."""
    if isinstance(state, (str, os.PathLike)):
        raise TypeError(f"{what}: expected a state, got the name of a file; write np.load({os.fspath(state)!r})")
    if isinstance(state, Mapping) and not isinstance(state, dict):
        state = dict(state)  # an open .npz file
    try:
        backend, (leaves, _) = lookup.opened(state)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from error
    if lookup.is_number(state):
        raise TypeError(f"{what}: expected a state, a tuple or dict of arrays, got {state!r}")
    return {} if backend is None else _by_path(what, backend.paths(state), leaves)


def _check_paths(what: str, given: Sequence[str], wanted: Sequence[str], old: Mapping[str, str]) -> None:
    missing, strange = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if not (missing or strange):
        return
    if what == "from_numpy":
        own, has, rename = "like must be tx.init(params)", "like has no", "pass a function: rename"
    else:
        own, has = "The state must be", "there is no place for"
        rename = "convert them with gx.from_numpy(state, like, rename)"
    lists = (("the state lacks", missing), (has, strange))
    found = "; ".join([f"{text} {_some(paths, old)}" for text, paths in lists if paths])
    one, other = ({path.partition("/")[2] for path in paths if path[:1].isdigit()} for _, paths in lists)
    if one & other:
        rename += "; gx.identity() keeps a place in a chain"
    raise ValueError(f"{what}: {found}. {own} of the same transform and parameters. If paths differ, {rename}")


def _some(paths: Sequence[str], old: Mapping[str, str] = MappingProxyType({})) -> str:
    shown = ", ".join(_named(path, old) for path in paths[:5])
    return shown + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _named(path: str, old: Mapping[str, str]) -> str:
    """A path, and its name before renaming."""
    return repr(path) if old.get(path, path) == path else f"{path!r} (from {old[path]!r})"


def _like(what: str, backend: Backend, path: str, leaf: Any, like: Array, old: Mapping[str, str]) -> Any:
    """Cast a leaf to another one's dtype, and place it on the same device."""
    array, owner = values(what, path, leaf), lookup.owner(like)  # None of a number
    shape = () if owner is None else backend.shape(like)
    dtype = np.asarray(like).dtype if owner is None else _dtype(owner.dtype(like))
    if array.shape != shape:
        hint = _axes_that_fit(array.shape, shape)
        where = f"the leaf at {_named(path, old)} has shape {array.shape}"
        raise ValueError(f"{what}: {where}, but {_wanted(what, shape)}{hint}")
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and dtype.name == "bfloat16":
        array = array.view(dtype)  # NumPy loads bfloat16 as raw bytes
    with np.errstate(all="ignore"):
        cast = array.astype(dtype, order="C") if _kind(array.dtype) == _kind(dtype) else None
    if cast is None or not _is_same(array, cast):
        does = f"{_wanted(what, dtype)}, which cannot hold its values"
        raise ValueError(f"{what}: the leaf at {path!r} is {array.dtype}, but {does}")
    return type(like)(cast.item()) if owner is None else owner.placed(cast, like)


def _wanted(what: str, value: Any) -> str:
    """What stands in the place of a leaf: in `like`, or in the state of an adapter."""
    return f"like has {value}" if what == "from_numpy" else f"the state needs {value}"


def _kind(dtype: np.dtype[Any]) -> str:
    """Kind of a dtype: bool, integer, real or complex."""
    return {"u": "i", "V": "f"}.get(dtype.kind, dtype.kind)


def _is_same(array: Any, cast: Any) -> bool:
    """Whether integers are equal, and finite numbers are still finite."""
    if _kind(cast.dtype) in "bi":
        return bool(np.all(array == cast))
    return bool(np.all(np.isfinite(array) == np.isfinite(cast)))


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


# --- renaming --------------------------------------------------------------------------------------------------------


def renamed(what: str, given: Mapping[str, Any], like: Any, rename: Rename) -> tuple[dict[str, Any], dict[str, str]]:
    """Leaves by new path, and the old path of each. Only trees of parameters are renamed, not counts."""
    trees = list(_trees(what, like, ""))
    found: dict[str, Any] = {}
    old: dict[str, str] = {}
    for path, array in given.items():
        tree = next((tree for tree in trees if path.startswith(tree)), None)
        parts = {path: array} if tree is None else rename(path.removeprefix(tree), array)
        if not isinstance(parts, Mapping):
            must = f"a dict from new paths to arrays, such as {{path: array}}; for {path!r} it returned {parts!r:.80}"
            raise TypeError(f"{what}: rename must return {must}")
        for own, part in parts.items():
            new = (tree or "") + own
            if new in found:
                raise ValueError(f"{what}: rename maps two leaves to {new!r}: {old[new]!r} and {path!r}")
            found[new], old[new] = part, path
    return found, old


def _trees(what: str, node: Any, path: str) -> Iterator[str]:
    """Paths in a state where trees of parameters begin: at fields of its named tuples."""
    if isinstance(node, (AdaGCState, PercentileState, ZScoreState)) and node.count.shape[0] > 1:
        rows = f"the state at {path.removesuffix('/')!r} has one row per parameter, whose order rename would change"
        raise ValueError(f"{what}: {rows}; drop this part and use its initial state")
    children = _children(node) if _is_state(node) else None
    if children is None:
        yield path
    for key, child in children or ():
        yield from _trees(what, child, f"{path}{key}/")


def _is_state(node: Any) -> bool:
    """Whether a node is a named tuple, or a container of named tuples only."""
    children = _children(node)
    return hasattr(node, "_fields") or (children is not None and all(_is_state(child) for _, child in children))


def _children(node: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(node, (tuple, list)):
        return list(zip(getattr(node, "_fields", range(len(node))), node, strict=True))
    return list(node.items()) if isinstance(node, dict) else None


def _axes_that_fit(shape: Sequence[int], wanted: Sequence[int | None] | None) -> str:
    """Suggest transpositions that turn one shape into another."""
    if wanted is None or Counter(shape) != Counter(wanted) or len(shape) > 5:
        return ""
    orders = itertools.permutations(range(len(shape)))
    found = [order for order in orders if tuple(shape[axis] for axis in order) == tuple(wanted)]
    return "; in rename, " + " or ".join(f"array.transpose{order}" for order in found[:2]) + " has that shape"
