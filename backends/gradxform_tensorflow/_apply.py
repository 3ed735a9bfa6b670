"""Transform (gradient, variable) pairs without a state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from gradxform import GradientTransformation
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import Holder
from gradxform_tensorflow import _pairs as pairs
from gradxform_tensorflow.kernels import backend


@tf.autograph.experimental.do_not_convert
def apply(
    tx: GradientTransformation, grads_and_vars: Iterable[tuple[Any, Any]], params: Any = None
) -> list[tuple[Any, Any]]:
    """Transform the gradients of (gradient, variable) pairs.

    It works eagerly, in `tf.function`, under XLA and in TF1 graphs, with optimizers of Keras 3 and `tf.compat.v1`.

    In a replica of a `tf.distribute` strategy, the transform sees the sum of the replicas' gradients. Each replica gets
    its share of the result, and optimizers sum the shares, so a limit holds for the applied gradient. Gradients that
    you summed yourself go through ``tx(gradients)``. `global_norm` in a replica is that replica's norm.

    To skip steps (`skip_nonfinite`, `skip_large`, `accumulate`), use `GradientProcessor.apply_gradients`.

    Args:
        tx: A stateless transform.
        grads_and_vars: Any iterable of pairs. A gradient is None, or a tensor or `tf.IndexedSlices` of its variable's
            shape, of floating or complex dtype. Its path is the Keras variable's ``path``, or the variable's name
            without ``:0``.
        params: Parameters, for transforms that need them. Default: the variables of the pairs.

    Returns:
        A list of pairs in the same order. None stays None. Pairs with stopped gradients are dropped, so that optimizers
        with momentum or weight decay do not move their variables.

    Raises:
        TypeError: `tx` is stateful, an item is not a pair, or a gradient is not a tensor.
        ValueError: There are no pairs, as in an iterator that is used up; a variable is given twice, a gradient's shape
            differs from its variable's, or all variables are stopped. The message names the variable.

    Example:
        >>> import tensorflow as tf
        >>> import gradxform as gx
        >>> w = tf.Variable([1.0, 1.0], name="w")
        >>> pairs = gx.tensorflow.apply(gx.clip_value(1.0), [(tf.constant([3.0, 0.5]), w)])
        >>> [(gradient.numpy().tolist(), variable.name) for gradient, variable in pairs]
        [([1.0, 0.5], 'w:0')]

    References:
        The step between ``compute_gradients`` and ``apply_gradients`` in TensorFlow's documentation.
    """
    tx = as_transformation("tensorflow.apply", tx, grads_and_vars, "gx.tensorflow.apply(tx, grads_and_vars)")
    if tx.stateful:
        raise TypeError(
            f"tensorflow.apply: tx must be stateless, got {tx!r}; use gx.tensorflow.GradientProcessor(tx, variables), "
            "which keeps the state in tf.Variables"
        )
    given = pairs.read("tensorflow.apply", grads_and_vars)
    holder = Holder(tx, backend, given.paths, given.variables)
    made = pairs.transformed("tensorflow.apply", holder, given.gradients, None, params)
    both = enumerate(zip(made.gradients, given.variables, strict=True))
    return [pair for i, pair in both if i not in made.stopped]
