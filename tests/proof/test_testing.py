"""The assertion helper and its distances fail when they should."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import INDUCTOR, slow

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity
from gradxform.testing import assert_parity, max_ulp

GRADS = {"w": np.float32([3.0, 4.0]), "n": None, "b": [np.float32([1.0])]}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_ulp_counts_steps(dtype: Any) -> None:
    bits = {2: np.int16, 4: np.int32, 8: np.int64}[np.dtype(dtype).itemsize]
    one = np.array([1.0, -1.0, 0.1]).astype(dtype)
    for steps in (1, 2, 7, 300):
        assert max_ulp(one, (one.view(bits) + steps).astype(bits).view(dtype)) == steps


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (np.float32([0.0]), np.float32([-0.0]), 0),
        (np.float32([np.nan]), np.float32([np.nan]), 0),
        (np.float32([np.inf]), np.float32([np.inf]), 0),
        (np.float32([np.nan]), np.float32([1.0]), np.inf),
        (np.float32([np.inf]), np.float32([3.4e38]), np.inf),
        (np.float32([np.inf]), np.float32([-np.inf]), np.inf),
        (np.float32([1e-45]), np.float32([-1e-45]), 2),
        (np.float64([5e-324]), np.float64([-5e-324]), 2),
        (np.float64([1.0]), np.float64([-1.0]), 2.0 * 0x3FF0000000000000),
        (np.complex64([1 + 1j]), np.complex64([1 + np.nextafter(np.float32(1), np.float32(2)) * 1j]), 1),
        (np.int32([1]), np.int32([2]), np.inf),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), 0),
    ],
)
def test_ulp_of_special_values(a: Any, b: Any, distance: float) -> None:
    assert max_ulp(a, b) == distance


def test_ulp_refuses_other_dtypes_and_shapes() -> None:
    for other, words in ((np.float64([1]), r"float32.*float64"), (np.float32([1, 1]), r"\(1,\).*\(2,\)")):
        with pytest.raises(TypeError, match=words):
            max_ulp(np.float32([1]), other)


def lying(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Change the products of NumPy's backend."""
    backend = lookup.backend("numpy")
    true = backend.multiply
    monkeypatch.setattr(backend, "multiply", lambda leaves, *rest: change(list(true(leaves, *rest)), leaves))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda new, old: [np.nextafter(np.nextafter(np.nextafter(x, 9), 9), 9).astype(x.dtype) for x in new], "3 ULP"),
        (lambda new, old: [x * np.float32(np.nan) for x in new], "inf ULP"),
        (lambda new, old: [x[..., None] for x in new], "became"),
        (
            lambda new, old: [new[0], new[1] * np.float32(2)],
            r"numpy \(eager\).*reference.*w\[1\]: 0\.479.*, not 0\.239.* ULP",
        ),
    ],
    ids=["three ULP off", "NaN", "another shape", "framework, path and values"],
)  # fmt: skip
def test_parity_fails(monkeypatch: pytest.MonkeyPatch, change: Any, message: str) -> None:
    lying(monkeypatch, change)
    with pytest.raises(AssertionError, match=message):
        assert_parity(gx.clip_norm(0.3), GRADS, frameworks=["numpy"])


def test_a_lost_none_is_noticed() -> None:
    for given, got in (
        ({"a": np.ones(1), "b": None}, {"a": np.ones(1), "b": np.ones(1)}),
        ({"a": np.ones(1), "b": None}, {"a": np.ones(1)}),
        ([np.ones(1), np.zeros(2)], (np.ones(1), np.zeros(2))),
    ):
        assert "structure" in parity._checked(lookup.backend("numpy"), "eager", given, got).problem


def test_another_dtype_and_framework_are_noticed(torch: Any) -> None:
    numpy = lookup.backend("numpy")
    assert "float64" in parity._checked(numpy, "eager", [np.float32([1])], [np.float64([1])]).problem
    assert "Tensor" in parity._checked(numpy, "eager", [np.ones(1)], [torch.ones(1)]).problem


@slow(INDUCTOR, framework="torch")
def test_a_transform_with_a_state_is_run_for_some_steps(framework: str) -> None:
    tx = gx.chain(gx.clip_global_norm(lambda t: 1.0 / (1.0 + t)), gx.trace(0.5), gx.add_decayed_weights(0.1))
    assert_parity(tx, GRADS, params=GRADS, frameworks=["numpy", framework] if framework != "numpy" else [framework])


def test_a_step_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = parity.expected_steps(gx.trace(0.5), [GRADS] * 3, GRADS)
    right[2] = {path: leaf * 2 for path, leaf in right[2].items()}
    monkeypatch.setattr(parity, "expected_steps", lambda *_: right)
    with pytest.raises(AssertionError, match=r"at step 2: "):
        assert_parity(gx.trace(0.5), GRADS, frameworks=["numpy"])
