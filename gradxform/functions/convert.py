"""States that go from one framework to another, by way of NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.functions.former import former
from gradxform.functions.renaming import Rename, axes_that_fit, renamed
from gradxform.numerics import Array


def to_numpy(state: Any, *, by_path: bool = False) -> Any:
    """A state as NumPy arrays, to be saved, or to go on with in another framework.

    Args:
        state: the state of any transformation, or any tree of arrays of one framework, on any devices. One of DTensors
            is gathered: call it in every process.
        by_path: whether to give a flat dict from path to array, as files hold them: ``np.savez(file, **arrays)``.

    Returns:
        The same tree, of NumPy arrays of the same shapes and dtypes with memory of their own, bfloat16 as that of
        ml_dtypes. It is a state itself, of gradients that are NumPy's.

    Raises:
        TypeError: a leaf without values (traced, or symbolic), or one that NumPy cannot hold; names the path.
        ValueError: by path, two leaves of one path.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradxform as gx
        >>> tx = gx.trace(0.5)
        >>> _, state = tx.update({"w": jnp.array([2.0, 4.0])}, tx.init({"w": jnp.zeros(2)}))
        >>> gx.to_numpy(state)
        TraceState(trace={'w': array([2., 4.], dtype=float32)})
        >>> gx.to_numpy(state, by_path=True)
        {'trace/w': array([2., 4.], dtype=float32)}

    Source:
        ``flax.serialization.to_state_dict``.
    """
    backend, (leaves, structure) = lookup.opened(state)
    if backend is None:
        return {} if by_path else state
    paths = backend.paths(state)
    found = [
        None if leaf is None else np.array(_values("to_numpy", path, leaf))
        for path, leaf in zip(paths, leaves, strict=True)
    ]
    return _by_path("to_numpy", paths, found) if by_path else backend.unflatten(structure, found)


def _by_path(what: str, paths: Sequence[str], leaves: Sequence[Any]) -> dict[str, Any]:
    found = {path: leaf for path, leaf in zip(paths, leaves, strict=True) if leaf is not None}
    if len(found) < sum(leaf is not None for leaf in leaves):
        raise ValueError(f"{what}: two leaves of the state have one path; a key of a dict holds a '/'")
    return found


def _values(what: str, path: str, leaf: Any) -> Any:
    """A leaf as a NumPy array."""
    own = lookup.owner(leaf)
    try:
        found = np.asarray(leaf if own is None else own.to_numpy(leaf))
    except Exception as error:
        raise TypeError(
            f"{what}: the leaf at {path!r} has no values for NumPy: {leaf!r:.100}. Call it outside of compiled code; "
            "of a random key of JAX, keep jax.random.key_data"
        ) from error
    if found.dtype.kind in "OSU":
        raise TypeError(f"{what}: the leaf at {path!r} is no array of numbers: {leaf!r:.100}")
    return found


def from_numpy(state: Any, like: Any, rename: Rename | None = None) -> Any:
    """A state that was saved, or made in another framework, as one to go on with here.

    The leaves find their places by their paths: a nested dict and one whose keys are joined by "/" are alike, and so
    are dicts in two orders. So what NumPy has loaded from an ``.npz`` of paths is a state too.

    Args:
        state: what `to_numpy` gave; or a mapping from path to array.
        like: the state to take the place of, such as the ``tx.init(params)`` of the same transformation here: it gives
            the structure, the framework, the dtypes and the devices. Or one array, for a state of the same structure in
            its framework and on its device.
        rename: a function of a parameter's path, without what precedes it in a state, and its NumPy array. It returns
            a dict from new paths to new arrays: one, several if the array is split, or none to leave it out. Counts and
            other fields of a state stay as they are. For PyTorch's names there is `rename_from_torch`.

    Returns:
        A tree of arrays of the framework of `like`.

    Raises:
        TypeError: a `like` without arrays while the state has some; a leaf that is no array; a `rename` that returns no
            dict.
        ValueError: leaves that only one of the two has, that differ in shape, or whose values the dtype of `like`
            cannot hold; names the paths, and what they were before `rename`. Two leaves that `rename` leads to one
            path, or a table with a row for each parameter to be renamed (`per_leaf`).

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

    Source:
        ``flax.serialization.from_state_dict``.
    """
    return matched("from_numpy", state, like, rename)


def matched(what: str, state: Any, like: Any, rename: Rename | None = None) -> Any:
    """A state in the place of another, for an adapter whose name errors begin with."""
    given = _opened(what, state)
    old: dict[str, str] = {}
    backend, (likes, structure) = lookup.opened(like)
    if backend is None:
        if given:
            raise TypeError(f"{what}: like has no arrays ({like!r:.80}), and the state has {_some(list(given))}")
        return like
    if rename is not None:
        if not callable(rename):
            raise TypeError(f"{what}: rename must be a function of path and array, got {rename!r:.80}")
        if likes[0] is like:
            raise TypeError(f"{what}: rename needs a like with paths, such as tx.init(params), not one array")
        arrays = {path: _values(what, path, leaf) for path, leaf in given.items()}
        given, old = renamed(what, arrays, like, rename)
    if len(likes) == 1 and likes[0] is like:
        own, (leaves, structure) = lookup.opened(state)
        new = [None if leaf is None else backend.placed(_values(what, "", leaf), like) for leaf in leaves]
        return state if own is None else own.unflatten(structure, new)
    paths = backend.paths(like)
    places = list(zip(paths, likes, strict=True))
    for path, before in former(paths).items():
        if before in given:
            given.setdefault(path, given.pop(before))
    _check_paths(what, list(given), [path for path, leaf in places if leaf is not None], old)
    new = [None if leaf is None else _like(what, backend, path, given[path], leaf, old) for path, leaf in places]
    return backend.unflatten(structure, new)


def _opened(what: str, state: Any) -> dict[str, Any]:
    """The leaves of a state by their paths."""
    if isinstance(state, Mapping) and not isinstance(state, dict):
        state = dict(state)  # an .npz that NumPy has opened
    try:
        backend, (leaves, _) = lookup.opened(state)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from error
    return {} if backend is None else _by_path(what, backend.paths(state), leaves)


def _check_paths(what: str, given: Sequence[str], wanted: Sequence[str], old: Mapping[str, str]) -> None:
    missing, strange = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing or strange:
        parts = [
            f"{what} {_some(paths, old)}"
            for what, paths in (("the state lacks", missing), ("like has no", strange))
            if paths
        ]
        raise ValueError(
            f"{what}: {'; '.join(parts)}. like must be the state of the same transformation, for parameters of the "
            "same paths: tx.init(params)"
            + (". A function rename" if what == "from_numpy" else "; gx.from_numpy(state, like, rename)")
            + " leads other paths to them"
        )


def _some(paths: Sequence[str], old: Mapping[str, str] = MappingProxyType({})) -> str:
    shown = ", ".join(_named(path, old) for path in paths[:5])
    return shown + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _named(path: str, old: Mapping[str, str]) -> str:
    """A path, and what it was before it was renamed."""
    return repr(path) if old.get(path, path) == path else f"{path!r} (from {old[path]!r})"


def _like(what: str, backend: Backend, path: str, leaf: Any, like: Array, old: Mapping[str, str]) -> Any:
    """A leaf with the dtype of another, where that is."""
    array, number = _values(what, path, leaf), lookup.owner(like) is None
    shape = () if number else backend.shape(like)
    dtype = np.asarray(like).dtype if number else _dtype((lookup.owner(like) or backend).dtype(like))
    if array.shape != shape:
        raise ValueError(
            f"{what}: the leaf at {_named(path, old)} has shape {array.shape}, and like has {shape} there"
            f"{axes_that_fit(array.shape, shape)}"
        )
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and dtype.name == "bfloat16":
        array = array.view(dtype)  # as NumPy loads them
    with np.errstate(all="ignore"):
        cast = array.astype(dtype, order="C") if _kind(array.dtype) == _kind(dtype) else None
    if cast is None or not _is_same(array, cast):
        raise ValueError(
            f"{what}: the leaf at {path!r} is {array.dtype}, and like has {dtype} there, which cannot hold its values"
        )
    if number:
        return type(like)(cast.item())
    return (lookup.owner(like) or backend).placed(cast, like)  # NumPy's numbers, where there were no parameters


def _kind(dtype: np.dtype[Any]) -> str:
    """Bools, integers, real numbers or complex ones."""
    return {"u": "i", "V": "f"}.get(dtype.kind, dtype.kind)


def _is_same(array: Any, cast: Any) -> bool:
    """Whether integers are the same, and what is finite has stayed so."""
    if _kind(cast.dtype) in "bi":
        return bool(np.all(array == cast))
    return bool(np.all(np.isfinite(array) == np.isfinite(cast)))


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
