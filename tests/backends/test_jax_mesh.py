"""Sharded gradients: only numbers travel, nothing leaf-sized is held, and what comes out is spread as what went in."""

from __future__ import annotations

import json

import pytest
from support import python

pytest.importorskip("jax")

HELD = 1 << 16
"""Bytes of temporaries on each device, where the largest shard has 256 KiB in float32, or as many as optax has."""
COPIES = {"chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))": 1 << 20}
"""On the CPU, XLA hands float32 sums to a library that reads arrays from memory: the clipped leaves are written."""
BESIDE = 1 << 14
"""Bytes of numbers beside the clipped bfloat16 leaves, which optax's chain writes as well."""
COPIED = {
    "accumulate(clip_global_norm(1.0), 2)",
    "add_decayed_weights(0.1)",
    "clip_norm(1.0, ord=float('inf'))",
    "ema(0.9)",
    *COPIES,
}
"""Of donated float32 arrays, XLA keeps copies on the CPU where two results are made of them: not mended."""
NUMBERS = 1024
"""The most numbers that are added up over the devices at once: the norms of the columns that lie on one of them."""


@pytest.mark.parametrize("mode", ["jit", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_every_transform_on_a_mesh(kind: str, dtype: str, mode: str) -> None:
    done = python("tests/backends/jax_mesh.py", kind, dtype, mode)
    reports = json.loads(done.stdout.splitlines()[-1])
    assert len(reports) == 35
    # What is looked for can be seen: a norm is added up over the devices, and a compiler holds a few numbers for it.
    if mode == "jit":
        assert reports["clip_global_norm(1.0)"]["traffic"] and reports["clip_global_norm(1.0)"]["temporary"] > 0
    for name, found in reports.items():
        assert found["off"] <= (2 if dtype == "float32" else 1), name
        assert found["spread"] == [], name
        assert found["state"] == 0, name
        if mode == "jit":
            assert set(found["traffic"]) <= {"all-reduce"}, name
            assert found["traffic"].get("all-reduce", 0) <= NUMBERS, name
            allowed = {"float32": COPIES.get(name, 0), "bfloat16": found["optax"] + BESIDE if name in COPIES else 0}
            assert found["temporary"] <= max(HELD, found["optax"], allowed[dtype]), name


@pytest.mark.parametrize(("kind", "dtype"), [("auto", "float32"), ("explicit", "bfloat16")])
def test_every_transform_donated_scanned_in_shard_map_and_vmapped(kind: str, dtype: str) -> None:
    done = python("tests/backends/jax_mesh_ways.py", kind, dtype)
    reports = json.loads(done.stdout.splitlines()[-1])
    assert len(reports) == 35
    for name, found in reports.items():
        assert found["init"] == 0, name
        assert found["warned"] == [], name
        assert found["aliases"] >= found["arrays"], name  # and most numbers
        assert found["scan off"] == 0, name
        if dtype == "float32":
            assert (max(found["held"], found["scan held"]) > 4 * HELD) == (name in COPIED), name
        assert found["scan spread"] == found["scan state"] == found["scan gathers"] == 0, name
        assert max(found["shard_map off"], found["vmap off"]) <= (2 if dtype == "float32" else 1), name
