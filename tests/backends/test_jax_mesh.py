"""Sharded gradients: only numbers are communicated, nothing leaf-sized is kept, and results keep their sharding."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from entries import on_devices
from support import PROCESSES, python, slow

from gradxform.proof import products
from gradxform.proof.registry import Row
from gradxform.proof.ulp import DOUBLE, SUMS

pytest.importorskip("jax")
import jax_mesh_matrices as matrices
from devices import transforms

pytestmark = [slow(PROCESSES), pytest.mark.timeout(900)]
TRANSFORMS = transforms("mesh", "*s")

HELD = 1 << 16
"""Temporary bytes per device; the largest shard has 256 KiB in float32."""
COPIES = {
    "chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))": 1 << 20,
    "accumulate(clip_global_norm(1.0), 2)": 1 << 20,
}
"""On the CPU, XLA computes float32 sums in a library that reads memory, so clipped and averaged leaves are written."""
WIDENED = {"top_k(0.1)": 1 << 20}
"""On the CPU, XLA converts the bfloat16 leaves that a loop reads to float32."""
MEASURED = {expression: cost.mesh for _, expression, cost in on_devices("mesh")}
COPIED = {
    "cautious()",
    "chain(scale(3.0), clip_value(0.5), clip_global_norm(1.0))",
    "error_feedback(clip_global_norm(1.0))",
    "orthogonal_to_parameters()",
    "add_decayed_weights(0.1)",
    "add_decayed_weights(0.1, cautious=True)",
    "mars()",
    "clip_norm(1.0, ord=float('inf'))",
    "error_feedback(sign())",
    "top_k(0.1)",
    *COPIES,
}
"""On the CPU, XLA copies donated float32 arrays that two results use: known limitation."""
NUMBERS = 1024
"""The most numbers in one all-reduce: the norms of the columns on one device."""


WAYS = [("auto", "float32"), ("explicit", "bfloat16")]


def allowed_off(name: str, dtype: str) -> int:
    """Two results may be apart by twice the budget of sums, and by 2 ULP of float32 if they are rescaled."""
    return {"float32": 2 * SUMS if Row(name).sums else 2, "float64": 2 * DOUBLE, "bfloat16": 1}[dtype]


@pytest.mark.parametrize(("kind", "dtype"), WAYS)
def test_every_transform_on_a_mesh(kind: str, dtype: str) -> None:
    """Also in scan, and on one of the two kinds of mesh donated, in shard_map and vmap: each compiles anew."""
    reports = reports_of(kind, dtype, "jit")
    # The check can fail: a norm needs an all-reduce and a few temporary numbers.
    assert reports["clip_global_norm(1.0)"]["traffic"] and reports["clip_global_norm(1.0)"]["temporary"] > 0
    for name, found in reports.items():
        assert set(found["traffic"]) <= {"all-reduce"}, name
        assert found["traffic"].get("all-reduce", 0) <= NUMBERS, name
        allowed = {
            "float32": COPIES.get(name, 0),
            "bfloat16": COPIES[name] + HELD if name in COPIES else WIDENED.get(name, 0),
        }
        most = max(HELD, allowed[dtype], MEASURED.get(name, {}).get(dtype, 0))
        assert found["temporary"] <= most, name
        assert found["init"] == 0, name
        assert found["scan off"] <= (2 * SUMS if Row(name).sums else 0), name  # a loop may fuse sums otherwise
        assert found["scan spread"] == found["scan state"] == found["scan gathers"] == 0, name
        if kind == "explicit":
            assert found["warned"] == [], name
            assert found["aliases"] >= found["arrays"], name  # and most numbers
        else:
            assert (found["scan held"] > 4 * HELD) == (name in COPIED), name
            assert max(found["shard_map off"], found["vmap off"]) <= allowed_off(name, dtype), name


@pytest.mark.parametrize(("kind", "dtype"), [("explicit", "float32"), ("auto", "float64")])
def test_every_transform_on_a_mesh_in_eager_mode(kind: str, dtype: str) -> None:
    reports_of(kind, dtype, "eager")


def reports_of(kind: str, dtype: str, mode: str) -> Any:
    """The reports, all of which have right numbers and shardings."""
    reports = json.loads(python("tests/backends/jax_mesh.py", kind, dtype, mode).stdout.splitlines()[-1])
    assert set(reports) == {*TRANSFORMS, "elementwise(tanh)"}
    for name, found in reports.items():
        assert found["off"] <= allowed_off(name, dtype), name
        assert found["spread"] == [], name
        assert found["state"] == 0, name
    return reports


DEVICES = {"rows": 4, "columns": 2, "both": 8, "stack": 1, "stack and rows": 2, "kernel": 8}
"""The devices that shard one leaf's matrices, of a mesh of 4 by 2."""


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_matrices_on_a_mesh(kind: str) -> None:
    done = python("tests/backends/jax_mesh_matrices.py", kind)
    reports = json.loads(done.stdout.splitlines()[-1])
    assert len(reports) == 6
    for name, found in reports.items():
        shape = matrices.MATRICES[name][0]
        gathered = found["traffic"].get("all-gather", 0)
        assert found["off"] < products.budget("jordan", 5) * 2.0**-24, name
        assert found["spread"], name
        assert gathered <= math.prod(shape), name
        assert found["neurons"]["off"] < 2.0**-22 and found["neurons"]["spread"], name
        travels = found["neurons"]["traffic"]  # norms
        assert set(travels) <= {"all-reduce"} and sum(travels.values()) <= max(shape), name
        many, devices = found["many"], DEVICES[name]
        assert many["off"] < products.budget("jordan", 5) * 2.0**-24 and many["spread"], name
        assert many["gathered"] <= math.prod(shape), name
        if kind == "explicit":  # devices share all but what is left over
            left = matrices.MANY % devices
            assert many["products"] < (matrices.MANY - left) / devices + left + 0.5, name
        if name == "stack":
            assert found["traffic"] == {}
        elif kind == "auto" and name in ("rows", "columns"):  # products of the shorter side are added up
            assert not gathered and found["traffic"]["all-reduce"] <= min(shape) ** 2, name
        else:
            assert gathered, name
