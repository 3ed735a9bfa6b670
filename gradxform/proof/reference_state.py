"""Reference implementations of stateful transforms and of random numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradxform.proof.extended import each, narrowed, number, size
from gradxform.proof.reference_leaf import Leaf, Sum, by, coefficient, limit_all, norm_of, stored

Memory = dict[Any, Any]


def _ema(leaves: Sequence[Leaf], decay: float, debias: bool = True, *, memory: Memory) -> None:
    d, averages = number(decay), memory.setdefault("averages", {})
    weight = memory["weight"] = memory.get("weight", 0) * d + (1 - d)
    for leaf in leaves:
        old = by(averages.get(leaf.path, leaf.nothing()), d)
        averages[leaf.path] = new = leaf.summed(old, by(leaf, 1 - d), further=int(debias))
        leaf.become(by(new, 1 / weight) if debias else new)


def _trace(leaves: Sequence[Leaf], decay: float, nesterov: bool = False, *, memory: Memory) -> None:
    d, traces = number(decay), memory.setdefault("traces", {})
    for leaf in leaves:
        traces[leaf.path] = new = leaf.summed(leaf, by(traces.get(leaf.path, leaf.nothing()), d))
        leaf.become(leaf.summed(leaf, by(new, d)) if nesterov else new)


def _grokfast(leaves: Sequence[Leaf], decay: float = 0.98, amplitude: float = 2.0, *, memory: Memory) -> None:
    d = number(decay) if memory["step"] > 1 else number(0)
    averages = memory.setdefault("averages", {})
    for leaf in leaves:
        averages[leaf.path] = new = leaf.summed(by(averages.get(leaf.path, leaf.nothing()), d), by(leaf, 1 - d))
        leaf.become(leaf.summed(leaf, by(new, number(amplitude))))


def _mars(
    leaves: Sequence[Leaf], gamma: float = 0.025, decay: float = 0.95, max_norm: float = 1.0, *, memory: Memory
) -> None:
    d, before = number(decay), memory.setdefault("before", {})
    change = number(gamma) * d / (1 - d) if memory["step"] > 1 else number(0)
    for leaf in leaves:
        old, before[leaf.path] = before.get(leaf.path, leaf.nothing()), leaf.summed(leaf)
        leaf.become(leaf.summed(by(leaf, 1 + change), by(old, -change)))
        if not change:  # zero times an infinite difference
            leaf.chosen(np.isfinite(size(leaf.value)), np.nan)
        leaf.limit(norm_of([leaf.value], 2), max_norm, leaf.is_single)


_NEW = {"count": 0, "average": 0}


def _clip_adagc(
    leaves: Sequence[Leaf],
    ratio: float = 1.05,
    decay: float = 0.98,
    warmup: int = 100,
    max_norm: float = 1.0,
    *,
    memory: Memory,
) -> None:
    d, kind, single = number(decay), _kind(leaves), all(leaf.is_single for leaf in leaves)
    norms = [norm_of([leaf.value], 2) for leaf in leaves]
    whole = norm_of([leaf.value for leaf in leaves], 2)
    together = coefficient(whole, max_norm, single)
    limit_all(leaves, whole, max_norm, [leaf for leaf in leaves if memory.get(leaf.path, _NEW)["count"] < warmup])
    for leaf, n in zip(leaves, norms, strict=True):
        own = memory.setdefault(leaf.path, dict(_NEW))
        warm, average = own["count"] >= warmup, own["average"]
        most = number(ratio) * average if average > 0 else np.inf
        clipped = min(n, most) if warm else n * together
        if warm:
            leaf.limit(n, most if np.isfinite(n) else 0.0, leaf.is_single)
        if np.isfinite(narrowed(n, kind)):
            own["count"] += 1
            if clipped > 0:
                new = d * average + (1 - d) * clipped if warm else min(average, clipped)
                new = new if average > 0 else clipped
                own["average"] = stored(new, kind) if new >= np.finfo(kind).smallest_normal else average


def _clip_spikes(
    leaves: Sequence[Leaf], threshold: float = 5000.0, decay: float = 0.999, warmup: int = 20, *, memory: Memory
) -> None:
    d, averages, limits = number(decay), memory.setdefault("averages", {}), memory["step"] > warmup and threshold > 0

    def limited_to(x: Any, rms: Any) -> Any:
        limit = np.sqrt(number(threshold)) * rms
        return np.where(limits & (limit > 0) & (np.abs(x) > limit), np.copysign(limit, x), x)

    def root(x: Any, rms: Any) -> Any:
        larger = np.maximum(np.abs(x), rms)
        unit = np.where(larger > 0, larger, 1)
        return np.where(np.isfinite(x), unit * np.sqrt(d * (rms / unit) ** 2 + (1 - d) * (x / unit) ** 2), rms)

    def unsure(new: Any, x: Any, rms: Any, *terms: Any) -> Any:
        """By the derivatives of the root."""
        parts = np.where(new > 0, ((1 - d) * np.abs(x) * terms[0] + d * rms * terms[1]) / np.where(new > 0, new, 1), 0)
        return np.where(np.isfinite(parts), parts, 0).astype(np.float64)

    for leaf in leaves:
        old = averages.get(leaf.path, leaf.nothing())
        x = each(limited_to, leaf.value, old.value)
        same, new = each(np.equal, x, leaf.value), each(root, x, old.value)
        limit = by(old, math.sqrt(threshold)).term
        terms = each(np.where, same, leaf.term, limit)
        averages[leaf.path] = leaf.summed(Sum(new, each(unsure, new, x, old.value, terms, old.term)))
        leaf.become(Sum(leaf.kept(x), each(np.where, same, leaf.term, leaf.summed(Sum(x, limit)).term)))


def _normalize_neurons(leaves: Sequence[Leaf], decay: float = 0.95, axes: Any = None, *, memory: Memory) -> None:
    """Divide by averages that have relative errors, as the norms have."""
    d = number(decay)
    for leaf in leaves:
        inputs, outputs = leaf.axes(axes)
        terms = np.broadcast_to(leaf.term, leaf.shape)
        norms, sure = (_norms(x, inputs) for x in (leaf.value, number(terms)))
        own = memory.setdefault(leaf.path, {"norms": number(np.zeros(norms.shape)), "unsure": np.zeros(norms.shape)})
        held, unsure = np.isfinite(norms), _quotient(sure, norms)
        squares = d * own["norms"] ** 2 + (1 - d) * np.where(held, norms, own["norms"]) ** 2
        average = np.sqrt(squares)
        kind = np.finfo(_kind([leaf]))
        own["norms"] = leaf.kept(np.minimum(average, kind.max))
        own["unsure"] = unsure = np.maximum(np.where(held, unsure, 0.0), own["unsure"])
        divided = norms / np.where(average > 0, average, 1)
        whole, rest = _norms(norms, outputs), _norms(divided, outputs)
        factor = np.where(rest == 0, 1, whole) / np.where(rest == 0, 1, rest) / np.where(average > 0, average, 1)
        every = _quotient(_norms(divided * unsure, outputs), rest)
        leaf.become(by(leaf, factor))
        sizes = np.where(np.isfinite(leaf.value), np.abs(leaf.value), 0)
        least = np.where(sizes < kind.tiny, kind.tiny, 0)  # with factors of one, it is not rounded
        value = leaf.kept(leaf.value, rounds=bool(np.any(np.abs(factor - 1) > 2.0**-20)))
        leaf.become(Sum(value, leaf.term + (2 * sizes * (unsure + every) + least).astype(np.float64)))


def _norms(x: Any, axes: tuple[int, ...]) -> Any:
    """Norms over axes, which stay."""
    return np.sqrt(np.sum(x * x, axis=axes, keepdims=True, initial=0))


def _quotient(x: Any, y: Any) -> Any:
    """A quotient; zero where it is not finite."""
    found = x / np.where(y == 0, 1, y)
    return np.where(np.isfinite(found), found, 0)


def _kind(leaves: Sequence[Leaf]) -> Any:
    return np.float32 if all(leaf.is_single for leaf in leaves) else np.float64


def _scopes(leaves: Sequence[Leaf], per_leaf: bool, memory: Memory) -> list[tuple[Sequence[Leaf], Memory, Any]]:
    """Yield the leaves that share a norm, their memory and the dtype of the state."""
    scopes = [[leaf] for leaf in leaves] if per_leaf else [leaves]
    return [(scope, memory.setdefault(rank, {}), _kind(leaves)) for rank, scope in enumerate(scopes)]


def _clip_percentile(
    leaves: Sequence[Leaf], percentile: float, window: int = 1000, per_leaf: bool = False, *, memory: Memory
) -> None:
    for scope, own, kind in _scopes(leaves, per_leaf, memory):
        n, history = norm_of([leaf.value for leaf in scope], 2), own.setdefault("history", [])
        if np.isfinite(narrowed(n, kind)):
            history.append(float(stored(n, kind)))
        limit = np.percentile(history[-window:], percentile) if history else np.inf
        limit_all(scope, n, limit if np.isfinite(n) else 0.0)


def _clip_zscore(
    leaves: Sequence[Leaf],
    threshold: float = 2.5,
    decay: float = 0.97,
    warmup: int = 25,
    per_leaf: bool = False,
    *,
    memory: Memory,
) -> None:
    d = number(decay)
    for scope, own, kind in _scopes(leaves, per_leaf, memory):
        n, seen = norm_of([leaf.value for leaf in scope], 2), own.setdefault("norms", [])
        mean, variance, limit = own.get("mean", 0), own.get("deviation", 0) ** 2, np.inf
        if len(seen) >= warmup and variance > (mean * 2.0**-20) ** 2 and n - mean > threshold * np.sqrt(variance):
            limit = mean + number(threshold) ** 2 * variance / (n - mean)
        if np.isfinite(narrowed(n, kind)):
            seen.append(n)
            if len(seen) <= warmup:
                new = mean + (n - mean) / len(seen)
                spread = variance + ((n - mean) * (n - new) - variance) / len(seen)
            else:
                new = d * mean + (1 - d) * min(n, limit)
                spread = d * variance + (1 - d) * (min(n, limit) - new) ** 2
            own["mean"], own["deviation"] = (stored(number, kind) for number in (new, np.sqrt(spread)))
        limit_all(scope, n, limit if np.isfinite(n) else 0.0)


def _add_noise(leaves: Sequence[Leaf], stddev: float, seed: int, *, memory: Memory) -> None:
    with np.errstate(over="ignore"):
        for leaf in leaves:
            key = threefry((seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF, 0, memory["step"] - 1)
            digest = functools.reduce(lambda h, c: (h ^ ord(c)) * 0x100000001B3 % 2**64, leaf.path, 0xCBF29CE484222325)
            size = math.prod(leaf.shape)
            key = threefry(*key, digest // 2**32, digest % 2**32)
            first, second = threefry(*key, np.zeros(size, np.uint32), np.arange(size))
            radius = np.sqrt(-2 * np.log((number(first) + 0.5) / 2.0**32))
            turns = number(second.astype(np.uint32).view(np.int32)) / 2.0**32
            normal = radius * np.cos(2 * np.arccos(number(-1)) * turns)
            noise = stddev * normal.reshape(leaf.shape)
            sizes = np.maximum(np.abs(noise), stddev).astype(np.float64)
            leaf.become(leaf.summed(leaf, Sum(noise, leaf.in_single(sizes))))


def threefry(key0: Any, key1: Any, count0: Any, count1: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds, in unsigned words."""
    keys = [np.asarray(word).astype(np.uint32) for word in (key0, key1)]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    x, y = (np.asarray(count).astype(np.uint32) + key for count, key in zip((count0, count1), keys[:2], strict=True))
    for group in range(5):
        for places in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = ((y << np.uint32(places)) | (y >> np.uint32(32 - places))) ^ x
        x, y = x + keys[(group + 1) % 3], y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


_OF_NORMS = (_clip_adagc, _clip_percentile, _clip_zscore, _normalize_neurons)
RULES = (*_OF_NORMS, _add_noise, _clip_spikes, _ema, _grokfast, _mars, _trace)
