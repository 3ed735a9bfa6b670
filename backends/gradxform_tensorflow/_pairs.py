"""Lists of (gradient, variable), as optimizers take them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from gradxform import GradientTransformation, _flat
from gradxform._foreign import as_transformation
from gradxform._transformation import Context
from gradxform_tensorflow import backend


@tf.autograph.experimental.do_not_convert
def apply(
    tx: GradientTransformation, grads_and_vars: Iterable[tuple[Any, Any]], params: Any = None
) -> list[tuple[Any, Any]]:
    """Transform the gradients of (gradient, variable) pairs.

    Works eagerly, in `tf.function`, under XLA and in TF1 graphs; with Keras 3 optimizers and those of `tf.compat.v1`.

    Args:
        tx: a stateless transformation.
        grads_and_vars: any iterable of pairs; a gradient is a tensor or `tf.IndexedSlices` of its variable's shape, of
            floating or complex dtype, or None. A gradient's path is its variable's: the Keras variable's ``path``, else
            the name without ``:0``.
        params: the parameters, for transforms that need them; by default the variables of the pairs.

    Returns:
        A list of pairs in the same order. None stays None; pairs whose gradient was stopped are left out, so that an
        optimizer with momentum or weight decay leaves their variables bit by bit as they are.

    Raises:
        TypeError: a stateful transformation, pairs that are not pairs, a gradient that is no tensor.
        ValueError: two pairs for one variable, a gradient of another shape than its variable, or all pairs left out.
            The message names the variable.

    Example:
        >>> import tensorflow as tf
        >>> import gradxform as gx
        >>> w = tf.Variable([1.0, 1.0], name="w")
        >>> pairs = gx.tensorflow.apply(gx.clip_value(1.0), [(tf.constant([3.0, 0.5]), w)])
        >>> [(gradient.numpy().tolist(), variable.name) for gradient, variable in pairs]
        [([1.0, 0.5], 'w:0')]

    Source:
        The processing step between ``compute_gradients`` and ``apply_gradients`` in TensorFlow's own documentation.
    """
    tx = as_transformation("tensorflow.apply", tx)
    if tx.stateful:
        raise TypeError(
            f"tensorflow.apply takes a stateless transformation, and {tx!r} keeps a state: carry it yourself with "
            "state = tx.init(variables) and gradients, state = tx.update(gradients, state)"
        )
    pairs = [_pair(i, pair) for i, pair in enumerate(grads_and_vars)]
    names = [path_of(variable) for _, variable in pairs]
    _check(pairs, names)
    gradients = [gradient for gradient, _ in pairs]
    view = _flat.from_leaves(backend, gradients, gradients, lambda: names)
    if view is None:
        return pairs
    context = Context([variable for _, variable in pairs] if params is None else params, {})
    view, _ = tx.rule(view, None, context)
    skipped = view.skipped()
    if len(skipped) == sum(gradient is not None for gradient in gradients):
        raise ValueError(
            f"tensorflow.apply: {tx!r} stops the gradients of all variables, and nothing is left to apply; "
            f"the variables are {', '.join(names)}"
        )
    return [(new, pair[1]) for i, (new, pair) in enumerate(zip(view.results(), pairs, strict=True)) if i not in skipped]


def path_of(variable: Any) -> str:
    """The path of a variable: a Keras variable's own, or the name without its output number."""
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) else str(getattr(variable, "name", "variable")).partition(":")[0]


def _pair(i: int, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(
            f"tensorflow.apply: item {i} of grads_and_vars is not a (gradient, variable) pair: {pair!r:.100}"
        )
    gradient, variable = pair
    if not (hasattr(variable, "assign") or hasattr(variable, "name")):
        raise TypeError(f"tensorflow.apply: the second of pair {i} is no variable: {variable!r:.100}")
    return gradient, variable


def _check(pairs: list[tuple[Any, Any]], names: list[str]) -> None:
    seen: set[int] = set()
    for (gradient, variable), name in zip(pairs, names, strict=True):
        if id(variable) in seen:
            raise ValueError(f"tensorflow.apply: the variable {name!r} is in two pairs; add its gradients first")
        seen.add(id(variable))
        shape, wanted = getattr(gradient, "shape", None), getattr(variable, "shape", None)
        if (
            gradient is not None
            and shape is not None
            and wanted is not None
            and not _agree(tuple_or_none(shape), tuple_or_none(wanted))
        ):
            raise ValueError(f"tensorflow.apply: the gradient of {name!r} has shape {shape}, the variable {wanted}")


def tuple_or_none(shape: Any) -> tuple[int | None, ...] | None:
    """A static shape as a tuple; None if the rank is unknown."""
    return None if getattr(shape, "rank", 0) is None else tuple(shape)


def _agree(shape: tuple[int | None, ...] | None, wanted: tuple[int | None, ...] | None) -> bool:
    if shape is None or wanted is None:
        return True
    return len(shape) == len(wanted) and all(
        a is None or b is None or a == b for a, b in zip(shape, wanted, strict=True)
    )
