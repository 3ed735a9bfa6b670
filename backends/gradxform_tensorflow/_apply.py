"""The step between computing gradients and applying them, for transformations without a state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from gradxform import GradientTransformation
from gradxform.core.foreign import as_transformation
from gradxform_tensorflow import _pairs as pairs


@tf.autograph.experimental.do_not_convert
def apply(
    tx: GradientTransformation, grads_and_vars: Iterable[tuple[Any, Any]], params: Any = None
) -> list[tuple[Any, Any]]:
    """Transform the gradients of (gradient, variable) pairs.

    Works eagerly, in `tf.function`, under XLA and in TF1 graphs; with Keras 3 optimizers and those of `tf.compat.v1`.
    In a replica of a `tf.distribute` strategy the transformation sees the sum of the replicas' gradients, and each
    replica is given its share of the result. Optimizers add these up, so a limit holds for what is applied. (Gradients
    that you have summed yourself go through ``tx(gradients)``; `global_norm` in a replica is that of its own.)

    A stateless transformation leaves no step out. For `skip_nonfinite`, `skip_large` and `accumulate`, which do, use
    `GradientProcessor` and its ``apply_gradients``.

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
    tx = as_transformation("tensorflow.apply", tx, grads_and_vars, "gx.tensorflow.apply(tx, grads_and_vars)")
    if tx.stateful:
        raise TypeError(
            f"tensorflow.apply takes a stateless transformation, and {tx!r} keeps a state: use "
            "gx.tensorflow.GradientProcessor(tx, variables), which keeps it in tf.Variables"
        )
    given = pairs.read("tensorflow.apply", grads_and_vars)
    results, skipped, _ = pairs.transformed("tensorflow.apply", tx, given, None, params)
    both = enumerate(zip(results, given.variables, strict=True))
    return [pair for i, pair in both if i not in skipped]
