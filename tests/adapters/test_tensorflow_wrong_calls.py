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
    for given in (net, {"w": net.w}, net.trainable_variables):
        processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), given)
        assert set(processor.state.trace) == {"w"}
        assert processor([(tf.constant([2.0, 4.0]), net.w)])[0][0].numpy().tolist() == [2.0, 4.0]


WRONG: list[tuple[Any, ...]] = [
    (lambda: gx.tensorflow.GradientProcessor(TX, tf.Module()), ValueError, "model.build(shape), or a first call"),
]


@pytest.mark.parametrize(("typed", "error", "words"), [(t, e, w) for t, e, *w in WRONG], ids=range(len(WRONG)))
def test_one_sentence_says_what_to_write(typed: Callable[[], Any], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        typed()
    one_sentence(str(caught.value), *words)
