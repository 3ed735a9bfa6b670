"""The Markdown page that `python tests/benchmarks/write_parity.py` writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from parity_page.about import beginning, provenance, trees_measured
from parity_page.groups import Sizes
from parity_page.measure import Numbers, Where
from parity_page.native import Native
from parity_page.tally import Tally, merged

from gradxform.cli.console import table
from gradxform.proof.registry import DTYPES, MIXED, ROWS, Row

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
"""Above this error in ULP, the page names the trees."""


def folded(title: str, body: str) -> str:
    """Return Markdown behind a summary that opens it."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


def page(numbers: Numbers, sizes: Sizes, command: str, devices: str = "") -> str:
    """Return the page; `devices` names the devices of `--device`."""
    parts = [
        *beginning(_verdict(numbers)),
        "## By transform\n\nThe largest error over all frameworks and modes. Empty: the transform does not support the "
        "dtype, or is not measured in it.",
        _by_transform(numbers),
        "## By framework\n\nThe largest error over all transforms.",
        _by_framework(numbers),
        *_natives(numbers),
        _subnormal(numbers),
        *trees_measured(sizes),
        *_everything(numbers),
        provenance(command, devices),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(numbers: Numbers) -> str:
    total = merged(list(numbers.results.values()))
    text = (
        f"Compared: {total.cases:,} results with {total.elements:,} elements. In {total.within:,} of them the gradient "
        "is within the limit, and the result must be bit-identical to it."
    )
    over = numbers.over
    if not over:
        return f"{text} **Every result is within its budget.**"
    return "\n".join((f"{text} **Over budget: {len(over)}.**\n", *(f"- `{line}`" for line in over)))


# --- gradxform --------------------------------------------------------------------------------------------------------


def _by_transform(numbers: Numbers) -> str:
    columns = _present(numbers)
    rows = (
        [f"`{row.expression}`", _budget(row), *(_worst(numbers, column, row) for column in columns)]
        for row in dict.fromkeys(key.row for key in numbers.results)
    )
    return table(["transform", "budget", *columns], rows)


def _budget(row: Row) -> str:
    """The budget in float32, in ULP or in units of products of matrices."""
    if row.products is not None:
        return f"{row.products:,.0f} *"
    return f"{float(row.budget('float32', row.sums)):g}{' of the largest term' if row.sums else ''}"


def _by_framework(numbers: Numbers) -> str:
    columns = _present(numbers)
    rows = ([NAMES[where], *(_worst(numbers, column, where) for column in columns)] for where in _places(numbers))
    return table(["", *columns], rows)


def _worst(numbers: Numbers, column: str, of: Row | Where) -> str:
    """The largest error of a transform, or of a framework in one mode; products of matrices have their own unit."""
    found = ((key, tally) for key, tally in numbers.results.items() if key.column == column)
    tallies = [t for key, t in found if key.row == of or (key.where == of and key.row.products is None)]
    return cell(merged(tallies)) if tallies else ""


def _everything(numbers: Numbers) -> Iterator[str]:
    """One folded table per dtype."""
    yield "## All results\n\nWith the number of trees and elements per transform."
    places = _places(numbers)
    for column in _present(numbers):
        tallies = {(key.row, key.where): tally for key, tally in numbers.results.items() if key.column == column}
        rows = []
        for row in dict.fromkeys(row for row, _ in tallies):
            own = [tallies.get((row, where)) for where in places]
            some = next(tally for tally in own if tally is not None)
            cells = ["" if tally is None else cell(tally) for tally in own]
            rows.append([f"`{row.expression}`", f"{some.cases}", f"{some.elements:,}", *cells])
        yield folded(column, table(["transform", "trees", "elements", *(NAMES[where] for where in places)], rows))


def _subnormal(numbers: Numbers) -> str:
    """Which frameworks flush subnormal numbers to zero."""
    counts = {where: _of(numbers, lambda key, where=where: key.where == where).flushed for where in _places(numbers)}
    if not any(counts.values()):
        return ""
    listed = ", ".join(f"{NAMES[where]} {count:,}" for where, count in counts.items() if count)
    return (
        "## Subnormal numbers\n\nMost kernels of JAX and TensorFlow flush results below the smallest normal number "
        "(2^-126 in float32 and bfloat16, 2^-1022 in float64) to zero, intermediate results too. The tables leave such "
        f"elements out, for gradxform and native functions alike. In gradxform's results: {listed}. NumPy and PyTorch "
        "keep subnormal numbers and are measured on them; so is float16 everywhere."
    )


# --- native functions ---------------------------------------------------------------------------------------------


def _natives(numbers: Numbers) -> Iterator[str]:
    if not numbers.natives:
        return
    yield (
        "## Native functions\n\nThe frameworks' own functions on the same trees, against the same reference. A number "
        "is the largest error in ULP over the trees without a worse failure. *NaN*, *infinity*, *zeros*: returned "
        "instead of a finite number. *Hides NaN*: a number where NaN is correct. *Refused*: an error. The 1e-6 that "
        "PyTorch and MLX add to norms counts as error. In mixed trees, the float64 leaf counts in float64 ULP."
    )
    for row in (row for row in ROWS if any(key.row == row for key in numbers.natives)):
        yield from _like(numbers, row)


def _like(numbers: Numbers, row: Row) -> Iterator[str]:
    """The native functions that correspond to one transform."""
    columns = [
        column for column in (*DTYPES, MIXED) if any((key.row, key.column) == (row, column) for key in numbers.natives)
    ]
    tallies = {(key.native, key.column): tally for key, tally in numbers.natives.items() if key.row == row}
    natives = list(dict.fromkeys(native for native, _ in tallies))
    own = [cell(_of(numbers, lambda key, c=column: (key.row, key.column) == (row, c))) for column in columns]
    rows = [["**gradxform**, all frameworks and modes", *own]]
    rows += [[_called(n), *(cell(tallies[n, c]) if (n, c) in tallies else "" for c in columns)] for n in natives]
    yield f"### Compared with `{row.expression}`"
    yield table(["", *columns], rows)
    wrong = list(_where(tallies))
    if wrong:
        yield folded("Failures by tree", table(["", "failure", "dtypes", "trees"], wrong))


def _where(tallies: dict[tuple[Native, str], Tally]) -> Iterator[Sequence[str]]:
    """Yield the failures with their trees; dtypes with the same failure share a row."""
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
    """The kinds of trees, without the numbers of single trees."""
    return ", ".join(dict.fromkeys(re.sub(r" \d+$", "", case) for case in cases))


def _called(native: Native) -> str:
    return f"`{native.name}`" if native.mode == "eager" else f"`{native.name}`, {native.mode}"


# --- tables ----------------------------------------------------------------------------------------------------------


def _of(numbers: Numbers, chosen: Callable[..., bool]) -> Tally:
    return merged([tally for key, tally in numbers.results.items() if chosen(key)])


def _present(numbers: Numbers) -> list[str]:
    return [column for column in (*DTYPES, MIXED) if any(key.column == column for key in numbers.results)]


def _places(numbers: Numbers) -> list[Where]:
    return list(dict.fromkeys(key.where for key in numbers.results))


def cell(tally: Tally) -> str:
    """The largest error, and worse failures in words."""
    wrong = [f"{what} in {len(cases)}" for what, cases in tally.wrong.items()]
    if sum(map(len, tally.wrong.values())) == tally.cases and len(wrong) == 1:
        return f"{next(iter(tally.wrong))}, all {tally.cases}"
    return f"{_number(tally.ulp)}; {', '.join(wrong)} of {tally.cases}" if wrong else _number(tally.ulp)


def _number(ulp: float) -> str:
    return f"{ulp:,.0f}" if ulp < 1e6 else f"{ulp:.1e}"
