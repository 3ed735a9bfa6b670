"""Transform (gradient, variable) pairs without a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from gradxform import GradientTransformation
from gradxform.backend.errors import instead, short
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import Holder, Step
from gradxform.core.transform import Context
from gradxform.core.where import path_of
from gradxform_tensorflow import private, replicas
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

    To skip steps (`skip_nonfinite` and its like, `accumulate`), use `GradientProcessor.apply_gradients`.

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
        advice = "use gx.tensorflow.GradientProcessor(tx, variables), which keeps the state"
        raise TypeError(f"tensorflow.apply: tx must be stateless, got {tx!r}; {advice}")
    gradients, variables = zip(*read("tensorflow.apply", grads_and_vars), strict=True)
    holder = Holder(tx, backend, list(map(path_of, variables)), variables)
    made = transformed("tensorflow.apply", holder, gradients, None, Context(params, {}))
    both = enumerate(zip(made.gradients, variables, strict=True))
    return [pair for i, pair in both if i not in made.stopped]


# --- pairs -----------------------------------------------------------------------------------------------------


def read(what: str, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The pairs of an iterable, checked.

    Raises:
        TypeError: The argument is not an iterable of pairs.
        ValueError: There are no pairs. Or a variable is given twice, or a gradient's shape differs from its variable's;
            the message names it.
    """
    if not isinstance(grads_and_vars, Iterable) or isinstance(grads_and_vars, (str, dict)):
        got = f"got {short(grads_and_vars)}; write list(zip(tape.gradient(loss, variables), variables))"
        raise TypeError(f"{what}: grads_and_vars must be (gradient, variable) pairs, {got}")
    pairs, seen = [_pair(what, i, pair) for i, pair in enumerate(grads_and_vars)], set[int]()
    if not pairs:
        advice = "an iterator such as zip(...) is used up after one pass: write list(zip(gradients, variables))"
        raise ValueError(f"{what}: there are no pairs; {advice}")
    for gradient, variable in pairs:
        if identity_of(variable) in seen:
            raise ValueError(f"{what}: the variable {path_of(variable)!r} is in two pairs; add its gradients first")
        seen.add(identity_of(variable))
        shape, wanted = (tf.TensorShape(getattr(item, "shape", None)) for item in (gradient, variable))
        if not shape.is_compatible_with(wanted):
            raise ValueError(f"{what}: the gradient of {path_of(variable)!r} has shape {shape}, the variable {wanted}")
    return pairs


def transformed(what: str, holder: Holder, gradients: Sequence[Any], state: Any, context: Context) -> Step:
    """Transform the gradients of variables.

    In a replica of a `tf.distribute` strategy, the transform sees the gradients' sums, and each replica gets its share
    of the result; optimizers sum the shares.

    Raises:
        ValueError: All variables are stopped, or parameters are missing.
    """
    gradients, count = replicas.summed(gradients)
    params = list(holder.variables if context.params is None else context.params)
    if len(params) != len(gradients):
        raise ValueError(f"{what}: params must be one per variable, {len(gradients)} of them, got {len(params)}")
    made = holder.step(what, gradients, state, context._replace(params=params))
    return made._replace(gradients=replicas.shared(made.gradients, count))


def identity_of(variable: Any) -> int:
    """One id for a variable, shared by Keras's and TensorFlow's object for it."""
    return id(variable if isinstance(variable, tf.Variable) else private.value_of(variable))


def variables_of(what: str, given: Any) -> list[Any]:
    """The variables of a list, a dict or a model, or one alone.

    Raises:
        TypeError: what holds no variables, or other items too.
    """
    given = getattr(given, "trainable_variables", given)
    given = [given] if _is_variable(given) else given
    if not isinstance(given, Iterable):
        raise TypeError(f"{what}: variables must be a list of variables, got {short(given)}{instead(given)}")
    found = list(given.values() if isinstance(given, Mapping) else given)
    for i, variable in enumerate(found):
        if not _is_variable(variable):
            hint = "; write [variable for _, variable in pairs]" if isinstance(variable, tuple) else ""
            raise TypeError(f"{what}: item {i} of variables is not a variable: {short(variable)}{hint}")
    return found


def _is_variable(item: Any) -> bool:
    return hasattr(item, "assign")


def _pair(what: str, i: int, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        inside = pair if isinstance(pair, (tuple, list)) else [pair]
        names = "".join([f", of the variable {path_of(item)!r}," for item in inside if _is_variable(item)][:1])
        wrong = f"is not a (gradient, variable) pair: {short(pair)}; write list(zip(gradients, variables))"
        raise TypeError(f"{what}: item {i} of grads_and_vars{names} {wrong}")
    gradient, variable = pair
    if _is_variable(gradient) and not _is_variable(variable):
        raise TypeError(f"{what}: pair {i} has the variable {path_of(gradient)!r} first; write (gradient, variable)")
    if not (_is_variable(variable) or hasattr(variable, "name")):
        raise TypeError(f"{what}: the second item of pair {i} is not a variable: {short(variable)}")
    return gradient, variable
