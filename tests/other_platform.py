"""A pytest plugin that simulates Windows' and Apple's platforms: longdouble is float64; one core; no affinity, no fork.

`make test-platform` runs the tests of whatever reads numbers itself under it.
"""

from __future__ import annotations

import os

import numpy as np


def pytest_configure() -> None:
    """Change this process before the library is imported; merely importing this file changes nothing."""
    np.longdouble = np.float64  # type: ignore[assignment,misc]
    np.clongdouble = np.complex128  # type: ignore[assignment,misc]
    os.cpu_count = lambda: 1
    for name in ("sched_getaffinity", "fork", "process_cpu_count"):
        if hasattr(os, name):
            delattr(os, name)
