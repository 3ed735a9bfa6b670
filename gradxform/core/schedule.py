"""Schedules as hyperparameters: functions of the step in place of numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gradxform.core import state as stateful
from gradxform.core.flat import Flat
from gradxform.core.keeping import keeping
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

    def start(params: Any) -> ScheduleState:
        return ScheduleState(stateful.Fresh(params).count(), pattern.init(params))

    def rule(view: Flat, state: ScheduleState, context: Context) -> tuple[Flat, ScheduleState]:
        found = {name: view.backend.compute(formula, state.count) for name, formula in formulas.items()}
        tx = at({name: np.asarray(value) if isinstance(value, float) else value for name, value in found.items()})
        view, inner = tx.rule(view, state.inner, context)
        return view, ScheduleState(stateful.advanced(view, state.count), inner)

    return keeping("a hyperparameter that is a schedule", ScheduleState, rule, start)


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
