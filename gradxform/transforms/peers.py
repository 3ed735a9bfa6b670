"""Reproduce other libraries' clips, formula by formula and rounding by rounding, to port a run.

A formula is computed in float64 and rounded where the library rounds. For arrays of the library's own framework the
norm is the library's own, unless it is wrong; otherwise it is the accurate norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas

_EPSILON = 1e-6
_LEAST = {"float64": 2.0**-1022, "float16": 2.0**-14}
"""Smallest normal number of a dtype; other dtypes use float32's."""
_WRONG = 1 / 16
"""Relative error above which a library's norm counts as lost to overflow, underflow or too few bits."""
_REAL = {"complex64": "float32", "complex128": "float64"}


Names = tuple[str, ...]
"""The dtypes that a library computes in: one, or one per leaf."""


class Rounding(NamedTuple):
    """Rounds a number, or each number of a vector, to the dtypes that a library computes in."""

    xp: Any
    names: Names

    def __call__(self, x: Array) -> Array:
        """Round to the dtypes themselves."""
        return formulas.rounded(self.xp, x, dtypes=self.names)

    def wide(self, x: Array) -> Array:
        """Round to the dtypes of arithmetic with a Python number: at least float32."""
        wide = tuple([name if name == "float64" else "float32" for name in self.names])
        return formulas.rounded(self.xp, x, dtypes=wide)


# --- the formulas: a factor, and a divisor or none, from the norm n and the limit c; r rounds ------------------------


def _tensorflow(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array]:
    return (_reciprocal(xp, n, c, r, r(1.0 / r(c))),)


def _keras(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array]:
    factor = _reciprocal(xp, n, c, r, r(1.0 / xp.rounded(c, "float64")))
    return (xp.where(formulas.equal(xp, r(c), 0.0), 1.0, factor),)  # a limit of zero means no limit


def _reciprocal(xp: Any, n: Array, c: Array, r: Rounding, most: Array) -> Array:
    return xp.where(xp.isfinite(n), r(r(c) * _least(xp, r(_inverse(xp, n)), most)), math.nan)


def _torch(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array]:
    return (_least(xp, r(r(1.0 / r(n + r.wide(_EPSILON))) * r.wide(c)), 1.0),)


def _mlx(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array]:
    return (_least(xp, r(r(c) / r(n + r(_EPSILON))), r(1.0)),)


def _paddle(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array]:
    return (r(r(c) / _most(xp, n, r(c))),)


def _optax(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array, Array]:
    return xp.where(n < r(c), 1.0, r(c)), xp.where(n < r(c), 1.0, n)


def _tensorflow_each(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array, Array]:
    return r(c), _most(xp, n, r(c))


def _keras_each(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array, Array]:
    zero = formulas.equal(xp, r(c), 0.0)
    return xp.where(zero, 1.0, r(c)), xp.where(zero, 1.0, _most(xp, n, r(c)))


def _paddle_each(xp: Any, n: Array, c: Array, r: Rounding) -> tuple[Array]:
    epsilon = xp.where(n <= 1e-30, _EPSILON, 0.0)
    return (xp.where(n <= r(c), 1.0 + 0.0 * r(c), r(r(c) / r(n + epsilon))),)


def _inverse(xp: Any, n: Array) -> Array:
    """1 / n; infinite at zero, with derivative zero."""
    return xp.where(n > 0.0, 1.0 / xp.where(n > 0.0, n, 1.0), xp.where(formulas.equal(xp, n, 0.0), math.inf, n))


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
    widens: Names = ()
    """Gradient dtypes whose norm is computed in float32."""
    rounds_factor: bool = True
    """Whether the factor is rounded to the gradient's dtype before multiplying."""
    of_norms: bool = False
    """Whether the total is the norm of the gradients' norms of any order, in at least float32 and then rounded."""
    any_axes: bool = False
    ord: float = 2.0
    """The order of the norm."""


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
    return found._replace(ord=ord)


def clip_global_norm(view: Tree, peer: Peer, max_norm: Any) -> Tree:
    """Clip the active leaves together as a library does."""
    view = view.materialized()
    if not (view.chosen or view.groups):
        return view
    if peer.of_norms:
        norms, spread = view.norms(peer.ord), view
        if all(group.traced for group in view.groups):  # then these are the numbers of all slots
            spread = view._replace(groups=tuple(group for group in view.groups if not group.by_leaf))
        if view.leaves:
            names = _names_of(view, peer.widens)
            norms = norms._replace(value=view.backend.compute(_norm, norms.value, dtypes=names, peer=peer))
        norm = view.norm_of(spread.common(norms, math.inf)[0], peer.ord).value
    else:
        norm = view.global_norm(peer.ord).value
    if not view.chosen:  # other devices waited for this one
        return view
    names = (_common([view.source.dtypes[i] for i in view.chosen], peer.widens),)
    return _limited(view, peer, norm, _own(view, peer, view.chosen), max_norm, names)


def clip_norm(view: Tree, peer: Peer, max_norm: Any, axes: tuple[int, ...] | None) -> Tree:
    """Clip each active leaf, or each slice of it over some axes, as a library does."""
    view, names = view.materialized(), _names_of(view, peer.widens)
    if not view.chosen:
        if view.groups and axes is None:
            view.norms(peer.ord)
        return view
    if axes is not None:
        return _limited_over(view, peer, max_norm, axes, names)
    own = [_own(view, peer, [i]) if active else 0.0 for i, active in enumerate(view.active)]
    return _limited(view, peer, view.norms(peer.ord).value, view.vector(own), max_norm, names)


def _limited(view: Tree, peer: Peer, norm: Array, own: Array, max_norm: Any, names: Names) -> Tree:
    factor, *divisor = _coefficients(view, peer, norm, own, max_norm, names)
    divisors = {i: view.backend.compute(formulas.take, each, index=i) for i in view.chosen for each in divisor}
    if peer.divides == "first":
        return view.divided(divisors, peer.function).scaled(factor)
    return view.scaled(factor).divided(divisors, peer.function) if divisors else view.scaled(factor)


def _limited_over(view: Tree, peer: Peer, max_norm: Any, axes: tuple[int, ...], names: Names) -> Tree:
    view.check_axes(axes)
    view, divisors = view.dense(), {}
    for i in view.chosen:
        norm, own = view.backend.norms_over([view.leaves[i]], [axes], 2.0), _own(view, peer, [i], axes)
        divisors[i] = _coefficients(view, peer, norm, own, max_norm, (names[i],))[1]
    factor = _coefficients(view, peer, 1.0, math.nan, max_norm, names)[0]
    return view.scaled(factor).divided(divisors, peer.function)


def _coefficients(view: Tree, peer: Peer, norm: Array, own: Array, max_norm: Any, names: Names) -> Sequence[Array]:
    """The library's factor, and divisor or none, from the accurate norm and the library's own."""
    leaves = _names_of(view) if peer.rounds_factor else ()
    return view.backend.compute(_clip, norm, own, max_norm, dtypes=names, leaves=leaves, peer=peer)


def _clip(xp: Any, right: Array, own: Array, c: Array, *, dtypes: Names, leaves: Names, peer: Peer) -> Any:
    r, n = Rounding(xp, dtypes), _norm(xp, right, dtypes=dtypes, peer=peer)
    # The library's norm unless it is wrong, with the derivative of the accurate norm.
    n = n + xp.stop_gradient(xp.where(xp.abs(own - n) <= n * _WRONG, own - n, 0.0))
    factor, *divisor = peer.formula(xp, r(n), xp.where(c < 0.0, 0.0, c), r)
    return formulas.rounded(xp, factor, dtypes=leaves) if leaves else factor, *divisor


# --- the norm --------------------------------------------------------------------------------------------------------


def _own(view: Tree, peer: Peer, places: Sequence[int], axes: tuple[int, ...] | None = None) -> Any:
    """The norm that a library's function computes; NaN if there is none, or it would not see all devices."""
    leaves = [view.leaves[i] for i in places]
    found = None if view.groups else view.backend.peer_norm(peer.function, leaves, peer.ord, axes)
    return math.nan if found is None else found


def _norm(xp: Any, n: Array, *, dtypes: Names, peer: Peer) -> Array:
    """Root of the sum of squares, each rounded; the norm is rounded where its square is out of range."""
    r = Rounding(xp, dtypes)
    if peer.ord != 2:
        return r(n)
    inner = r.wide if peer.of_norms else r
    squares = inner(n * n)
    least = formulas.by_kind(xp, dtypes, lambda dtype: _LEAST.get(dtype, 2.0**-126))
    sound = xp.isfinite(squares) & (squares > least)
    return r(xp.where(sound, inner(xp.sqrt(xp.where(sound, squares, 1.0))), n))


# --- the dtypes that a library computes in ---------------------------------------------------------------------------


def _common(dtypes: Sequence[str], widens: Names = ()) -> str:
    """Dtype of the joint norm of several gradients."""
    real = {_REAL.get(dtype, dtype) for dtype in dtypes}
    if "float64" in real:
        return "float64"
    alone = real.pop() if len(real) == 1 else "float32"
    return "float32" if alone in widens else alone


def _names_of(view: Tree, widens: Names = ()) -> Names:
    """The dtype of each leaf, or of its norm."""
    return tuple([_common([dtype], widens) for dtype in view.source.dtypes])
