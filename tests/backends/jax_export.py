"""Lower one update for a GPU or TPU, which need not be present, and list its operations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from devices import update
from jax import export

SHAPES = {"weights": (256, 512), "kernel": (64, 3, 3, 64), "bias": (1 << 14,)}
"""At least 16384 numbers; rows and columns have far fewer."""
LEAF = 1 << 14
_NAME = re.compile(r'= "?stablehlo\.(\w+)')
_TYPE = re.compile(r"tensor<((?:\d+x)*)([a-z]+\d+\w*)>")


class Operation(NamedTuple):
    """One operation: its name, the sizes and dtypes of operands and results, and the lines of its branches."""

    name: str
    given: list[tuple[int, str]]
    made: list[tuple[int, str]]
    branches: list[list[str]]


def exported(tx: Any, dtype: str, platform: str, shapes: dict[str, tuple[int, ...]] = SHAPES) -> str:
    """The StableHLO of one update."""
    grads = {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, shape in shapes.items()}

    def step(grads: Any, state: Any, params: Any) -> Any:
        return update(tx, grads, state, params)

    state = jax.eval_shape(tx.init, grads)
    return export.export(jax.jit(step), platforms=[platform])(grads, state, grads).mlir_module()


def operations(module: str) -> Iterator[Operation]:
    """The operations of a module, including nested regions."""
    lines = module.splitlines()
    for at, line in enumerate(lines):
        name = _NAME.search(line)
        if name:
            yield _operation(name[1], lines, at)


def _operation(name: str, lines: list[str], at: int) -> Operation:
    branches: list[list[str]] = []
    if lines[at].endswith("({"):
        indent, branch = " " * (len(lines[at]) - len(lines[at].lstrip())), []
        while not lines[at].startswith(indent + "})"):
            at += 1
            if lines[at].startswith((indent + "}, {", indent + "})")):
                branches, branch = [*branches, branch], []
            else:
                branch.append(lines[at])
    given, arrow, made = lines[at].rpartition(" : ")[2].partition("->")
    return Operation(name, _arrays(given), _arrays(made if arrow else given), branches)


def _arrays(types: str) -> list[tuple[int, str]]:
    return [(math.prod(map(int, filter(None, dims.split("x")))), dtype) for dims, dtype in _TYPE.findall(types)]


def faults(module: str) -> set[str]:
    """Find sequential operations, and operations that a TPU lacks or supports with float32's range only."""
    found = set()
    for operation in operations(module):
        name, wide = operation.name, any(_is_wide(dtype) for _, dtype in operation.given + operation.made)
        leaf_given, leaf_made = (
            any(size >= LEAF and _is_wide(dtype) for size, dtype in part) for part in (operation.given, operation.made)
        )
        if name in ("while", "if") or (name == "case" and _chooses(operation)):
            found.add(name)
        if name in ("bitcast_convert", "sort") and wide:
            found.add(f"{name} of 64 bits")
        if name == "reduce" and leaf_given:
            found.add("sum of 64 bits")
        elif leaf_made:
            found.add("elements of 64 bits")
    return found


def _is_wide(dtype: str) -> bool:
    return dtype in ("f64", "i64", "ui64")


def _chooses(operation: Operation) -> bool:
    """Whether a case operation computes in its branches; platform choices have constant branches."""
    return len(operation.branches) > 1 and any(
        "stablehlo.constant" not in line and "stablehlo.return" not in line
        for branch in operation.branches
        for line in branch
    )
