"""The command `gradxform`, also `python -m gradxform`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; say what to install if its own dependencies are not there. Ctrl-C ends with 130."""
    try:
        _run()
    except KeyboardInterrupt:
        print("gradxform: interrupted", file=sys.stderr)
        sys.exit(130)


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
