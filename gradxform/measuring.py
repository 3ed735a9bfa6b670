"""Numbers about gradients, for logs."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform import _arguments as arguments
from gradxform import _flat
from gradxform import _pairs as pairs
from gradxform._autograph import unconverted
from gradxform._backend import Array


@unconverted
def global_norm(tree: Any, *, ord: float | None = None) -> Array:
    r"""The norm over all leaves of a tree together, right at any size.

    .. math:: n = \Bigl(\textstyle\sum_{i,j} |g_{ij}|^p\Bigr)^{1/p}

    Nothing is read on the host: within a trace, or on an accelerator, it is one more number of the computation.

    Args:
        tree: a pytree of arrays of one framework, of any shapes, of floating or complex dtype; sparse ones count as the
            dense ones they stand for.
        ord: the order p of the norm, at least 1, or infinity; 2 if left out.

    Returns:
        A 0-d array of the tree's framework, float32, or float64 if a leaf is float64 or complex128; NaN if a leaf holds
        NaN. NumPy's zero for a tree without leaves.

    Raises:
        TypeError: an integer leaf, arrays of two frameworks; names the path.
        ValueError: an order below 1.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> float(gx.global_norm({"w": np.float32([3e30, 0.0]), "b": np.float32(4e30), "unused": None}))
        4.9999999241216036e+30

    Source:
        ``optax.global_norm``, `tf.linalg.global_norm`.
    """
    order = arguments.order("global_norm", ord)
    view = _flat.view(tree)
    if view is None:
        return np.zeros((), np.float32)
    norm = view.global_norm(order)
    return view.backend.stored(pairs.rounded(norm.value), "float32" if norm.single else "float64", view.leaves[0])
