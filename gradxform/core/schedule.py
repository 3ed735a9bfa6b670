"""Schedules as hyperparameters: functions of the step in place of numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gradxform.core import state as stateful
from gradxform.core.flat import Flat
from gradxform.core.keeping import keeping
from gradxform.core.recorder import Number, Scalar
from gradxform.core.transformation import Context, GradientTransformation


class ScheduleState(NamedTuple):
    """The state of a transform with a schedule: the step count and the transform's own state."""

    count: Any
    inner: Any


def scheduled(
    make: Callable[..., GradientTransformation], given: Mapping[str, Any], schedules: Mapping[str, Callable[[Any], Any]]
) -> GradientTransformation:
    """Build a transform that calls its factory at each step with the schedules' values."""

    def at(values: Mapping[str, Any]) -> GradientTransformation:
        return make(**{**given, **values})

    # Array values are not read: values outside the valid range are clamped instead of rejected.
    numbers = dict.fromkeys(schedules, np.ones(()))
    pattern = at(numbers)
    formulas = {name: functools.partial(_value_at, schedule) for name, schedule in schedules.items()}

    def check(name: str, value: Any) -> None:
        at({**numbers, name: value})

    checked = {
        name: functools.partial(_number_at, schedule, functools.partial(check, name))
        for name, schedule in schedules.items()
    }
    """For plans, which cannot pass a value to the factory to be checked."""

    def start(params: Any) -> ScheduleState:
        return ScheduleState(stateful.Fresh(params).count(), pattern.init(params))

    def rule(view: Flat, state: ScheduleState, context: Context) -> tuple[Flat, ScheduleState]:
        wanted = checked if isinstance(state.count, Number) else formulas
        found = {name: view.backend.compute(formula, state.count) for name, formula in wanted.items()}
        tx = at({name: _as_array(value) for name, value in found.items()})
        view, inner = tx.rule(view, state.inner, context)
        return view, ScheduleState(stateful.advanced(view, state.count), inner)

    return keeping("a hyperparameter that is a schedule", ScheduleState, rule, start)


def _number_at(schedule: Callable[[Any], Any], check: Callable[[Any], None], xp: Any, step: Any) -> Any:
    """The value of a schedule; one that is no number is refused as its factory refuses it."""
    value = _value_at(schedule, xp, step)
    if type(value) is not float and (isinstance(value, (list, tuple)) or np.ndim(value)):
        check(value)
    return value


def _as_array(value: Any) -> Any:
    if isinstance(value, Number):
        return Scalar(value.place)
    return np.asarray(value) if isinstance(value, float) else value


def _value_at(schedule: Callable[[Any], Any], xp: Any, step: Any) -> Any:
    try:
        return schedule(step)
    except TypeError as error:
        if type(schedule).__module__.partition(".")[0] != "keras":
            raise
        raise TypeError(
            f"{type(schedule).__name__} of Keras works only with Keras's backend; write the schedule as a function "
            "of the step, such as lambda step: 0.1 * 0.99**step"
        ) from error
