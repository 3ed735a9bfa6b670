"""Add weight decay or noise to gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend.protocol import places_of
from gradxform.core import align, arguments
from gradxform.core.arguments import Scalar, limit, number
from gradxform.core.factory import factory
from gradxform.core.group import devices_of
from gradxform.core.state import advanced, between
from gradxform.core.transform import Context, GradientTransformation, stateful, stateless
from gradxform.core.tree import Tree
from gradxform.core.where import keys_of
from gradxform.numerics import Array, dtype_name
from gradxform.numerics import random as threefry
from gradxform.numerics.elementwise import weighted


@factory(weight_decay=number)
def add_decayed_weights(weight_decay: Scalar, *, cautious: bool = False) -> GradientTransformation:
    r"""Add ``weight_decay`` times the parameter to each gradient.

    Each gradient g with parameter p becomes ``g + weight_decay * p``:

    .. math:: g_i \leftarrow g_i + \lambda \, p_i

    With `cautious`, an element decays only where that does not work against its update, that is, where update and decay
    have the same sign or one of them is zero:

    .. math:: u_i \leftarrow u_i + \lambda \, p_i \, [\lambda \, p_i u_i \ge 0]

    Place it after the optimizer's own transform. With the minus sign in the updates, `weight_decay` is negative as
    always, and the same elements decay. Elements that do not decay keep every bit. A sparse gradient becomes dense,
    since every element of its parameter may decay.

    Args:
        weight_decay: Factor :math:`\lambda`, in gradient units per parameter unit: a number, a 0-d array or a schedule.
        cautious: Whether only parameters decay whose sign agrees with the update's.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype; real ones if `cautious`. Its
        `update` needs the parameters.

    Raises:
        TypeError: `weight_decay` is not a number. On use: a gradient is integer, or complex with `cautious`; the
            message gives its path.
        ValueError: `weight_decay` is NaN. On use: parameters are missing or have another structure.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.add_decayed_weights(0.1)([np.array([1.0])], params=[np.array([5.0])])
        [array([1.5])]
        >>> gx.add_decayed_weights(0.1, cautious=True)([np.array([1.0, -1.0])], params=[np.array([5.0, 5.0])])
        [array([ 1.5, -1. ])]

    References:
        Hoerl and Kennard, Ridge regression, 1970; Loshchilov and Hutter, Decoupled weight decay regularization, 2019;
        Chen et al., Cautious weight decay, 2025; ``optax.add_decayed_weights``.
    """

    def rule(g: Tree, context: Context) -> Tree:
        if cautious:
            g.check_real("add_decayed_weights(..., cautious=True)", "a complex number has no sign")
        dense = g.dense()
        params = align.beside(dense, context.params, "add_decayed_weights", "parameters")
        if cautious:
            return dense.written(_decayed_cautiously, params, numbers=[weight_decay])
        return dense.written(weighted, params, numbers=[None, weight_decay])

    return stateless(rule, needs=("params",), stage="decay")


_LARGE = {"float32": 2.0**127, "float64": 2.0**1023}
"""By these, products of two normal numbers are not zero."""


def _decayed_cautiously(xp: Any, x: Array, param: Array, weight_decay: Array) -> Array:
    dtype = dtype_name(x)
    param, large = xp.cast(param, dtype), xp.sign(weight_decay) * _LARGE[dtype]
    # One comparison: XLA vectorizes no more in short inner axes. One constant: it joins those of two factors.
    opposed = (x * large) * param < 0.0
    return xp.where(opposed, x, x + weight_decay * param)


class NoiseState(NamedTuple):
    """State of `add_noise`: the step count."""

    count: Any


@factory(stddev=limit)
def add_noise(stddev: Scalar, seed: int) -> GradientTransformation:
    r"""Add normally distributed noise to each gradient.

    Each element g becomes ``g + stddev * z``, with z from the standard normal distribution:

    .. math:: g_i \leftarrow g_i + \sigma z, \quad z \sim \mathcal{N}(0, 1)

    The noise depends only on seed, step, path and element index, through the counter-based generator Threefry-2x32. One
    seed gives the same noise in every framework, eager and compiled, and a resumed run continues it. A trailing number
    in a first key that all paths share is ignored, because Keras names a second model "sequential_1". A `Sequential`
    of Keras that is loaded has paths without the model's name, and so other noise.

    Args:
        stddev: Standard deviation :math:`\sigma`, in the gradient's units: a number, a 0-d array or a schedule. The
            paper uses ``lambda t: (0.3 / (1 + t) ** 0.55) ** 0.5``.
        seed: Integer of at most 64 bits. Give each `add_noise` in a chain its own.

    Returns:
        A transform for gradients of any shape and real floating dtype. The state is a counter.

    Raises:
        TypeError: `stddev` is not a number, or `seed` is not an int. On use: a gradient is complex or integer; the
            message gives its path.
        ValueError: `stddev` is negative or NaN, or `seed` has more than 64 bits.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.add_noise(0.1, seed=0)
        >>> updates, state = tx.update({"w": np.zeros(2)}, tx.init({"w": np.zeros(2)}))
        >>> updates["w"].round(4)
        array([-0.0574,  0.029 ])

    References:
        Neelakantan et al., Adding gradient noise improves learning for very deep networks, 2015;
        Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011.
    """
    key = arguments.seed("add_noise", seed)

    def rule(g: Tree, state: NoiseState, _: Context) -> tuple[Tree, NoiseState]:
        g.check_real("add_noise", "noise is added to real numbers")
        dense, compute = g.dense(), g.backend.compute
        names = _names(keys_of(dense.source.find_paths()))  # no two leaves get the same noise
        words = [_words(names[dense.source.kept[i]]) for i in dense.chosen]
        streams: list[list[Any]] = [[None] * len(words), [None] * len(words)]
        for places, some in _by_place(dense).items():
            given = tuple(word for part in zip(*(words[i] for i in some), strict=True) for word in part)
            indices = [devices_of(g.backend, axis).axis_index(axis) for axis in places]
            keys = compute(_keys, state.count, *indices, seed=key, words=given)
            with g.backend.scope():
                for rank, i in enumerate(some):
                    for key_part, stream in zip(keys, streams, strict=True):
                        on_host = isinstance(key_part, np.ndarray)
                        stream[i] = key_part[rank] if on_host else g.backend.xp.take(key_part, rank)
        noised = dense.written(_noised, *streams, numbers=[between(g, stddev, 0.0, math.inf)], index=_index)
        return noised, NoiseState(advanced(g, state.count))

    return stateful(NoiseState, rule, lambda fresh: NoiseState(fresh.count()), stage="noise")


def _names(paths: Sequence[str]) -> Sequence[str]:
    """Paths, without the number in a shared first key: Keras numbers a program's models."""
    first, *others = dict.fromkeys([path.partition("/")[0] for path in paths])
    name = first.rstrip("0123456789")
    if others or name == first or name[-1:] != "_" or not all(["/" in path for path in paths]):
        return paths
    return [name[:-1] + path[len(first) :] for path in paths]


def _words(path: str) -> tuple[int, int]:
    """Hash a path to two 32-bit words: FNV-1a of its characters."""
    found = 0xCBF29CE484222325
    for character in path:
        found = ((found ^ ord(character)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return found >> 32, found & 0xFFFFFFFF


def _by_place(g: Tree) -> dict[tuple[Any, ...], list[int]]:
    """Group active leaves, by rank, that have the same axes along which each device draws for itself."""
    slots = [g.source.kept[i] for i in g.chosen]
    return places_of([tuple([x.axis for x in g.groups if slot not in (x.replicated or ())]) for slot in slots])


def _keys(xp: Any, step: Array, *places: Array, seed: tuple[int, int], words: tuple[int, ...]) -> tuple[Array, Array]:
    """Key of each leaf: a vector of first words and one of second words.

    With the device's positions along axes, the keys differ by device.
    """
    # In halves, which float32 holds.
    halves = [float(word >> 16) for word in words], [float(word & 0xFFFF) for word in words]
    high, low = (xp.int32(xp.stack(half)) for half in halves)
    both, count = xp.shift_left(high, 16) + low, len(words) // 2
    step = xp.int32(step)
    of_step = threefry.block(xp, *seed, step * 0, step)
    found = threefry.block(xp, *of_step, *(xp.take(both, tuple(range(i, i + count))) for i in (0, count)))
    for place in places:
        found = threefry.block(xp, *found, found[0] * 0, found[0] * 0 + xp.int32(place))
    return found


def _index(xp: Any, x: Array) -> Array:
    return xp.iota(x)


def _noised(
    xp: Any, x: Array, first: Array, second: Array, stddev: Array, index: Callable[[Any, Array], Array]
) -> Array:
    # XLA of JAX 0.12 would compute a key anew for each use of each round, and compile for minutes at least.
    key = xp.apart((xp.int32(first), xp.int32(second)))
    return x + stddev * xp.cast(threefry.normal(xp, key, index(xp, x)), dtype_name(x))
