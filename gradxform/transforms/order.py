"""The few orders of transforms in a chain that are surely wrong."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from gradxform.core.foreign import name_of
from gradxform.core.transformation import GradientTransformation


class OrderWarning(UserWarning):
    """A chain's transforms stand in an order that is surely wrong.

    The right order is: unscale, sum over replicas, accumulate, clip, decay, freeze. To silence it:
    ``warnings.simplefilter("ignore", gradxform.OrderWarning)``.

    Example:
        >>> import warnings
        >>> import gradxform as gx
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     tx = gx.chain(gx.clip_norm(1.0), gx.accumulate(gx.identity(), every=4))
        >>> print(caught[0].message)  # doctest: +ELLIPSIS
        chain: clip_norm(1.0) stands before accumulate(identity(), 4): ...

    Source:
        The order in which PyTorch's recipes for mixed precision unscale and clip.
    """


_LATE = (
    (
        ("clip_", "normalize_"),
        ("unscale",),
        "the limit would hold for the scaled gradient; unscale first",
    ),
    (
        ("clip_", "normalize_"),
        ("accumulate", "MultiSteps"),
        "each part would be limited, and not their mean; accumulate first: accumulate(chain(clip, ...), every)",
    ),
    (
        ("freeze", "stop"),
        ("add_decayed_weights", "additive_weight_decay"),
        "the decay would move what is frozen in other libraries, and does nothing to it here; freeze last",
    ),
)
"""What stands too early, before what, and why."""


def check(txs: Sequence[Any]) -> None:
    """Warn of the first two transforms that stand in a wrong order."""
    for j, later in enumerate(txs):
        for earlier in txs[:j]:
            own = earlier.name if isinstance(earlier, GradientTransformation) else ""
            for early, late, why in _LATE:
                if own.startswith(early) and any(word in name_of(later) for word in late):
                    shown = repr(later) if isinstance(later, GradientTransformation) else name_of(later)
                    warnings.warn(f"chain: {earlier!r} stands before {shown}: {why}", OrderWarning, stacklevel=4)
                    return
