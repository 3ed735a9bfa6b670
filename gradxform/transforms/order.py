"""Warn of transforms in a wrong order."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from typing import Any

from gradxform.core.foreign import name_of
from gradxform.core.transformation import GradientTransformation


class OrderWarning(UserWarning):
    """The transforms of a chain are in a wrong order.

    The right order is: unscale, sum over replicas, accumulate, clip, decay, freeze. To silence the warning:
    ``warnings.simplefilter("ignore", gradxform.OrderWarning)``.

    Example:
        >>> import warnings
        >>> import gradxform as gx
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     tx = gx.chain(gx.clip_norm(1.0), gx.accumulate(gx.identity(), every=4))
        >>> print(caught[0].message)  # doctest: +ELLIPSIS
        chain: clip_norm(1.0) comes before accumulate(identity(), 4): ...

    References:
        PyTorch's recipes for mixed precision, which unscale and then clip.
    """


_LATE = (
    (
        ("clip_", "normalize_"),
        ("unscale",),
        "the limit would apply to scaled gradients; unscale first",
    ),
    (
        ("clip_", "normalize_"),
        ("accumulate", "MultiSteps"),
        "each part would be clipped instead of their mean; accumulate first: accumulate(chain(clip, ...), every)",
    ),
    (
        ("freeze", "stop"),
        ("add_decayed_weights", "additive_weight_decay"),
        "decay from other libraries moves frozen parameters, and this library's does not decay them; freeze last",
    ),
)
"""Transforms that come too early, before which ones, and why that is wrong."""


def check(txs: Sequence[Any]) -> None:
    """Warn of the first two transforms in a wrong order."""
    earliest: dict[str, tuple[int, GradientTransformation]] = {}
    for place, later in enumerate(txs):
        name = name_of(later)
        wrong = [
            (*earliest[why], why) for _, late, why in _LATE if why in earliest and any(word in name for word in late)
        ]
        if wrong:
            _, earlier, why = min(wrong, key=operator.itemgetter(0))
            shown = repr(later) if isinstance(later, GradientTransformation) else name
            warnings.warn(f"chain: {earlier!r} comes before {shown}: {why}", OrderWarning, stacklevel=4)
            return
        if isinstance(later, GradientTransformation):
            for early, _, why in _LATE:
                if later.name.startswith(early):
                    earliest.setdefault(why, (place, later))
