"""The command `gradxform`, also `python -m gradxform`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; say what to install if its own dependencies are not there."""
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
