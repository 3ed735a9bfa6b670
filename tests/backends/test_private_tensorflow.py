"""TensorFlow's undocumented functions do what this backend uses them for; a failure says what breaks in gradxform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from gradxform_tensorflow import _private  # noqa: E402

READ = "fast paths would read values that a tape watches, and lose gradients"


def graph() -> Any:
    return tf.compat.v1.get_default_graph()


def test_a_tape_is_seen() -> None:
    x, other = tf.constant(1.0), tf.constant(2.0)
    assert not _private.may_record()
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert _private.may_record(), READ
        assert _private.is_recorded([x]), "override_gradients would not refuse a tape that ignores it"
        assert not _private.is_recorded([other])
        with tape.stop_recording():
            assert not _private.may_record()


def test_types_of_ops_are_known() -> None:
    assert _private.has_op("Identity"), "override_gradients refuses every type"
    assert not _private.has_op("Identitty"), "override_gradients takes types that do not exist"


@pytest.mark.parametrize("xla", [False, True])
def test_who_compiles_a_graph(xla: bool) -> None:
    seen = []

    @tf.function(jit_compile=xla, autograph=False)
    def inner(x: Any) -> Any:
        seen.append((_private.is_xla(graph()), _private.is_function(graph())))
        return x + 1.0

    inner(tf.constant(1.0))
    assert seen == [(xla, True)], "formulas would use ops that XLA lacks, or compile inside of what XLA compiles"
    assert not _private.is_function(tf.Graph())


def test_a_branch_of_tensorflow_1_is_seen() -> None:
    seen = []

    def branch() -> Any:
        seen.append(_private.is_in_control_flow(graph()))
        return tf.constant(1.0)

    with tf.Graph().as_default():
        seen.append(_private.is_in_control_flow(graph()))
        enabled = tf.compat.v1.control_flow_v2_enabled()
        tf.compat.v1.disable_control_flow_v2()
        try:
            tf.compat.v1.cond(tf.constant(True), branch, lambda: tf.constant(0.0))
        finally:
            if enabled:
                tf.compat.v1.enable_control_flow_v2()
    assert seen == [False, True], "a state's tensors would leave the branch that computes them"


def test_a_reference_differs_from_its_base_dtype() -> None:
    with tf.Graph().as_default():
        kept = tf.compat.v1.Variable(1.0, use_resource=False).dtype
        new = tf.compat.v1.Variable(1.0, use_resource=True).dtype
    assert (kept != kept.base_dtype, new != new.base_dtype) == (True, False)


def test_keys_of_a_tree() -> None:
    tree = {"b": [1, (2, None)], "a": 3}
    assert _private.keys_of(tree) == [("a",), ("b", 0), ("b", 1, 0), ("b", 1, 1)], "paths of gradients change"
    assert len(_private.keys_of(tree)) == len(tf.nest.flatten(tree))


def test_the_attribute_of_an_overridden_gradient() -> None:
    with tf.Graph().as_default() as made, made.gradient_override_map({"Identity": "Other"}):
        op = tf.identity(1.0).op
    found = op.node_def.attr
    assert found[_private.GRADIENT_OVERRIDE].s == b"Other", "override_gradients would refuse correct functions"


def test_the_variable_inside_a_keras_variable() -> None:
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras has another backend")
    variable = keras.Variable([1.0])
    assert isinstance(_private.value_of(variable), tf.Variable), "Keras's variables and TensorFlow's would be two"
    plain = tf.Variable(1.0)
    assert _private.value_of(plain) is plain
    clipped = _private.clipped_by(keras.optimizers.SGD(clipvalue=0.5), [tf.constant([2.0])])
    assert np.asarray(clipped[0]).tolist() == [0.5], "parity has nothing of Keras to compare with"


def test_ops_of_an_eager_call_have_names() -> None:
    x = tf.constant(1.0)
    assert _private.names_of_ops(lambda y: tf.sqrt(y) + y, x) == ["Sqrt", "AddV2"], "bench would count no ops"


def test_a_function_that_updates_variables_is_called_with_the_strategy() -> None:
    seen = []
    _private.maybe_merge_call(lambda strategy, *given: seen.append((strategy, given)), tf.distribute.get_strategy(), 1)
    assert seen == [(tf.distribute.get_strategy(), (1,))], "updates under a strategy would move no variable"
