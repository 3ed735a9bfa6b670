"""Fields of states that were renamed: what was saved under their former names is still read."""

from __future__ import annotations

from collections.abc import Iterable

_FORMER = {"divisor": "weight", "average": "mean"}


def former(paths: Iterable[str]) -> dict[str, str]:
    """The former path of each renamed field among the paths of a state. Such a field stands beside a count."""
    known = set(paths)
    found = {}
    for path in known:
        start, slash, name = path.rpartition("/")
        old = f"{start}{slash}{_FORMER.get(name, name)}"
        if old not in known and f"{start}{slash}count" in known:
            found[path] = old
    return found
