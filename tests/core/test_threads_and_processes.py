"""One transformation in eight threads, and sent to workers that were spawned or forked."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support import arrays, assert_bits, tensors

import gradxform as gx
from gradxform.backend.host import threads

TEXT = (
    "skip_nonfinite(chain(partition({'**/bias': clip_value(0.5)}, measure(clip_norm(5.0))), clip_zscore(2.5), "
    "clip_global_norm(1.0), ema(0.9), add_noise(0.001, 3)))"
)
THREADS, STEPS = 8, 3


def gradients(thread: int, step: int, size: int = 40) -> dict[str, Any]:
    rng = np.random.default_rng((thread, step))
    return {"a/kernel": rng.standard_normal((size, size), np.float32), "a/bias": rng.standard_normal(size, np.float32)}


def trained(tx: gx.GradientTransformation, framework: str, thread: int, size: int = 40) -> list[Any]:
    """The updates of some steps."""
    state, found = tx.init(tensors(framework, gradients(thread, 0, size))), []
    for step in range(STEPS):
        updates, state = tx.update(tensors(framework, gradients(thread, step, size)), state)
        found += arrays(updates)
    return found


def test_eight_threads(framework: str) -> None:
    """All begin at once with a transformation that nobody has called: what is kept of it is made under their feet."""
    tx, ready = gx.parse(TEXT), threading.Barrier(THREADS)

    def work(thread: int) -> list[Any]:
        ready.wait()
        return trained(tx, framework, thread)

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(work, range(THREADS)))
    for thread, updates in enumerate(found):
        assert_bits(updates, trained(gx.parse(TEXT), framework, thread))


def test_eight_threads_that_share_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large leaves are spread over threads of the library's own, which all eight callers share."""
    monkeypatch.setattr(threads, "_count", lambda: 3)
    tx = gx.parse("chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))")
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda thread: trained(tx, "numpy", thread, 1000), range(THREADS)))
    for thread, updates in enumerate(found):
        assert_bits(updates, trained(tx, "numpy", thread, 1000))


METHODS = [
    pytest.param("spawn", marks=pytest.mark.slow(reason="starts Python anew in each worker")),
    pytest.param("forkserver", marks=pytest.mark.slow(reason="starts Python anew in each worker")),
    "fork",
]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
def test_workers(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_count", lambda: 3)
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this platform has no {method}")
    tx = gx.parse(TEXT)
    trained(tx, "numpy", 0, 1100)  # what the parent keeps, threads included, must not hinder a child
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        waiting = [pool.submit(trained, tx, "numpy", thread, 1100) for thread in range(4)]
        found = [future.result(timeout=120) for future in waiting]
    for thread, updates in enumerate(found):
        assert_bits(updates, trained(tx, "numpy", thread, 1100))
