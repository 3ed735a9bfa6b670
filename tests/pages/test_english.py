"""Pages, docstrings, comments and messages use plain English and the field's terms, not the phrases listed here."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

PHRASES = (
    "every function and ours",
    "which of yours",
    "what a clip makes of",
    "I do not believe it",
    "I know what I look for",
    "at home in",
    "how does a run go on",
    "arrays choose",
    "to know it, one bool",
    "is no step",
    "what is not due",
    "that has the norm in common",
    "a seventh to four fifths",
    "map of the house",
    "the caller's affair",
    "are the source's own",
    "numbers are cut at one place",
    "which a limit makes of it",
    "the numbers of all processes along",
    "memory is faster for two",
    "ours",
    "theirs",
)
TITLES = ("All names", "The picture", "The speed", "The demo")
"""Fine within a sentence, empty as a title or as the text of a link."""
FOUND = re.compile(
    r"\b(?:" + "|".join(r"[\s#]+".join(map(re.escape, phrase.split())) for phrase in PHRASES) + r")\b", re.I
)
TITLE = re.compile(rf"^#+ (?:{'|'.join(TITLES)})$|\[(?:{'|'.join(TITLES)})\]|^(?:{'|'.join(TITLES)}) <", re.MULTILINE)


def written(path: Path) -> Iterator[str]:
    """What a file says to people: all of it, or the comments and strings of a program."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    comments = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string)
        elif tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE"):
            yield token.string
    yield "\n".join(comments)


def tracked() -> list[str]:
    command = ["git", "ls-files", "--", "*.md", "*.py", "*.css", "*.toml"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the files are those that git tracks, and this is no clone")
    return [
        name for name in listed.stdout.splitlines() if (ROOT / name).exists() and name != "tests/pages/test_english.py"
    ]


def faults(text: str) -> list[str]:
    return [found[0] for pattern in (FOUND, TITLE) for found in pattern.finditer(text)]


def test_phrases_are_found_across_lines_and_in_titles() -> None:
    assert faults("At home\nin PyTorch, ours") == ["At home\nin", "ours"]
    assert faults("# The demo\nsee [The speed](speed.md)") == ["# The demo", "[The speed]"]
    assert not faults("the speed of the memory, hours, yours")


def test_no_file_uses_a_phrase_that_readers_stumble_over() -> None:
    files = tracked()
    assert len(files) > 200
    found = [f"{name}: {fault!r}" for name in files for text in written(ROOT / name) for fault in faults(text)]
    assert not found, "\n".join(found)
