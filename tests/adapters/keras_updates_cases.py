"""Transforms of updates in Keras 3, keras.wrap(..., on="updates"); test_keras.py runs these once per backend."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import BACKEND, UNTOUCHED, fit, many, network, starts, steps, variables
from support import bits

import gradxform as gx

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

opt = keras.optimizers


def wrapped(optimizer: Any, tx: Any) -> Any:
    return gx.keras.wrap(optimizer, tx, on="updates")


# --- untouched, bit for bit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"jit_compile": False}, {"jit_compile": True}], ids=str)
def test_unchanged_updates_change_no_bit_of_what_fit_trains(how: dict[str, bool]) -> None:
    if BACKEND == "torch" and how.get("jit_compile"):
        pytest.skip("Keras on PyTorch would need a C++ compiler")
    ends = []
    for tx in (None, UNTOUCHED):
        model = network()
        optimizer = opt.AdamW(0.01, weight_decay=0.1)
        model.compile(optimizer if tx is None else wrapped(optimizer, tx), loss="mse", **how)
        ends.append(fit(model, 2).get_weights())
    if how.get("jit_compile"):  # a compiler may contract a product and a sum, in one program and not in the other
        for one, other in zip(*ends, strict=True):
            np.testing.assert_allclose(one, other, rtol=3e-6, atol=3e-7)
    else:
        assert bits(ends[0]) == bits(ends[1])


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX has stateless steps")
@pytest.mark.parametrize("kind", [opt.AdamW, opt.Lion, opt.RMSprop])
def test_unchanged_updates_change_no_bit_of_a_jitted_step(kind: Any) -> None:
    """A compiler may fuse the difference with the optimizer's own arithmetic; on the CPU it rounds as without."""
    import jax

    ends = []
    for tx in (None, UNTOUCHED, gx.freeze("**/kernel")):
        made = variables(starts())
        optimizer = kind(0.1) if tx is None else wrapped(kind(0.1), tx)
        optimizer.build(made)
        held, weights, step = (
            [v.value for v in optimizer.variables],
            [v.value for v in made],
            jax.jit(optimizer.stateless_apply),
        )
        for gradient in many(5):
            weights, held = step(held, [jax.numpy.asarray(g) for g in gradient], weights)
        ends.append(bits(list(map(np.asarray, weights))))
    assert ends[0] == ends[1]
    assert ends[2] == [bits(starts())[0], ends[0][1]]


# --- right numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_variables(dtype: str) -> None:
    ends = []
    for tx in (None, UNTOUCHED, gx.scale(0.5), gx.freeze("w")):
        made = [keras.Variable(np.linspace(-3.0, 3.0, 16), dtype=dtype, name="w")]
        optimizer = opt.SGD(0.01)
        optimizer = optimizer if tx is None else wrapped(optimizer, tx)
        optimizer.apply([keras.ops.ones((16,), dtype)], made)
        ends.append(np.float64(keras.ops.convert_to_numpy(keras.ops.cast(made[0], "float32"))))
    old = ends[3]
    assert ends[0].tobytes() == ends[1].tobytes() != old.tobytes()
    middle = keras.ops.cast(keras.ops.convert_to_tensor(np.float32(old + 0.5 * (ends[0] - old))), dtype)
    assert np.array_equal(ends[2], keras.ops.convert_to_numpy(keras.ops.cast(middle, "float32")))


# --- states, skipped steps, options ----------------------------------------------------------------------------------


def test_accumulation_by_keras_is_one_update() -> None:
    """Between the updates nothing moves, and the state neither."""
    made = [keras.Variable(np.float32([0.0]), name="w")]
    optimizer = wrapped(opt.SGD(1.0, gradient_accumulation_steps=2), gx.chain(gx.scale(0.5), gx.ema(0.5, debias=False)))
    seen = []
    for gradient in (1.0, 3.0, 2.0, 6.0):
        weight = steps(optimizer, [[np.float32([gradient])]], made)[0].item()
        seen.append((weight, int(optimizer.gradient_transformation_state[1].count)))
    assert [count for _, count in seen] == [0, 1, 1, 2]
    assert seen[0][0] == 0.0 and seen[1][0] == seen[2][0] == -0.5


def test_a_constraint_comes_after() -> None:
    made = [keras.Variable(np.float32([1.0, -1.0]), name="w")]
    made[0].constraint = keras.constraints.NonNeg()
    optimizer = wrapped(opt.SGD(1.0), gx.scale(0.5))
    assert steps(optimizer, [[np.float32([1.0, 1.0])]], made)[0].tolist() == [0.5, 0.0]


# --- models ----------------------------------------------------------------------------------------------------------


def test_an_embedding() -> None:
    """Its gradients are sparse in TensorFlow; updates are not."""
    ends = []
    for tx in (None, UNTOUCHED, gx.clip_global_norm(0.01)):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 3), keras.layers.Flatten()]
        )
        optimizer = opt.SGD(0.1)
        model.compile(optimizer if tx is None else wrapped(optimizer, tx), loss="mse")
        start = model.get_weights()
        model.fit(np.int32([[0, 3]]), np.ones((1, 6), np.float32), epochs=1, verbose=0)
        ends.append(model.get_weights())
    assert bits(ends[0]) == bits(ends[1])
    np.testing.assert_allclose(np.linalg.norm(ends[2][0] - start[0]), 0.01, rtol=1e-4)
