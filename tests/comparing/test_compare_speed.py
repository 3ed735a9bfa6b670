"""What recording and comparing cost: a pair of 500 MB steps, at the speed of disk and memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from support import slow

import gradxform as gx

MEGABYTES = 500
pytestmark = slow("writes and reads gigabytes")
LEAVES = {f"layer{i}/kernel": (2500, 5000) for i in range(MEGABYTES // 50)}


def test_a_pair_of_500_megabytes(tmp_path: Path, rng: Any) -> None:
    tree = {path: rng.standard_normal(shape, np.float32) for path, shape in LEAVES.items()}
    other = {path: leaf * np.float32(1 + 2.0**-20) for path, leaf in tree.items()}
    start = time.process_time()
    gx.record(tmp_path / "a")(0, gradients=tree)
    recording = time.process_time() - start
    start = time.process_time()
    (tmp_path / "raw").write_bytes(b"".join(leaf.data for leaf in tree.values()))
    writing = time.process_time() - start
    gx.record(tmp_path / "b")(0, gradients=other)
    start = time.process_time()
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    comparing = time.process_time() - start
    assert found.a.step(0).path.stat().st_size > MEGABYTES * 1e6
    assert recording < 2 * writing + 0.5  # writing itself differs from run to run
    assert comparing < 10
