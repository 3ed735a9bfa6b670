"""Reproduce other libraries' clips, formula by formula and rounding by rounding, to port a run.

A formula is computed in float64 and rounded where the library rounds. For arrays of the library's own framework the
norm is the library's own, unless it is wrong; otherwise it is the accurate norm.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.core.flat import Flat
from gradxform.numerics import Array, formulas
from gradxform.transforms import dtypes as of

_EPSILON = 1e-6
_LEAST = {"float64": 2.0**-1022, "float16": 2.0**-14}
"""Smallest normal number of a dtype; other dtypes use float32's."""
_WRONG = 1 / 16
"""Relative error above which a library's norm counts as lost to overflow, underflow or too few bits."""


# --- the formulas: xp, the norm n, the limit c, and r, which rounds to the dtype that the library computes in --------


class _Rounding:
    """Round a number, or each number of a vector, to the dtype that a library computes in."""

    def __init__(self, xp: Any, dtypes: tuple[str, ...]) -> None:
        self.xp, self.dtypes = xp, dtypes

    def __call__(self, x: Array) -> Array:
        """Round to the dtypes themselves."""
        return formulas.rounded(self.xp, x, dtypes=self.dtypes)

    def wide(self, x: Array) -> Array:
        """Round to the dtypes of arithmetic with a Python number: at least float32."""
        return formulas.rounded(
            self.xp, x, dtypes=tuple("float64" if dtype == "float64" else "float32" for dtype in self.dtypes)
        )


def _rounding(formula: Callable[..., Array]) -> Callable[..., Array]:
    """Give a formula the dtypes to round to."""

    @functools.wraps(formula)
    def computed(xp: Any, n: Array, c: Array, *, dtypes: tuple[str, ...]) -> Array:
        r = _Rounding(xp, dtypes)
        return formula(xp, r(n), xp.where(c < 0.0, 0.0, c), r)

    return computed


@_rounding
def _tensorflow(xp: Any, n: Array, c: Array, r: Any) -> Array:
    c = r(c)
    return xp.where(xp.isfinite(n), r(c * _least(xp, r(_inverse(xp, n)), r(1.0 / c))), math.nan)


@_rounding
def _keras(xp: Any, n: Array, c: Array, r: Any) -> Array:
    inverse = r(1.0 / xp.rounded(c, "float64"))
    factor = xp.where(xp.isfinite(n), r(r(c) * _least(xp, r(_inverse(xp, n)), inverse)), math.nan)
    return xp.where(formulas.equal(r(c), 0.0), 1.0, factor)  # a limit of zero means no limit


@_rounding
def _torch(xp: Any, n: Array, c: Array, r: Any) -> Array:
    factor = r(r(1.0 / r(n + r.wide(_EPSILON))) * r.wide(c))
    return xp.where(factor > 1.0, 1.0, factor)


@_rounding
def _mlx(xp: Any, n: Array, c: Array, r: Any) -> Array:
    return _least(xp, r(r(c) / r(n + r(_EPSILON))), r(1.0))


@_rounding
def _paddle(xp: Any, n: Array, c: Array, r: Any) -> Array:
    return r(r(c) / _most(xp, n, r(c)))


@_rounding
def _paddle_each(xp: Any, n: Array, c: Array, r: Any) -> Array:
    epsilon = xp.where(n <= 1e-30, _EPSILON, 0.0)
    return xp.where(n <= r(c), 1.0 + 0.0 * r(c), r(r(c) / r(n + epsilon)))


@_rounding
def _optax(xp: Any, n: Array, c: Array, r: Any) -> Array:
    return xp.where(n < r(c), 1.0, r(c))


@_rounding
def _optax_divisor(xp: Any, n: Array, c: Array, r: Any) -> Array:
    return xp.where(n < r(c), 1.0, n)


@_rounding
def _limit_itself(xp: Any, n: Array, c: Array, r: Any) -> Array:
    return r(c)


@_rounding
def _larger(xp: Any, n: Array, c: Array, r: Any) -> Array:
    return _most(xp, n, r(c))


def _inverse(xp: Any, n: Array) -> Array:
    """1 / n; infinite at zero, with derivative zero."""
    return xp.where(n > 0.0, 1.0 / xp.where(n > 0.0, n, 1.0), xp.where(formulas.equal(n, 0.0), math.inf, n))


@_rounding
def _keras_each(xp: Any, n: Array, c: Array, r: Any) -> Array:
    return xp.where(formulas.equal(r(c), 0.0), 1.0, r(c))


@_rounding
def _keras_divisor(xp: Any, n: Array, c: Array, r: Any) -> Array:
    return xp.where(formulas.equal(r(c), 0.0), 1.0, _most(xp, n, r(c)))


def _least(xp: Any, a: Array, b: Array) -> Array:
    return xp.where(a < b, a, xp.where(a <= a, b, a))


def _most(xp: Any, a: Array, b: Array) -> Array:
    return xp.where(a > b, a, xp.where(a <= a, b, a))


# --- the libraries ---------------------------------------------------------------------------------------------------


class Peer(NamedTuple):
    """How a library's function clips: multiply each gradient by `factor`, and divide it by `divisor` if given."""

    function: str
    factor: Callable[..., Array]
    divisor: Callable[..., Array] | None = None
    divides_first: bool = False
    widens: tuple[str, ...] = ()
    """Gradient dtypes whose norm is computed in float32."""
    factor_in_dtype: bool = True
    """Whether the factor is rounded to the gradient's dtype before multiplying."""
    adds_norms: bool = False
    """Whether the total combines rounded norms of gradients instead of their sums of squares."""
    wide_norms: bool = False
    """Whether norms are computed in at least float32 and then rounded."""
    any_order: bool = False
    any_axes: bool = False


TOGETHER = {
    "tensorflow": Peer("tf.clip_by_global_norm", _tensorflow),
    "keras": Peer("keras global_clipnorm", _keras),
    "optax": Peer("optax.clip_by_global_norm", _optax, _optax_divisor, divides_first=True),
    "torch": Peer(
        "torch clip_grad_norm_", _torch, factor_in_dtype=False, adds_norms=True, wide_norms=True, any_order=True
    ),
    "mlx": Peer("mlx clip_grad_norm", _mlx, widens=("float16",), factor_in_dtype=False),
    "paddle": Peer("paddle ClipGradByGlobalNorm", _paddle, widens=("float16", "bfloat16")),
}
EACH = TOGETHER | {
    "tensorflow": Peer("tf.clip_by_norm", _limit_itself, _larger, any_axes=True),
    "keras": Peer("keras clipnorm", _keras_each, _keras_divisor),
    "paddle": Peer("paddle ClipGradByNorm", _paddle_each, widens=("float16", "bfloat16")),
}


def clip_global_norm(view: Flat, peer: Peer, max_norm: Any, ord: float) -> Flat:
    """Clip the active leaves together as a library does."""
    view = view.materialized()
    if not (view.chosen or view.groups):
        return view
    kinds: of.Kinds = (of.kind([view.backend.dtype(view.leaves[i]) for i in view.chosen], peer.widens),)
    if peer.adds_norms:
        norms = view.norms(ord)
        if view.leaves:
            norms = norms._replace(value=_right(view, peer, norms.value, ord, of.kinds(view, peer.widens)))
        norm = view.norm_of(view.common(norms, math.inf)[0] if norms.slots else norms, ord).value
    else:
        norm = view.global_norm(ord).value
    if not all(group.traced for group in view.groups):
        kinds = of.told(view, peer.widens)
    if not view.chosen:  # other devices wait for this one
        return view
    own = _own(view, peer, view.chosen, ord, None)
    return _limited(view, peer, _norm(view, peer, norm, own, ord, kinds), max_norm, kinds)


def clip_norm(view: Flat, peer: Peer, max_norm: Any, axes: tuple[int, ...] | None, ord: float) -> Flat:
    """Clip each active leaf, or each slice of it over some axes, as a library does."""
    view = view.materialized()
    if not view.chosen:
        if view.groups and axes is None:
            view.norms(ord)
        return view
    kinds = of.kinds(view, peer.widens)
    if axes is not None:
        return _limited_over(view, peer, max_norm, axes, kinds)
    own = [_own(view, peer, [i], ord, None) if active else 0.0 for i, active in enumerate(view.active)]
    vector = None if any(norm is None for norm in own) else view.backend.compute(formulas.stack, *own)
    return _limited(view, peer, _norm(view, peer, view.norms(ord).value, vector, ord, kinds), max_norm, kinds)


def _limited(view: Flat, peer: Peer, norm: Array, max_norm: Any, kinds: of.Kinds) -> Flat:
    factor = of.computed(view, peer.factor, norm, max_norm, dtypes=kinds)
    if peer.factor_in_dtype:
        factor = of.rounded(view, factor, of.kinds(view))
    if peer.divisor is None:
        return view.scaled(factor)
    divisor = of.computed(view, peer.divisor, norm, max_norm, dtypes=kinds)
    divisors = {i: view.backend.compute(formulas.take, divisor, index=i) for i in view.chosen}
    if peer.divides_first:
        return view.divided(divisors, peer.function).scaled(factor)
    return view.scaled(factor).divided(divisors, peer.function)


def _limited_over(view: Flat, peer: Peer, max_norm: Any, axes: tuple[int, ...], kinds: tuple[str, ...]) -> Flat:
    assert peer.divisor is not None
    view, divisors = view.slices(axes), {}
    for i in view.chosen:
        right = view.backend.norm_over(view.leaves[i], axes, 2.0)
        own = _own(view, peer, [i], 2.0, axes)
        norm = _norm(view, peer, right, own, 2.0, (kinds[i],))
        divisors[i] = of.computed(view, peer.divisor, norm, max_norm, dtypes=(kinds[i],))
    factor = of.computed(view, peer.factor, 1.0, max_norm, dtypes=kinds)
    return view.scaled(factor).divided(divisors, peer.function)


# --- the norm --------------------------------------------------------------------------------------------------------


def _own(view: Flat, peer: Peer, places: Sequence[int], ord: float, axes: tuple[int, ...] | None) -> Array | None:
    """The norm that a library's function computes; None if it spans devices that the function does not see."""
    if view.groups:
        return None
    return view.backend.peer_norm(peer.function, [view.leaves[i] for i in places], ord, axes)


def _norm(view: Flat, peer: Peer, right: Array, own: Array | None, ord: float, kinds: of.Kinds) -> Array:
    """The norm for a library's formula, in float64."""
    found = _right(view, peer, right, ord, kinds)
    return found if own is None else view.backend.compute(_own_unless_wrong, found, own)


def _right(view: Flat, peer: Peer, norm: Array, ord: float, kinds: of.Kinds) -> Array:
    """The accurate norm, rounded where the library rounds."""
    if ord != 2:
        return of.rounded(view, norm, kinds)
    return of.computed(view, _root_of_squares, norm, dtypes=kinds, wide=peer.wide_norms)


def _root_of_squares(xp: Any, n: Array, *, dtypes: tuple[str, ...], wide: bool) -> Array:
    """Root of the sum of squares, each rounded; the norm is rounded where its square is out of range."""
    r = _Rounding(xp, dtypes)
    inner = r.wide if wide else r
    squares = inner(n * n)
    least = min(_LEAST.get(dtype, 2.0**-126) for dtype in dtypes)
    sound = xp.isfinite(squares) & (squares > least)
    return r(xp.where(sound, inner(xp.sqrt(xp.where(sound, squares, 1.0))), n))


def _own_unless_wrong(xp: Any, right: Array, own: Array) -> Array:
    """A library's norm, with the derivative of the accurate norm."""
    return right + xp.stop_gradient(xp.where(xp.abs(own - right) <= right * _WRONG, own - right, 0.0))
