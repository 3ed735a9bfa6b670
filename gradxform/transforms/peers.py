"""Reproduce other libraries' clips, formula by formula and rounding by rounding, to port a run.

A formula is computed in float64 and rounded where the library rounds. For arrays of the library's own framework the
norm is the library's own, unless it is wrong; otherwise it is the accurate norm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gradxform.core.source import Mask
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas

_EPSILON = 1e-6
_LEAST = {"float64": 2.0**-1022, "float16": 2.0**-14}
"""Smallest normal number of a dtype; other dtypes use float32's."""
_WRONG = 1 / 16
"""Relative error above which a library's norm counts as lost to overflow, underflow or too few bits."""
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_REAL = {"complex64": "float32", "complex128": "float64"}


class Rounding:
    """Rounds a number, or each number of a vector, to the dtypes that a library computes in."""

    def __init__(self, xp: Any, dtypes: tuple[str, ...]) -> None:
        self.xp, self.dtypes = xp, dtypes

    def __call__(self, x: Array) -> Array:
        """Round to the dtypes themselves."""
        return formulas.rounded(self.xp, x, dtypes=self.dtypes)

    def wide(self, x: Array) -> Array:
        """Round to the dtypes of arithmetic with a Python number: at least float32."""
        wide = ["float64" if dtype == "float64" else "float32" for dtype in self.dtypes]
        return formulas.rounded(self.xp, x, dtypes=tuple(wide))


# --- the formulas: a factor, or factor and divisor, from the norm n and the limit c; r rounds ------------------------


def _tensorflow(xp: Any, n: Array, c: Array, r: Rounding) -> Array:
    return xp.where(xp.isfinite(n), r(r(c) * _least(xp, r(_inverse(xp, n)), r(1.0 / r(c)))), math.nan)


def _keras(xp: Any, n: Array, c: Array, r: Rounding) -> Array:
    inverse = r(1.0 / xp.rounded(c, "float64"))
    factor = xp.where(xp.isfinite(n), r(r(c) * _least(xp, r(_inverse(xp, n)), inverse)), math.nan)
    return xp.where(formulas.equal(r(c), 0.0), 1.0, factor)  # a limit of zero means no limit


def _torch(xp: Any, n: Array, c: Array, r: Rounding) -> Array:
    factor = r(r(1.0 / r(n + r.wide(_EPSILON))) * r.wide(c))
    return xp.where(factor > 1.0, 1.0, factor)


def _mlx(xp: Any, n: Array, c: Array, r: Rounding) -> Array:
    return _least(xp, r(r(c) / r(n + r(_EPSILON))), r(1.0))


def _paddle(xp: Any, n: Array, c: Array, r: Rounding) -> Array:
    return r(r(c) / _most(xp, n, r(c)))


def _optax(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array, Array]:
    return xp.where(n < r(c), 1.0, r(c)), xp.where(n < r(c), 1.0, n)


def _tensorflow_each(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array, Array]:
    return r(c), _most(xp, n, r(c))


def _keras_each(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array, Array]:
    zero = formulas.equal(r(c), 0.0)
    return xp.where(zero, 1.0, r(c)), xp.where(zero, 1.0, _most(xp, n, r(c)))


def _paddle_each(xp: Any, n: Array, c: Array, r: Rounding) -> Array:
    epsilon = xp.where(n <= 1e-30, _EPSILON, 0.0)
    return xp.where(n <= r(c), 1.0 + 0.0 * r(c), r(r(c) / r(n + epsilon)))


def _inverse(xp: Any, n: Array) -> Array:
    """1 / n; infinite at zero, with derivative zero."""
    return xp.where(n > 0.0, 1.0 / xp.where(n > 0.0, n, 1.0), xp.where(formulas.equal(n, 0.0), math.inf, n))


def _least(xp: Any, a: Array, b: Array) -> Array:
    return xp.where(a < b, a, xp.where(a <= a, b, a))


def _most(xp: Any, a: Array, b: Array) -> Array:
    return xp.where(a > b, a, xp.where(a <= a, b, a))


# --- the libraries ---------------------------------------------------------------------------------------------------


class Peer(NamedTuple):
    """How a library's function clips."""

    function: str
    formula: Callable[..., Any]
    divides: str = ""
    """When gradients are divided, if they are: "first" or "last", before or after they are multiplied."""
    widens: tuple[str, ...] = ()
    """Gradient dtypes whose norm is computed in float32."""
    rounds_factor: bool = True
    """Whether the factor is rounded to the gradient's dtype before multiplying."""
    of_norms: bool = False
    """Whether the total is the norm of the gradients' norms of any order, in at least float32 and then rounded."""
    any_axes: bool = False


TOGETHER = {
    "tensorflow": Peer("tf.clip_by_global_norm", _tensorflow),
    "keras": Peer("keras global_clipnorm", _keras),
    "optax": Peer("optax.clip_by_global_norm", _optax, "first"),
    "torch": Peer("torch clip_grad_norm_", _torch, rounds_factor=False, of_norms=True),
    "mlx": Peer("mlx clip_grad_norm", _mlx, widens=("float16",), rounds_factor=False),
    "paddle": Peer("paddle ClipGradByGlobalNorm", _paddle, widens=("float16", "bfloat16")),
}
EACH = TOGETHER | {
    "tensorflow": Peer("tf.clip_by_norm", _tensorflow_each, "last", any_axes=True),
    "keras": Peer("keras clipnorm", _keras_each, "last"),
    "paddle": Peer("paddle ClipGradByNorm", _paddle_each, widens=("float16", "bfloat16")),
}


def find(transform: str, known: Mapping[str, Peer], like: Any, ord: float, axes: tuple[int, ...] | None = None) -> Peer:
    """Return the library named by `like`; its function must support the order and the axes."""
    if not isinstance(like, str) or like not in known:
        raise ValueError(f"{transform}: like must be one of {', '.join(map(repr, known))}, got {like!r}")
    found = known[like]
    for name, value, plain, free in (("ord", ord, 2.0, found.of_norms), ("axes", axes, None, found.any_axes)):
        if value != plain and not free:
            raise ValueError(f"{transform}: {found.function} has no {name}; got {name}={value!r} with like={like!r}")
    return found


def clip_global_norm(view: Tree, peer: Peer, max_norm: Any, ord: float) -> Tree:
    """Clip the active leaves together as a library does."""
    view = view.materialized()
    if not (view.chosen or view.groups):
        return view
    dtypes: _Dtypes = (_common([view.backend.dtype(view.leaves[i]) for i in view.chosen], peer.widens),)
    if peer.of_norms:
        norms = view.norms(ord)
        if view.leaves:
            norms = norms._replace(value=_rounded(view, peer, norms.value, ord, _dtypes_of(view, peer.widens)))
        norm = view.norm_of(view.common(norms, math.inf)[0] if norms.slots else norms, ord).value
    else:
        norm = view.global_norm(ord).value
    if not all(group.traced for group in view.groups):
        dtypes = _everywhere(view, peer.widens)
    if not view.chosen:  # other devices wait for this one
        return view
    own = _own(view, peer, view.chosen, ord)
    return _limited(view, peer, _norm(view, peer, norm, own, ord, dtypes), max_norm, dtypes)


def clip_norm(view: Tree, peer: Peer, max_norm: Any, axes: tuple[int, ...] | None, ord: float) -> Tree:
    """Clip each active leaf, or each slice of it over some axes, as a library does."""
    view = view.materialized()
    if not view.chosen:
        if view.groups and axes is None:
            view.norms(ord)
        return view
    dtypes = _dtypes_of(view, peer.widens)
    if axes is not None:
        return _limited_over(view, peer, max_norm, axes, dtypes)
    own = [_own(view, peer, [i], ord) if active else 0.0 for i, active in enumerate(view.active)]
    vector = None if any(norm is None for norm in own) else view.backend.compute(formulas.stack, *own)
    return _limited(view, peer, _norm(view, peer, view.norms(ord).value, vector, ord, dtypes), max_norm, dtypes)


def _limited(view: Tree, peer: Peer, norm: Array, max_norm: Any, dtypes: _Dtypes) -> Tree:
    found = _computed(view, _clip, norm, max_norm, dtypes=dtypes, rule=peer.formula)
    factor, divisor = found if peer.divides else (found, None)
    if peer.rounds_factor:
        factor = view.backend.compute(formulas.rounded, factor, dtypes=_dtypes_of(view))
    if divisor is None:
        return view.scaled(factor)
    divisors = {i: view.backend.compute(formulas.take, divisor, index=i) for i in view.chosen}
    if peer.divides == "first":
        return view.divided(divisors, peer.function).scaled(factor)
    return view.scaled(factor).divided(divisors, peer.function)


def _limited_over(view: Tree, peer: Peer, max_norm: Any, axes: tuple[int, ...], dtypes: tuple[str, ...]) -> Tree:
    view, divisors = view.slices(axes), {}
    for i in view.chosen:
        right, own = view.backend.norms_over([view.leaves[i]], [axes], 2.0), _own(view, peer, [i], 2.0, axes)
        norm = _norm(view, peer, right, own, 2.0, (dtypes[i],))
        divisors[i] = _computed(view, _clip, norm, max_norm, dtypes=(dtypes[i],), rule=peer.formula)[1]
    factor = _computed(view, _clip, 1.0, max_norm, dtypes=dtypes, rule=peer.formula)[0]
    return view.scaled(factor).divided(divisors, peer.function)


def _clip(xp: Any, n: Array, c: Array, *, dtypes: tuple[str, ...], rule: Callable[..., Any]) -> Any:
    """Compute a library's formula."""
    r = Rounding(xp, dtypes)
    return rule(xp, r(n), xp.where(c < 0.0, 0.0, c), r)


# --- the norm --------------------------------------------------------------------------------------------------------


def _own(view: Tree, peer: Peer, places: Sequence[int], ord: float, axes: tuple[int, ...] | None = None) -> Any:
    """The norm that a library's function computes; None if it spans devices that the function does not see."""
    if view.groups:
        return None
    return view.backend.peer_norm(peer.function, [view.leaves[i] for i in places], ord, axes)


def _norm(view: Tree, peer: Peer, right: Array, own: Array | None, ord: float, dtypes: _Dtypes) -> Array:
    """The norm for a library's formula, in float64."""
    found = _rounded(view, peer, right, ord, dtypes)
    return found if own is None else view.backend.compute(_own_unless_wrong, found, own)


def _rounded(view: Tree, peer: Peer, norm: Array, ord: float, dtypes: _Dtypes) -> Array:
    """The accurate norm, rounded where the library rounds."""
    return _computed(view, _root_of_squares, norm, dtypes=dtypes, ord=ord, wide=peer.of_norms)


def _root_of_squares(xp: Any, n: Array, *, dtypes: tuple[str, ...], ord: float, wide: bool) -> Array:
    """Root of the sum of squares, each rounded; the norm is rounded where its square is out of range."""
    r = Rounding(xp, dtypes)
    if ord != 2:
        return r(n)
    inner = r.wide if wide else r
    squares = inner(n * n)
    sound = xp.isfinite(squares) & (squares > min(_LEAST.get(dtype, 2.0**-126) for dtype in dtypes))
    return r(xp.where(sound, inner(xp.sqrt(xp.where(sound, squares, 1.0))), n))


def _own_unless_wrong(xp: Any, right: Array, own: Array) -> Array:
    """A library's norm, with the derivative of the accurate norm."""
    return right + xp.stop_gradient(xp.where(xp.abs(own - right) <= right * _WRONG, own - right, 0.0))


# --- the dtypes that a library computes in ---------------------------------------------------------------------------


class Everywhere(NamedTuple):
    """The dtypes of all devices: for each of `_DTYPES`, whether a device has it; those computed in float32."""

    flags: list[Array]
    widens: tuple[str, ...]


_Dtypes = tuple[str, ...] | Everywhere
"""One dtype, one per leaf, or those of all devices."""


def _common(dtypes: Sequence[str], widens: tuple[str, ...] = ()) -> str:
    """Dtype of the joint norm of several gradients."""
    real = {_REAL.get(dtype, dtype) for dtype in dtypes}
    if "float64" in real:
        return "float64"
    alone = real.pop() if len(real) == 1 else "float32"
    return "float32" if alone in widens else alone


def _dtypes_of(view: Tree, widens: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Dtype of each leaf, or the dtype of its norm."""
    return tuple([_common([view.backend.dtype(leaf)], widens) for leaf in view.leaves])


def _everywhere(view: Tree, widens: tuple[str, ...]) -> Everywhere:
    """Gather which dtypes the gradients of all devices have."""
    real = [_REAL.get(own, own) for own in view.source.dtypes]

    def has(dtype: str) -> Callable[[Mask], float]:
        return lambda mask: float(dtype in itertools.compress(real, mask))

    return Everywhere(view.shared([(has(dtype), math.inf) for dtype in _DTYPES], view.groups).values, widens)


def _computed(view: Tree, formula: Callable[..., Any], *operands: Any, dtypes: _Dtypes, **static: Any) -> Any:
    """Compute a formula that rounds to dtypes."""
    if not isinstance(dtypes, Everywhere):
        return view.backend.compute(formula, *operands, dtypes=dtypes, **static)

    def of(xp: Any, *given: Any) -> Any:
        *own, half, brain, single, double = given
        found = formula(xp, *own, dtypes=("float32",), **static)
        alone = {"float16": half - brain - single, "bfloat16": brain - half - single, "float64": double}
        for dtype in [dtype for dtype in alone if dtype not in dtypes.widens]:
            new = formula(xp, *own, dtypes=(dtype,), **static)
            pairs = zip(new, found, strict=True) if isinstance(found, tuple) else [(new, found)]
            chosen = [xp.where(alone[dtype] > 0.5, a, b) for a, b in pairs]
            found = tuple(chosen) if isinstance(found, tuple) else chosen[0]
        return found

    return view.backend.compute(of, *operands, *dtypes.flags)
