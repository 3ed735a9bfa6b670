"""How to install what the library needs beside NumPy and optree."""

from __future__ import annotations


def install(extra: str) -> str:
    """Say how to install an extra while gradxform is on no package index."""
    return f"install gradxform[{extra}] (in a clone: pip install -e '.[{extra}]')"
