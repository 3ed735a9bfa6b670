"""Move states and parameters between frameworks, by way of NumPy."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.errors import misplaced, short
from gradxform.backend.protocol import Backend
from gradxform.functions import conventions, inspecting
from gradxform.numerics import Array
from gradxform.transforms.history import AdaGCState, PercentileState, ZScoreState

Rename = Callable[[str, Any], Mapping[str, Any]]
Shape = tuple[int, ...]
Move = Callable[[Any], Any]


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
    return inspecting.by_path("to_numpy", paths, found) if by_path else backend.unflatten(structure, found)


def values(what: str, path: str, leaf: Any) -> Any:
    """Convert a leaf to a NumPy array."""
    own = lookup.owner(leaf)
    try:
        found = np.asarray(leaf if own is None else own.to_numpy(leaf))
    except Exception as error:
        why = f"{str(error).partition(chr(10))[0]}; call it outside compiled code"
        advice = "of a JAX key, save jax.random.key_data(key)"
        raise TypeError(f"{what}: the leaf at {path!r} has no values for NumPy: {why}; {advice}") from error
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
            raise TypeError(f"{what}: like has no arrays ({like!r:.80}), but the state has {_some(list(given), old)}")
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
        new = [None if leaf is None else backend.from_numpy(values(what, "", leaf), like) for leaf in leaves]
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
    return {} if backend is None else inspecting.by_path(what, backend.paths(state), leaves)


def _check_paths(what: str, given: Sequence[str], wanted: Sequence[str], old: Mapping[str, str]) -> None:
    missing, strange = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if not (missing or strange):
        return
    lists = (("the state lacks", missing), ("there is no place for", strange))
    found = "; ".join([f"{text} {_some(paths, old)}" for text, paths in lists if paths])
    one, other = ({path.lstrip("0123456789").removeprefix("/") for path in paths} for _, paths in lists)
    hint = "; gx.identity() keeps a place in a chain" if one & other else ""
    own = "The state and like=tx.init(params) must be of the same transform and parameters"
    raise ValueError(
        f"{what}: {found}. {own}. If paths differ, convert them with gx.from_numpy(state, like, rename){hint}"
    )


def _some(paths: Sequence[str], old: Mapping[str, str]) -> str:
    shown = ", ".join(_named(path, old) for path in paths[:5])
    return shown + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _named(path: str, old: Mapping[str, str]) -> str:
    """A path, and its name before renaming."""
    return repr(path) if old.get(path, path) == path else f"{path!r} (from {old[path]!r})"


def _like(what: str, backend: Backend, path: str, leaf: Any, like: Array, old: Mapping[str, str]) -> Any:
    """Cast a leaf to another one's dtype, and place it on the same device."""
    array, owner = values(what, path, leaf), lookup.owner(like)  # None of a number
    shape = () if owner is None else backend.shape(like)
    dtype = (np.asarray(like) if owner is None else lookup.backend("numpy").xp.cast(0, owner.dtype(like))).dtype
    if array.shape != shape:
        hint = _axes_that_fit(array.shape, shape)
        where = f"the leaf at {_named(path, old)} has shape {array.shape}"
        raise ValueError(f"{what}: {where}, but its place has {shape}{hint}")
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and dtype.name == "bfloat16":
        array = array.view(dtype)  # NumPy loads bfloat16 as raw bytes
    with np.errstate(all="ignore"):
        cast = array.astype(dtype, order="C") if _kind(array.dtype) == _kind(dtype) else None
    if cast is None or not _is_same(array, cast):
        raise ValueError(f"{what}: the leaf at {path!r} is {array.dtype}, whose values {dtype} cannot hold")
    return type(like)(cast.item()) if owner is None else owner.from_numpy(cast, like)


def _kind(dtype: np.dtype[Any]) -> str:
    """Kind of a dtype: bool, integer, real or complex."""
    return {"u": "i", "V": "f"}.get(dtype.kind, dtype.kind)


def _is_same(array: Any, cast: Any) -> bool:
    """Whether integers are equal, and finite numbers are still finite."""
    if _kind(cast.dtype) in "bi":
        return bool(np.all(array == cast))
    return bool(np.all(np.isfinite(array) == np.isfinite(cast)))


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
    orders = itertools.permutations(range(len(shape))) if wanted is not None and len(shape) < 6 else ()
    found = [f"array.transpose{order}" for order in orders if [shape[axis] for axis in order] == list(wanted or ())]
    return f"; in rename, {' or '.join(found[:2])} has that shape" if found else ""


# --- parameters of PyTorch -------------------------------------------------------------------------------------------


def rename_from_torch(params: Any, modules: Mapping[str, str] | None = None) -> Rename:
    """Make a `rename` for `from_numpy` that maps PyTorch parameters to Flax (nnx, linen) or Keras.

    The new name decides the layout, never the shape. A ``kernel`` is transposed from (out, in, ...) to (..., in, out);
    an ``embedding``, ``embeddings``, ``scale`` or ``gamma`` is not. Paths that `params` also has stay.

    Supported: Linear, convolutions, Embedding, LayerNorm, BatchNorm with statistics, GroupNorm, and MultiheadAttention,
    whose joint projection is split into query, key and value by heads. Not supported: recurrent layers, and Flax's
    transposed convolutions without ``transpose_kernel=True``. For these, write your own function that calls this one
    for all other paths.

    Args:
        params: Parameters of the new model, for paths and shapes: ``nnx.state(model, nnx.Param)``, linen variables or
            one of their collections, or a Keras dict ``{v.path: v for v in model.weights}``.
        modules: Mapping from a PyTorch module, ``"encoder.0"``, to the path of the new layer, ``"net/encoder_0"``,
            where names differ. It covers everything inside the module; ``""`` is the whole model.

    Returns:
        A function of path and array that returns a dict from new paths to arrays.

    Raises:
        TypeError: a model in the place of its parameters, `modules` that are no mapping.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> params = {"fc": {"kernel": np.zeros((2, 1)), "bias": np.zeros(1)}}
        >>> rename = gx.rename_from_torch(params, modules={"0": "fc"})
        >>> rename("0.weight", np.array([[3.0, 4.0]]))
        {'fc/kernel': array([[3.],
               [4.]])}

    References:
        The layouts of `torch.nn.Linear`, ``flax.nnx.Linear``, ``keras.layers.Dense`` and similar layers.
    """
    if isinstance(params, str):  # as from_numpy calls a rename
        raise TypeError("rename_from_torch makes a rename: write rename=gx.rename_from_torch(params of the new model)")
    if modules is not None and not isinstance(modules, Mapping):
        must = "a dict from names in PyTorch to new paths, such as {'0': 'fc'}"
        raise TypeError(f"rename_from_torch: modules must be {must}, got {short(modules)}")
    places = _places(params)
    shapes = {path: shape for path, (_, shape) in places.items()}
    table: dict[str, dict[str, Move]] = {}
    for path, (place, _) in places.items():
        for source, move in _sources(path, shapes):
            table.setdefault(source, {})[place] = move
    names = sorted((name.replace(".", "/"), new) for name, new in (modules or {}).items())

    def rename(path: str, array: Any) -> dict[str, Any]:
        path = _in_its_place(path.replace(".", "/"), names)
        if path.rpartition("/")[2] == "num_batches_tracked":
            return {}
        moves = table.get(path, {path: _same})
        return {new: move(array) for new, move in moves.items()}

    return rename


def _places(params: Any) -> dict[str, tuple[str, Shape]]:
    """Path and shape of each parameter, by path without a linen collection."""
    try:
        backend, (leaves, _) = lookup.opened(params)
    except TypeError:
        if (found := misplaced(params)) is None:
            raise
        how = "nnx.state(model, nnx.Param), model.init(key, inputs) of linen, or {v.path: v for v in model.weights}"
        got = f"got {found[0]} ({type(params).__name__}); of the new model, in Flax or Keras, write {how}"
        raise TypeError(f"rename_from_torch: expected parameters by path, {got}") from None
    if backend is None:
        return {}
    pairs = zip(backend.paths(params), leaves, strict=True)
    shapes = {path: tuple(leaf.shape) for path, leaf in pairs if leaf is not None}
    linen = {path.partition("/")[0] for path in shapes} <= conventions.COLLECTIONS
    return {path.partition("/")[2] if linen else path: (path, shape) for path, shape in shapes.items()}


def _in_its_place(path: str, names: Sequence[tuple[str, str]]) -> str:
    """Map a path by the longest module name that it begins with."""
    for old, new in reversed(names):
        if not old or path == old or path.startswith(f"{old}/"):
            return f"{new}/{path[len(old) :].strip('/')}".strip("/")
    return path


def _sources(path: str, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Move]]:
    """Possible PyTorch paths of a parameter, each with the conversion of its array."""
    module, slash, name = path.rpartition("/")
    own, part = conventions.TORCH.get(name, name), module.rpartition("/")[2]
    attention = module.removesuffix(part)
    ranks = {key: len(shapes.get(f"{attention}{key}/kernel", ())) for key in (*conventions.THIRDS, *conventions.OUT)}
    heads = {key for key, rank in ranks.items() if rank == 3}
    if name in ("kernel", "bias") and part in ranks and heads.issuperset(conventions.THIRDS) and len(heads) > 3:
        move = functools.partial(_in_heads, shape=shapes[path])
        yield f"{attention}{part}/{own}", move
        if part in conventions.OUT:
            yield f"{attention}out_proj/{own}", move
        else:
            yield f"{attention}in_proj_{own}", functools.partial(move, third=conventions.THIRDS.index(part))
            if own == "weight":  # where keys or values have a width of their own
                yield f"{attention}{part[0]}_proj_weight", move
        return
    yield path, _same
    if (other := f"{module}{slash}{own}") not in shapes:
        yield other, _transposed if name == "kernel" else _same


def _in_heads(array: Any, shape: Shape, third: int | None = None) -> Any:
    """Reshape a projection, or a third of the joint one, from (out, in) to heads."""
    if third is not None:
        rows = len(array) // 3
        array = array[third * rows : (third + 1) * rows]
    return array.T.reshape(shape) if array.size == math.prod(shape) else array.T


def _transposed(array: Any) -> Any:
    """Transpose (out, in, ...) to (..., in, out)."""
    return array.transpose(conventions.to_kernel(array.ndim)) if array.ndim > 1 else array


def _same(array: Any) -> Any:
    return array
