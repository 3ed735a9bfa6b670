"""What is said of a name that is not here: the name that it has here, or the nearest."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterable

from gradxform.core.other_names import KEYWORDS, NAMES

_NEAR = 0.7


@functools.lru_cache(maxsize=256)
def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The name that is most like a mistyped one; None if none is."""
    import difflib  # which is needed for errors alone

    return next(iter(difflib.get_close_matches(name, known, 1, _NEAR)), None)


def no_attribute(name: str, known: Iterable[str]) -> AttributeError | ImportError:
    """The error of a name that the package does not have: an ImportError in `from gradxform import name`.

    To be called by the package's `__getattr__` alone. Python drops the message of an AttributeError in an import.
    """
    hint = ""
    if name in NAMES:
        hint = f"; its name here is gx.{NAMES[name]}"
        if name.endswith("_"):  # as PyTorch calls what works in place
            hint += f", in place gx.torch.apply_(gx.{NAMES[name]}(...), model)"
    elif (near := nearest(name, tuple(known))) is not None:
        hint = f"; did you mean gx.{near}?"
    if hint and sys._getframe(2).f_code.co_name == "_handle_fromlist" and not _is_submodule(name):
        return ImportError(f"cannot import name {name!r} from 'gradxform'{hint}", name="gradxform")
    return AttributeError(f"module 'gradxform' has no attribute {name!r}{hint}", name=name)  # else Python adds a guess


def transform_named(name: str, known: Iterable[str]) -> str:
    """A hint of the transform that may have been meant; empty if none is near."""
    names = tuple(known)
    if NAMES.get(name) in names:
        return f" (its name here is {NAMES[name]})"
    near = nearest(name, names)
    return f" (did you mean {near}?)" if near is not None else ""


def argument_named(name: str, known: Iterable[str]) -> str | None:
    """The argument that may have been meant."""
    names = tuple(known)
    return next((own for own in KEYWORDS.get(name, ()) if own in names), None) or nearest(name, names)


def _is_submodule(name: str) -> bool:
    return importlib.util.find_spec(f"gradxform.{name}") is not None
