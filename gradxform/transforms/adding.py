"""Transforms that add to gradients: weight decay and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradxform.core import arguments, elements
from gradxform.core import state as stateful
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.flat import Flat
from gradxform.core.keeping import keeping
from gradxform.core.transformation import Context, GradientTransformation
from gradxform.numerics import Array, formulas
from gradxform.numerics import random as threefry
from gradxform.numerics.elementary import Functions
from gradxform.numerics.elementwise import Combination
from gradxform.numerics.formats import FLOAT64, base


@factory
def add_decayed_weights(weight_decay: Scalar) -> GradientTransformation:
    r"""Add to each gradient its parameter times ``weight_decay``.

    .. math:: g_i \leftarrow g_i + \lambda \, p_i

    The sum is rounded once. A sparse gradient becomes dense, since each of its parameter's elements decays.

    Args:
        weight_decay: the factor :math:`\lambda`, in the gradient's units over the parameter's; a number, a 0-d array or
            a schedule.

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype; its `update` needs the
        parameters.

    Raises:
        TypeError: a factor that is no number; on use, an integer gradient, named by its path.
        ValueError: a NaN factor; on use, no parameters, or parameters of another structure.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.add_decayed_weights(0.1)([np.array([1.0])], params=[np.array([5.0])])
        [array([1.5])]

    References:
        Hoerl and Kennard, Ridge regression, 1970; Loshchilov and Hutter, Decoupled weight decay regularization, 2019;
        ``optax.add_decayed_weights``.
    """
    a = arguments.number("add_decayed_weights", "weight_decay", weight_decay)

    def rule(g: Flat, state: Any, context: Context) -> tuple[Flat, Any]:
        dense = g.dense()
        params = elements.params(dense, context.params, "add_decayed_weights")
        return elements.written(dense, _decayed, params, numbers=[a]), state

    return GradientTransformation(rule)


_decayed = Combination(lambda xp, weight_decay: (1.0, weight_decay))


class NoiseState(NamedTuple):
    """The state of `add_noise`: the step."""

    count: Any


@factory
def add_noise(stddev: Scalar, seed: int) -> GradientTransformation:
    r"""Add normal noise to each gradient.

    .. math:: g_i \leftarrow g_i + \sigma z, \quad z \sim \mathcal{N}(0, 1)

    The random bits come from the counter-based generator Threefry-2x32: from the seed, the step, the gradient's path
    and the number of its element, and from nothing else. So one seed gives the same noise in every framework, eager and
    compiled, and a run that is resumed goes on as it would have. Of a first key that all paths share, a number at the
    end does not count: to Keras, the second model of a program is "sequential_1".

    Args:
        stddev: the standard deviation, in the gradient's units; a number, a 0-d array or a schedule. The paper's is
            ``lambda t: (0.3 / (1 + t) ** 0.55) ** 0.5``.
        seed: an integer of at most 64 bits; two of these transforms in one chain need two seeds.

    Returns:
        A transformation of gradients of any shape and real floating dtype; its state is a counter.

    Raises:
        TypeError: a deviation that is no number, a seed that is no int; on use, a complex or an integer gradient, named
            by its path.
        ValueError: a negative or NaN deviation, a seed of more than 64 bits.

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
    s = arguments.limit("add_noise", "stddev", stddev)
    key = arguments.seed("add_noise", seed)

    def rule(g: Flat, state: NoiseState, _: Context) -> tuple[Flat, NoiseState]:
        elements.check_real(g, "add_noise", "noise is added to real numbers")
        dense, compute = g.dense(), g.backend.compute
        names = _names(dense.source.find_paths())
        words = [_words(names[dense.source.kept[i]]) for i in dense.chosen]
        streams: list[list[Any]] = [[None] * len(words), [None] * len(words)]
        for places, some in _by_place(dense).items():
            given = tuple(zip(*(words[i] for i in some), strict=True))
            keys = compute(_keys, state.count, *(g.backend.axis_index(axis) for axis in places), seed=key, words=given)
            for rank, i in enumerate(some):
                for part, stream in enumerate(streams):
                    stream[i] = compute(formulas.take, keys, index=part * len(some) + rank)
        noised = elements.written(dense, _noised, *streams, numbers=[stateful.between(g, s, 0.0, math.inf)])
        return noised, NoiseState(stateful.advanced(g, state.count))

    return keeping("add_noise", NoiseState, rule, lambda params: NoiseState(stateful.Fresh(params).count()))


def _names(paths: Sequence[str]) -> Sequence[str]:
    """The paths; without the number in a first key that all share, since Keras numbers the models of a program."""
    first, *others = dict.fromkeys([path.partition("/")[0] for path in paths])
    name = first.rstrip("0123456789")
    if others or name == first or name[-1:] != "_" or not all(["/" in path for path in paths]):
        return paths
    return [name[:-1] + path[len(first) :] for path in paths]


def _words(path: str) -> tuple[float, float]:
    """Two words of 32 bits for a path: FNV-1a of its characters."""
    found = 0xCBF29CE484222325
    for character in path:
        found = ((found ^ ord(character)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return float(found >> 32), float(found & 0xFFFFFFFF)


def _by_place(g: Flat) -> dict[tuple[Any, ...], list[int]]:
    """The active leaves, by their ranks, that have the same axes along which each device draws for itself."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for rank, i in enumerate(g.chosen):
        slot = g.source.kept[i]
        axes = tuple(group.axis for group in g.groups if not group.replicated_of([slot])[0])
        found.setdefault(axes, []).append(rank)
    return found


def _keys(
    xp: Any, step: Array, *places: Array, seed: tuple[int, int], words: tuple[tuple[float, ...], tuple[float, ...]]
) -> Array:
    """The two words of each leaf's key in float64, all first words before all second ones.

    With the places of this device along axes, the keys are its own.
    """
    plain, step = getattr(xp, "xp", xp), xp.int32(step)
    of_step = threefry.block(plain, *seed, step * 0, step)
    found = threefry.block(plain, *of_step, *(xp.int32(xp.stack(w)) for w in words))
    for place in places:
        found = threefry.block(plain, *found, found[0] * 0, found[0] * 0 + xp.int32(place))
    stacked = plain.stack(found)
    return plain.reshape(plain.float64(stacked) if xp is plain else stacked, (-1,))


def _noised(xp: Any, x: Array, first: Array, second: Array, stddev: Array) -> Array:
    plain = getattr(xp, "xp", xp)
    if base(plain) is not FLOAT64 and xp is plain:  # to which pairs leave what is not finite alone
        return x + 0.0 * stddev
    key, numbers = (xp.int32(first), xp.int32(second)), plain.iota(getattr(x, "high", x))
    space = plain if base(plain) is FLOAT64 else Functions(plain)  # normal numbers in float64 need no pairs
    normal = threefry.normal(space, key, numbers)
    return x + stddev * (normal if plain is xp else xp.number(normal))
