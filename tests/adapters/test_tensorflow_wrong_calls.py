"""What people who know TensorFlow type first: it works, or the error says what to write."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest
from support import run_advice

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")


class Net(tf.Module):  # type: ignore[misc]
    """A module of two variables, of which one is trained."""

    def __init__(self) -> None:
        super().__init__(name="net")
        self.w = tf.Variable([1.0, 1.0], name="w")
        self.steps = tf.Variable(0.0, trainable=False, name="steps")


def test_a_processor_of_a_module() -> None:
    net = Net()
    for given in (net, {"w": net.w}, net.trainable_variables, net.w):
        processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), given)
        assert set(processor.state.trace) == {"w"}
        assert processor([(tf.constant([2.0, 4.0]), net.w)])[0][0].numpy().tolist() == [2.0, 4.0]


PAIRS = "[gradient for gradient, _ in pairs]"
WRONG: list[tuple[str, type[Exception], str]] = [
    ("gx.global_norm(pairs)", TypeError, PAIRS),
    ("gx.norms(pairs)", TypeError, PAIRS),
    ("gx.nonfinite_paths(pairs)", TypeError, PAIRS),
    ("gx.mean([pairs, pairs])", TypeError, PAIRS),
    ("gx.per_example_clip_norm(pairs, 1.0)", TypeError, PAIRS),
    ("gx.clip_norm(pairs, 1.0)", TypeError, "tx = gx.clip_norm(...), then tx(gradients)"),
    ("gx.clip_norm([net.w], 1.0)", TypeError, "tx = gx.clip_norm(...), then tx(gradients)"),
    ("gx.chain(tx, old)", TypeError, "before optimizer.apply_gradients"),
    ("tx(net)", TypeError, "tape.gradient(loss, model.trainable_variables)"),
    ("gx.freeze(net.w)([tf.ones(2)])", TypeError, "choose by path"),
    ("gx.freeze(keras.layers.Dense(1))", TypeError, "module.trainable_variables"),
    ("gx.to_numpy(processor)", TypeError, "write processor.state"),
    ("processor.apply_gradients(pairs, old)", TypeError, "processor.apply_gradients(optimizer, grads_and_vars)"),
    ("gx.tensorflow.apply(tx, net)", TypeError, "list(zip(tape.gradient(loss, variables), variables))"),
    ("gx.tensorflow.apply(pairs, tx)", TypeError, "gx.tensorflow.apply(tx, grads_and_vars)"),
    *(
        (f"gx.tensorflow.apply({own}, pairs)", TypeError, "gx.tensorflow.GradientProcessor(tx, variables)")
        for own in ("gx.trace(0.5)", "gx.skip_nonfinite(tx)", "gx.accumulate(tx, 2)")
    ),
    ("tx(pairs)", ValueError, "gx.tensorflow.apply(tx, pairs)"),
    ("gx.tensorflow.apply(gx.freeze('w:0'), pairs)", ValueError, "did you mean 'w'?"),
    *((f"{call}zip())", ValueError, "list(zip(") for call in ("gx.tensorflow.apply(tx, ", "processor(")),
    ("gx.tensorflow.GradientProcessor(gx.freeze('steps'), net)", ValueError, "'steps' is not trainable"),
    ("gx.tensorflow.GradientProcessor(gx.freeze('steps'), [net.w])", ValueError, "not trainable"),
    ("gx.tensorflow.apply(gx.freeze('steps'), pairs[:1])", ValueError, "not trainable"),
    ("gx.tensorflow.GradientProcessor([net.w], tx)", TypeError, "gx.tensorflow.GradientProcessor(tx, variables)"),
    ("gx.tensorflow.GradientProcessor(tx, pairs)", TypeError, "[variable for _, variable in pairs]"),
    ("gx.tensorflow.GradientProcessor(tx, 3)", TypeError, "a list of variables"),
    ("gx.tensorflow.GradientProcessor(tx, None)", TypeError, "a list of variables"),
    ("gx.tensorflow.GradientProcessor(tx, tf.ones(2))", TypeError, "item 0 of variables"),
    *((f"gx.tensorflow.GradientProcessor(tx, [net.w, {item}])", TypeError, "item 1") for item in (3.0, "'w'", None)),
    ("gx.tensorflow.GradientProcessor(tx, [])", ValueError, "must not be empty"),
    ("processor([(tf.ones(()), tf.Variable(1.0))])", ValueError, "gx.tensorflow.GradientProcessor(tx, variables)"),
    ("gx.tensorflow.GradientProcessor(tx, tf.Module())", ValueError, "model.build(shape)"),
]


@pytest.mark.parametrize(("typed", "error", "words"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_call_says_what_to_write(typed: str, error: type[Exception], words: str) -> None:
    def names() -> dict[str, Any]:
        net, tx, old = Net(), gx.clip_global_norm(1.0), tf.compat.v1.train.GradientDescentOptimizer(0.1)
        model, processor = keras.Sequential([keras.layers.Dense(1)]), gx.tensorflow.GradientProcessor(tx, net)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net.w)
        more = {
            "tensorflow": tf,
            "optimizer": old,
            "module": types.SimpleNamespace(parameters=list),
            "shape": (None, 2),
            "variables": [net.w],
        }
        more |= {"gradients": [tf.ones(2)], "grads_and_vars": [(tf.ones(2), net.w)]}
        pairs = [(tf.constant([3.0, 4.0]), net.w), (tf.constant(1.0), net.steps)]
        return {**globals(), **locals(), **more}

    with pytest.raises(error, match=re.escape(words)) as caught:
        eval(typed, names())
    run_advice(str(caught.value), names)
