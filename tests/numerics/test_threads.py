"""Work on several arrays at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import gradxform as gx
from gradxform.backend.host import threads
from gradxform_numpy import backend

SIZES = (300_000, 100_000, 500_001, 9_000, 40_000, 600_000)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_count", lambda: 3)


def leaves(scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(0)
    return [scale * rng.standard_normal(size, dtype=np.float32) for size in SIZES]


def test_results_are_in_order_and_all_there() -> None:
    seen = set()

    def work(item: int) -> int:
        seen.add(threading.get_ident())
        time.sleep(0.01 * (item % 3))
        return item * item

    assert threads.spread(work, range(40), [1 << 16] * 40) == [i * i for i in range(40)]
    assert len(seen) > 1


def test_little_work_stays_on_its_thread() -> None:
    idents = threads.spread(lambda _: threading.get_ident(), range(9), [100] * 9)
    assert set(idents) == {threading.get_ident()}


@pytest.mark.parametrize("scale", [1.0, 1e30], ids=["ordinary", "overflow"])
def test_the_numbers_are_those_of_one_thread(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    together = backend.norms(leaves(scale), 2.0)
    clipped = leaves(scale)
    gx.numpy.apply_(gx.clip_global_norm(1.0), clipped)
    monkeypatch.setattr(threads, "_count", lambda: 1)
    assert np.array_equal(together, backend.norms(leaves(scale), 2.0))
    alone = leaves(scale)
    gx.numpy.apply_(gx.clip_global_norm(1.0), alone)
    assert all(np.array_equal(a, b) for a, b in zip(clipped, alone, strict=True))


def test_views_of_one_memory_are_multiplied_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    spread, shared = threads.spread, []

    def seen(function: Any, items: Any, sizes: Any) -> Any:
        shared.append(len(items))
        return spread(function, items, sizes)

    monkeypatch.setattr(threads, "spread", seen)
    whole = np.ones(4_000_000, np.float32)
    gx.numpy.apply_(gx.scale(0.5), [whole[:], whole[:], whole[:], whole[:]])
    assert np.all(whole == 0.0625)
    assert not shared
    gx.numpy.apply_(gx.scale(0.5), [whole, np.ones(1, np.float32)])
    assert shared == [2]


def test_the_users_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads._count() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "none")
    assert 1 <= threads._count() <= 4


def test_work_goes_on_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        def submit(self, *_: Any) -> Any:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(threads, "_threads", Ended)
    assert threads.spread(lambda item: item + 1, range(9), [1 << 20] * 9) == list(range(1, 10))


def test_what_was_started_has_ended_when_an_error_comes_through() -> None:
    ended = []

    def work(item: int) -> None:
        if item == 0:
            raise ValueError(item)
        time.sleep(0.05)
        ended.append(item)

    with pytest.raises(ValueError, match="0"):
        threads.spread(work, range(3), [1 << 20] * 3)
    assert len(ended) == 2
