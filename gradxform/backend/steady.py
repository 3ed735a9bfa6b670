"""Kernels without checks: what a plan calls after `Backend.planned` has checked the leaves; warnings are silenced."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

K = TypeVar("K", bound=Callable[..., Any])


def steady(unchecked: Callable[..., Any]) -> Callable[[K], K]:
    """Decorate a kernel: plans call another function instead, which takes the backend and the same arguments."""

    def mark(kernel: K) -> K:
        kernel.steady = kernel, unchecked  # type: ignore[attr-defined]
        return kernel

    return mark


def steady_of(kernel: Any) -> Any:
    """Return what a plan calls instead of a kernel. A wrapper copies attributes, and stays itself."""
    function = getattr(kernel, "__func__", None)
    marked, unchecked = getattr(function, "steady", (None, None))
    return kernel if unchecked is None or marked is not function else MethodType(unchecked, kernel.__self__)
