"""Work on several arrays: small ones together, large ones in threads.

A call costs more than a few thousand numbers. NumPy releases the GIL, and two threads get more memory bandwidth.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from gradxform.backend.protocol import grouped

WORTH = 1 << 20
"""Below so many elements, a thread costs more than it saves."""
BLOCK = 1 << 18
"""Elements that a thread computes with one call: it waits for the interpreter before and after each."""
CACHED = 1 << 16
"""Float64 elements that fit the cache."""
SMALL = 10_000
"""Leaves up to this size are computed together; OpenBLAS starts threads for the dot product of longer ones."""
_MOST = 4


def together(sizes: Sequence[int], keys: Sequence[Any]) -> list[list[int]]:
    """Group the positions of small leaves of one key, as many as fit the cache; not those with the key None."""
    return [places for places in grouped(sizes, keys, SMALL, CACHED) if len(places) > 1]


def spread(function: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Map a function over items in order; on several threads if there are many elements."""
    if not worth(len(items), sum(sizes)):
        return [function(item) for item in items]
    out: list[Any] = [None] * len(items)
    waiting = iter(sorted(range(len(items)), key=sizes.__getitem__, reverse=True))  # threads share it

    def work() -> None:
        for i in waiting:
            out[i] = function(items[i])

    started: list[Future[None]] = []
    with contextlib.suppress(RuntimeError):  # no thread starts while the interpreter shuts down
        for _ in range(min(_count(), len(items)) - 1):  # the context holds NumPy's error state
            started.append(_threads().submit(contextvars.copy_context().run, work))
    try:
        work()
    finally:
        wait(started)
    for other in started:
        other.result()
    return out


def worth(items: int, elements: int) -> bool:
    """Whether `spread` uses threads for so many items with so many elements in all."""
    return items > 1 and elements >= WORTH and _count() > 1


def _count() -> int:
    """Return the number of threads: one per core, up to the user's limit."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST, cores, int(wanted) if wanted.isdigit() else _MOST))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST, thread_name_prefix="gradxform")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # the child of a fork has no threads
