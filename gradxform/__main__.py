"""The command `gradxform`, also `python -m gradxform`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; say what to install if its own dependencies are not there."""
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
