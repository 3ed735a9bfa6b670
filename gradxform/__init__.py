"""Gradient transforms, written once, run by every framework, with the same numbers everywhere.

>>> import numpy as np
>>> import gradxform as gx
>>> tx = gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0), gx.scale(-0.1))
>>> tx({"w": np.array([30.0, 40.0]), "b": None})
{'w': array([-0.06, -0.08]), 'b': None}
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gradxform.backend import errors, lookup
from gradxform.core.factory import parse
from gradxform.core.transform import EmptyState, GradientTransformation
from gradxform.functions.backward import on_backward, reverse_gradient, stop_gradient, straight_through
from gradxform.functions.inspecting import global_norm, nonfinite_paths, norms, paths
from gradxform.functions.per_example import per_example_clip_global_norm, per_example_clip_norm
from gradxform.functions.tasks import cagrad, mean, mgda, pcgrad, sum, upgrad
from gradxform.transforms.across import across
from gradxform.transforms.adding import add_decayed_weights, add_noise
from gradxform.transforms.averaging import ema, grokfast, mars, trace
from gradxform.transforms.clipping import (
    clip_adaptive,
    clip_average_norm,
    clip_global_norm,
    clip_norm,
    clip_rms,
    clip_value,
)
from gradxform.transforms.combining import OrderWarning, chain, freeze, identity, masked, partition, stop
from gradxform.transforms.compressing import error_feedback, top_k
from gradxform.transforms.custom import elementwise, transform, tree_map, xp
from gradxform.transforms.history import clip_adagc, clip_percentile, clip_spikes, clip_zscore
from gradxform.transforms.measuring import measure, metrics
from gradxform.transforms.normalizing import (
    cautious,
    centralize,
    normalize_global_norm,
    normalize_norm,
    orthogonal_to_parameters,
    sign,
)
from gradxform.transforms.orthogonalizing import normalize_neurons, orthogonalize
from gradxform.transforms.scaling import scale, scale_by_schedule
from gradxform.transforms.skipping import (
    accumulate,
    flush,
    has_updated,
    skip_large,
    skip_nonfinite,
    zero_nonfinite,
)
from gradxform.transforms.spikes import skip_spikes

if TYPE_CHECKING:
    import gradxform.testing as testing
    import gradxform_jax as jax
    import gradxform_keras as keras
    import gradxform_mlx as mlx  # noqa: F401
    import gradxform_numpy as numpy
    import gradxform_tensorflow as tensorflow
    import gradxform_torch as torch
    from gradxform.comparing.compare import compare
    from gradxform.comparing.comparison import Comparison
    from gradxform.comparing.findings import Finding
    from gradxform.functions.convert import from_numpy, rename_from_torch, to_numpy
    from gradxform.recording.recorder import Recorder, record

__version__ = "1.0.0"

__all__ = [
    "Comparison",
    "EmptyState",
    "Finding",
    "GradientTransformation",
    "OrderWarning",
    "Recorder",
    "accumulate",
    "across",
    "add_decayed_weights",
    "add_noise",
    "cagrad",
    "cautious",
    "centralize",
    "chain",
    "clip_adagc",
    "clip_adaptive",
    "clip_average_norm",
    "clip_global_norm",
    "clip_norm",
    "clip_percentile",
    "clip_rms",
    "clip_spikes",
    "clip_value",
    "clip_zscore",
    "compare",
    "elementwise",
    "ema",
    "error_feedback",
    "flush",
    "freeze",
    "from_numpy",
    "global_norm",
    "grokfast",
    "has_updated",
    "identity",
    "jax",
    "keras",
    "mars",
    "masked",
    "mean",
    "measure",
    "metrics",
    "mgda",
    "nonfinite_paths",
    "normalize_global_norm",
    "normalize_neurons",
    "normalize_norm",
    "norms",
    "numpy",
    "on_backward",
    "orthogonal_to_parameters",
    "orthogonalize",
    "parse",
    "partition",
    "paths",
    "pcgrad",
    "per_example_clip_global_norm",
    "per_example_clip_norm",
    "record",
    "rename_from_torch",
    "reverse_gradient",
    "scale",
    "scale_by_schedule",
    "sign",
    "skip_large",
    "skip_nonfinite",
    "skip_spikes",
    "stop",
    "stop_gradient",
    "straight_through",
    "sum",
    "tensorflow",
    "testing",
    "to_numpy",
    "top_k",
    "torch",
    "trace",
    "transform",
    "tree_map",
    "upgrad",
    "xp",
    "zero_nonfinite",
]


_ADAPTERS = ("jax", "keras", "mlx", "numpy", "tensorflow", "torch")
_LATER = {
    "Comparison": "comparing.comparison",
    "Finding": "comparing.findings",
    "Recorder": "recording.recorder",
    "compare": "comparing.compare",
    "from_numpy": "functions.convert",
    "record": "recording.recorder",
    "rename_from_torch": "functions.convert",
    "to_numpy": "functions.convert",
}
"""Names that are imported when they are first used, and their modules; none belongs into compiled code."""


def _preload() -> None:
    """Import PyTorch's backend if PyTorch is imported. torch.compile traces an import statement, but not importlib."""
    if "torch" in sys.modules:
        import gradxform_torch  # noqa: F401


lookup.preload = _preload
_preload()


def __getattr__(name: str) -> Any:
    """`gradxform.jax` and its like, imported when they are first used; a backend of one's own as well.

    Of a name that other libraries have, or of a typo, the error says the name here.
    """
    if name in _ADAPTERS:
        globals()[name] = lookup.adapter(name)  # the next use does not come here
        return globals()[name]
    if name == "testing":
        return importlib.import_module("gradxform.testing")
    if name in _LATER:
        return getattr(importlib.import_module(f"gradxform.{_LATER[name]}"), name)
    if not name.startswith("_") and lookup.extends(name):
        return lookup.adapter(name)
    raise errors.unknown(__name__, name, __all__, "gx.torch.apply_(tx, model)" if name.endswith("_") else "")


def __dir__() -> list[str]:
    return [*__all__, "mlx"]  # which no `import *` asks for: it is there for few platforms
