"""Test your own chains: equal numbers in every framework, to the last digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optree

from gradxform.backend import lookup
from gradxform.backend.errors import install
from gradxform.core.foreign import as_transformation
from gradxform.core.transform import GradientTransformation
from gradxform.proof import conformance, parity
from gradxform.proof.extended import bits
from gradxform.proof.registry import DTYPES
from gradxform.proof.ulp import ulps

__all__ = ["assert_parity", "assert_same_gradients", "backend_cases", "check_backend", "max_ulp"]


def max_ulp(a: Any, b: Any) -> float:
    """Return the largest distance between two arrays' elements, in units in the last place (ULP).

    Args:
        a: An array of any shape and floating, complex or integer dtype; `ml_dtypes.bfloat16` too.
        b: An array of the same shape and dtype.

    Returns:
        0.0 for equal arrays. NaN equals NaN, and zero equals minus zero. Infinite if only one of two elements is NaN or
        infinite, or if integers differ.

    Raises:
        TypeError: Dtypes or shapes differ.

    Example:
        >>> import numpy as np
        >>> from gradxform.testing import max_ulp
        >>> max_ulp(np.float32([1.0]), np.nextafter(np.float32([1.0]), np.float32(2.0)))
        1.0

    References:
        Goldberg, What every computer scientist should know about floating-point arithmetic, 1991.
    """
    return float(np.max(ulps(a, b), initial=0.0))


def assert_parity(
    tx: GradientTransformation,
    grads: Any,
    params: Any = None,
    frameworks: Sequence[str] | None = None,
    max_ulp: float = 2,
) -> None:
    """Assert that a transform gives the right numbers in every framework, eager and compiled.

    A stateful transform runs for three steps.

    Args:
        tx: A transform.
        grads: A tree of NumPy arrays in dicts, lists and tuples, of any shapes and floating or complex dtype; None is
            allowed.
        params: A tree like `grads`, for transforms that need parameters, or gradients beside updates. Default:
            `grads`.
        frameworks: Names among "numpy", "jax", "tensorflow", "torch" and your own backends. Default: all installed
            frameworks, and backends of other imported frameworks.
        max_ulp: Largest allowed distance of each result from the extended-precision reference, in units in the last
            place of float32 and complex64. Float16 and bfloat16 have 1 at most, float64 and complex128 16 at least.
            Where a chain sums (averages, weight decay, noise, means over axes), the distance is counted in units of
            the largest term, and at least 4 of them (float64: 16) are allowed; over steps, the terms of an average
            add up. Two frameworks may differ by twice as much. 0: all bits are equal. On Windows and Apple silicon,
            install ``gradxform[exact]``: without it the reference is float64, too little for float64 gradients.

    Raises:
        AssertionError: A result is farther off, or has another structure, dtype or shape; the message gives framework,
            mode, path, element and values.
        TypeError: A gradient is not a NumPy array.
        ValueError: A framework is unknown, or there are no gradients.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> from gradxform.testing import assert_parity
        >>> assert_parity(gx.clip_global_norm(1.0), {"w": np.float32([3.0, 4.0]), "b": None})

    References:
        SciPy's assertions for the array API, which check namespace, dtype and shape besides values.
    """
    tx = as_transformation("assert_parity", tx)
    names = frameworks_or_installed("assert_parity", frameworks)
    params = grads if params is None else params
    if not optree.tree_leaves(grads):
        raise ValueError(f"assert_parity: there are no gradients in {grads!r}; hand in a tree of NumPy arrays")
    for what, tree in (("grads", grads), ("params", params)):
        for leaf in optree.tree_leaves(tree):
            if not isinstance(leaf, (np.ndarray, np.generic)):
                kind = type(leaf).__name__
                raise TypeError(f"assert_parity: {what} must be a tree of NumPy arrays, and a leaf is a {kind}")
    steps = [grads] * (3 if tx.stateful else 1)
    runs = [parity.runner(tx, name, mode)(steps, params)[0] for name in names for mode in parity.modes_of(name)]
    for result in (result for run in runs for result in run):
        if result.problem:
            raise AssertionError(f"{tx!r} in {result.framework} ({result.mode}): {result.problem}")
    for step, wanted in enumerate(_expected(tx, steps, params)):
        right = parity.Result("the reference", f"{bits()} bits", wanted)
        _compare(tx, [right, *(run[step] for run in runs)], max_ulp, f" at step {step}" if tx.stateful else "")


def assert_same_gradients(
    a: str | Path, b: str | Path, *, map: str | Path | Mapping[str, str] | None = None, tolerance: float | None = None
) -> None:
    """Assert that the gradients of two recorded runs differ by rounding alone.

    Args:
        a: the folder of a recording that `gradxform.record` made.
        b: the folder of another, of any framework.
        map: which leaf of `a` is which of `b`, as `gradxform.compare` takes it.
        tolerance: the largest relative distance of a leaf that is allowed. By default, what rounding explains.

    Raises:
        AssertionError: a difference that rounding does not explain; says where the runs part and why.
        ValueError: recordings that cannot be compared.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import gradxform as gx
        >>> a, b = tempfile.mkdtemp(), tempfile.mkdtemp()
        >>> gradient = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
        >>> gx.record(a)(0, gradients={"hidden.weight": gradient})
        >>> gx.record(b)(0, gradients={"hidden": {"kernel": gradient.T}})
        >>> gx.testing.assert_same_gradients(a, b)

    Source:
        Higham, Accuracy and stability of numerical algorithms, 2002.
    """
    from gradxform.comparing.compare import compare

    found = compare(a, b, map=map, tolerance=tolerance)
    if not found.within:
        raise AssertionError(f"the gradients of {str(a)!r} and {str(b)!r} are not the same:\n{found}")


def backend_cases() -> list[str]:
    """Return the names of what a backend must do, as parameters of one test of your backend: see `check_backend`.

    First arrays, trees, leaves and states, then each row of the table of transforms by its expression.

    Example:
        >>> from gradxform.testing import backend_cases
        >>> backend_cases()[:3]
        ['arrays', 'trees', 'leaves']

    Source:
        `gradxform/proof/conformance.py` and `gradxform/proof/registry.py`.
    """
    return list(conformance.CASES)


def check_backend(framework: str, case: str, mode: str = "eager", dtypes: Sequence[str] = DTYPES) -> None:
    """Assert that a backend does what one of `backend_cases` asks for.

    Args:
        framework: Name of a framework with a backend.
        case: One of `backend_cases`.
        mode: "eager", or "compiled" by the backend's `compile`.
        dtypes: The dtypes that the framework has.

    Raises:
        AssertionError: The backend does something else.
        ValueError: The case, the framework or the mode is unknown.

    Example:
        >>> from gradxform.testing import check_backend
        >>> check_backend("numpy", "trees")

    Source:
        `gradxform/proof/conformance.py`; the budgets are those of `gradxform/proof/registry.py`.
    """
    frameworks_or_installed("check_backend", [framework])
    for what, given, known in (("case", case, conformance.CASES), ("mode", mode, parity.modes_of(framework))):
        if given not in known:
            raise ValueError(f"check_backend: {what} must be one of {', '.join(known)}, got {given!r}")
    conformance.CASES[case](framework, mode, dtypes)


def _compare(tx: GradientTransformation, results: Sequence[parity.Result], max_ulp: float, when: str) -> None:
    """Compare each pair of results, the reference first."""
    terms = getattr(results[0].leaves, "terms", {})
    for i, one in enumerate(results):
        for j, other in enumerate(results[:i]):
            worst = parity.beyond(one.leaves, other.leaves, terms, max_ulp, 1 if j == 0 else 2)
            if worst is not None:
                who = f"{one.framework} ({one.mode}) and {other.framework} ({other.mode})"
                raise AssertionError(f"{tx!r} differs by more than max_ulp={max_ulp} allows in {who}{when}: {worst}")


def _expected(tx: GradientTransformation, steps: Sequence[Any], params: Any) -> Sequence[parity.Leaves]:
    """The reference's results, or NumPy's for transforms without a reference."""
    try:
        return parity.expected_steps(tx, steps, params)
    except NotImplementedError:
        return [result.leaves for result in parity.runner(tx, "numpy", "eager")(steps, params)[0]]


def frameworks_or_installed(caller: str, frameworks: Sequence[str] | None) -> list[str]:
    """The given frameworks, or all installed ones plus imported backends.

    Raises:
        ValueError: A framework is unknown or not installed.
    """
    if isinstance(frameworks, str) or (frameworks is not None and not frameworks):
        raise ValueError(f"{caller}: frameworks must be a list of names, got {frameworks!r}")
    here = lookup.installed()
    for name in frameworks or ():
        if name not in lookup.FRAMEWORKS and not lookup.extends(name):
            raise ValueError(
                f"{caller}: no framework is named {name!r}; the known ones are {', '.join(lookup.known())}"
            )
        if name in lookup.FRAMEWORKS and name not in here:
            raise ValueError(f"{caller}: {name} is not installed: {install(name)}")
    return list(frameworks or (*here, *lookup.known()[len(lookup.FRAMEWORKS) :]))
