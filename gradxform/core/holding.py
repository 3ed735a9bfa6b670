"""Find the state of a transformation in tuples, dicts, dataclasses, optimizers and train states."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gradxform.backend import lookup
from gradxform.backend.errors import wrong_type
from gradxform.core.transform import GradientTransformation

_HOLDERS = ("_step_state", "gradient_transformation_state", "inner_optimizer", "opt_state", "state")
"""Attributes that hold a state in adapters, Keras and Flax NNX optimizers, and train states."""


def parts(node: Any) -> Sequence[Any] | None:
    """Return the children of a node of a state or of an object that holds one; None for a leaf."""
    if isinstance(node, (tuple, list)):
        return node
    if isinstance(node, Mapping):
        try:
            return [node[key] for key in sorted(node)]  # JAX's order: it sorts keys in compiled code
        except TypeError:
            return list(node.values())
    if isinstance(node, (bool, int, float, str, type, type(None), GradientTransformation)) or lookup.owner(node):
        return None
    if dataclasses.is_dataclass(node):
        return [getattr(node, field.name) for field in dataclasses.fields(node)]
    torch = sys.modules.get("gradxform_torch")
    handles: Sequence[Any] | None = None if torch is None else torch.handles_of(node)
    if handles is not None:
        return handles
    return next(([getattr(node, name)] for name in _HOLDERS if hasattr(node, name)), None)


def check(what: str, given: Any) -> None:
    """Reject objects that hold no state.

    Raises:
        TypeError: names the object and what is expected.
    """
    if _holds(given):
        return
    hint = "; pass its optimizer" if hasattr(given, "optimizer") else ""  # a model of Keras, a scheduler of PyTorch
    if hasattr(given, "gradient_transformation") and not getattr(given, "built", True):
        hint = " before it is built: call build(variables), or run a step"
    expected = "the state of a transformation, or what holds one (a tuple, train state, optimizer, handle)"
    raise wrong_type(what, expected, given, f", which holds no state{hint}")


def _holds(node: Any) -> bool:
    """Whether a node is a state (a named tuple) or holds one."""
    if isinstance(node, tuple) and hasattr(node, "_fields") and not callable(getattr(node, "update", None)):
        return True  # optax transformations are named tuples with update
    return any(_holds(part) for part in parts(node) or ())
