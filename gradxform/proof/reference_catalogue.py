"""Reference implementations of stateless transforms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.proof.extended import each, narrowed, number, size
from gradxform.proof.reference_leaf import Leaf, Sum, by, extended, norm_of
from gradxform.proof.ulp import SUMS


def _clip_rms(leaves: Sequence[Leaf], max_rms: float) -> None:
    for leaf in leaves:
        rms = norm_of([leaf.value], 2) / np.sqrt(number(max(math.prod(leaf.shape), 1)))
        leaf.limit(rms, max_rms, leaf.is_single)


def _clip_average_norm(leaves: Sequence[Leaf], max_norm: float) -> None:
    for leaf in leaves:
        average = norm_of([leaf.value], 2) / max(math.prod(leaf.shape), 1)
        leaf.limit(average, max_norm, leaf.is_single)


def _normalized(leaves: Sequence[Leaf], norm: Any) -> None:
    terms = norm_of([leaf.term for leaf in leaves], 2)
    for leaf in leaves:
        leaf.become(by(leaf, np.nan if not np.isfinite(norm) else 1 / norm if norm else 1))
        if norm <= 4 * SUMS * leaf.unit * terms:  # only rounding errors are left, in any direction
            leaf.term = each(functools.partial(_of_terms, 1 / leaf.unit), leaf.term)


def _of_terms(size: float, term: Any) -> Any:
    return np.where(np.asarray(term) > 0, size, 0.0)


def _normalize_norm(leaves: Sequence[Leaf]) -> None:
    for leaf in leaves:
        _normalized([leaf], norm_of([leaf.value], 2))


def _normalize_global_norm(leaves: Sequence[Leaf]) -> None:
    _normalized(leaves, norm_of([leaf.value for leaf in leaves], 2))


def _over(axes: Any, leaf: Leaf) -> tuple[int, ...]:
    return leaf.axes(axes)[0] if len(leaf.shape) > 1 else tuple(range(len(leaf.shape)))


def _centralize(leaves: Sequence[Leaf], axes: Any = None) -> None:
    for leaf in leaves:
        if len(leaf.shape) > 1:
            over = _over(axes, leaf)
            count = max(math.prod(leaf.shape[axis] for axis in over), 1)
            total = functools.partial(np.sum, axis=over, keepdims=True, initial=0)
            mean = Sum(each(total, leaf.value) / -count, total(np.broadcast_to(leaf.term, leaf.shape)) / count)
            sizes = np.abs(leaf.value).astype(np.float64) / count
            least = total(np.where(np.isfinite(sizes), sizes, 0.0))
            leaf.become(leaf.summed(leaf, mean, least=least, rounds=False))  # a factor before it stays pending


def _sign(leaves: Sequence[Leaf]) -> None:
    for leaf in leaves:
        leaf.become(Sum(np.sign(leaf.value), _if_unsure(leaf, 1.0, 0.0)))


def _if_unsure(leaf: Leaf, size: Any, otherwise: Any) -> Any:
    """The terms of errors of a size where a sum is next to zero and has no sure sign; others elsewhere."""
    term = np.asarray(leaf.term)
    unsure = (np.abs(leaf.value) <= 4 * SUMS * leaf.unit * term) & (term > 0)
    return np.where(unsure, size / leaf.unit, otherwise).astype(np.float64)


def _top_k(leaves: Sequence[Leaf], fraction: float, sparse: bool = False) -> None:
    for leaf in leaves:
        sizes = np.abs(leaf.kept(leaf.value))
        count = max(1, math.floor(fraction * sizes.size + 0.5))
        if sizes.size:
            least = np.sort(sizes, axis=None)[-count]  # NaN is last
            leaf.chosen((sizes >= least) | np.isnan(sizes))


def _cautious(leaves: Sequence[Leaf], eps: float = 1e-3, negated: bool | None = None) -> None:
    for leaf in leaves:
        gradient = extended(leaf.param)
        agrees = np.sign(leaf.value) * np.sign(gradient) * (-1 if negated else 1) > 0
        known = agrees | (np.isfinite(leaf.value) & np.isfinite(gradient))
        share = number(np.count_nonzero(agrees)) / max(math.prod(leaf.shape), 1)
        least = np.maximum(share, number(eps)) if np.all(known) else np.nan
        leaf.chosen(agrees)
        scaled = by(leaf, 1 / least if least else 1)
        leaf.become(leaf.summed(scaled, rounds=False))  # a product has the budget of a sum


def _orthogonal_to_parameters(leaves: Sequence[Leaf]) -> None:
    for leaf in leaves:
        p, g = extended(leaf.param), leaf.value
        norm, size = norm_of([g], 2), norm_of([p], 2)
        if not np.isfinite(norm + size):
            leaf.become(by(leaf, np.nan))
        elif norm and size:
            cosine, along = np.sum((g / norm) * (p / size)), Sum(p * (norm / size))
            unsure = np.abs(along.value).astype(np.float64)  # the last bits of the cosine are those of one
            leaf.become(leaf.summed(leaf, by(along, -cosine)._replace(term=unsure), rounds=False))
            rest = norm_of([leaf.value], 2)
            sine = rest / norm
            leaf.become(by(leaf, 1 / sine if not sine**2 <= 1e-9 else 0))
            leaf.term = leaf.term + np.abs(leaf.value).astype(np.float64) * float(norm_of([leaf.term], 2) / norm)


def _zero_nonfinite(leaves: Sequence[Leaf]) -> None:
    for leaf in leaves:
        leaf.chosen(np.isfinite(leaf.rounded()))  # checks the value as it would be returned


def _add_decayed_weights(leaves: Sequence[Leaf], weight_decay: float, cautious: bool = False) -> None:
    for leaf in leaves:
        decay = by(Sum(extended(leaf.param)), weight_decay)
        new = leaf.summed(leaf, decay)
        if cautious:
            opposed = np.sign(leaf.kept(leaf.value)) * np.sign(decay.value) < 0
            value, term = (np.where(opposed, *both) for both in zip((leaf.value, leaf.term), new, strict=True))
            new = Sum(value, _if_unsure(leaf, np.abs(decay.value), term))
        leaf.become(new)


def _clip_adaptive(leaves: Sequence[Leaf], clipping: float, eps: float = 1e-3, axes: Any = None) -> None:
    for leaf in leaves:
        over = _over(axes, leaf)
        param, own = (
            np.sqrt(np.sum(size(value) ** 2, axis=over, keepdims=True, initial=0))
            for value in (extended(leaf.param), leaf.value)
        )
        leaf.limit(own, clipping * np.maximum(param, eps), leaf.is_single, by_slices=True)


def _elementwise(leaves: Sequence[Leaf], fn: Callable[[Any], Any]) -> None:
    """Pass a NumPy dtype to a user's function."""
    for leaf in leaves:
        leaf.value = extended(fn(narrowed(leaf.value, np.result_type(leaf.dtype, np.float64))))


_BY_NORMS = (_clip_adaptive, _clip_average_norm, _clip_rms, _normalize_global_norm, _normalize_norm)
_BY_VALUES = (_add_decayed_weights, _cautious, _centralize, _elementwise, _sign, _top_k, _zero_nonfinite)
RULES = (*_BY_NORMS, *_BY_VALUES, _orthogonal_to_parameters)
