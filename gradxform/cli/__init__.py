"""The command line: demo, parity, bench, report, compare."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

import gradxform
from gradxform.cli import parity, report
from gradxform.cli.bench import run as bench
from gradxform.cli.compare import run as compare
from gradxform.cli.demo import run as demo

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class _ForPeople(TyperGroup):
    """Turns what a command raises for people into one line and exit code 2."""

    def invoke(self, ctx: Any) -> NoReturn:
        """Run a command, and end with the code that it returns."""
        os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever it trains with elsewhere
        try:
            code = super().invoke(ctx)
        except (TypeError, ValueError, OSError, MemoryError) as error:
            if os.environ.get("GRADXFORM_TRACEBACK"):
                raise
            typer.echo(f"gradxform: {' '.join(str(error).split()) or 'not enough memory'}", err=True)
            code = 2
        raise typer.Exit(code)


app = typer.Typer(cls=_ForPeople, no_args_is_help=True, add_completion=False, help=gradxform.__doc__.partition("\n")[0])
for _name, _module in (("demo", demo), ("parity", parity), ("bench", bench), ("report", report), ("compare", compare)):
    app.command(_name)(_module.run)
