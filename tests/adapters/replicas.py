"""Cases on two replicas of tf.distribute, in a process whose devices are configured before TensorFlow starts."""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from support import python

COUNT = 2


def place() -> int:
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def main(cases: Mapping[str, Callable[[Any], Any]]) -> None:
    """Run each case under a strategy, and print what it returns, or its failure."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * COUNT)
    strategy, found = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), {}
    assert strategy.num_replicas_in_sync == COUNT
    for name, run in cases.items():
        try:
            found[name] = run(strategy) or ""
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


@functools.cache
def results(script: str) -> dict[str, Any]:
    """What a script that ends with `main` has printed."""
    found: dict[str, Any] = json.loads(python(script, CUDA_VISIBLE_DEVICES="").stdout.splitlines()[-1])
    return found
