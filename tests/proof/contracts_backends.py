"""Contracts of a backend's primitives, and of the adapters to a framework's optimizers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from contracts import Contract, after, each, instead, own, rows
from contracts_library import CATALOGUE, FLAT, FLOWS, HARD, LIBRARY, PRIMITIVES, given

WRITES, SPARSE = ("numpy", "torch"), ("tensorflow", "torch")
NUMPY, JAX, TENSORFLOW, TORCH = ("numpy",), ("jax",), ("tensorflow",), ("torch",)
BACKWARD, PORTABLE = "functions/test_backward", "functions/test_portable"


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
    def multiply_over(leaf: Any, factor: Any, inplace: bool) -> Any:
        numbers = np.asarray(factor, np.float64)
        first = np.full(numbers.shape, numbers.flat[0]) if numbers.size else numbers
        return original(leaf, backend.stored(first, "float64", leaf), inplace)

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
    return lambda leaves: tuple(zip(*map(one, leaves), strict=True))


def _in_own_dtype(original: Any, backend: Any) -> Any:
    def elementwise(formula: Any, columns: Any, *rest: Any, **static: Any) -> Any:
        found = original(formula, columns, *rest, **static)
        return [backend.cast(new, leaf) for new, leaf in zip(found, columns[0], strict=True)]

    return elementwise


KERNELS: Any = (
    ("kernel.flatten", "the leaves come in the opposite order",
     after(lambda found: (list(found[0])[::-1], found[1])), FLAT),
    ("kernel.unflatten", "the leaves go back in the opposite order",
     given(lambda unflatten, structure, leaves: unflatten(structure, list(leaves)[::-1])), FLAT),
    ("kernel.paths", "keys are joined by a dot", after(lambda found: [path.replace("/", ".") for path in found]),
     each("core/test_matching", "one_pattern_serves")),
    ("kernel.adopt", "a number becomes zero", given(lambda adopt, leaf: adopt(np.zeros_like(leaf))),
     own("backends/test_{f}", "adopted or numbers_beside")),
    ("kernel.dtype", "every dtype is float32", instead(lambda leaf: "float32"),
     each(PRIMITIVES, "float64_is_compared")),
    ("kernel.shape", "the axes are in the opposite order", after(lambda shape: shape[::-1]),
     each(PRIMITIVES, "bounds_broadcast_along")),
    ("kernel.dense", "duplicates of a sparse gradient count separately", _duplicates,
     own("backends/test_{f}", "duplicates_are_summed or sparse_gives_what_dense_gives"), SPARSE),
    ("kernel.densify", "a sparse gradient counts twice", after(lambda leaf: leaf + leaf),
     own("backends/test_{f}", "what_changes_zeros"), SPARSE),
    ("kernel.sparse", "dense gradients become sparse in other frameworks than PyTorch only", _others_are_sparse,
     each("transforms/test_top_k", "only_pytorch_has_them")),
    ("kernel.norms", "sums are kept in the leaf's dtype", _norms_in_dtype, HARD),
    ("kernel.norms", "each leaf has another one's norm", given(lambda norms, leaves, ord: norms(leaves[::-1], ord)),
     HARD),
    ("kernel.norm_over", "the norm is over all axes",
     given(lambda norm_over, leaf, axes, ord: norm_over(leaf, tuple(range(leaf.ndim)), ord)),
     rows("clip_norm and axes")),
    ("kernel.multiply", "the factors are ignored", instead(lambda leaves, factors, inplace: list(leaves)),
     rows("scale")),
    ("kernel.multiply", "the result is in another dtype", in_numpy(lambda new: new.astype(np.float64)), rows("scale")),
    ("kernel.multiply", "the factor is rounded to the leaf's dtype", _rounded_factor,
     each(PRIMITIVES, "half_precision_is_rounded_once")),
    ("kernel.multiply", "a pure call writes into the gradients",
     given(lambda multiply, leaves, factors, inplace: multiply(leaves, factors, True)),
     each(PRIMITIVES, "pure_call_writes_to_nothing"), WRITES),
    ("kernel.multiply_over", "every slice has the factor of the first", _one_slice, rows("clip_norm and axes")),
    ("kernel.divide", "nothing is divided", instead(lambda function, leaves, divisors: list(leaves)),
     each("transforms/test_peers", "published_formula", "eager")),
    ("kernel.peer_norm", "the library's own norm is not used", instead(lambda function, leaves, ord, axes: None),
     own("transforms/test_peers", "bit_by_bit_in_its_own_framework and {like} and eager and float32"), FLOWS),
    ("kernel.clip", "a NaN becomes zero", in_numpy(np.nan_to_num), rows("clip_value")),
    ("kernel.clip", "the pending factor is ignored",
     given(lambda clip, leaves, low, high, factors, inplace: clip(leaves, low, high, None, False)),
     rows("clip_value and chain")),
    ("kernel.elementwise", "the pending factor is ignored",
     given(lambda elementwise, f, columns, numbers, factors=None, **static: elementwise(f, columns, numbers, **static)),
     rows("chain and add_decayed_weights")),
    ("kernel.elementwise", "sums are kept in the leaf's dtype", _in_own_dtype, rows("trace", dtype="float16")),
    ("kernel.each", "no leaf changes", instead(lambda formula, columns, numbers: list(columns[0])),
     rows("sign")),
    ("kernel.alongside", "parameters stand beside other gradients", instead(lambda arrays, leaves: list(arrays)[::-1]),
     rows("add_decayed_weights")),
    ("kernel.sum_over", "the weights are ignored", given(lambda sum_over, leaf, axes, _: sum_over(leaf, axes, None)),
     each(CATALOGUE, "per_example_clips", "eager")),
    ("kernel.count", "an element is not counted", after(lambda count: count - 1.0), rows("clip_rms or clip_average")),
    ("kernel.copied", "a result shares its memory with the state", instead(list),
     each(CATALOGUE, "does_not_share_memory"), WRITES),
    ("kernel.stored", "numbers are rounded to float16",
     given(lambda stored, value, dtype, beside: stored(value, dtype.replace("float32", "float16"), beside)),
     each(CATALOGUE, "states_keep_their_structure")),
    ("xp", "the functions are those of Python's floats", instead(lambda array: math),
     each(CATALOGUE, "a_function_of_ones_own", "eager")),
    ("kernel.as_given", "a scalar becomes an array", instead(lambda leaf, new: np.asarray(new)),
     own("backends/test_numpy", "without_axes_and_a_numpy_scalar"), ("numpy",)),
    ("kernel.cast", "the dtype stays as it is", instead(lambda leaf, like: leaf), rows("ema", dtype="float16")),
    ("kernel.zeros", "zeros are ones", after(lambda found: [leaf + 1 for leaf in found]), rows("stop or freeze")),
    ("kernel.compute", "norms and factors are float32",
     given(lambda compute, *args, **static: compute(_nearest, compute(*args, **static))), FLAT),
    ("kernel.on_backward", "the forward value changes",
     after(lambda found: [leaf + leaf for leaf in found]), each(BACKWARD, "forward_is_bit_by_bit"), FLOWS),
    ("kernel.on_backward", "the gradient is not transformed", instead(lambda leaves, *_: list(leaves)),
     each(BACKWARD, "gradient_of_one_op", "not compiled"), FLOWS),
    ("kernel.stop_gradient", "a gradient flows back", instead(lambda leaf: leaf),
     each(BACKWARD, "test_stopped", "not compiled"), FLOWS),
    ("kernel.straight_through", "no gradient flows back",
     lambda _, backend: lambda values, leaves: list(map(backend.stop_gradient, values)),
     each(BACKWARD, "case_9", "not compiled"), FLOWS),
    ("kernel.from_numpy", "arrays are transposed", given(lambda from_numpy, array: from_numpy(np.asarray(array).T)),
     rows("identity")),
    ("kernel.placed", "the values are lost", given(lambda placed, array, like: placed(np.zeros_like(array), like)),
     each(PORTABLE, "one_array_is_enough")),
    ("kernel.to_numpy", "the values are lost", after(np.zeros_like), each(PORTABLE, "to_numpy_gives_a_state")),
    ("across", "each device has norms of its own", given(lambda across, tx, axis, **_: tx),
     own("backends/test_jax_across", "a_vmapped_axis"), JAX),
    ("across", "all devices draw the same noise", given(lambda across, tx, axis, **_: tx),
     own("adapters/test_torch_across", "has_the_first_place"), TORCH),
    ("kernel.all_gather", "only the first device counts", after(lambda rows: rows[:1]),
     own("backends/test_jax_across", "a_vmapped_axis"), JAX),
    ("kernel.all_gather", "the devices' numbers are doubled", after(lambda rows: rows * 2.0),
     own("adapters/test_torch_across", "of_one_process_gives"), TORCH),
    ("kernel.axis_index", "every device is the first", after(lambda place: place * 0),
     own("backends/test_jax_across", "draws_noise"), JAX),
    ("kernel.check_axis", "unknown axes are accepted", instead(lambda axis, leaves, paths: None),
     own("backends/test_jax_across", "what_across_refuses"), JAX),
    ("kernel.check_axis", "an empty group is accepted", instead(lambda axis, leaves, paths: None),
     own("adapters/test_torch_across", "without_a_group"), TORCH),
)  # fmt: skip


def _frozen_before(freeze: Any, optimizer: Any, where: Any) -> Any:
    """Pass zeros to the optimizer instead of replacing its updates by zeros."""
    import optax

    import gradxform as gx

    return optax.chain(gx.freeze(where), optimizer)


def _without_extra(as_optax: Any, tx: Any) -> Any:
    found = as_optax(tx)
    return type(found)(found.init, lambda updates, state, params=None, **_: found.update(updates, state, params))


ATTACH, KERAS = "adapters/test_torch_attach", "adapters/keras_cases"
ATTACH_UPDATES, KERAS_UPDATES = "adapters/test_torch_updates", "adapters/keras_updates_cases"

ADAPTERS: Any = (
    ("numpy.apply_", "nothing is written", instead(lambda tx, tree, state=None, params=None: state),
     own("backends/test_numpy", "in_place_gives_what"), NUMPY),
    ("torch.apply_", "nothing is written", instead(lambda tx, named, state, *_, **__: (state, None)),
     own("backends/test_torch", "what_parameters_may_be"), TORCH),
    ("torch.apply_", "the factor of a loss scaler is ignored",
     given(lambda apply_, tx, named, state, scale=None, found_inf=None, **rest: apply_(
         tx, named, state, None, found_inf, **rest)),
     own(ATTACH, "the_chain_sees_unscaled"), TORCH),
    ("torch.attach, hook", "the gradients are not transformed", instead(lambda self, optimizer, args, kwargs: None),
     own(ATTACH, "any_optimizer_steps_as_after_apply"), TORCH),
    ("torch.attach, saving", "a state_dict has no state of the transformation",
     instead(lambda self, optimizer, state_dict: None), own(ATTACH, "saved_and_restored_goes_on"), TORCH),
    ("torch.attach, updates", "the updates are not transformed",
     instead(lambda self, optimizer, args, kwargs: None), own(ATTACH_UPDATES, "clipped_updates_of_adamw"), TORCH),
    ("moved parameters", "all are old plus update", instead(lambda xp, update, new, old: old + update),
     own(ATTACH_UPDATES, "unchanged_updates_leave and float32"), TORCH),
    ("moved parameters", "all are the optimizer's own", instead(lambda xp, update, new, old: new),
     own(ATTACH_UPDATES, "clipped_updates_of_adamw"), TORCH),
    ("reached", "nothing is copied", instead(lambda tx, view: view.source.nothing),
     own(ATTACH_UPDATES, "frozen_parameters_keep"), TORCH),
    ("is_due", "a skipped step moves the parameters", instead(lambda tx, state: True),
     own(ATTACH, "left_out_leaves_the_optimizer_alone"), TORCH),
    ("tensorflow.apply", "the gradients are not transformed",
     instead(lambda tx, grads_and_vars, params=None: list(grads_and_vars)),
     own("backends/test_tensorflow", "case_2"), TENSORFLOW),
    ("rows that are alike", "none are", after(lambda alike: alike & False),
     own("backends/test_tensorflow_fused", "whose_rows_are_alike"), TENSORFLOW),
    ("tensorflow.GradientProcessor", "the state is not kept", instead(lambda self, new: []),
     own("adapters/test_tensorflow_processor", "pairs_in_another_order"), TENSORFLOW),
    ("jax.freeze", "the optimizer receives zeros", given(_frozen_before),
     own("backends/test_jax", "freeze_leaves_the_chosen"), JAX),
    ("jax.as_optax", "extra arguments are lost", given(_without_extra),
     own("backends/test_jax", "hands_on_extra_arguments"), JAX),
    ("keras.wrap", "the gradients are not transformed", instead(lambda self, grads: list(grads)),
     own(KERAS, "what_is_applied_is_the_transformed"), FLOWS),
    ("keras.wrap, updates", "the updates are not transformed", instead(lambda self: None),
     own(KERAS_UPDATES, "clipped_updates"), FLOWS),
    ("keras.wrap, weight decay", "it moves what is frozen", instead(lambda self, variables: list(variables)),
     own(KERAS, "frozen_variables_stay and decay"), FLOWS),
    ("is_due", "a skipped step moves the weights", instead(lambda tx, state: True),
     own(KERAS, "skipped_leaves_the_optimizer_alone"), FLOWS),
)  # fmt: skip

CONTRACTS = (*LIBRARY, *(Contract(*row) for row in (*KERNELS, *ADAPTERS)))
