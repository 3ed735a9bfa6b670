"""The registry's transforms for accelerators and meshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import entries
from support import built

import gradxform as gx
from gradxform.proof import parity


def transforms(
    table: str, where: str, tanh: Callable[[Any], Any] | None = None
) -> dict[str, gx.GradientTransformation]:
    """Each transform of a table by its expression, and one of a function; the pattern chooses some leaves."""
    found = [expression.replace("<where>", where) for _, expression, _ in entries.on_devices(table)]
    own = {"elementwise(tanh)": gx.elementwise(tanh)} if tanh is not None else {}
    return {expression: built(expression) for expression in found} | own


def update(tx: gx.GradientTransformation, grads: Any, state: Any, params: Any) -> Any:
    """One step; the parameters serve as gradients where updates need them."""
    return tx.update(
        grads, state, params, **(parity.beside(tx, params) if isinstance(tx, gx.GradientTransformation) else {})
    )
