"""Contracts of the primitives of a backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from contracts import ALL, Contract, Tests, after, each, instead, own, rows

FLAT = each("core/test_flat", "test_cases")
HARD = each("transforms/test_hard", "test_hard_cases", "eager")
WRITES = ("numpy", "torch")
SPARSE = ("tensorflow", "torch")
FLOWS = ("jax", "tensorflow", "torch")


def kernel(name: str, what: str, broken: Any, tests: Tests, frameworks: tuple[str, ...] = ALL) -> Contract:
    """A primitive, broken."""
    return Contract(f"kernel.{name}", what, broken, tests, frameworks)


def in_numpy(change: Callable[..., Any]) -> Any:
    """Leaves changed in NumPy after the primitive: `change(new, old)`."""

    def broken(original: Any, backend: Any) -> Any:
        def new(leaves: Any, *args: Any, **kwargs: Any) -> Any:
            old = list(map(backend.to_numpy, leaves))
            out = map(backend.to_numpy, original(leaves, *args, **kwargs))
            return [backend.from_numpy(np.asarray(change(*both))) for both in zip(out, old, strict=True)]

        return new

    return broken


def _norms_in_dtype(original: Any, backend: Any) -> Any:
    """The sum of squares in the leaf's own dtype."""

    def norms(leaves: Any, ord: float) -> Any:
        if ord != 2:
            return original(leaves, ord)
        with np.errstate(all="ignore"):
            arrays = [np.abs(backend.to_numpy(leaf)) for leaf in leaves]
            found = [np.sqrt(np.sum(array * array, dtype=array.dtype)) for array in arrays]
        return backend.stored(np.array(found, np.float64), "float64", leaves[0])

    return norms


def _rounded_factor(original: Any, backend: Any) -> Any:
    """The factor in the leaf's own dtype."""

    def multiply(leaves: Any, factors: Any, inplace: bool) -> Any:
        if type(factors).__name__ == "Each":
            factors = factors.vector
        each_one = np.broadcast_to(np.asarray(factors, np.float64), (len(leaves),))
        arrays = list(map(backend.to_numpy, leaves))
        with np.errstate(all="ignore"):
            new = [array * factor.astype(array.dtype) for array, factor in zip(arrays, each_one, strict=True)]
        return list(map(backend.from_numpy, map(np.asarray, new)))

    return multiply


def _in_float32(original: Any, backend: Any) -> Any:
    def compute(formula: Any, *operands: Any, **static: Any) -> Any:
        return original(_nearest, original(formula, *operands, **static))

    return compute


def _nearest(xp: Any, x: Any) -> Any:
    return xp.rounded(x, "float32")


def _duplicates(original: Any, backend: Any) -> Any:
    """The rows of a sparse gradient as they came."""
    if backend.name == "tensorflow":
        import tensorflow as tf

        def one(leaf: Any) -> Any:
            sparse = isinstance(leaf, tf.IndexedSlices)
            back = lambda new: tf.IndexedSlices(new, leaf.indices, leaf.dense_shape)  # noqa: E731
            return (leaf.values, back) if sparse else (tf.convert_to_tensor(leaf), None)
    else:
        import torch

        def one(leaf: Any) -> Any:
            back = lambda new: torch.sparse_coo_tensor(leaf._indices(), new, leaf.shape)  # noqa: E731
            return (leaf._values(), back) if leaf.is_sparse else (leaf, None)

    return lambda leaves: tuple(zip(*map(one, leaves), strict=True))


def _one_slice(original: Any, backend: Any) -> Any:
    def multiply_over(leaf: Any, factor: Any, inplace: bool) -> Any:
        first = np.asarray(factor, np.float64).reshape(-1)[:1].reshape((1,) * np.ndim(factor))
        return original(leaf, backend.stored(first, "float64", leaf), inplace)

    return multiply_over


def _nan_to_bound(new: Any, old: Any) -> Any:
    return np.where(np.isnan(new), new.dtype.type(0), new) if new.dtype.kind == "f" else new


KERNELS = (
    kernel(
        "flatten", "the leaves come in the opposite order", after(lambda found: (list(found[0])[::-1], found[1])), FLAT
    ),
    kernel(
        "unflatten", "the leaves go back in the opposite order",
        lambda unflatten, _: lambda structure, leaves: unflatten(structure, list(leaves)[::-1]), FLAT,
    ),
    kernel(
        "paths", "keys are joined by a dot", after(lambda found: [path.replace("/", ".") for path in found]),
        each("core/test_matching", "one_pattern_serves"),
    ),
    kernel(
        "adopt", "a number becomes zero", lambda adopt, _: lambda leaf: adopt(np.zeros_like(leaf)),
        own("backends/test_{f}", "adopted or numbers_beside"),
    ),
    kernel("dtype", "every dtype is float32", instead(lambda leaf: "float32"),
           each("numerics/test_primitives", "float64_is_compared")),
    kernel("shape", "the axes are in the opposite order", after(lambda shape: shape[::-1]),
           each("numerics/test_primitives", "bounds_broadcast_along")),
    kernel("dense", "duplicates of a sparse gradient count one by one", _duplicates,
           own("backends/test_{f}", "duplicates_are_summed or sparse_gives_what_dense_gives"), SPARSE),
    kernel("densify", "a sparse gradient counts twice", after(lambda leaf: leaf + leaf),
           own("backends/test_{f}", "what_changes_zeros"), SPARSE),
    kernel("norms", "sums are kept in the leaf's dtype", _norms_in_dtype, HARD),
    kernel("norms", "each leaf has another one's norm", lambda norms, _: lambda leaves, ord: norms(leaves[::-1], ord),
           HARD),
    kernel("norm_over", "the norm is over all axes",
           lambda norm_over, backend: lambda leaf, axes, ord: norm_over(leaf, tuple(range(leaf.ndim)), ord),
           rows("clip_norm and axes")),
    kernel("multiply", "the factors are ignored", instead(lambda leaves, factors, inplace: list(leaves)),
           rows("scale")),
    kernel("multiply", "the result is in another dtype", in_numpy(lambda new, old: new.astype(np.float64)),
           rows("scale")),
    kernel("multiply", "the factor is rounded to the leaf's dtype", _rounded_factor,
           each("numerics/test_primitives", "half_precision_is_rounded_once")),
    kernel("multiply", "a pure call writes into the gradients",
           lambda multiply, _: lambda leaves, factors, inplace: multiply(leaves, factors, True),
           each("numerics/test_primitives", "pure_call_writes_to_nothing"), WRITES),
    kernel("multiply_over", "every slice has the factor of the first", _one_slice, rows("clip_norm and axes")),
    kernel("divide", "nothing is divided", instead(lambda function, leaves, divisors: list(leaves)),
           each("transforms/test_peers", "published_formula", "eager")),
    kernel("peer_norm", "the library's own norm is not asked", instead(lambda function, leaves, ord, axes: None),
           own("transforms/test_peers", "bit_by_bit_in_its_own_framework and {like} and eager"), FLOWS),
    kernel("clip", "a NaN becomes zero", in_numpy(_nan_to_bound), rows("clip_value")),
    kernel("clip", "the pending factor is ignored",
           lambda clip, _: lambda leaves, low, high, factors, inplace: clip(leaves, low, high, None, False),
           rows("clip_value and chain")),
    kernel("elementwise", "the pending factor is ignored",
           lambda elementwise, _: lambda formula, columns, numbers, factors=None, **static: elementwise(
               formula, columns, numbers, None, **static),
           rows("chain and add_decayed_weights")),
    kernel("elementwise", "sums are kept in the leaf's dtype",
           lambda elementwise, backend: lambda formula, columns, *rest, **static: [
               backend.cast(new, leaf) for new, leaf in zip(
                   elementwise(formula, columns, *rest, **static), columns[0], strict=True)],
           rows("trace", dtype="float16")),
    kernel("each", "every leaf comes back as it is", instead(lambda formula, columns, numbers: list(columns[0])),
           rows("sign")),
    kernel("alongside", "parameters stand beside other gradients", instead(lambda arrays, leaves: list(arrays)[::-1]),
           rows("add_decayed_weights")),
    kernel("sum_over", "the weights are ignored", lambda sum_over, _: lambda leaf, axes, _: sum_over(leaf, axes, None),
           each("transforms/test_catalogue", "per_example_clips", "eager")),
    kernel("count", "an element is not counted", after(lambda count: count - 1.0), rows("clip_rms or clip_average")),
    kernel("copied", "a result shares its memory with the state", instead(list),
           each("transforms/test_catalogue", "does_not_share_memory"), WRITES),
    kernel("stored", "numbers are rounded to float16",
           lambda stored, _: lambda value, dtype, beside: stored(value, dtype.replace("float32", "float16"), beside),
           each("transforms/test_catalogue", "states_keep_their_structure")),
    kernel("namespace", "the functions are those of Python's floats", instead(lambda: math),
           each("transforms/test_catalogue", "a_function_of_ones_own", "eager")),
    kernel("cast", "the dtype stays as it is", instead(lambda leaf, like: leaf), rows("ema", dtype="float16")),
    kernel("zeros", "zeros are ones", after(lambda found: [leaf + 1 for leaf in found]), rows("stop or freeze")),
    kernel("compute", "norms and factors are float32", _in_float32, FLAT),
    kernel("on_backward", "the value is changed on its way forward",
           after(lambda found: [leaf + leaf for leaf in found]),
           each("functions/test_backward", "forward_is_bit_by_bit"), FLOWS),
    kernel("on_backward", "what flows back is not transformed", instead(lambda leaves, numbers, function: list(leaves)),
           each("functions/test_backward", "gradient_of_one_op", "not compiled"), FLOWS),
    kernel("stop_gradient", "something flows back", instead(lambda leaf: leaf),
           each("functions/test_backward", "test_stopped", "not compiled"), FLOWS),
    kernel("straight_through", "nothing flows back",
           lambda _, backend: lambda values, leaves: list(map(backend.stop_gradient, values)),
           each("functions/test_backward", "case_9", "not compiled"), FLOWS),
    kernel("from_numpy", "arrays are transposed", lambda from_numpy, _: lambda array: from_numpy(np.asarray(array).T),
           rows("identity")),
    kernel("placed", "the values are lost", lambda placed, _: lambda array, like: placed(np.zeros_like(array), like),
           each("functions/test_portable", "one_array_is_enough")),
    kernel("to_numpy", "the values are lost", after(np.zeros_like),
           each("functions/test_portable", "to_numpy_gives_a_state")),
)  # fmt: skip
