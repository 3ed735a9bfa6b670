"""The command line: demo, parity, bench, report, compare."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

import gradxform
from gradxform.cli import device as devices

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class _ForPeople(TyperGroup):
    """Turns what a command raises for people into one line and exit code 2, and Ctrl-C into exit code 130."""

    def invoke(self, ctx: Any) -> NoReturn:
        """Run a command, and end with the code that it returns."""
        try:
            code = super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("gradxform: interrupted", err=True)
            code = 130
        except (TypeError, ValueError, OSError, MemoryError) as error:
            if os.environ.get("GRADXFORM_TRACEBACK"):
                raise
            typer.echo(f"gradxform: {' '.join(str(error).split()) or 'not enough memory'}", err=True)
            code = 2
        raise typer.Exit(code)


app = typer.Typer(cls=_ForPeople, no_args_is_help=True, add_completion=False, help=gradxform.__doc__.partition("\n")[0])
DEFAULT_CHAIN = "chain(clip_norm(5.0), clip_global_norm(1.0))"

_CHAIN = typer.Option("--chain", help="The transforms, as text that gradxform.parse reads.")
Chain = Annotated[str, _CHAIN]
Gradients = Annotated[
    Path | None, typer.Option("--gradients", help="An .npz or .safetensors file with one array per gradient.")
]
Frameworks = Annotated[
    str | None, typer.Option("--frameworks", help="Some of numpy,jax,tensorflow,torch; all by default.")
]
Device = Annotated[str | None, typer.Option("--device", help=devices.HELP)]


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


@app.command("demo")
def demo_command(
    chain: Chain = DEFAULT_CHAIN,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Training steps.")] = None,
    frameworks: Frameworks = None,
    device: Device = None,
    out: Annotated[Path, typer.Option("--out", help="The picture to write.")] = Path("demo.png"),
) -> int:
    """Train one recurrent network in JAX, TensorFlow and PyTorch, with and without the chain."""
    from gradxform.cli.demo import run as demo

    given = demo.DEFAULT_STEPS if steps is None else steps
    return demo.run(gradxform.parse(chain), given, _names(frameworks), out, Console(), device)


@app.command("parity")
def parity_command(
    chain: Chain = DEFAULT_CHAIN,
    gradients: Gradients = None,
    frameworks: Frameworks = None,
    device: Device = None,
) -> int:
    """Run a chain on the same gradients in every framework, eager and compiled, and compare with the exact result."""
    from gradxform.cli import parity

    return parity.run(gradxform.parse(chain), gradients, _names(frameworks), Console(), device)


@app.command("bench")
def bench_command(
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Without GPT-2 and the longest chain, or everything.")
    ] = True,
    frameworks: Frameworks = None,
    device: Device = None,
    trees: Annotated[str | None, typer.Option("--trees", help="Some of mlp,many,resnet50,gpt2,matrices.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder for bench.json.")] = Path(),
) -> int:
    """Time chains and the frameworks' own functions, in turn in one run."""
    from gradxform.cli.bench import run as bench

    return bench.run(quick, _names(frameworks), _names(trees), out, Console(), device)


@app.command("report")
def report_command(
    chain: Annotated[str | None, _CHAIN] = None,
    gradients: Gradients = None,
    frameworks: Frameworks = None,
    device: Device = None,
) -> int:
    """Print what to paste into a bug report: versions, devices, the gradients, and each result's distance in ULP."""
    from gradxform.cli import report

    given = None if chain is None else gradxform.parse(chain)
    return report.run(given, gradients, _names(frameworks), Console(), device)


@app.command("compare")
def compare_command(
    a: Annotated[Path, typer.Argument(help="The folder of a recording, as gx.record writes it.")],
    b: Annotated[Path, typer.Argument(help="The folder of another.")],
    map_file: Annotated[
        Path | None, typer.Option("--map", help="A TOML file that says which leaf of A is which of B.")
    ] = None,
    write_map: Annotated[
        Path | None, typer.Option("--write-map", help="Write the alignment that was found, to be corrected.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", help="The largest relative distance of a leaf. Default: rounding.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw distances and norms into this file, such as compare.png.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write one HTML page with all of it, which needs no network.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every leaf in the table.")] = False,
) -> int:
    """Compare two recorded runs: where do their gradients part, and why? Ends with 0 if rounding explains all, or 1."""
    from gradxform.cli.compare import run as comparing

    return comparing.run(a, b, Console(), map_file, write_map, tolerance, picture, report, everything)
