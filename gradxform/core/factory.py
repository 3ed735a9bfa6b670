"""Factories of transforms: named, with arguments and schedules, and called by expressions, without eval."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, get_args

import numpy as np

from gradxform.backend import errors
from gradxform.backend.lookup import holds_arrays
from gradxform.core.arguments import Scalar
from gradxform.core.transform import GradientTransformation, factories, scheduled, unconverted
from gradxform.core.where import recorded

P = ParamSpec("P")
Check = Callable[[str, str, Any], Any]
"""Refuses or converts a value, given the names of the transform and of the argument."""


def factory(**checks: Check) -> Callable[[Callable[P, GradientTransformation]], Callable[P, GradientTransformation]]:
    """Decorate a function so that its transforms have its name and arguments; register it for `parse`.

    Args:
        **checks: for some arguments, the function of the transform's name, the argument's name and its value that
            refuses or converts the value before the decorated function gets it; a default of None is not checked.
    """

    def decorated(make: Callable[P, GradientTransformation]) -> Callable[P, GradientTransformation]:
        name, signature = make.__name__, inspect.signature(make, eval_str=True)
        kinds = {key: each.annotation for key, each in signature.parameters.items()}
        scalars = {key for key, kind in kinds.items() if Scalar in (kind, *get_args(kind))}  # which may be schedules

        @functools.wraps(make)
        def checked(**given: Any) -> GradientTransformation:
            optional = {key for key, value in given.items() if value is None is signature.parameters[key].default}
            due = [key for key in checks if key in given and key not in optional]
            new = {key: checks[key](name, key, given[key]) for key in due}
            return make(**{**given, **new})  # type: ignore[call-arg]

        @unconverted
        @functools.wraps(make)
        def named(*args: P.args, **kwargs: P.kwargs) -> GradientTransformation:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                everything = (*args, *kwargs.values())
                raise errors.wrong_call(make, error, everything, any(map(holds_arrays, everything))) from None
            given = bound.arguments
            steps = {key: given[key] for key in scalars.intersection(given) if _is_schedule(given[key])}
            for key, schedule in steps.items():
                errors.check_schedule(name, key, schedule)
            made = scheduled(checked, given, steps) if steps else checked(**given) if checks else make(*args, **kwargs)
            return GradientTransformation(made.rule, made.start, name, _arguments(signature, bound), made.traits)

        factories[name] = named
        return named

    return decorated


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
            value = recorded(_plain(value)) if name in ("where", "replicated") else _plain(value)
            found.append((None if positional and parameter.kind is not parameter.KEYWORD_ONLY else name, value))
    return found


def _plain(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers, and copy containers; wrap variables that are keys of rules."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {recorded(key): _plain(item) for key, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _is_default(name: str, value: Any, default: Any) -> bool:
    if isinstance(value, (int, float, GradientTransformation)) and type(value) is type(default):
        return bool(value == default)
    return value is default or (name == "ord" and value == 2)


# --- expressions -----------------------------------------------------------------------------------------------------


def parse(expression: str) -> GradientTransformation:
    """Build the transformation that an expression describes; the inverse of `repr`.

    Nothing is evaluated. An expression consists of names of transforms, numbers, strings, tuples, lists, dicts,
    ``float("inf")`` and ``re.compile("...")``. A regular expression is searched for in the paths of a tree, which may
    take exponential time: of a stranger, accept globs only.

    Args:
        expression: for example ``"chain(clip_norm(5.0), scale(-0.1))"``. Names may start with ``gx.``.

    Returns:
        The transformation; it equals the one with this repr.

    Raises:
        TypeError: the expression is not a string, or a transform does not accept its arguments.
        ValueError: the expression has another form, or an unknown name; the message lists the known ones.

    Example:
        >>> import gradxform as gx
        >>> gx.parse("chain(clip_norm(5.0), masked(scale(-0.1), '**/bias'))")
        chain(clip_norm(5.0), masked(scale(-0.1), '**/bias'))

    Source:
        Python's grammar, read by `ast`.
    """
    return read(expression, {})


def read(expression: str, names: Mapping[str, Any]) -> GradientTransformation:
    """Build the transformation that an expression describes; some names refer to given objects."""
    if not isinstance(expression, str):
        raise TypeError(f"parse: expression must be a string, got {expression!r}")

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as constant):
                return constant
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
                return -number if isinstance(sign, ast.USub) else number
            case ast.Tuple(elts=items):
                return tuple(map(value, items))
            case ast.List(elts=items):
                return list(map(value, items))
            case ast.Dict(keys=keys, values=items) if None not in keys:
                return dict(zip(map(value, filter(None, keys)), map(value, items), strict=True))
            case ast.Call(func=ast.Name() | ast.Attribute() as function, args=args, keywords=keywords):
                given = [(keyword.arg, value(keyword.value)) for keyword in keywords]
                name = ast.unparse(function).removeprefix("gx.").removeprefix("gradxform.")
                return _called(name, list(map(value, args)), given, expression)
        part = f"{ast.unparse(node)!r:.200} in {expression!r:.200}"
        raise ValueError(f"parse: {part} is not a transform, number, string, tuple, list or dict")

    try:
        found = value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, UnicodeError, MemoryError, RecursionError) as error:
        hint = f"; {_NO_GROUPS}" if "ProcessGroup" in expression else ""
        raise ValueError(f"parse: {expression!r:.200} cannot be parsed: {error}{hint}") from error
    if not isinstance(found, GradientTransformation):
        raise ValueError(f"parse: {expression!r:.200} is not a transformation; write for example 'clip_norm(1.0)'")
    return found


_NO_GROUPS = "a ProcessGroup or DeviceMesh cannot be parsed: parse the inner transform, and write gx.across(tx, group)"


def _called(name: str, args: list[Any], keywords: list[tuple[str | None, Any]], expression: str) -> Any:
    """Call a factory, ``float`` or ``re.compile``."""
    named = {key: item for key, item in keywords if key is not None}
    if len(named) < len(keywords):
        raise ValueError(f"parse: {name} has ** or an argument twice in {expression!r:.200}")
    if name == "float" and not named and args in (["inf"], ["-inf"], ["nan"]):
        return float(args[0])
    if name == "re.compile":
        try:
            return re.compile(*args, **named)
        except (re.error, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"parse: re.compile in {expression!r:.200}: {error}") from error
    if name == "DeviceMesh":
        raise ValueError(f"parse: {_NO_GROUPS}")
    if name not in factories:
        near, known = errors.meant(name, factories), ", ".join(sorted(factories))
        hint = f" (did you mean {near}?)" if near is not None else ""
        raise ValueError(f"parse: no transform is named {name!r}{hint}; the known ones are {known}")
    return factories[name](*args, **named)
