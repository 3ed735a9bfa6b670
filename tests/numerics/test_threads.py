"""Work on several arrays at once."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import numpy as np
import pytest
from support import arrays, assert_bits

import gradxform as gx
from gradxform.backend.host import threads
from gradxform.proof.parity import beside
from gradxform.proof.registry import TABLE

NAMES = "scale clip_value sign zero_nonfinite add_decayed_weights ema trace grokfast clip_spikes mars cautious"
LEAFWISE = [TABLE[name][0].tx for name in f"{NAMES} add_noise centralize".split()]
"""Transforms of each leaf by itself."""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_count", lambda: 3)


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


def special(dtype: str, scale: float, *shapes: Any) -> dict[str, Any]:
    """Numbers of about a size in leaves of all sizes and orders of memory, with zeros of both signs and a NaN."""
    rng, found = np.random.default_rng(0), {}
    for shape in shapes:
        with np.errstate(over="ignore"):
            leaf = np.array(scale * rng.standard_normal(shape), dtype)
        leaf.reshape(-1)[:4] = np.array([0.0, -0.0, np.nan, -1.0])[: leaf.size]
        found[f"leaf{len(found)}"] = np.asfortranarray(leaf) if len(found) == 1 else leaf
    return found


def stepped(tx: gx.GradientTransformation, tree: Any) -> list[Any]:
    """The updates of a second step, those in place, and the state."""
    _, state = tx.update(tree, tx.init(tree), tree, **beside(tx, tree))
    (made, _), own = (
        tx.update(tree, state, tree, **beside(tx, tree)),
        {path: leaf.copy() for path, leaf in tree.items()},
    )
    return arrays([made, own, gx.numpy.apply_(tx, own, state, tree, **beside(tx, tree))])


@pytest.mark.parametrize("scale", [1.0, 1e30], ids=["ordinary", "overflow"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("tx", [gx.clip_global_norm(1.0), *LEAFWISE], ids=repr)
def test_the_numbers_are_those_of_one_thread(tx: Any, dtype: str, scale: float, monkeypatch: Any) -> None:
    tree = special(dtype, scale, (1 << 18,), (300, 1 << 10), (1 << 13,), (7, 5), (), (0, 3), ((1 << 13) + 1,))
    together = stepped(tx, tree)
    monkeypatch.setattr(threads, "_count", lambda: 1)
    assert_bits(together, stepped(tx, tree))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "tx", LEAFWISE + [gx.chain(gx.masked(gx.scale(0.3), re.compile("[135]")), tx) for tx in LEAFWISE], ids=repr
)
def test_small_leaves_together_are_as_alone(tx: Any, dtype: str) -> None:
    """The index of an element is that in its leaf; each result has memory of its own."""
    tree = special(dtype, 1.0, (3, 4), (2, 6), (0, 2), (5,), (), (9000,), (2, 1, 3), (8192,))
    found, _ = tx.update(tree, tx.init(tree), tree, **beside(tx, tree))
    for path, leaf in tree.items():
        alone = {path: leaf, **dict.fromkeys(tree.keys() - {path})}
        assert_bits(found[path], tx.update(alone, tx.init(alone), alone, **beside(tx, alone))[0][path])
    owners = [leaf if leaf.base is None else leaf.base for leaf in found.values()]
    assert len(set(map(id, owners))) == len(owners)


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
