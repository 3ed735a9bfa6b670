"""What people who know TensorFlow type first: it works, or one sentence says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import one_sentence

import gradxform as gx

tf = pytest.importorskip("tensorflow")

TX = gx.clip_global_norm(1.0)


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


def pairs() -> Any:
    net = Net()
    return [(tf.constant([3.0, 4.0]), net.w), (tf.constant(1.0), net.steps)]


def processor() -> Any:
    return gx.tensorflow.GradientProcessor(TX, Net())


class Optimizer:
    """What has the method by which one is known."""

    def apply_gradients(self, _: Any) -> None:
        pass


WRONG: list[tuple[Any, ...]] = [
    (
        lambda: gx.global_norm(pairs()),
        TypeError,
        "global_norm: expected gradients, got (gradient, variable)",
    ),
    (lambda: gx.norms(pairs()), TypeError, "write [gradient for gradient, _ in pairs]"),
    (lambda: gx.nonfinite_paths(pairs()), TypeError, "expected gradients, got (gradient, variable) pairs"),
    (lambda: gx.mean([pairs(), pairs()]), TypeError, "mean: expected gradients"),
    (lambda: gx.per_example_clip_norm(pairs(), 1.0), TypeError, "per_example_clip_norm: expected gradients"),
    (lambda: gx.to_numpy(processor()), TypeError, "this is a processor", "write processor.state"),
    (lambda: gx.tensorflow.apply(TX, Net()), TypeError, "write list(zip(tape.gradient(loss, variables), variables))"),
    (lambda: gx.tensorflow.GradientProcessor(TX, 3), TypeError, "variables must be a list of variables, got 3"),
    (lambda: gx.tensorflow.GradientProcessor(TX, pairs()), TypeError, "write [variable for _, variable in pairs]"),
    (
        lambda: processor().apply_gradients(pairs(), Optimizer()),
        TypeError,
        "apply_gradients(optimizer, grads_and_vars)",
    ),
    (lambda: gx.tensorflow.apply(gx.freeze("w:0"), pairs()), ValueError, "'w:0' matches no path", "did you mean 'w'?"),
    (lambda: gx.tensorflow.GradientProcessor(TX, tf.Module()), ValueError, "model.build(shape), or a first call"),
]


@pytest.mark.parametrize(("typed", "error", "words"), [(t, e, w) for t, e, *w in WRONG], ids=range(len(WRONG)))
def test_one_sentence_says_what_to_write(typed: Callable[[], Any], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        typed()
    one_sentence(str(caught.value), *words)
