"""Work on several arrays in threads: NumPy releases the GIL, and two threads get more memory bandwidth."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

WORTH = 1 << 20
"""Below so many elements, a thread costs more than it saves."""
BLOCK = 1 << 17
"""Elements that a thread computes with one call: it waits for the interpreter before and after each."""
_MOST = 4
_pool: ThreadPoolExecutor | None = None


def spread(function: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Map a function over items in order; on several threads if there are many elements."""
    if not worth(len(items), sum(sizes)):
        return one_by_one(function, items, sizes)
    shares = _shares(sizes, _count())
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


def worth(items: int, elements: int) -> bool:
    """Whether `spread` uses threads for so many items with so many elements in all."""
    return items > 1 and elements >= WORTH and _count() > 1


def _started(work: Callable[[Sequence[int]], None], share: Sequence[int]) -> Future[None] | None:
    """Start a share on another thread; None if the interpreter is shutting down."""
    try:  # copies the context, which holds NumPy's error state
        return _threads().submit(contextvars.copy_context().run, work, share)
    except RuntimeError:
        return None


def one_by_one(function: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Map a function over items on this thread."""
    return [function(item) for item in items]


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Split positions into shares of about equal numbers of elements, the largest first."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for i in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += sizes[i] + 4096  # a call costs as much as 4096 elements
    return shares


def _count() -> int:
    """Return the number of threads: one per core, up to the user's limit."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST, cores, int(wanted) if wanted.isdigit() else _MOST))


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_MOST, thread_name_prefix="gradxform")
    return _pool


def _forget() -> None:
    """Forget the threads: the child of a fork has none."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
