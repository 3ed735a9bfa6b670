"""Build a transformation from an expression, without eval."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from gradxform.core import hints
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
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
        value = _value(tree, expression, names)
    except (SyntaxError, UnicodeError, MemoryError, RecursionError) as error:
        hint = f"; {_NO_GROUPS}" if "ProcessGroup" in expression else ""
        raise ValueError(f"parse: {expression!r:.200} cannot be parsed: {error}{hint}") from error
    if not isinstance(value, GradientTransformation):
        raise ValueError(f"parse: {expression!r:.200} is not a transformation; write for example 'clip_norm(1.0)'")
    return value


def _value(node: ast.AST, expression: str, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)):
            return -value if isinstance(sign, ast.USub) else value
        case ast.Tuple(elts=items):
            return tuple(_value(item, expression, names) for item in items)
        case ast.List(elts=items):
            return [_value(item, expression, names) for item in items]
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            return {
                _value(k, expression, names): _value(v, expression, names)
                for k, v in zip(keys, values, strict=True)
                if k is not None
            }
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as word)], keywords=[]) if (
            word in _WORDS
        ):
            return float(word)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="compile"), args=args, keywords=[]):
            return _pattern(*(_value(arg, expression, names) for arg in args))
        case ast.Call(
            func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="gx" | "gradxform"), attr=name),
            args=args,
            keywords=keywords,
        ):
            return _call(name, args, keywords, expression, names)
    part = f"{ast.unparse(node)!r:.200} in {expression!r:.200}"
    raise ValueError(f"parse: {part} is not a transform, number, string, tuple, list or dict")


def _pattern(*args: Any) -> re.Pattern[str]:
    try:
        return re.compile(*args)
    except (re.error, TypeError, ValueError, OverflowError) as error:
        shown = ", ".join(map(repr, args))
        raise ValueError(f"parse: re.compile({shown:.200}) is not a regular expression: {error}") from error


_NO_GROUPS = "a ProcessGroup or DeviceMesh cannot be parsed: parse the inner transform, and write gx.across(tx, group)"
_WORDS = ("inf", "-inf", "nan")


def _call(
    name: str, args: list[ast.expr], keywords: list[ast.keyword], expression: str, names: Mapping[str, Any]
) -> GradientTransformation:
    make = factories.get(name)
    if name == "DeviceMesh":
        raise ValueError(f"parse: {_NO_GROUPS}")
    if make is None:
        hint, known = hints.transform_named(name, factories), ", ".join(sorted(factories))
        raise ValueError(f"parse: no transform is named {name!r}{hint}; the known ones are {known}")
    named = {keyword.arg: _value(keyword.value, expression, names) for keyword in keywords if keyword.arg is not None}
    if any(keyword.arg is None for keyword in keywords):
        raise ValueError(f"parse: ** is not supported in {expression!r:.200}")
    if len(named) < len(keywords):
        raise ValueError(f"parse: {name} has an argument twice in {expression!r:.200}")
    return make(*(_value(arg, expression, names) for arg in args), **named)
