"""Translate PyTorch's parameter names and layouts to Flax and Keras."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradxform.backend import lookup
from gradxform.backend.errors import misplaced, short
from gradxform.functions import conventions
from gradxform.functions.convert import Rename

Shape = tuple[int, ...]
Move = Callable[[Any], Any]

_MODELS = {
    "a Flax NNX module": "write nnx.state(model, nnx.Param)",
    "a Flax module": "write model.init(key, inputs)",
    "a Keras model or layer": "write {v.path: v for v in model.weights}",
    "a PyTorch model": "write those of the new one, in Flax or Keras",
}
"""What to write instead of a model."""


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
        found = misplaced(params)
        advice = None if found is None else _MODELS.get(found.what)
        if found is None or advice is None:
            raise
        got = f"got {found.what} ({type(params).__name__}); {advice}"
        raise TypeError(f"rename_from_torch: expected the parameters of the new model by path, {got}") from None
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
    module, name = _parted(path)
    attention, part = _parted(module.removesuffix("/"))
    if name in ("kernel", "bias") and part in (*conventions.THIRDS, *conventions.OUT) and _has_heads(attention, shapes):
        yield from _of_attention(attention, part, name, shapes[path])
        return
    yield path, _same
    other = module + conventions.TORCH.get(name, name)
    if other not in shapes:
        yield other, _transposed if name == "kernel" else _same


def _parted(path: str) -> tuple[str, str]:
    """Split a path at its last slash."""
    start, slash, key = path.rpartition("/")
    return start + slash, key


def _has_heads(attention: str, shapes: Mapping[str, Shape]) -> bool:
    """Whether a module has 3-d projections with an attention layer's names."""
    ranks = {part: len(shapes.get(f"{attention}{part}/kernel", ())) for part in (*conventions.THIRDS, *conventions.OUT)}
    return all(ranks[part] == 3 for part in conventions.THIRDS) and any(ranks[part] == 3 for part in conventions.OUT)


def _of_attention(attention: str, part: str, name: str, shape: Shape) -> Iterator[tuple[str, Move]]:
    own = {"kernel": "weight"}.get(name, name)
    move = functools.partial(_in_heads, shape=shape)
    yield f"{attention}{part}/{own}", move
    if part in conventions.OUT:
        yield f"{attention}out_proj/{own}", move
        return
    yield f"{attention}in_proj_{own}", functools.partial(_in_heads, shape=shape, third=conventions.THIRDS.index(part))
    if own == "weight":  # where keys or values have a width of their own
        yield f"{attention}{part[0]}_proj_weight", move


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
