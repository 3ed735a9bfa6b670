"""The flat view: pending factors, scopes and edge cases."""

from __future__ import annotations

from typing import Any

import pytest

import gradxform as gx
from gradxform.core.tree import Tree


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
