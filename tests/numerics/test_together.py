"""Small leaves in host memory, computed together: the same bits as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import assert_bits

from gradxform.backend.host import kernels

SHAPES = ((3, 4), (0, 2), (5,), (), (9000,), (2, 1, 3), (8192,))


def columns(*dtypes: Any) -> list[list[Any]]:
    """Random leaves and arrays beside them."""
    rng = np.random.default_rng(0)
    return [[np.asarray(rng.normal(size=shape)).astype(dtype) for shape in SHAPES] for dtype in dtypes]


def _counted(xp: Any, x: Any, y: Any, number: Any) -> Any:
    return x * number + y * xp.iota(x)


@pytest.mark.parametrize("factors", ([None] * 7, [0.3] * 7, [0.3, 0.5, 0.3, 0.5, 1.0, 0.3, 0.5]))
@pytest.mark.parametrize("dtypes", (("f4", "f4"), ("f2", "f4"), ("f8", "f8"), ("f4", "f8"), ("c8", "c8")))
def test_as_one_by_one(dtypes: tuple[str, str], factors: list[Any]) -> None:
    """The index of an element is that in its leaf; each result has memory of its own."""
    given = columns(*dtypes)
    found = kernels.of_leaves(_counted, given, [0.25], factors, {})
    alone = [
        kernels.of_leaves(_counted, [[part] for part in row], [0.25], [factor], {})[0]
        for row, factor in zip(zip(*given, strict=True), factors, strict=True)
    ]
    assert_bits(found, alone)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(found) for b in found[:i])
