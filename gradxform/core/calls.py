"""What is said of a call that a factory cannot take: gradients among its arguments, a wrong name, a wrong order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradxform.backend.lookup import holds_arrays, owner, unwrapped
from gradxform.backend.misplaced import instead, misplaced, short
from gradxform.core.foreign import is_transformation
from gradxform.core.hints import argument_named
from gradxform.core.transform import GradientTransformation

_PLAIN = (bool, int, float, str, type(None), GradientTransformation)


def refusal(make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """One sentence on arguments that do not fit a signature; None where Python's own is as good."""
    name, parameters = make.__name__, inspect.signature(make).parameters
    if any(map(_is_gradients, (*args, *kwargs.values()))):
        return gradients_first(make, args, kwargs)
    unknown = next((key for key in kwargs if key not in parameters), None)
    if unknown is not None:
        if unknown in ("mask", "where"):
            return f"{name} has no argument {unknown!r}; write gx.masked(gx.{name}(...), where)"
        near = argument_named(unknown, parameters)
        all_of_them = f"its arguments are {', '.join(parameters)}" if parameters else "it has none"
        return f"{name} has no argument {unknown!r}; " + (f"did you mean {near}?" if near else all_of_them)
    first, by_name = _names(make)
    if len(args) <= len(first):
        return None
    if not by_name:
        takes = f"{', '.join(first)} alone" if first else "no arguments"
        return f"{name} takes {takes}, got {', '.join(map(short, args))}"
    takes = " and ".join([", ".join(by_name[:-1]), by_name[-1]] if len(by_name) > 1 else by_name)
    return f"{name} takes {takes} by name: write gx.{_written(make, args, kwargs)}"


def check_order(make: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse `masked(where, tx)` and its like.

    Raises:
        TypeError: another argument is the transformation, or that of `partition` which must not be one.
    """
    if len(given) < 2 or next(iter(given)) not in ("tx", "rules"):
        return
    (name, first), *others = given.items()
    others_are = any(is_transformation(value) for _, value in others)
    if name == "tx":
        swapped = others_are and not is_transformation(first)
    else:
        swapped = is_transformation(first) and any(isinstance(value, Mapping) for _, value in others)
    if swapped:
        own = list(inspect.signature(make).parameters)[:2]
        raise TypeError(f"{make.__name__}: the arguments are swapped; write gx.{make.__name__}({', '.join(own)})")


def check_schedule(transform: str, name: str, schedule: Callable[..., Any]) -> None:
    """Refuse what can be called, but not with the step alone.

    Raises:
        TypeError: names the argument.
    """
    if misplaced(schedule) is not None or isinstance(schedule, GradientTransformation):
        raise TypeError(
            f"{transform}: {name} must be a number, a 0-d array or a function of the step, got {short(schedule)} of "
            f"type {type(schedule).__name__}{instead(schedule)}"
        )
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # it has none to be read
        return
    try:
        signature.bind(0.0)
    except TypeError:
        raise TypeError(
            f"{transform}: {name} is a function of {signature}, and a schedule takes the step alone: write for example "
            "lambda step: 0.1 * 0.99**step"
        ) from None


def holds_gradients(value: Any) -> bool:
    """Whether a value is a container of arrays, a model, or an iterator: what is never a hyperparameter."""
    return _is_gradients(value) and owner(unwrapped(value)) is None


def _is_gradients(value: Any) -> bool:
    found = misplaced(value)
    return holds_arrays(value) if found is None else found.kind in ("model", "iterator")


def gradients_first(make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What to write instead of a call with the gradients among the arguments."""
    given = next(value for value in (*args, *kwargs.values()) if _is_gradients(value))
    args = [value for value in args if not _is_gradients(value)]
    kwargs = {argument_named(key, _all(make)) or key: v for key, v in kwargs.items() if not _is_gradients(v)}
    built = f"gx.{_written(make, args, {key: v for key, v in kwargs.items() if key in _all(make)})}"
    found = misplaced(given)
    use = f"gx.torch.apply_({built}, model)" if found and "PyTorch" in found.what else f"{built}(gradients)"
    if _is_stateful(make, args, kwargs):
        use = f"tx = {built}, then tx.update(gradients, state)"
    return f"{make.__name__} is made of its hyperparameters alone, and then called with gradients: {use}"


def _written(make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call with arguments by name where they must be: with ``...`` where it cannot be known which is meant."""
    first, by_name = _names(make)
    free = [name for name in by_name if name not in kwargs]
    required = _required(make, kwargs)
    rest = args[len(first) :]
    if rest and len(args) == len(free) and not required:
        shown = [f"{name}={_shown(name, value)}" for name, value in zip(free, args, strict=True)]
    else:
        shown = [_shown(name, value) for name, value in zip(first, args, strict=False)]
        shown += required[len(shown) :]
        if rest:
            values = map(short, rest) if len(rest) == len(free) else ["..."] * len(free)
            shown += [f"{name}={value}" for name, value in zip(free, values, strict=True)]
    shown += [f"{name}={_shown(name, value)}" for name, value in kwargs.items()]
    return f"{make.__name__}({', '.join(shown)})"


def _names(make: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """The arguments that may be given by position, and those that must be given by name."""
    parameters = inspect.signature(make).parameters.values()
    first = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return first, [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def _required(make: Callable[..., Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The arguments by position that have no default and are not given by name."""
    parameters = inspect.signature(make).parameters
    return [
        name for name in _names(make)[0] if parameters[name].default is parameters[name].empty and name not in kwargs
    ]


def _all(make: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(make).parameters)


def _shown(name: str, value: Any) -> str:
    """A value that is short when written out, else its argument's name."""
    return short(value) if isinstance(value, _PLAIN) else name


def _is_stateful(make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the transform keeps a state; a missing argument is taken to be 1."""
    missing = dict.fromkeys([name for name in _required(make, kwargs)[len(args) :]], 1)
    try:
        return bool(make(*args, **{**kwargs, **missing}).stateful)
    except (TypeError, ValueError):
        return False
