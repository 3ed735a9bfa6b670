"""Transform NumPy arrays in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform import GradientTransformation
from gradxform.backend.lookup import owner
from gradxform.core import align
from gradxform.core.foreign import as_transformation
from gradxform.core.leaves import once
from gradxform.core.transform import Context
from gradxform.core.tree import Tree
from gradxform_numpy.kernels import backend


def apply_(
    tx: GradientTransformation,
    tree: Any,
    state: Any = None,
    params: Any = None,
    *,
    gradients: Any = None,
    value: Any = None,
) -> Any:
    """Transform a tree of NumPy arrays in place.

    Args:
        tx: A transform.
        tree: A pytree of writable arrays of any shapes and floating or complex dtype; None stays None. An array that
            appears twice is transformed once; two views of one buffer are two arrays.
        state: State of a stateful transform; its arrays are overwritten. Pass a copy to keep it.
        params: Parameters, for transforms that need them.
        gradients: Gradients of the updates in `tree`, for transforms that need them.
        value: The loss, for transforms that need it.

    Returns:
        The new state; a stateless transform returns `state`.

    Raises:
        TypeError: A leaf is not a writable NumPy array; the message gives its path.
        ValueError: The tree is empty.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> grads = {"w": np.array([3.0, 4.0])}
        >>> gx.numpy.apply_(gx.clip_norm(1.0), grads)
        >>> grads
        {'w': array([0.6, 0.8])}

    References:
        `torch.nn.utils.clip_grad_norm_`, which clips in place.
    """
    tx = as_transformation("numpy.apply_", tx, tree, "gx.numpy.apply_(tx, gradients)")
    if tx.stateful and state is None:
        raise TypeError(f"{tx!r} keeps a state: call state = tx.init(params) first, then apply_(tx, tree, state)")
    leaves, structure = backend.flatten(tree)
    if not leaves:
        raise ValueError(f"numpy.apply_: there are no gradients in {tree!r}; hand in a tree of arrays")
    for i, leaf in enumerate(leaves):
        if leaf is not None and not (_is_array(leaf) and leaf.flags.writeable):
            raise TypeError(
                f"numpy.apply_ writes into arrays, but the leaf at {backend.paths(tree)[i]!r} is "
                + ("read-only" if isinstance(leaf, np.ndarray) else f"a {type(leaf).__name__}")
            )
    leaves = once(leaves)
    view = Tree.of(backend, leaves, structure, lambda: backend.paths(tree), inplace=True)
    if not view.leaves:
        return state
    if tx.stateful:
        align.check_state(view, state)
    extra = {name: given for name, given in (("gradients", gradients), ("value", value)) if given is not None}
    view, state = tx.rule(view, state, Context(params, extra, owned=True))
    for old, new in zip(leaves, view.results(), strict=True):
        if old is not None and new is not old:
            np.copyto(old, new)
    return state


def _is_array(leaf: Any) -> bool:
    return type(leaf) is np.ndarray or (isinstance(leaf, np.ndarray) and owner(leaf) is backend)
