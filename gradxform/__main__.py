"""The command `gradxform`, also `python -m gradxform`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_INTERRUPTED = 130


def main() -> None:
    """Run the command; say what to install if its own dependencies are not there. Ctrl-C ends with 130."""
    try:
        _run()
    except KeyboardInterrupt:
        print("gradxform: interrupted", file=sys.stderr)
        _leave()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _leave()
        raise


def _leave() -> NoReturn:
    """End at once: what frameworks do at exit has ended the process by the signal instead, and has hung."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


def _run() -> None:
    try:
        from gradxform.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in (
            "typer",
            "rich",
            "matplotlib",
            "sklearn",
            "scipy",
            "safetensors",
            "click",
        ):
            raise
        sys.exit(f"gradxform: the command needs {error.name!r}: pip install 'gradxform[cli]'")
    app()


if __name__ == "__main__":
    main()
