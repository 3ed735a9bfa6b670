"""The command `gradxform`, also `python -m gradxform`."""

from __future__ import annotations

import os
import sys
from typing import Any

_INTERRUPTED = 130
"""The exit status after Ctrl-C, click's too."""


def main() -> None:
    """Run the command; say what to install if its own dependencies are not there. Ctrl-C ends with 130."""
    # Where commands are quiet, 2 is another file; it may be closed.
    errors = os.dup(2) if sys.stderr else os.open(os.devnull, os.O_WRONLY)
    ignored = sys.unraisablehook
    sys.unraisablehook = lambda found: _interrupted(errors) if found.exc_type is KeyboardInterrupt else ignored(found)
    try:
        from gradxform.cli import app

        app()
    except BaseException as error:
        if _is_interrupt(error):
            _interrupted(errors)
        wanted = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if wanted.partition(".")[0] not in ("typer", "click", "rich", "matplotlib", "sklearn"):
            raise
        from gradxform.backend.errors import install

        extra = "compare" if "compare" in sys.argv[1:2] else "cli"
        sys.exit(f"gradxform: the command needs {wanted!r}: {install(extra)}")


def _is_interrupt(error: BaseException | None) -> bool:
    """Tell whether Ctrl-C led to an error: an extension module that it stops raises an ImportError from it."""
    if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
        return isinstance(error, KeyboardInterrupt) or getattr(error, "code", None) == _INTERRUPTED
    return _is_interrupt(error.__cause__ or error.__context__)


def _interrupted(errors: int) -> Any:
    os.write(errors, b"gradxform: interrupted\n")
    os._exit(_INTERRUPTED)  # what frameworks do at exit has ended the process by the signal instead, and has hung


if __name__ == "__main__":
    main()
