"""The flat view: pending factors, scopes and edge cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import assert_ulp, f32, tensors

import gradxform as gx
from gradxform.core.tree import Tree
from gradxform.proof import parity

CASES: list[tuple[str, Any, Any]] = [
    ("clip_norm(1e39)", [np.full(100, 3e38, np.float32)], [np.full(100, 1e38, np.float32)]),
    ("chain(scale(1e-200), clip_global_norm(1e-200), scale(1e200))", [f32(3, 4)], [f32(0.6, 0.8)]),
    ("chain(scale(1e200), clip_global_norm(1.0))", [f32(3, 4)], [f32(0.6, 0.8)]),
    ("chain(scale(1e30), clip_norm(1.0, axes=0))", [f32(3e20, 4e20)], [f32(0.6, 0.8)]),
    ("chain(stop(), scale(2.0))", [f32(3)], [f32(0)]),
    ("chain(stop(), clip_norm(1.0))", [f32(3)], [f32(0)]),
    ("chain(clip_norm(1.0), stop())", [f32(3)], [f32(0)]),
    ("chain(clip_norm(1.0), freeze('0'), masked(clip_value(1.0), '0'))", [f32(3), f32(4)], [f32(0), f32(1)]),
    ("masked(masked(scale(2.0), '**'), '0')", [f32(3), f32(4)], [f32(6), f32(4)]),
    ("masked(chain(freeze('0'), scale(2.0)), '**')", [f32(3), f32(4)], [f32(0), f32(8)]),
    ("partition({'0': chain(scale(2.0), clip_value(1.0))}, default=scale(3.0))", [f32(3), f32(4)], [f32(1), f32(12)]),
    ("freeze('1')", [f32(3), None], [f32(3), None]),
    ("clip_value(1.0)", [f32(-3, 0.5, np.inf, np.nan)], [f32(-1, 0.5, 1, np.nan)]),
    ("clip_value(low=0.0)", [f32(-3, 0.5)], [f32(0, 0.5)]),
    ("scale(0.0)", [f32(np.nan, 2)], [f32(np.nan, 0)]),
    ("stop()", [f32(np.nan, 2)], [f32(0, 0)]),
    ("clip_norm(1.0, axes=(0,))", [f32(3, 4)], [f32(0.6, 0.8)]),
    ("chain(scale(2.0), masked(clip_global_norm(1.0), '1'), scale(0.5))", [f32(3), f32(4)], [f32(3), f32(0.5)]),
    ("chain(clip_norm(100.0), freeze('0'), clip_global_norm(1.0))", [f32(30), f32(4)], [f32(0), f32(1)]),
    ("chain(clip_norm(1.0), masked(clip_value(0.5), '1'))", [f32(10), f32(0.75)], [f32(1), f32(0.5)]),
    ("chain(clip_norm(100.0), masked(clip_value(0.5), '0'), clip_norm(1.0))", [f32(10), f32(3)], [f32(0.5), f32(1)]),
    ("chain(clip_norm(100.0), clip_value(1.0), clip_norm(1.0))", [f32(3, 4)], [f32(0.5**0.5, 0.5**0.5)]),
    ("chain(clip_norm(100.0), clip_norm(1.0, ord=1))", [f32(3, 4)], [f32(3 / 7, 4 / 7)]),
    ("masked(clip_norm(1.0), re.compile('[01]'))", [f32(3), f32(5), f32(7)], [f32(1), f32(1), f32(7)]),
    ("chain(scale(-2.0), clip_norm(1.0))", [np.float64([3, 4])], [np.float64([-0.6, -0.8])]),
    ("chain(scale(-2.0), clip_global_norm(1.0))", [np.float64([3, 4])], [np.float64([-0.6, -0.8])]),
    ("chain(scale(-2.0), clip_norm(1.0, axes=0))", [np.float64([3, 4])], [np.float64([-0.6, -0.8])]),
    ("clip_norm(1e-20, axes=0)", [f32(3e25, 4e25)], [f32(6e-21, 8e-21)]),
    ("clip_norm(1.0, axes=-1)", [np.float32([[3, 4], [0, 0]])], [np.float32([[0.6, 0.8], [0, 0]])]),
    ("clip_norm(1.0, axes=-1)", [np.float64([[3, 4], [0, 0]])], [np.float64([[0.6, 0.8], [0, 0]])]),
    ("clip_norm(1.0, axes=-1, ord=3)", [np.float32([[2, 0], [0, 0]])], [np.float32([[1, 0], [0, 0]])]),
    ("clip_norm(1.0, axes=-1, ord=1)", [np.float32([[3, 1], [0, 0]])], [np.float32([[0.75, 0.25], [0, 0]])]),
    ("clip_norm(1.0, axes=-1)", [np.complex64([[3e38 + 3e38j, 3e38 - 3e38j], [0.5j, 0]])],
     [np.complex64([[0.5 + 0.5j, 0.5 - 0.5j], [0.5j, 0]])]),
    ("clip_norm(1.0, axes=(0, 2))", [np.float32([[[3, 1], [0, 4]]])], [np.float32([[[0.9**0.5, 0.1**0.5], [0, 1]]])]),
    ("clip_norm(1.0, axes=(-1, 0), ord=float('inf'))", [np.float32([[3, 0], [0, 4]])],
     [np.float32([[0.75, 0], [0, 1]])]),
    ("clip_norm(0.5, axes=-1, ord=float('inf'))", [np.float32([[0.4, 0.1], [0.75, 0.25]])],
     [np.float32([[0.4, 0.1], [0.5, 1 / 6]])]),
    ("clip_norm(1e-50, axes=1)", [np.float64([[3e200, 4e200], [3e-20, 4e-20]])],
     [np.float64([[6e-51, 8e-51]] * 2)]),
    ("clip_norm(1.0, axes=1)", [np.float64([[np.nan, 1], [3e200, 4e200], [np.inf, 1]])],
     [np.float64([[np.nan] * 2, [0.6, 0.8], [np.nan] * 2])]),
    ("chain(scale(1e38), zero_nonfinite())", [f32(1e3, 1)], [f32(0, 1e38)]),
    ("zero_nonfinite()", [np.complex64([complex(1, np.nan), complex(np.inf, 1), 2j])], [np.complex64([0, 0, 2j])]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "given", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_cases(expression: str, given: Any, wanted: Any, framework: str) -> None:
    tx = gx.parse(expression)
    assert_ulp(tx(tensors(framework, given)), wanted, 1)
    assert_ulp(list(parity.expected(tx, given).values()), [leaf for leaf in wanted if leaf is not None], 1)


def test_zeros_of_two_signs_are_two_factors() -> None:
    assert gx.scale(0.0) != gx.scale(-0.0)
    assert gx.scale(0) == gx.scale(0.0)


def test_a_transformation_is_a_value() -> None:
    tx = gx.partition({"a": gx.scale(2.0)})
    with pytest.raises(AttributeError, match="immutable"):
        tx.name = "other"
    with pytest.raises(AttributeError, match="immutable"):
        del tx.name
    rules: dict[str, Any] = {"a": gx.scale(2.0)}
    tx = gx.partition(rules)
    rules["b"] = gx.stop()
    assert repr(tx) == "partition({'a': scale(2.0)})"


def test_an_empty_tree_has_no_view() -> None:
    assert Tree.read({"a": None, "b": []}) is None
    assert gx.clip_norm(1.0)({"a": None, "b": []}) == {"a": None, "b": []}
