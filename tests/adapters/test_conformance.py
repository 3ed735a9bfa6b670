"""Every adapter passes every case of conformance.py; keras_cases.py and test_keras.py run Keras's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import conformance
import pytest
from drivers import DRIVERS
from support import FUSED, GRAPHS, SESSION, XLA, slow

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
HERE = [driver for driver in DRIVERS if importlib.util.find_spec(driver.framework)]


def in_session(driver: str, case: str) -> bool:
    if driver.endswith("resource variables"):
        return case not in ("transform, several", "left out, skip_nonfinite")
    words = ("noise", "accum", ", clip", "saved", "dtypes", "flush, skip", "flush, in", "nested", "skip_large")
    return driver.endswith("session") and any(word in case for word in words)


def in_xla(driver: str, case: str) -> bool:
    quick = ("transform, trace", "left out, skip_nonfinite", "a pattern that matches nothing")
    return driver.endswith("XLA") and case not in quick


COSTLY = ("noise", "accum", "schedule", "part", "leaf", "error", "measure", "masks", "saved", "dtypes", "optimizers")
COSTLY += ("nested", "flush, skip", "flush, in", "spikes", "skip_large", "unchanged")


def in_function(driver: str, case: str) -> bool:
    return driver.endswith("tf.function") and any(word in case for word in COSTLY)


def in_optax(driver: str, case: str) -> bool:
    return driver == "optax.chain" and any(word in case for word in COSTLY)


def in_compile(driver: str, case: str) -> bool:
    words = ("saved", "dtypes", "flush, skip", "flush, in", "elsewhere", "metrics", "accumulate")
    return driver.endswith("mx.compile") and any(word in case for word in words)


@slow(FUSED, in_compile)
@slow(SESSION, in_session)
@slow(XLA, in_xla)
@slow(XLA, in_optax)
@slow(GRAPHS, in_function)
@pytest.mark.parametrize(("driver", "case"), conformance.pairs(HERE))
def test_an_adapter(driver: str, case: str, tmp_path: Path) -> None:
    conformance.check(HERE, driver, case, tmp_path)
