"""Run cosmic-ray's mutations of the mathematics, each in a forked process; no file is changed."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import random
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mutants_run as run

SEED = 20240229
"""Draws the mutation of each line; an unchanged line keeps its mutation."""
OTHERS = ("jax", "tensorflow", "torch", "keras", "optax", "flax", "mlx", "haiku", "equinox")
"""Packages that NumPy's tests do without; they are hidden."""


class Mutant(NamedTuple):
    """One mutation of cosmic-ray, and its result."""

    module: str
    operator: str
    occurrence: int
    line: int
    function: str
    """The function; empty outside functions."""
    text: str
    """The original line."""
    word: str = ""
    """killed, survived, equivalent, out of time."""
    new: str = ""
    """The mutated line."""
    test: str = ""
    """The test that killed it."""


def mutants(root: Path, folder: Path) -> Iterator[Mutant]:
    """All mutations of the modules, without filtered ones and function headers."""
    from cosmic_ray.commands import init
    from cosmic_ray.config import load_config
    from cosmic_ray.tools.filters import operators_filter, pragma_no_mutate
    from cosmic_ray.work_db import use_db

    config, session = str(root / "tests/proof/cosmic_ray.toml"), str(folder / "session.sqlite")
    with use_db(session) as work:
        paths = [root / module for module in load_config(config)["module-path"]]
        init(paths, work, {})
    operators_filter.main([session, config])
    pragma_no_mutate.main([session])
    with use_db(session) as work:
        specs = [mutation for item in work.pending_work_items for mutation in item.mutations]
    for path in paths:
        source = path.read_text()
        lines, headers = source.splitlines(), list(_headers(source))
        for spec in sorted((s for s in specs if s.module_path == path), key=_place):
            if not any(first <= spec.start_pos and spec.end_pos <= last for first, last in headers):
                module, line = path.relative_to(root).as_posix(), spec.start_pos[0]
                where = spec.definition_name or ""
                yield Mutant(module, spec.operator_name, spec.occurrence, line, where, lines[line - 1].strip())


def _place(spec: Any) -> tuple[Any, ...]:
    return spec.start_pos, spec.operator_name, spec.occurrence


def _headers(source: str) -> Iterator[Any]:
    """The positions of function headers and class annotations, except default values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            stops = sorted(
                (((at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset)))
                for at in (*node.args.defaults, *filter(None, node.args.kw_defaults), node.body[0])
            )
            starts = [(node.lineno, node.col_offset), *(end for _, end in stops)]
            yield from zip(starts, (first for first, _ in stops), strict=False)
        elif isinstance(node, ast.AnnAssign):
            yield (node.lineno, node.col_offset), (node.annotation.end_lineno, node.annotation.end_col_offset)


def drawn(found: Iterable[Mutant]) -> list[Mutant]:
    """Draw one mutation per line, as in Petrovic and Ivankovic (State of mutation testing at Google, 2018)."""
    of_line: dict[tuple[str, int], list[Mutant]] = {}
    for mutant in found:
        of_line.setdefault((mutant.module, mutant.line), []).append(mutant)
    return [random.Random(f"{SEED} {some[0].module} {some[0].text}").choice(some) for some in of_line.values()]


def outcomes(root: Path, workers: int, only: str = "") -> list[Mutant]:
    """Test one mutation per line, optionally only lines whose "module:number" matches an expression."""
    with tempfile.TemporaryDirectory() as folder:
        found = [m for m in drawn(mutants(root, Path(folder))) if re.search(only, f"{m.module}:{m.line}")]
    given = load(root)
    tests = shlex.split(given["cosmic-ray"]["test-command"])[5:]
    first = {f"gradxform/{name}.py": file for file, names in given["first"].items() for name in names}
    run.warm("hypothesis")
    (control,) = run.forked([(None, functools.partial(_tested, root, None, tests))], 1, 300.0)
    if control.result is None or control.result["code"] != 0:
        raise RuntimeError(f"NumPy's tests fail without a mutation: {control.result}")
    limit = max(30.0, 4 * control.seconds)
    jobs = (
        (i, functools.partial(_tested, root, mutant, tests, first.get(mutant.module, "")))
        for i, mutant in enumerate(found)
    )
    for i, result, seconds in run.forked(jobs, workers, limit):
        word = "out of time" if result is None else result["word"]
        new = found[i] = found[i]._replace(word=word, **{key: result[key] for key in ("new", "test") if result})
        change = f"{new.operator}: {new.text}  ->  {new.new}"
        print(f"{word} in {seconds:.1f} s: {new.module}:{new.line} {change}  {new.test}", flush=True)
    return found


def load(root: Path) -> Any:
    """Read the configuration."""
    return tomllib.loads((root / "tests/proof/cosmic_ray.toml").read_text())


def _tested(root: Path, mutant: Mutant | None, tests: list[str], first: str = "") -> dict[str, Any]:
    """Run NumPy's tests with a mutated module, unless the mutant is known to be equivalent."""
    finder = _Finder()
    if mutant is not None:
        finder.mutate(root / mutant.module, mutant)
        if any(entry.matches(mutant._replace(new=finder.new)) for entry in equivalents(root)):
            return {"word": "equivalent", "new": finder.new, "test": ""}
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name in OTHERS else find(name, *rest)
    sys.meta_path.insert(0, finder)
    result: dict[str, Any] = {}
    files = [name for name in tests if name.endswith(".py")]
    # File by file: collecting all takes longer than killing most mutants.
    for file in sorted(files, key=lambda file: file != first):
        result = run.tested([file, *(name for name in tests if name not in files)])
        if result["code"]:
            break
    return {**result, "new": finder.new, "word": "killed" if result["code"] else "survived"}


class _Finder:
    """Find the mutated module, and hide the other frameworks."""

    name = path = code = new = ""

    def mutate(self, path: Path, mutant: Mutant) -> None:
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        source = path.read_text(encoding="utf-8")
        self.code = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence) or source
        both = zip(source.splitlines(), self.code.splitlines(), strict=False)
        self.new = next((b.strip() for a, b in both if a != b), "")
        self.name, self.path = mutant.module.removesuffix(".py").replace("/", "."), str(path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Implement the import protocol."""
        if name.partition(".")[0] in OTHERS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=_Loader(name, self.path, self.code))


class _Loader(importlib.machinery.SourceFileLoader):
    """Load code that differs from the file."""

    def __init__(self, name: str, path: str, code: str) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> Any:
        """Implement the import protocol."""
        return compile(self.code, self.path, "exec", dont_inherit=True)


class Equivalent(NamedTuple):
    """Equivalent mutants: regular expressions for module, operator and mutated line.

    The line may start with the name of its function, if several functions contain it.
    """

    module: str
    operator: str
    line: str
    reason: str

    def matches(self, mutant: Mutant) -> bool:
        """Whether the entry matches a mutant."""
        given = mutant.module, mutant.operator.removeprefix("core/")
        named = f"{mutant.function}: {mutant.new}"
        return all(map(re.fullmatch, self[:2], given)) and any(re.fullmatch(self.line, s) for s in (mutant.new, named))


def equivalents(root: Path) -> list[Equivalent]:
    """Read the list; entries without a mutant are only reported."""
    file = root / "tests/proof/mutants_equivalent.toml"
    given = tomllib.loads(file.read_text()) if file.exists() else {}
    return [Equivalent(module, *entry) for module, entries in given.get("equivalent", {}).items() for entry in entries]
