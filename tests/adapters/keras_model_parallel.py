"""A wrapped optimizer under Keras's ModelParallel on two devices of JAX, in a process of its own; prints JSON."""

from __future__ import annotations

import json
import os
from typing import Any

if __name__ == "__main__":  # and not where pytest looks for doctests
    os.environ |= {
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }

import keras
import numpy as np

import gradxform as gx

TX = gx.chain(gx.clip_global_norm(1.0), gx.measure(gx.trace(0.5)), gx.clip_zscore(per_leaf=True))


def trained() -> Any:
    """Return a model after some steps."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="dense")], name="net")
    model.compile(gx.keras.wrap(keras.optimizers.SGD(0.1), TX), loss="mse")
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    model.fit(x, x, epochs=3, batch_size=4, verbose=0, shuffle=False)
    return model


def spread() -> Any:
    """Spread the kernel's columns over two devices."""
    layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 2), ["batch", "model"]))
    layout["net/dense/kernel"] = (None, "model")
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


if __name__ == "__main__":
    alone = trained().get_weights()
    keras.distribution.set_distribution(spread())
    model = trained()
    own = [v for v in model.optimizer.variables if "gradxform" in v.path]
    print(
        json.dumps(
            {
                "off": max(
                    float(abs(one - other).max()) for one, other in zip(alone, model.get_weights(), strict=True)
                ),
                "spread": [v.path for v in own if not v.value.sharding.is_fully_replicated],
                "whole": [v.path for v in own if v.value.sharding.is_fully_replicated],
            }
        )
    )
