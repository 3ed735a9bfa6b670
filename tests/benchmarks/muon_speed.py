"""The time of `orthogonalize` beside each library's own Muon iteration.

    python tests/benchmarks/muon_speed.py [ROWSxCOLUMNS ...]

Prints the median ratio of paired calls, which alternate in one process; below one, gradxform is faster. Products are in
the native function's dtype.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gradxform as gx

PAIRS, SECONDS = 200, 4.0
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
Call = Callable[[], Any]


def pairs(gradient: Any) -> Iterator[tuple[str, Call, Call]]:
    """Name, own call, native call; each waits for its result."""
    import jax
    import jax.numpy as jnp
    import keras
    import tensorflow as tf
    import torch
    from optax.contrib._muon import orthogonalize_via_newton_schulz
    from torch.optim._muon import _zeropower_via_newtonschulz

    own = gx.orthogonalize(scale=None, dtype="bfloat16", like="torch")
    for dtype in ("float32", "bfloat16"):
        tensor = torch.tensor(gradient, dtype=getattr(torch, dtype))
        yield (
            f"PyTorch, bfloat16 products of a {dtype} gradient",
            lambda t=tensor: own([t]),
            lambda t=tensor: _zeropower_via_newtonschulz(t, COEFFICIENTS, 5, 1e-7),
        )
    leaf, numbers = jnp.asarray(gradient), jnp.asarray(COEFFICIENTS)
    ours = jax.jit(lambda g: gx.orthogonalize(scale=None, like="optax")([g])[0])
    native = jax.jit(lambda g: orthogonalize_via_newton_schulz(g, numbers))
    yield "JAX, jit", lambda: ours(leaf).block_until_ready(), lambda: native(leaf).block_until_ready()
    muon, given = keras.optimizers.Muon(), tf.constant(gradient)
    in_graph = tf.function(lambda g: gx.orthogonalize(scale=None, like="keras")([g])[0])
    native = tf.function(lambda g: muon.zeropower_via_newtonschulz5(g, 5))
    yield "Keras on TensorFlow, tf.function", lambda: in_graph(given).numpy(), lambda: native(given).numpy()
    try:
        import mlx.core as mx
        from mlx.optimizers import Muon
    except ImportError:
        return
    array, optimizer = mx.array(gradient), Muon(0.02)
    plain = gx.orthogonalize(scale=None, like="mlx")
    yield (
        "MLX",
        lambda: mx.eval(plain([array])),
        lambda: mx.eval(optimizer._zeropower_via_newtonschulz5(array, 5)),
    )


def ratio(own: Call, native: Call) -> tuple[float, float]:
    """The median ratio of paired times, and the native function's fastest time in seconds."""
    own(), native()
    ratios, fastest, end = [], float("inf"), time.perf_counter() + SECONDS
    while len(ratios) < 9 or (len(ratios) < PAIRS and time.perf_counter() < end):
        times = []
        for call in (own, native) if len(ratios) % 2 else (native, own):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        first, second = times if len(ratios) % 2 else times[::-1]
        ratios.append(first / second)
        fastest = min(fastest, second)
    return float(np.median(ratios)), fastest


def main(shapes: list[str]) -> None:
    """Print a line per shape and library."""
    for shape in shapes:
        gradient = np.random.default_rng(0).standard_normal(tuple(map(int, shape.split("x")))).astype(np.float32)
        for name, own, native in pairs(gradient):
            found, seconds = ratio(own, native)
            print(f"{shape:>10}  {name:45} {found:5.2f} of {1e3 * seconds:.2f} ms", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["64x64", "512x512", "768x3072"])
