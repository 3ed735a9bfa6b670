"""The command `gradxform`, also `python -m gradxform`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_INTERRUPTED = 130


def main() -> None:
    """Run the command; say what to install if its own dependencies are not there. Ctrl-C ends with 130."""
    with _insisting():
        try:
            _run()
        except KeyboardInterrupt:
            print("gradxform: interrupted", file=sys.stderr)
            _leave()
        except SystemExit as end:
            if end.code == _INTERRUPTED:
                _leave()
            raise


@contextmanager
def _insisting() -> Iterator[None]:
    """Repeat Ctrl-C each second until the command ends: what frameworks do as they are imported may swallow it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(*_: Any) -> NoReturn:
    again = threading.Timer(1.0, _press)
    again.daemon = True
    again.start()
    raise KeyboardInterrupt


def _press() -> None:
    """Send Ctrl-C to the main thread, which may be waiting."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


def _leave() -> NoReturn:
    """End at once: what frameworks do at exit has ended the process by the signal instead, and has hung."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


def _run() -> None:
    try:
        from gradxform.cli import app

        app()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "click", "rich", "matplotlib", "sklearn"):
            raise
        from gradxform.backend.errors import install

        extra = "compare" if "compare" in sys.argv[1:2] else "cli"
        sys.exit(f"gradxform: the command needs {error.name!r}: {install(extra)}")


if __name__ == "__main__":
    main()
