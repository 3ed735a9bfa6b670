"""Proof for users' own chains: the same numbers in every framework, to the last units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from gradxform import _backend, _parity
from gradxform._foreign import as_transformation
from gradxform._transformation import GradientTransformation
from gradxform._ulp import ulps

__all__ = ["assert_parity", "max_ulp"]


def max_ulp(a: Any, b: Any) -> float:
    """The largest distance of two arrays' elements, in units in the last place.

    Args:
        a: an array of any shape and of floating, complex or integer dtype; `ml_dtypes.bfloat16` as well.
        b: an array of the same shape and dtype.

    Returns:
        0.0 for equal arrays. NaN is equal to NaN, and zero to minus zero. Infinite if only one of two elements is NaN
        or infinite, or if integers differ.

    Raises:
        TypeError: arrays of different dtypes or shapes.

    Example:
        >>> import numpy as np
        >>> from gradxform.testing import max_ulp
        >>> max_ulp(np.float32([1.0]), np.nextafter(np.float32([1.0]), np.float32(2.0)))
        1.0

    Source:
        Goldberg, What every computer scientist should know about floating-point arithmetic, 1991.
    """
    return float(np.max(ulps(a, b), initial=0.0))


_max_ulp = max_ulp


def assert_parity(
    tx: GradientTransformation,
    grads: Any,
    params: Any = None,
    frameworks: Sequence[str] | None = None,
    max_ulp: float = 2,
) -> None:
    """Assert that a transformation gives the same numbers in every framework, eager and compiled, and the right ones.

    Args:
        tx: a stateless transformation.
        grads: a tree of NumPy arrays in dicts, lists and tuples, of any shapes, floating or complex, None among them.
        params: unused by the transforms that exist today; taken for those that need parameters.
        frameworks: some of "numpy", "jax", "tensorflow", "torch"; by default all that are installed.
        max_ulp: the largest distance allowed, in units in the last place of each leaf's dtype: of each result from the
            reference in extended precision, and of any two results.

    Raises:
        AssertionError: a result that is farther away, or of another structure, dtype or shape; names framework, mode,
            path, element and values.
        TypeError: a stateful transformation.
        ValueError: an unknown framework.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> from gradxform.testing import assert_parity
        >>> assert_parity(gx.clip_global_norm(1.0), {"w": np.float32([3.0, 4.0]), "b": None})

    Source:
        SciPy's assertions of its array-API support, which check namespace, dtype and shape besides the values.
    """
    tx = as_transformation("assert_parity", tx)
    if tx.stateful:
        raise TypeError(f"assert_parity takes a stateless transformation, and {tx!r} keeps a state")
    names = frameworks_or_installed("assert_parity", frameworks)
    strange = [
        type(leaf).__name__ for leaf in optree.tree_leaves(grads) if not isinstance(leaf, (np.ndarray, np.generic))
    ]
    if strange:
        raise TypeError(f"assert_parity: grads must be a tree of NumPy arrays, and a leaf is a {strange[0]}")
    results = [result for (result,) in _parity.run(tx, [grads], names)]
    for result in results:
        if result.problem:
            raise AssertionError(f"{tx!r} in {result.framework} ({result.mode}): {result.problem}")
    wanted = _parity.Result("the reference", "extended precision", _expected(tx, grads))
    everything = [wanted, *results]
    for i, one in enumerate(everything):
        for other in everything[:i]:
            _, worst = _parity.differences(one.leaves, other.leaves)
            if worst is not None and worst.ulp > max_ulp:
                who = f"{one.framework} ({one.mode}) and {other.framework} ({other.mode})"
                raise AssertionError(f"{tx!r} differs by more than {max_ulp} ULP in {who}: {worst}")


def _expected(tx: GradientTransformation, grads: Any) -> _parity.Leaves:
    """The reference's result; where a transform has none, NumPy's."""
    try:
        return _parity.expected(tx, grads)
    except NotImplementedError:
        return _parity.run(tx, [grads], ["numpy"])[0][0].leaves


def frameworks_or_installed(caller: str, frameworks: Sequence[str] | None) -> list[str]:
    """The frameworks asked for, or all that are installed.

    Raises:
        ValueError: a name that is none of a framework, or one that is not installed.
    """
    if isinstance(frameworks, str) or (frameworks is not None and not frameworks):
        raise ValueError(f"{caller}: frameworks must be a list of names, got {frameworks!r}")
    here = _backend.installed()
    for name in frameworks or ():
        if name not in _backend.FRAMEWORKS:
            raise ValueError(
                f"{caller}: no framework is named {name!r}; the known ones are {', '.join(_backend.FRAMEWORKS)}"
            )
        if name not in here:
            raise ValueError(f"{caller}: {name} is not installed: pip install 'gradxform[{name}]'")
    return list(frameworks or here)
