"""Work on several arrays at once: NumPy lets other threads run while it computes, and memory is faster for two."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

_WORTH = 1 << 20
"""Elements below which handing work to a thread costs more than it saves."""
_MOST = 4
_pool: ThreadPoolExecutor | None = None


def spread(function: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """The function of each item, in order; on several threads if there are many elements."""
    count = _count() if len(items) > 1 and sum(sizes) >= _WORTH else 1
    if count == 1:
        return one_by_one(function, items, sizes)
    shares = _shares(sizes, count)
    out: list[Any] = [None] * len(items)

    def work(share: Sequence[int]) -> None:
        for i in share:
            out[i] = function(items[i])

    others = [_started(work, share) for share in shares[1:]]
    try:
        work(shares[0])
    finally:
        wait([other for other in others if other is not None])
    for other, share in zip(others, shares[1:], strict=True):
        if other is None:
            work(share)
        else:
            other.result()
    return out


def _started(work: Callable[[Sequence[int]], None], share: Sequence[int]) -> Future[None] | None:
    """A share at work on another thread; None if the interpreter starts none any more, at its end."""
    try:  # in a copy of the context, which holds NumPy's error state
        return _threads().submit(contextvars.copy_context().run, work, share)
    except RuntimeError:
        return None


def one_by_one(function: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """The function of each item, on this thread alone."""
    return [function(item) for item in items]


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Positions in shares of about as many elements, the largest first."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for i in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += sizes[i] + 4096  # a call costs as much as so many elements
    return shares


def _count() -> int:
    """How many threads: one a core, and no more than the user's own limit."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST, cores, int(wanted) if wanted.isdigit() else _MOST))


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_MOST, thread_name_prefix="gradxform")
    return _pool


def _forget() -> None:
    """In the child of a fork there are no threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
