"""Gradient transforms, written once, run by every framework, with the same numbers everywhere.

>>> import numpy as np
>>> import gradxform as gx
>>> tx = gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0), gx.scale(-0.1))
>>> tx({"w": np.array([30.0, 40.0]), "b": None})
{'w': array([-0.06, -0.08]), 'b': None}
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradxform._backend import adapter, preload
from gradxform._parse import parse
from gradxform._transformation import EmptyState, GradientTransformation
from gradxform.clipping import clip_global_norm, clip_norm, clip_value
from gradxform.combining import chain, identity, masked, partition
from gradxform.scaling import scale
from gradxform.stopping import freeze, stop

if TYPE_CHECKING:
    import gradxform.testing as testing
    import gradxform_jax as jax
    import gradxform_numpy as numpy
    import gradxform_tensorflow as tensorflow
    import gradxform_torch as torch

__version__ = "0.1.0"

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "chain",
    "clip_global_norm",
    "clip_norm",
    "clip_value",
    "freeze",
    "identity",
    "jax",
    "masked",
    "numpy",
    "parse",
    "partition",
    "scale",
    "stop",
    "tensorflow",
    "testing",
    "torch",
]


preload()


def __getattr__(name: str) -> Any:
    """`gradxform.jax` and its like, imported when they are first used."""
    if name in ("jax", "numpy", "tensorflow", "torch"):
        return adapter(name)
    if name == "testing":
        return importlib.import_module("gradxform.testing")
    raise AttributeError(f"module 'gradxform' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
