"""Keras's undocumented methods do what the wrapper uses them for; a failure says what breaks in gradxform."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from gradxform_keras import _private  # noqa: E402

OPTIMIZERS = [
    found
    for name in sorted(vars(keras.optimizers))
    if isinstance(found := getattr(keras.optimizers, name), type) and issubclass(found, keras.optimizers.Optimizer)
]
ORDER = (
    "_backend_apply_gradients",
    "_clip_gradients",
    "_apply_weight_decay",
    "_backend_update_step",
    "_update_model_variables_moving_average",
)


def built(**options: Any) -> tuple[Any, Any]:
    variable = keras.Variable(np.float32([1.0, 2.0]), name="w")
    optimizer = keras.optimizers.SGD(0.1, **options)
    optimizer.build([variable])
    return optimizer, variable


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_every_optimizer_has_the_steps(kind: Any) -> None:
    assert not _private.missing_steps(kind), "keras.wrap refuses this optimizer"


def test_a_step_calls_them_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Noted(keras.optimizers.SGD):
        pass

    for name in ORDER:

        def note(self: Any, *args: Any, name: str = name) -> Any:
            seen.append(name)
            return getattr(keras.optimizers.SGD, name)(self, *args)

        setattr(Noted, name, note)
    variable = keras.Variable(np.float32([1.0, 2.0]))
    optimizer = Noted(0.1, weight_decay=0.1, use_ema=True)
    optimizer.build([variable])
    optimizer.apply([keras.ops.ones(2)], [variable])
    assert tuple(seen) == ORDER, "the transform would see scaled gradients, or not reach decay and averages"


def test_a_class_without_a_step_is_named() -> None:
    assert _private.missing_steps(object) == list(ORDER)


def test_the_variables_that_an_optimizer_updates() -> None:
    optimizer, variable = built()
    assert [id(v) for v in _private.variables_of(optimizer)] == [id(variable)], (
        "patterns would match slots, not weights"
    )
    assert optimizer._get_variable_index(variable) == 0, "the gradients of a step would go to other variables"


def test_a_tracked_variable_is_the_optimizers() -> None:
    optimizer, _ = built()
    limit = keras.Variable(1.0, trainable=False)
    _private.track(optimizer, limit)
    assert any(limit is v for v in optimizer.variables), "JAX would take a limit that changes for a constant"


def test_averages_of_weights_are_kept_by_place() -> None:
    optimizer, variable = built(use_ema=True)
    assert optimizer._model_variables_moving_average[0].shape == variable.shape, (
        "averages of stopped weights would move"
    )


def test_the_learning_rate_as_given() -> None:
    def rate() -> float:
        return 0.1

    optimizer = keras.optimizers.SGD(rate)
    assert _private.learning_rate_of(optimizer) is rate, "an optimizer with a function as rate cannot be wrapped"
    with _private.without_learning_rate(optimizer):
        assert isinstance(optimizer.get_config()["learning_rate"], float)
    assert _private.learning_rate_of(optimizer) is rate


def test_the_step_that_counts_is_the_optimizers_variable() -> None:
    optimizer, variable = built(gradient_accumulation_steps=2)
    optimizer.apply([keras.ops.ones(2)], [variable])
    assert int(optimizer._iterations) == 1, "skipped steps would count"


@pytest.mark.parametrize("name", ["built", "_tracker", "_variables", "_trainable_variables_indices"])
def test_bookkeeping_is_an_attribute(name: str) -> None:
    optimizer, _ = built(momentum=0.9)
    assert name in vars(optimizer), "keras.wrap would copy what has another name now into a new optimizer"
    assert _private.is_bookkeeping(name)
    assert not _private.is_bookkeeping("momentum")


def test_a_pickle_is_read_by_the_class() -> None:
    optimizer, _ = built()
    function, arguments = optimizer.__reduce__()[:2]
    found = _private.unpickled(keras.optimizers.SGD, *arguments)
    assert type(found) is keras.optimizers.SGD, "wrapped optimizers cannot be pickled"
    assert callable(function)
    assert type(pickle.loads(pickle.dumps(optimizer))) is keras.optimizers.SGD


def test_without_a_distribution_a_variable_has_no_layout() -> None:
    assert _private.layout_of(keras.Variable(1.0)) is None, "states would be placed by a layout that is none"
