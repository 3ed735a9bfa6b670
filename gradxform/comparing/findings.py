"""What a diagnosis consists of."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a finding is about; each is a string as well."""

    BIAS_CORRECTION = "bias_correction"  #: Adam's bias correction is left out, or counts from another step.
    CLIP_GLOBAL_NORM = "clip_global_norm"  #: One run clips all gradients together, or each to another limit.
    CLIP_NORM = "clip_norm"  #: One run clips each gradient by its norm, or each to another limit.
    CLIP_VALUE = "clip_value"  #: One run clips each element, or each to another limit.
    CONSTANT = "constant"  #: Small differences with a direction, as of another epsilon or constant.
    DATA = "data"  #: Recorded batches differ.
    EPSILON = "epsilon"  #: Another epsilon of an optimizer, or in another place.
    FACTOR = "factor"  #: All gradients are one number times as large.
    FROZEN = "frozen"  #: A leaf has no gradient, or does not move, in one run.
    GROWN = "grown"  #: A remark, that rounding has grown or crossed a kink.
    INITIAL = "initial"  #: The parameters differ at the first recorded step.
    LATE_PARAMETERS = "late_parameters"  #: One run records its parameters after the optimizer's step.
    LAYOUT = "layout"  #: The gradient of a leaf is transposed, or has axes, gates, heads or elements in another order.
    LEAF_FACTOR = "leaf_factor"  #: The gradient of a leaf is a number times as large.
    LEAF_SIGN = "leaf_sign"  #: The gradient of a leaf has the opposite sign.
    LEARNING_RATE = "learning_rate"  #: Parameters move a number of times as far.
    LOSS = "loss"  #: The losses differ where the gradients agree.
    MISSING = "missing"  #: One run lacks a leaf that the other trains.
    NONFINITE = "nonfinite"  #: NaN or infinity in one run, or in other elements.
    OFFSET = "offset"  #: The recordings count their steps otherwise.
    OPTIMIZER = "optimizer"  #: The optimizers differ in kind, betas, momentum, how often they step, or unknown ways.
    PRECISION = "precision"  #: One run computes in a lower precision.
    REST = "rest"  #: A remark on what the named causes leave unexplained.
    SIGN = "sign"  #: All gradients have the opposite sign.
    TIED = "tied"  #: Two leaves of one run are one in the other.
    UNALIGNED = "unaligned"  #: Leaves without a partner that may have one in an unknown layout.
    UNKNOWN = "unknown"  #: No rule knows the cause.
    UNRELATED = "unrelated"  #: Gradients that point elsewhere in most leaves.
    WEIGHT_DECAY = "weight_decay"  #: One run decays its parameters, or in another way, in the gradients or beside them.
    WHERE = "where"  #: A remark on the first step and leaf at which runs part.
    ZERO = "zero"  #: All gradients of one run are zero.


@dataclass(frozen=True)
class Finding:
    """One cause that a comparison names, in words and as data.

    Example:
        >>> import gradxform as gx
        >>> print(gx.Finding("factor", "All gradients are 2 times larger in B.", step=0, numbers={"factor": 2.0}))
        All gradients are 2 times larger in B.

    Source:
        The rules in ``gradxform.comparing.rules``.
    """

    kind: str
    """A `Kind`: a name for programs, such as "factor" or "clip_global_norm"."""
    text: str
    """One or two sentences for people."""
    step: int
    """The first step at which it shows."""
    leaves: tuple[str, ...] = ()
    """The paths in A that it is about; empty if it is about all."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What was measured, such as a factor or a limit."""
    explains: frozenset[int] | None = None
    """The pairs whose differences it explains; None for all."""
    is_fault: bool = True
    """Whether it makes two runs differ; False for a mere remark."""
    is_certain: bool = False
    """Whether it predicts numbers that it was not fitted to; else the text says what would decide it."""

    def __post_init__(self) -> None:
        """Refuses an unknown kind."""
        object.__setattr__(self, "kind", Kind(self.kind))

    def __str__(self) -> str:
        """The text."""
        return self.text


proven = functools.partial(Finding, is_certain=True)
"""A finding that is certain."""


def some(paths: Sequence[str]) -> str:
    """A few paths in words."""
    shown = ", ".join(paths[:3])
    return shown + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def number(value: float) -> str:
    """A number as people write it."""
    nearest = round(value) if math.isfinite(value) else 0
    if abs(nearest) > 1 and abs(value - nearest) < 1e-3 * abs(nearest) < 1e3:
        return str(nearest)
    return f"{value:.3g}" if abs(abs(value) - 1) > 0.05 else f"{value:.5g}"


def unequal(one: float, other: float) -> tuple[str, str]:
    """Two numbers that differ, with as many digits as show it."""
    digits = next((n for n in range(3, 17) if f"{one:.{n}g}" != f"{other:.{n}g}"), 17)
    return f"{one:.{digits}g}", f"{other:.{digits}g}"
