"""The page that `gradxform parity --full` writes: Markdown for GitHub and for the documentation alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from gradxform.cli.parity.about import beginning, trees_measured
from gradxform.cli.parity.measure import Numbers, Where
from gradxform.cli.parity.native import Native
from gradxform.cli.text import table
from gradxform.proof.cases import Sizes
from gradxform.proof.judge import Tally, merged
from gradxform.proof.rows import DTYPES, MIXED, ROWS, Row

NAMES = {
    ("numpy", "eager"): "NumPy",
    ("jax", "eager"): "JAX",
    ("jax", "compiled"): "JAX, jit",
    ("tensorflow", "eager"): "TensorFlow",
    ("tensorflow", "compiled"): "TensorFlow, tf.function",
    ("torch", "eager"): "PyTorch",
    ("torch", "compiled"): "PyTorch, torch.compile",
    ("mlx", "eager"): "MLX",
    ("mlx", "compiled"): "MLX, mx.compile",
}
_FAR = 4
"""From here on, the page says in which tree a native function was so far off."""


def page(numbers: Numbers, sizes: Sizes, command: str, devices: str = "") -> str:
    """The whole page; it names the devices that were asked for."""
    parts = [
        *beginning(command, _verdict(numbers)),
        f"Ran on: {devices}." if devices else "",
        "## By transform\n\nThe largest distance over all frameworks and modes; no number where a transform does not "
        "apply.",
        _by_transform(numbers),
        "## By framework\n\nThe largest distance over all transforms.",
        _by_framework(numbers),
        *_natives(numbers),
        _subnormal(numbers),
        *trees_measured(sizes),
        *_everything(numbers),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(numbers: Numbers) -> str:
    total = merged(list(numbers.ours.values()))
    text = (
        f"{total.cases:,} results with {total.elements:,} elements were compared. {total.within:,} of them are of "
        "clips that were not due, whose results must be what was given, bit by bit."
    )
    over = numbers.over
    if not over:
        return f"{text} **Every result is within its budget.**"
    return "\n".join((f"{text} **Over budget: {len(over)}.**\n", *(f"- `{line}`" for line in over)))


# --- ours ------------------------------------------------------------------------------------------------------------


def _by_transform(numbers: Numbers) -> str:
    columns = _present(numbers)
    rows = (
        [f"`{row.expression}`", f"{row.ulp:g}", *(_worst(numbers, column, row) for column in columns)]
        for row in dict.fromkeys(key.row for key in numbers.ours)
    )
    return table(["transform", "budget", *columns], rows)


def _by_framework(numbers: Numbers) -> str:
    columns = _present(numbers)
    rows = ([NAMES[where], *(_worst(numbers, column, where) for column in columns)] for where in _places(numbers))
    return table(["", *columns], rows)


def _worst(numbers: Numbers, column: str, of: Row | Where) -> str:
    """The largest distance of a transform, or of a framework in one mode."""
    tallies = [tally for key, tally in numbers.ours.items() if key.column == column and of in (key.row, key.where)]
    return cell(merged(tallies)) if tallies else ""


def _everything(numbers: Numbers) -> Iterator[str]:
    """One table a dtype, folded."""
    yield "## Every number\n\nBehind each transform, the number of trees and of their elements."
    places = _places(numbers)
    for column in _present(numbers):
        yield f"<details>\n<summary>{column}</summary>"
        tallies = {(key.row, key.where): tally for key, tally in numbers.ours.items() if key.column == column}
        rows = []
        for row in dict.fromkeys(row for row, _ in tallies):
            own = [tallies.get((row, where)) for where in places]
            some = next(tally for tally in own if tally is not None)
            cells = ["" if tally is None else cell(tally) for tally in own]
            rows.append([f"`{row.expression}`", f"{some.cases}", f"{some.elements:,}", *cells])
        yield table(["transform", "trees", "elements", *(NAMES[where] for where in places)], rows)
        yield "</details>"


def _subnormal(numbers: Numbers) -> str:
    """Who turns subnormal numbers into zero."""
    counts = {where: _of(numbers, lambda key, where=where: key.where == where).flushed for where in _places(numbers)}
    if not any(counts.values()):
        return ""
    listed = ", ".join(f"{NAMES[where]} {count:,}" for where, count in counts.items() if count)
    return (
        "## Subnormal numbers\n\nMost kernels of JAX and TensorFlow give zero for a result below the smallest normal "
        "number (2^-126 in float32 and bfloat16, 2^-1022 in float64), whatever function is called, and so for what is "
        "computed on the way: `ema(0.9)` keeps a tenth of a gradient, and a mean may be smaller than all elements. "
        "Where they did, the element is in none of the tables above, neither in ours nor in those of the frameworks' "
        f"own functions. Of ours there were: {listed}. NumPy and PyTorch keep such numbers and are measured on "
        "them; so are all in float16."
    )


# --- the frameworks' own ---------------------------------------------------------------------------------------------


def _natives(numbers: Numbers) -> Iterator[str]:
    if not numbers.natives:
        return
    yield (
        "## The frameworks' own functions\n\nThe same trees, through the functions that come with the frameworks, held "
        "against the same reference. A number is the largest distance over the trees in which nothing worse happened. "
        "*NaN*, *infinity*, *zeros*: the function gave that where the right result is another number. *Hides NaN*: it "
        "gave numbers where the right result is NaN. *Refused*: it raised an error. PyTorch and MLX add 1e-6 to each "
        "norm, which is counted as the error it is. In a mixed tree the float64 leaf counts in its own units, though "
        "some functions compute the norm in float32."
    )
    for row in (row for row in ROWS if any(key.row == row for key in numbers.natives)):
        yield from _like(numbers, row)


def _like(numbers: Numbers, row: Row) -> Iterator[str]:
    """All functions that do what one of our transforms does."""
    columns = [
        column for column in (*DTYPES, MIXED) if any((key.row, key.column) == (row, column) for key in numbers.natives)
    ]
    tallies = {(key.native, key.column): tally for key, tally in numbers.natives.items() if key.row == row}
    natives = list(dict.fromkeys(native for native, _ in tallies))
    ours = [cell(_of(numbers, lambda key, c=column: (key.row, key.column) == (row, c))) for column in columns]
    rows = [["**gradxform**, all frameworks and modes", *ours]]
    rows += [[_called(n), *(cell(tallies[n, c]) if (n, c) in tallies else "" for c in columns)] for n in natives]
    yield f"### As `{row.expression}`"
    yield table(["", *columns], rows)
    wrong = list(_where(tallies))
    if wrong:
        yield "<details>\n<summary>In which trees</summary>"
        yield table(["", "what", "dtypes", "trees"], wrong)
        yield "</details>"


def _where(tallies: dict[tuple[Native, str], Tally]) -> Iterator[Sequence[str]]:
    """What went wrong in which trees, the dtypes in which it was the same in one row."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for (native, column), tally in tallies.items():
        for what, cases in tally.wrong.items():
            if len(cases) < tally.cases:
                found.setdefault((_called(native), what, _kinds(cases)), []).append(column)
        if tally.ulp > _FAR:
            found.setdefault((_called(native), f"{_number(tally.ulp)} ULP", _kinds([tally.case])), []).append(column)
    for (name, what, trees), columns in sorted(found.items(), key=lambda item: item[0][0]):
        yield name, what, ", ".join(columns), trees


def _kinds(cases: Sequence[str]) -> str:
    """The names of trees without the numbers that tell those of one kind apart."""
    return ", ".join(dict.fromkeys(re.sub(r" \d+$", "", case) for case in cases))


def _called(native: Native) -> str:
    return f"`{native.name}`" if native.mode == "eager" else f"`{native.name}`, {native.mode}"


# --- tables ----------------------------------------------------------------------------------------------------------


def _of(numbers: Numbers, chosen: Callable[..., bool]) -> Tally:
    return merged([tally for key, tally in numbers.ours.items() if chosen(key)])


def _present(numbers: Numbers) -> list[str]:
    return [column for column in (*DTYPES, MIXED) if any(key.column == column for key in numbers.ours)]


def _places(numbers: Numbers) -> list[Where]:
    return list(dict.fromkeys(key.where for key in numbers.ours))


def cell(tally: Tally) -> str:
    """The largest distance, and in words what is worse."""
    wrong = [f"{what} in {len(cases)}" for what, cases in tally.wrong.items()]
    if sum(map(len, tally.wrong.values())) == tally.cases and len(wrong) == 1:
        return f"{next(iter(tally.wrong))}, all {tally.cases}"
    return f"{_number(tally.ulp)}; {', '.join(wrong)} of {tally.cases}" if wrong else _number(tally.ulp)


def _number(ulp: float) -> str:
    return f"{ulp:,.0f}" if ulp < 1e6 else f"{ulp:.1e}"
