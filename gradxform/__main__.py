"""The command `gradxform`, also `python -m gradxform`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, NoReturn

_INTERRUPTED = 130
"""The exit status after Ctrl-C, of each command too."""


def _interrupt(*_: Any) -> NoReturn:
    """End the command; again each second until it has ended, since what is imported may swallow it."""
    again = threading.Timer(1.0, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    again.daemon = True
    again.start()
    raise KeyboardInterrupt


def main() -> None:
    """Run the command; say what to install if its own dependencies are not there. Ctrl-C ends with 130."""
    before = signal.getsignal(signal.SIGINT)
    insists = before is signal.default_int_handler and hasattr(signal, "pthread_kill")
    if insists and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from gradxform.cli import app

        app()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "click", "rich", "matplotlib", "sklearn"):
            raise
        from gradxform.backend.errors import install

        extra = "compare" if "compare" in sys.argv[1:2] else "cli"
        sys.exit(f"gradxform: the command needs {error.name!r}: {install(extra)}")
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != _INTERRUPTED:
            raise
        if isinstance(end, KeyboardInterrupt):
            print("gradxform: interrupted", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_INTERRUPTED)  # what frameworks do at exit has ended the process by the signal instead, and has hung


if __name__ == "__main__":
    main()
