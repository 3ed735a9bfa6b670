"""Print the size of the code by folder, beside an older commit: `make size`.

A code line holds a token; docstrings, comments and blank lines do not count. Tokens are Python's own, without comments,
docstrings, line ends and indents.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
BASE = "6e798b0"
WIDTH = 120
"""Line length at which lines are counted; longer lines are reported."""
LARGE = 300
"""Code lines of a library file that is reported."""
_SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_TOOL = re.compile(
    r"tests/(benchmarks/(?!test_).*|(make_release|environments|release|size)|proof/(mutants.*|chains_run))\.py"
)

Sizes = dict[str, list[int]]
"""Code lines, tokens and files by folder; bytes in place of code lines for data files."""


def code(source: str) -> tuple[int, int]:
    """Return the number of code lines and of tokens."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                prose |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SKIPPED and token.start[0] not in prose:
            lines |= set(range(token.start[0], token.end[0] + 1))
            tokens += 1
    return len(lines), tokens


def folder(path: str) -> str | None:
    """Return the row of a file; None if it does not count."""
    top, *rest = path.split("/")
    if top == "tests":
        return None if not path.endswith(".py") else "tools of tests" if _TOOL.fullmatch(path) else "tests"
    if not path.endswith(".py"):
        return "data files (bytes)"
    return f"{top}/{rest[0]}" if len(rest) > 1 else f"{top}/*.py"


def sizes(files: dict[str, bytes]) -> tuple[Sizes, dict[str, int], int]:
    """Return sizes by folder, large files of the library, and the number of lines that are too long."""
    total: Sizes = defaultdict(lambda: [0, 0, 0])
    large: dict[str, int] = {}
    long = 0
    for path, content in files.items():
        if (row := folder(path)) is None:
            continue
        lines, tokens = len(content), 0
        if path.endswith(".py"):
            source = content.decode()
            lines, tokens = code(source)
            long += sum(len(line) > WIDTH for line in source.splitlines())
            if lines > LARGE and not path.startswith("tests/"):
                large[path] = lines
        sums = [row, *(f"{top} in all" for top in ("gradxform", "backends") if row.startswith(f"{top}/"))]
        for name in sums:
            total[name] = [a + b for a, b in zip(total[name], (lines, tokens, 1), strict=True)]
    total["library"] = [a + b for a, b in zip(total["gradxform in all"], total["backends in all"], strict=True)]
    return total, large, long


def present() -> dict[str, bytes]:
    """Return the files of the working tree by path."""
    tops = (path for top in ("gradxform", "backends", "tests") for path in sorted((ROOT / top).rglob("*")))
    files = (path for path in tops if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}


def at(commit: str) -> dict[str, bytes] | None:
    """Return the files of a commit by path; None without git or the commit."""
    command = ["git", "-C", ROOT, "archive", commit, "gradxform", "backends", "tests"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {entry.name: tar.extractfile(entry) for entry in tar if entry.isfile()}
    return {name: file.read() for name, file in found.items() if file is not None}


def main() -> None:
    """Print the table, large files and long lines."""
    base = sys.argv[1] if sys.argv[1:] else BASE
    (now, large, long), before = sizes(present()), at(base)
    old: Sizes = {} if before is None else sizes(before)[0]
    if before is None:
        print(f"git or its commit {base} is missing: the present only")
    print(f"{'':30}{'code lines':>16}{'tokens':>18}{'files':>12}    {base if old else ''}")
    last = ["gradxform in all", "backends in all", "library", "data files (bytes)", "tests", "tools of tests"]
    for row in [*sorted({*now, *old} - {*last}), *last]:
        pairs = zip(old.get(row, [0] * 3), now.get(row, [0] * 3), strict=True)
        cells = [(f"{then} -> " if old else "") + str(count) for then, count in pairs]
        print(f"{row:30}{cells[0]:>16}{cells[1]:>18}{cells[2]:>12}")
    print(f"{long} lines are longer than {WIDTH} characters" if long else f"no line is longer than {WIDTH} characters")
    for path, lines in sorted(large.items(), key=lambda item: -item[1]):
        print(f"over {LARGE} code lines: {path} {lines}")


if __name__ == "__main__":
    main()
