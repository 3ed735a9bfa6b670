"""Save a transform in a configuration: as an expression, with the Keras objects in it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import keras

from gradxform import GradientTransformation
from gradxform.core.factory import read
from gradxform.core.transform import hyperparameters, replaced
from gradxform.core.where import Variables

_Schedule = keras.optimizers.schedules.LearningRateSchedule
_PLAIN = (type(None), bool, int, float, str, re.Pattern)


def registered(name: str) -> Callable[[Any], Any]:
    """Decorate a class so that Keras saves it under a name."""
    register: Callable[[Any], Any] = keras.saving.register_keras_serializable("gradxform_keras", name)
    return register


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


def _named(what: str, tx: GradientTransformation) -> tuple[str, dict[str, Any]]:
    """Expression of a transform with names for objects that Keras can save, and these objects."""
    objects: dict[str, Any] = {}

    def name(value: Any) -> Any:
        if isinstance(value, _PLAIN) or not _is_keras_s(value):
            return value
        objects[f"object_{len(objects)}"] = value
        return _Name(f"object_{len(objects) - 1}")

    try:
        expression = repr(replaced(tx, name))
        again = read(expression, objects)
    except (TypeError, ValueError):
        again = None
    if again != tx:
        raise ValueError(
            f"{what}: {tx!r} cannot be saved with the model, {_reason(tx)}; model.save_weights still works"
        )
    return expression, objects


def _reason(tx: GradientTransformation) -> str:
    odd = [value for value in hyperparameters(tx) if not isinstance(value, _PLAIN) and not _is_keras_s(value)]
    if not odd and _chooses_variables(tx):
        return "since it chooses variables. Write their paths, such as 'encoder/kernel'"
    if not odd:
        return "since no expression builds it"
    if callable(odd[0]) and not hasattr(odd[0], "update"):
        advice = (
            "a function with a name, decorated with @keras.saving.register_keras_serializable(), or for a limit a "
            "schedule of keras.optimizers.schedules"
        )
    elif hasattr(odd[0], "shape"):
        advice = "a number or a keras.Variable"
    else:
        advice = "transforms of gradxform, with numbers, strings and patterns"
    return f"since it holds {odd[0]!r:.120}. Write {advice}"


def _chooses_variables(value: Any) -> bool:
    """Whether a transform, or one inside it, selects gradients by variable."""
    if isinstance(value, GradientTransformation):
        value = [item for _, item in value.arguments]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return isinstance(value, Variables) or (isinstance(value, (list, tuple)) and any(map(_chooses_variables, value)))


def _is_keras_s(value: Any) -> bool:
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
