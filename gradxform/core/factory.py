"""Turn functions that make transforms into factories: named, parsable, with arguments and schedules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, get_args

import numpy as np

from gradxform.backend import errors
from gradxform.backend.lookup import holds_arrays
from gradxform.core.arguments import Scalar
from gradxform.core.transform import GradientTransformation, factories, scheduled, unconverted
from gradxform.core.where import recorded

P = ParamSpec("P")


def factory(make: Callable[P, GradientTransformation]) -> Callable[P, GradientTransformation]:
    """Decorate a function so that its transforms have its name and arguments; register it for `parse`."""
    signature = inspect.signature(make)
    scalars = schedulable(make)

    @unconverted
    @functools.wraps(make)
    def named(*args: P.args, **kwargs: P.kwargs) -> GradientTransformation:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            everything = (*args, *kwargs.values())
            raise errors.wrong_call(make, error, everything, any(map(holds_arrays, everything))) from None
        given = bound.arguments
        schedules = {name: given[name] for name in scalars.intersection(given) if _is_schedule(given[name])}
        for name, schedule in schedules.items():
            errors.check_schedule(make.__name__, name, schedule)
        made = scheduled(make, given, schedules) if schedules else make(*args, **kwargs)
        return GradientTransformation(made.rule, made.start, make.__name__, _arguments(signature, bound), made.traits)

    factories[make.__name__] = named
    return named


@functools.cache
def schedulable(make: Callable[..., Any]) -> frozenset[str]:
    """The names of the arguments annotated as `Scalar`, which may be schedules."""
    given = inspect.signature(make, eval_str=True).parameters.values()
    return frozenset(each.name for each in given if Scalar in (each.annotation, *get_args(each.annotation)))


def _is_schedule(value: Any) -> bool:
    return callable(value) and not isinstance(value, (type, GradientTransformation)) and errors.misplaced(value) is None


def _arguments(signature: inspect.Signature, bound: inspect.BoundArguments) -> list[tuple[str | None, Any]]:
    """Return the arguments in canonical form: positional if possible, without defaults."""
    found: list[tuple[str | None, Any]] = []
    positional = True
    for name, parameter in signature.parameters.items():
        value = bound.arguments.get(name, parameter.default)
        if parameter.kind is parameter.VAR_POSITIONAL:
            found += [(None, item) for item in bound.arguments.get(name, ())]
        elif _is_default(name, value, parameter.default):
            positional = False
        else:
            value = _chosen(name, _plain(value))
            found.append((None if positional and parameter.kind is not parameter.KEYWORD_ONLY else name, value))
    return found


def _chosen(name: str, value: Any) -> Any:
    """Wrap variables among the arguments, which are compared by identity."""
    if name == "rules":
        return {recorded(where): tx for where, tx in value.items()} if type(value) is dict else value
    return recorded(value) if name in ("where", "replicated") else value


def _plain(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers, and copy containers."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _is_default(name: str, value: Any, default: Any) -> bool:
    if isinstance(value, (int, float, GradientTransformation)) and type(value) is type(default):
        return bool(value == default)
    return value is default or (name == "ord" and value == 2)
