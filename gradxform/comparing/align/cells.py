"""The orders in which the frameworks keep the gates of recurrent cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gradxform.comparing.align.layouts import Gates, Shape

_ORDERS = {
    ("torch", 4): "ifgo",
    ("keras", 4): "ifgo",
    ("flax", 4): "ifgo",
    ("joint", 4): "igfo",
    ("torch", 3): "rzn",
    ("keras", 3): "zrn",
    ("flax", 3): "rzn",
}
"""Input, forget, candidate and output gate of an LSTM; reset, update and candidate of a GRU."""
_HIDDEN = re.compile(r"^weight_hh(_l\d+)?(_reverse)?$")
_JOINT = re.compile(r"(^|/)\w*lstm\w*/(kernel|w)$|(^|/)lstm\w*/linear/w$")


class Cell(NamedTuple):
    """What the shape of one weight of a recurrent layer says."""

    family: str
    """"torch", "keras", "flax", or "joint": one kernel for inputs and states, of TensorFlow 1 and Haiku."""
    gates: int
    hidden: int


def cells_of(shapes: Mapping[str, Shape]) -> dict[str, Cell]:
    """The recurrent layers of a recording, by the path of the module."""
    found: dict[str, Cell] = {}
    for path, shape in shapes.items():
        module, _, last = path.rpartition("/")
        if len(shape) != 2 or not shape[0] or not shape[1]:
            continue
        if _HIDDEN.match(last) and shape[0] % shape[1] == 0:
            found[module] = Cell("torch", shape[0] // shape[1], shape[1])
        elif last == "recurrent_kernel" and shape[1] % shape[0] == 0:
            found[module] = Cell("keras", shape[1] // shape[0], shape[0])
        elif path.endswith("dense_h/kernel") and shape[1] % shape[0] == 0:
            found[module.rpartition("/")[0]] = Cell("flax", shape[1] // shape[0], shape[0])
        elif _JOINT.search(path) and f"{module}/recurrent_kernel" not in shapes and shape[1] % 4 == 0:
            if shape[0] > shape[1] // 4:
                found[module] = Cell("joint", 4, shape[1] // 4)
    return found


def cell_at(path: str, cells: Mapping[str, Cell]) -> Cell | None:
    """The cell that a leaf is in."""
    module = path.rpartition("/")[0]
    return cells.get(module) or cells.get(module.rpartition("/")[0] if module.endswith(("dense_i", "dense_h")) else "")


def gates_between(a: Cell | None, b: Cell | None, shape: Shape) -> Gates | None:
    """The order of A's gates that is B's, along the axis that has all gates; None if it is the same or unknown."""
    if a is None or b is None or (a.gates, a.hidden) != (b.gates, b.hidden):
        return None
    one, other = _ORDERS.get((a.family, a.gates)), _ORDERS.get((b.family, b.gates))
    axes = [axis for axis, size in enumerate(shape) if size == a.gates * a.hidden]
    if one is None or other is None or one == other or not axes:
        return None
    return Gates(axes[0] if a.family == "torch" else axes[-1], tuple(one.index(gate) for gate in other))
