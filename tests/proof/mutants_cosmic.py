"""A seeded sample of cosmic-ray's mutations of the library; no file is changed."""

from __future__ import annotations

import ast
import functools
import gc
import random
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SEED = 20240229
"""Draws lines and the mutation of each; an unchanged line keeps its place and its mutation."""
FOLDERS = ("core", "transforms", "functions", "numerics", "backend")
# One or two changes an operator; what removes a decorator or changes which error is caught says nothing of numbers.
LEFT_OUT = re.compile(
    r"core/(ReplaceBinaryOperator_(?!(Add_Sub|Sub_Add|Mul_Div|Mul_Add|Div_Mul|Pow_Mul|Mod_FloorDiv|FloorDiv_Mul"
    r"|BitAnd_BitOr|BitOr_BitAnd|BitXor_BitOr|LShift_RShift|RShift_LShift)$)"
    r"|ReplaceComparisonOperator_(?!(Lt_LtE|Lt_Gt|LtE_Lt|LtE_Gt|Gt_GtE|Gt_Lt|GtE_Gt|GtE_Lt|Eq_NotEq|NotEq_Eq|Is_IsNot"
    r"|IsNot_Is)$)|ReplaceUnaryOperator_(?!Delete_)|RemoveDecorator|ExceptionReplacer|Variable)"
)
CHECKERS = re.compile("strict=|TYPE_CHECKING")
"""What computes nothing: checks of equal lengths, and imports for type checkers."""
PLAIN = (int, float, complex, str, bytes, bool, tuple, frozenset, list, dict, re.Pattern, type(None))


class Mutant(NamedTuple):
    """One mutation."""

    module: str
    operator: str
    occurrence: int
    line: int
    old: str
    """The original line."""
    new: str
    """The mutated line."""


def sample(root: Path, count: int) -> list[Mutant]:
    """Draw lines, and one mutation of each (Petrovic and Ivankovic, State of mutation testing at Google, 2018)."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    operators = {name: get_operator(name)() for name in operator_names() if not LEFT_OUT.match(name)}
    lines: list[tuple[float, Any, list[tuple[str, int]]]] = []
    for path in sorted(path for folder in FOLDERS for path in (root / "gradxform" / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        nodes, found = list(ast_nodes(get_ast(source))), {}
        for name, operator in operators.items():
            places = (start for node in nodes for start, _ in operator.mutation_positions(node))
            for occurrence, (line, _) in enumerate(places):
                found.setdefault(line, []).append((name, occurrence))
        for line, changes in found.items():
            draw = random.Random(f"{SEED} {path.relative_to(root)} {source.splitlines()[line - 1]}")
            draw.shuffle(changes)
            lines.append((draw.random(), (path, source, line), changes))
    drawn: list[Mutant] = []
    for _, (path, source, line), changes in sorted(lines, key=lambda given: given[0]):
        old, module = source.splitlines()[line - 1].strip(), path.relative_to(root).as_posix()
        for name, occurrence in changes if len(drawn) < count else ():
            new = mutated(source, name, occurrence)
            if new and _meaning(new) not in ("", _meaning(source)) and not CHECKERS.search(old):
                both = zip(source.splitlines(), new.splitlines(), strict=False)
                change = next(b.strip() for a, b in both if a != b)
                if change.replace(", /,", ", *,") != old:
                    drawn.append(Mutant(module, name, occurrence, line, old, change))
                    break
    return drawn


def mutated(source: str, operator: str, occurrence: int) -> str | None:
    """Return the mutated source."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    return mutate_code(source, get_operator(operator)(), occurrence)


@functools.lru_cache
def _meaning(source: str) -> str:
    """What Python runs: the source without annotations; empty if it is invalid."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        for field in {"annotation", "returns"} & set(node._fields):
            setattr(node, field, None)
    return ast.dump(tree)


def apply(root: Path, mutant: Mutant) -> bool:
    """Change the module in this process for good: functions get new code, and constants and defaults new values."""
    path = root / mutant.module
    source = path.read_text(encoding="utf-8")
    new_source = mutated(source, mutant.operator, mutant.occurrence) or source
    old, new = (compile(text, str(path), "exec", dont_inherit=True) for text in (source, new_source))
    changed = {_key(a): b for a, b in zip(_codes(old), _codes(new), strict=True) if _key(a) != _key(b) or a != b}
    gc.unfreeze()
    functions = [found for found in gc.get_objects() if type(found) is types.FunctionType]
    module = sys.modules[mutant.module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")]
    hit = is_static(source, new_source) and _exchanged(module, new, functions)
    for function in functions:
        code = function.__code__
        if code.co_filename == str(path) and (other := changed.get(_key(code))):
            function.__code__ = other
            hit = True
    return hit


def _key(code: types.CodeType) -> Any:
    return code.co_qualname, code.co_firstlineno, code.co_linetable, code.co_code


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """All code objects of functions in a module."""
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            if const.co_flags & 1:  # not a class
                yield const
            yield from _codes(const)


def is_static(source: str, new: str) -> bool:
    """Whether a mutation changes what an import runs: constants, defaults, classes."""

    def outside(text: str) -> str:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                node.body = [ast.Pass()]
        return ast.dump(tree)

    return outside(source) != outside(new)


def _exchanged(module: Any, code: types.CodeType, functions: list[Any]) -> bool:
    """Run the mutated module aside, and take over its plain constants and its functions' defaults."""
    from gradxform.core.transformation import factories

    aside, registered = types.ModuleType(module.__name__), dict(factories)
    aside.__dict__.update({name: vars(module).get(name) for name in ("__file__", "__package__", "__spec__")})
    exec(code, aside.__dict__)
    factories.clear()
    factories.update(registered)
    made = [f for f in gc.get_objects() if type(f) is types.FunctionType and f.__globals__ is aside.__dict__]
    by_name, hit = {f.__qualname__: f for f in made}, False
    for function in functions:
        other = by_name.get(function.__qualname__) if function.__globals__ is module.__dict__ else None
        for kind in ("__defaults__", "__kwdefaults__"):
            if other and repr(getattr(other, kind)) != repr(getattr(function, kind)):
                setattr(function, kind, getattr(other, kind))
                hit = True
    holders = [found for name, found in sys.modules.items() if name.startswith("gradxform") and found]
    for name, value in vars(aside).items():
        old = vars(module).get(name)
        if isinstance(value, PLAIN) and name[:2] != "__" and repr(old) != repr(value):
            for holder in holders:
                if vars(holder).get(name) is old:
                    setattr(holder, name, value)
                    hit = True
        is_class = isinstance(value, type) and value.__module__ == module.__name__
        for inner, own in vars(value).items() if is_class else ():
            if isinstance(own, PLAIN) and inner[:2] != "__" and repr(vars(old).get(inner)) != repr(own):
                setattr(old, inner, own)
                hit = True
    return hit


def reaching(control: Any, root: Path, mutant: Mutant) -> set[int]:
    """The tests that reach a mutant: its line, its statement, or what uses the constant that an import computes."""
    reached = {line: set(tests) for lines, tests in control["lines"].get(mutant.module, ()) for line in lines}
    tree = ast.parse((root / mutant.module).read_text(encoding="utf-8"))
    around: Any = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= mutant.line <= n.end_lineno]
    inner, body = around[-1], getattr(around[-1], "body", None)
    if any(isinstance(node, ast.FunctionDef) for node in around):
        last = body[0].lineno - 1 if body and not isinstance(inner, ast.FunctionDef) else inner.end_lineno
        lines = {mutant.line} if mutant.line in reached else set(range(inner.lineno, last + 1))
        return set().union(*(tests for line, tests in reached.items() if line in lines))
    names = [node.id for node in ast.walk(inner) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    uses, found = re.compile(rf"\b({'|'.join(names)})\b"), set()
    for module, sets in control["lines"].items() if names else ():
        texts = (root / module).read_text(encoding="utf-8").splitlines()
        found.update(*(tests for lines, tests in sets if any(uses.search(texts[line - 1]) for line in lines)))
    return found or set().union(*reached.values())
