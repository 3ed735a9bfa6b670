"""The contracts themselves; and what mutation testing found no test for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradxform as gx
from gradxform import _backend


@pytest.mark.parametrize("framework", _backend.installed())
@pytest.mark.parametrize(("ord", "wanted"), [(None, 5.0), (1, 7.0), (float("inf"), 4.0)])
def test_the_norm_of_all_leaves(ord: Any, wanted: float, framework: str) -> None:
    backend = _backend.backend(framework)
    tree = [backend.from_numpy(np.float32([3.0, 0.0])), None, backend.from_numpy(np.float32([-4.0]))]
    found = backend.to_numpy(gx.global_norm(tree, ord=ord))
    assert (found.dtype, float(found)) == (np.float32, wanted)
