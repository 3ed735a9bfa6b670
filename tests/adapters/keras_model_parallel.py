"""Wrapped optimizers under Keras's ModelParallel on eight JAX devices; a script that prints JSON."""

from __future__ import annotations

import json
import os
from typing import Any

if __name__ == "__main__":  # not when pytest looks for doctests
    os.environ |= {
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }

import keras
import numpy as np

import gradxform as gx

CLIP = gx.clip_global_norm(1.0)
TRANSFORMS = {
    "chain": gx.chain(CLIP, gx.measure(gx.trace(0.5)), gx.clip_zscore(per_leaf=True)),
    "ema": gx.chain(gx.clip_norm(0.1, axes=0), gx.ema(0.9)),
    "accumulate": gx.accumulate(CLIP, 2),
    "masked": gx.masked(gx.trace(0.9), "**/kernel"),
}
LAYOUTS = {
    "first/kernel": (None, "model"),
    "first/bias": ("model",),
    "second/kernel": ("model", None),
    "third/kernel": ("batch", "model"),
}


def trained(tx: gx.GradientTransformation) -> Any:
    """Return a model after some steps."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, name=name) for name in ("first", "second", "third")]
    model = keras.Sequential([keras.Input((8,)), *layers], name="net")
    model.compile(gx.keras.wrap(keras.optimizers.SGD(0.1, momentum=0.9), tx), loss="mse")
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    model.fit(x, x, epochs=2, batch_size=8, verbose=0, shuffle=False)
    return model


def spread() -> Any:
    """Shard kernels over one or both axes of a mesh, and a bias over one."""
    layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((2, 4), ["batch", "model"]))
    for path, axes in LAYOUTS.items():
        layout[f"net/{path}"] = axes
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def shards(variables: Any) -> dict[str, list[Any]]:
    """The shapes of variables and of their shards."""
    return {
        v.path.rpartition("/")[2]: [v.shape, sorted({s.data.shape for s in v.value.addressable_shards})]
        for v in variables
    }


def report(alone: Any, model: Any) -> dict[str, Any]:
    """Compare a trained model with one trained on a single device."""
    own = [v for v in model.optimizer.variables if "gradxform" in v.path]
    return {
        "weights": _off(alone.get_weights(), model.get_weights()),
        "state": _off(alone.optimizer.variables, model.optimizer.variables),
        "momentum": shards(v for v in model.optimizer.variables if v.path.endswith("_momentum")),
        "own": shards(own),
    }


def _off(one: Any, other: Any) -> float:
    """The largest difference of arrays, relative to the largest number in each."""
    found = []
    for a, b in zip(one, other, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape and np.array_equal(np.isfinite(a), np.isfinite(b))
        some = np.isfinite(a)
        largest = np.max(np.abs(a[some]), initial=1e-3)
        found.append(float(np.max(np.abs(a[some] - b[some]), initial=0.0) / largest))
    return max(found)


if __name__ == "__main__":
    alone = {name: trained(tx) for name, tx in TRANSFORMS.items()}
    keras.distribution.set_distribution(spread())
    print(json.dumps({name: report(alone[name], trained(tx)) for name, tx in TRANSFORMS.items()}))
