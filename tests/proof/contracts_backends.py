"""Contracts of a backend's primitives, and of the adapters to a framework's optimizers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from contracts import Contract, after, instead
from contracts_library import FLOWS, LIBRARY, given

WRITES, SPARSE = ("numpy", "torch"), ("tensorflow", "torch")
NUMPY, JAX, TENSORFLOW, TORCH = ("numpy",), ("jax",), ("tensorflow",), ("torch",)


def in_numpy(change: Callable[[Any], Any]) -> Any:
    """Change the leaves that a primitive returns, in NumPy."""

    def broken(original: Any, backend: Any) -> Any:
        def new(*args: Any, **kwargs: Any) -> Any:
            out = map(backend.to_numpy, original(*args, **kwargs))
            return [backend.from_numpy(np.asarray(change(leaf))) for leaf in out]

        return new

    return broken


def _others_are_sparse(original: Any, backend: Any) -> Any:
    return lambda leaf: None if original(leaf) else lambda new: new


def _norms_in_dtype(original: Any, backend: Any) -> Any:
    """Sum squares in the leaf's dtype."""

    def norms(leaves: Any, ord: float) -> Any:
        if ord != 2:
            return original(leaves, ord)
        with np.errstate(all="ignore"):
            arrays = [np.abs(backend.to_numpy(leaf)) for leaf in leaves]
            found = [np.sqrt(np.sum(array * array, dtype=array.dtype)) for array in arrays]
        return backend.stored(np.array(found, np.float64), "float64", leaves[0])

    return norms


def _rounded_factor(original: Any, backend: Any) -> Any:
    """Round the factor to the leaf's dtype."""

    def multiply(leaves: Any, factors: Any, inplace: bool) -> Any:
        numbers = np.broadcast_to(np.asarray(getattr(factors, "vector", factors), np.float64), (len(leaves),))
        arrays = list(map(backend.to_numpy, leaves))
        with np.errstate(all="ignore"):
            new = [array * number.astype(array.dtype) for array, number in zip(arrays, numbers, strict=True)]
        return list(map(backend.from_numpy, map(np.asarray, new)))

    return multiply


def _one_slice(original: Any, backend: Any) -> Any:
    def multiply_over(leaves: Any, axes: Any, factors: Any, inplace: Any) -> Any:
        numbers = np.asarray(factors, np.float64)
        first = np.full(numbers.shape, numbers.flat[0]) if numbers.size else numbers
        return original(leaves, axes, backend.stored(first, "float64", leaves[0]), inplace)

    return multiply_over


def _nearest(xp: Any, x: Any) -> Any:
    return xp.rounded(x, "float32")


def _duplicates(original: Any, backend: Any) -> Any:
    """Keep the rows of a sparse gradient."""

    def of_tensorflow(leaf: Any) -> Any:
        if not hasattr(leaf, "indices"):
            return original([leaf])[0][0], None
        return leaf.values, lambda new: type(leaf)(new, leaf.indices, leaf.dense_shape)

    def of_torch(leaf: Any) -> Any:
        if not leaf.is_sparse:
            return leaf, None
        coo = importlib.import_module("torch").sparse_coo_tensor
        return leaf._values(), lambda new: coo(leaf._indices(), new, leaf.shape)

    one = of_tensorflow if backend.name == "tensorflow" else of_torch
    return lambda leaves, whole=False: (
        original(leaves, whole) if whole or not leaves else tuple(zip(*map(one, leaves), strict=True))
    )


def _twice(original: Any, backend: Any) -> Any:
    """Double a sparse gradient that becomes dense."""

    def dense(leaves: Any, whole: bool = False) -> Any:
        values, backs = original(leaves, whole)
        return ([leaf + leaf for leaf in values], backs) if whole else (values, backs)

    return dense


def _in_own_dtype(original: Any, backend: Any) -> Any:
    def elementwise(formula: Any, columns: Any, *rest: Any, **static: Any) -> Any:
        found = original(formula, columns, *rest, **static)
        return backend.cast(found, columns[0])

    return elementwise


KERNELS: Any = (
    ("kernel.flatten", "the leaves come in the opposite order", after(lambda found: (list(found[0])[::-1], found[1]))),
    ("kernel.unflatten", "the leaves go back in the opposite order",
     given(lambda unflatten, structure, leaves: unflatten(structure, list(leaves)[::-1]))),
    ("kernel.paths", "keys are joined by a dot", after(lambda found: [path.replace("/", ".") for path in found])),
    ("kernel.dtype", "every dtype is float32", instead(lambda leaf: "float32")),
    ("kernel.shape", "the axes are in the opposite order", after(lambda shape: shape[::-1])),
    ("kernel.dense", "duplicates of a sparse gradient count separately", _duplicates, SPARSE),
    ("kernel.dense", "a sparse gradient counts twice", _twice, SPARSE),
    ("kernel.sparse", "dense gradients become sparse in other frameworks than PyTorch only", _others_are_sparse),
    ("kernel.norms", "sums are kept in the leaf's dtype", _norms_in_dtype),
    ("kernel.norms", "each leaf has another one's norm", given(lambda norms, leaves, ord: norms(leaves[::-1], ord))),
    ("kernel.norms_over", "the norm is over all axes", given(lambda norms_over, leaves, axes, ord, *of: norms_over(
        leaves, [tuple(range(len(leaf.shape))) for leaf in leaves], ord, *of))),
    ("kernel.multiply", "the factors are ignored", instead(lambda leaves, factors, inplace: list(leaves))),
    ("kernel.multiply", "the result is in another dtype", in_numpy(lambda new: new.astype(np.float64))),
    ("kernel.multiply", "the factor is rounded to the leaf's dtype", _rounded_factor),
    ("kernel.multiply", "a pure call writes into the gradients",
     given(lambda multiply, leaves, factors, inplace: multiply(leaves, factors, True)), WRITES),
    ("kernel.multiply_over", "every slice has the factor of the first", _one_slice),
    ("kernel.divide", "nothing is divided", instead(lambda function, leaves, divisors: list(leaves))),
    ("kernel.peer_norm", "the library's own norm is not used", instead(lambda function, leaves, ord, axes: None),
     FLOWS),
    ("kernel.clip", "a NaN becomes zero", in_numpy(np.nan_to_num)),
    ("kernel.clip", "the pending factor is ignored",
     given(lambda clip, leaves, low, high, factors, inplace: clip(leaves, low, high, None, False))),
    ("kernel.elementwise", "the pending factor is ignored", given(
        lambda elementwise, f, columns, numbers, factors=None, out=None, **static: elementwise(
            f, columns, numbers, None, out, **static))),
    ("kernel.elementwise", "sums are kept in the leaf's dtype", _in_own_dtype),
    ("kernel.overwrite", "nothing is written", instead(lambda columns, steps, factors=None: True), WRITES),
    ("kernel.each", "no leaf changes", instead(lambda formula, columns, numbers, out=None: list(columns[0]))),
    ("kernel.centered", "no mean is subtracted", instead(lambda leaves, axes, inplace: list(leaves))),
    ("kernel.inner_products", "the factors are ignored",
     given(lambda inner_products, columns, factors: inner_products(columns, None))),
    ("kernel.of_matrices", "the matrices stay as they are",
     instead(lambda formula, leaves, sides, dtype, **static: list(leaves))),
    ("kernel.largest", "all elements are kept", instead(lambda leaves, counts: list(leaves))),
    ("kernel.alongside", "parameters stand beside other gradients", instead(lambda arrays, leaves: list(arrays)[::-1])),
    ("kernel.sum_over", "the weights are ignored", given(lambda sum_over, leaf, axes, _: sum_over(leaf, axes, None))),
    ("kernel.count", "an element is not counted", after(lambda count: count - 1.0)),
    ("kernel.copied", "a result shares its memory with the state", instead(lambda leaves, out=None: list(leaves)),
     WRITES),
    ("kernel.stored", "numbers are rounded to float16",
     given(lambda stored, value, dtype, beside: stored(value, dtype.replace("float32", "float16"), beside))),
    ("xp", "the functions are those of Python's floats", instead(lambda array: math)),
    ("kernel.as_given", "a scalar becomes an array", instead(lambda leaves, new: [np.asarray(leaf) for leaf in new]),
     ("numpy",)),
    ("kernel.cast", "the dtype stays as it is", instead(lambda leaves, likes: list(leaves))),
    ("kernel.zeros", "zeros are ones", after(lambda found: [leaf + 1 for leaf in found])),
    ("kernel.compute", "norms and factors are float32",
     given(lambda compute, *args, **static: compute(_nearest, compute(*args, **static)))),
    ("kernel.custom_backward", "the forward value changes", after(lambda found: [leaf + leaf for leaf in found]),
     FLOWS),
    ("kernel.custom_backward", "the gradient is not transformed", instead(lambda leaves, *_: list(leaves)), FLOWS),
    ("stop_gradient", "a gradient flows back", instead(lambda backend, leaf: leaf), FLOWS),
    ("kernel.straight_through", "no gradient flows back",
     lambda _, backend: lambda values, leaves: list(map(backend.xp.stop_gradient, values)), FLOWS),
    ("kernel.from_numpy", "arrays are transposed", given(lambda make, array, *like: make(np.asarray(array).T, *like))),
    ("kernel.from_numpy", "a state loses its values",
     given(lambda make, array, *like: make(np.zeros_like(array) if like else array, *like))),
    ("kernel.to_numpy", "the values are lost", after(np.zeros_like)),
    ("across", "each device has norms of its own", given(lambda across, tx, axis, **_: tx), JAX),
    ("across", "all devices draw the same noise", given(lambda across, tx, axis, **_: tx), TORCH),
    ("devices.all_gather", "only the first device counts", after(lambda rows: rows[:1]), JAX),
    ("devices.all_gather", "the devices' numbers are doubled", after(lambda rows: rows * 2.0), TORCH),
    ("devices.axis_index", "every device is the first", after(lambda place: place * 0), JAX),
    ("devices.check", "unknown axes are accepted", instead(lambda axis, leaves, paths: None), JAX),
    ("devices.check", "an empty group is accepted", instead(lambda axis, leaves, paths: None), TORCH),
)  # fmt: skip


def _frozen_before(freeze: Any, optimizer: Any, where: Any) -> Any:
    """Pass zeros to the optimizer instead of replacing its updates by zeros."""
    import optax

    import gradxform as gx

    return optax.chain(gx.freeze(where), optimizer)


def _without_extra(as_optax: Any, tx: Any) -> Any:
    found = as_optax(tx)
    return type(found)(found.init, lambda updates, state, params=None, **_: found.update(updates, state, params))


ADAPTERS: Any = (
    ("numpy.apply_", "nothing is written", instead(lambda tx, tree, state=None, params=None: state), NUMPY),
    ("torch.apply_", "nothing is written", instead(lambda *_, **__: None), TORCH),
    ("torch.apply_", "the factor of a loss scaler is ignored",
     given(lambda apply_, holder, state, context, scale=None, **named: apply_(holder, state, context, **named)),
     TORCH),
    ("torch.attach, hook", "the gradients are not transformed", instead(lambda self, optimizer, args, kwargs: None),
     TORCH),
    ("torch.attach, saving", "a state_dict has no state of the transformation",
     instead(lambda self, optimizer, state_dict: None), TORCH),
    ("torch.attach, updates", "the updates are not transformed", instead(lambda self, optimizer, args, kwargs: None),
     TORCH),
    ("moved parameters", "all are old plus update", instead(lambda xp, update, new, old: old + update), TORCH),
    ("moved parameters", "all are the optimizer's own", instead(lambda xp, update, new, old: new), TORCH),
    ("reached", "nothing is copied", instead(lambda tx, view: (False,) * len(view.leaves)), TORCH),
    ("is_due", "a skipped step moves the parameters", instead(lambda tx, state: True), TORCH),
    ("tensorflow.apply", "the gradients are not transformed",
     instead(lambda tx, grads_and_vars, params=None: list(grads_and_vars)), TENSORFLOW),
    ("tensorflow.GradientProcessor", "the state is not kept", instead(lambda self, new: []), TENSORFLOW),
    ("jax.freeze", "the optimizer receives zeros", given(_frozen_before), JAX),
    ("jax.as_optax", "extra arguments are lost", given(_without_extra), JAX),
    ("keras.wrap", "the gradients are not transformed", instead(lambda self, grads: list(grads)), FLOWS),
    ("keras.wrap, updates", "the updates are not transformed", instead(lambda self: None), FLOWS),
    ("keras.wrap, weight decay", "it moves what is frozen", instead(lambda self, variables: list(variables)), FLOWS),
    ("is_due", "a skipped step moves the weights", instead(lambda tx, state: True), FLOWS),
)  # fmt: skip

CONTRACTS = (*LIBRARY, *(Contract(*row) for row in (*KERNELS, *ADAPTERS)))
