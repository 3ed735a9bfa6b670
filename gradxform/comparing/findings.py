"""What a diagnosis consists of."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    """A name for programs, such as "factor" or "clip_global_norm"."""
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

    def __str__(self) -> str:
        """The text."""
        return self.text


def some(paths: list[str] | tuple[str, ...]) -> str:
    """A few paths in words."""
    shown = ", ".join(paths[:3])
    return shown + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def number(value: float) -> str:
    """A number as people write it."""
    nearest = round(value)
    if abs(nearest) > 1 and abs(value - nearest) < 1e-3 * abs(nearest) < 1e3:
        return str(nearest)
    return f"{value:.3g}" if abs(abs(value) - 1) > 0.05 else f"{value:.5g}"


def unequal(one: float, other: float) -> tuple[str, str]:
    """Two numbers that differ, with as many digits as show it."""
    digits = next((n for n in range(3, 17) if f"{one:.{n}g}" != f"{other:.{n}g}"), 17)
    return f"{one:.{digits}g}", f"{other:.{digits}g}"
