"""A seeded sample of cosmic-ray's mutations of the library; no file is changed."""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import random
import re
import sys
import types
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
    texts = source, mutated(source, mutant.operator, mutant.occurrence) or source
    codes = [compile(text, str(path), "exec", dont_inherit=True) for text in texts]
    changed = {_key(a): b for a, b in zip(*map(_functions, codes), strict=True) if a != b}
    module = sys.modules[mutant.module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")]
    hit = _exchanged(module, *(_aside(module, code) for code in codes))
    gc.unfreeze()
    for found in gc.get_objects():
        if type(found) is types.FunctionType and found.__code__.co_filename == str(path):
            if new := changed.get(_key(found.__code__)):
                found.__code__, hit = new, True
    return hit


def _functions(code: types.CodeType) -> list[types.CodeType]:
    """The code of all functions in a module, also of inner ones."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [own for one in inner for own in (*([one] if one.co_flags & inspect.CO_OPTIMIZED else ()), *_functions(one))]


def _key(code: types.CodeType) -> Any:
    return code.co_qualname, code.co_firstlineno, code.co_linetable, code.co_code


def _aside(module: Any, code: types.CodeType) -> Any:
    """Run the code of a module, and register no transforms."""
    from gradxform.core.transform import factories

    aside, registered = types.ModuleType(module.__name__), dict(factories)
    aside.__dict__.update({name: vars(module)[name] for name in ("__file__", "__package__", "__spec__")})
    try:
        exec(code, aside.__dict__)
    except Exception as error:
        raise ImportError(f"{module.__name__} cannot be imported") from error
    factories.clear()
    factories.update(registered)
    return aside


def _exchanged(now: Any, old: Any, new: Any) -> bool:
    """Exchange the plain constants and the functions' defaults that differ between two versions of a module."""
    hit = False
    holders = [now, *(found for name, found in sys.modules.items() if name.startswith("gradxform") and found)]
    for name in vars(new).keys() & vars(old).keys() & vars(now).keys() - {"__builtins__"}:
        mine, before, after = (vars(space)[name] for space in (now, old, new))
        if isinstance(after, type) and after.__module__ == getattr(new, "__module__", new.__name__):
            hit |= _exchanged(mine, before, after)
        elif callable(after):
            for kind in ("__defaults__", "__kwdefaults__"):
                values = [getattr(inspect.unwrap(function), kind, None) for function in (before, after)]
                if _differ(*values):
                    setattr(inspect.unwrap(mine), kind, values[1])
                    hit = True
        elif isinstance(after, PLAIN) and _differ(before, after):
            for holder in holders:
                if vars(holder).get(name) is mine:
                    setattr(holder, name, after)
                    hit = True
    return hit


def _differ(*values: Any) -> bool:
    return len({re.sub(r" at 0x\w+", "", repr(value)) for value in values}) > 1


def reaching(control: Any, root: Path, mutant: Mutant) -> set[int]:
    """The tests that reach a mutant: its line, its statement, or what uses the constant that an import computes."""
    tree = ast.parse((root / mutant.module).read_text(encoding="utf-8"))
    around: Any = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= mutant.line <= n.end_lineno]
    inner, body = around[-1], getattr(around[-1], "body", None)
    last = body[0].lineno - 1 if body and not isinstance(inner, ast.FunctionDef) else inner.end_lineno
    targets = getattr(inner, "targets", [getattr(inner, "target", None)])
    names = "|".join(target.id for target in targets if isinstance(target, ast.Name))

    def tests(module: str, lines: Any) -> set[int]:
        return {test for own, tests in control["lines"].get(module, ()) if not lines.isdisjoint(own) for test in tests}

    if names and not any(isinstance(node, ast.FunctionDef) for node in around):
        texts = {module: (root / module).read_text(encoding="utf-8").splitlines() for module in control["lines"]}
        uses = re.compile(rf"\b({names})\b")
        return set().union(
            *(
                tests(module, {i + 1 for i, line in enumerate(text) if uses.search(line)})
                for module, text in texts.items()
            )
        )
    return tests(mutant.module, {mutant.line}) or tests(mutant.module, set(range(inner.lineno, last + 1)))
