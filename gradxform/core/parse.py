"""Build a transformation from an expression, without eval."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from gradxform.backend.errors import meant
from gradxform.core.transform import GradientTransformation, factories


def parse(expression: str) -> GradientTransformation:
    """Build the transformation that an expression describes; the inverse of `repr`.

    Nothing is evaluated. An expression consists of names of transforms, numbers, strings, tuples, lists, dicts,
    ``float("inf")`` and ``re.compile("...")``.

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
        near, known = meant(name, factories), ", ".join(sorted(factories))
        hint = f" (did you mean {near}?)" if near is not None else ""
        raise ValueError(f"parse: no transform is named {name!r}{hint}; the known ones are {known}")
    return factories[name](*args, **named)
