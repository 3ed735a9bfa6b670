"""Save a transform in a configuration: as an expression, with the Keras objects in it."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import keras

from gradxform import GradientTransformation
from gradxform.core.factory import read
from gradxform.core.transform import hyperparameters, replaced

_Schedule = keras.optimizers.schedules.LearningRateSchedule
_PLAIN = (type(None), bool, int, float, str, re.Pattern)
_ADVICE = (
    "Write numbers, strings, patterns, paths such as 'encoder/kernel', keras.Variable, schedules of "
    "keras.optimizers.schedules, or functions with a name, decorated with @keras.saving.register_keras_serializable()"
)

registered: Any = functools.partial(keras.saving.register_keras_serializable, "gradxform_keras")
"""Decorates a class so that Keras saves it under a name."""


class _Name:
    """Placeholder for an object in an expression; also a schedule or function, for code that checks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.name


def written(what: str, tx: GradientTransformation) -> Any:
    """Write a transform as an expression, in a dict with the named objects if there are any.

    Raises:
        ValueError: The transform cannot be saved; the message names the argument.
    """
    expression, objects = _named(what, tx)
    if not objects:
        return expression
    return {"expression": expression, "objects": {name: _config(value) for name, value in objects.items()}}


def _named(what: str, tx: GradientTransformation) -> tuple[str, dict[str, Any]]:
    """The expression of a transform with names for objects that Keras can save, and these, which are not read."""
    objects: dict[str, Any] = {}

    def name(value: Any) -> Any:
        if isinstance(value, _PLAIN) or not _is_saved(value):
            return value
        objects[f"object_{len(objects)}"] = value
        return _Name(f"object_{len(objects) - 1}")

    try:
        expression = repr(replaced(tx, name))
        again = read(expression, objects)
    except (TypeError, ValueError):
        again = None
    if again != tx:
        odd = [value for value in hyperparameters(tx) if not isinstance(value, _PLAIN) and not _is_saved(value)]
        holds = f"it holds {odd[0]!r:.120}" if odd else "it chooses variables, or no expression builds it"
        raise ValueError(
            f"{what}: {tx!r} cannot be saved with the model, since {holds}. {_ADVICE}; model.save_weights still works"
        )
    return expression, objects


def restored(config: Any, custom_objects: Any = None) -> GradientTransformation:
    """Rebuild the transform from a result of `written`."""
    if isinstance(config, str):
        return read(config, {})
    objects = {name: _object(given, custom_objects) for name, given in config["objects"].items()}
    return read(config["expression"], objects)


def warn_if_unsaved(what: str, tx: GradientTransformation) -> None:
    """Warn early of a transform that `model.save` will refuse."""
    try:
        _named(what, tx)
    except ValueError as error:
        warnings.warn(str(error), stacklevel=3)


def _is_saved(value: Any) -> bool:
    """Whether Keras can save an object: a variable, a schedule or a registered object."""
    if isinstance(value, _Schedule):
        return type(value).get_config is not _Schedule.get_config
    if isinstance(value, keras.Variable):
        return True
    kept = value if hasattr(value, "__name__") else type(value)
    known = keras.saving.get_registered_object(keras.saving.get_registered_name(kept))
    return known is kept and kept.__name__ != "<lambda>"


def _config(value: Any) -> Any:
    if not isinstance(value, keras.Variable):
        return keras.saving.serialize_keras_object(value)
    number = keras.ops.convert_to_numpy(value).tolist()
    return {"variable": number, "dtype": keras.backend.standardize_dtype(value.dtype), "name": value.name}


def _object(config: Any, custom_objects: Any) -> Any:
    if "variable" not in config:
        return keras.saving.deserialize_keras_object(config, custom_objects=custom_objects)
    return keras.Variable(config["variable"], dtype=config["dtype"], trainable=False, name=config["name"])
