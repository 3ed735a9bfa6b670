"""Sharded gradients: only numbers travel, nothing leaf-sized is held, and what comes out is spread as what went in."""

from __future__ import annotations

import json

import pytest
from support import python

pytest.importorskip("jax")

HELD = 1 << 16
"""Bytes of temporaries on each device, where the largest shard has 256 KiB in float32."""
COPIES = {
    "clip_norm(1.0, ord=float('inf'))": 1 << 19,  # a bool an element: XLA's maximum may drop a NaN
    "chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))": 1 << 20,  # the CPU's branch for extreme numbers
}
HALF_COPIES = {"add_noise(0.1, 0)": 12 << 20, "accumulate(clip_global_norm(1.0), 2)": 1 << 20}
"""Not mended yet: on the CPU, XLA keeps what it rounds to bfloat16 in wider dtypes here."""
NUMBERS = 1024
"""The most numbers that are added up over the devices at once: the norms of the columns that lie on one of them."""


@pytest.mark.parametrize(
    ("kind", "dtype", "mode"),
    [
        ("auto", "float32", "jit"),
        ("explicit", "bfloat16", "jit"),
        ("auto", "bfloat16", "eager"),
        ("explicit", "float32", "eager"),
    ],
)
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
            allowed = COPIES if dtype == "float32" else COPIES | HALF_COPIES
            assert found["temporary"] <= allowed.get(name, HELD), name
