"""A pytest plugin that simulates Windows' and Apple's platforms: longdouble is float64; one core; no affinity, no fork.

`make test-platform` runs the tests of whatever reads numbers itself under it.
"""

from __future__ import annotations

import os

import numpy as np

np.longdouble = np.float64  # type: ignore[assignment,misc]
np.clongdouble = np.complex128  # type: ignore[assignment,misc]
os.cpu_count = lambda: 1
for module, name in ((os, "sched_getaffinity"), (os, "fork"), (os, "process_cpu_count")):
    if hasattr(module, name):
        delattr(module, name)
