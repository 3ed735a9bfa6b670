"""What every test file has: quiet frameworks, which of them are here, and no backend that another test has found."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(autouse=True)
def backends_of_other_frameworks_are_forgotten() -> Iterator[None]:
    """What a test has found of packages on a path of its own."""
    yield
    from gradxform import _backend

    for name, found in list(_backend._others.items()):
        del _backend._others[name]
        for kind in [kind for kind, owner in _backend._by_type.items() if owner is found]:
            del _backend._by_type[kind]
        for module in [module for module in sys.modules if module.partition(".")[0] == f"gradxform_{name}"]:
            del sys.modules[module]
