"""What a framework brings to the commands: devices, functions of its own to compare with, and training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Absent, Place

Array = Any
"""A NumPy array of float32, or labels."""
Tree = dict[str, Array]
"""Arrays by path."""
Work = Callable[[Any], Any]
"""Takes gradients and returns others, or writes to those given."""
Steps = Sequence[tuple[str, float]]
"""Names of transforms with their hyperparameters."""
Clip = GradientTransformation | Steps
"""A transformation, or the steps that a framework's own functions take."""


class Program(Protocol):
    """The interface of `gradxform.cli.frameworks.<framework>`; MLX has `find` only, NumPy no `train`."""

    MODES: Sequence[Mode]
    """The ways of running the framework that are timed."""

    def find(self, name: str | None = None, index: int = 0) -> Place:
        """Return the named or default device; raise `Absent` if there is none."""

    def train(self, task: Task, chain: Clip, put: Callable[[Array], Any]) -> Iterator[Any]:
        """Train on the batches, from the initial weights; `put` converts a NumPy array, to the requested device.

        Yields after each step: the batch loss, the gradients before the chain and after it, and the weights, by path.
        """


# --- devices ---------------------------------------------------------------------------------------------------------


def chosen(devices: Mapping[str, Sequence[Any]], name: str, index: int) -> Any:
    """Return one of a framework's devices by name.

    Raises:
        Absent: there is none.
    """
    if not devices.get(name):
        raise Absent(f"which sees no {name} device: it has {' and '.join(own for own in devices if devices[own])}")
    if index >= (count := len(devices[name])):
        raise Absent(f"which sees no {name}:{index}: there {'is' if count == 1 else 'are'} {count}")
    return devices[name][index]


# --- the benchmark ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mode:
    """A way of running a framework, such as eager or compiled."""

    name: str
    """The name for display: "in place", "jit"."""
    native: str
    """The native functions, in words."""
    functions: Mapping[str, Callable[[Any, float], Any]]
    """The framework's own function beside each transform, of gradients and a hyperparameter.

    Raises:
        ImportError: this version of the framework has no such native function.
    """
    own: Callable[[GradientTransformation, Any], Any] = lambda tx, grads: tx(grads)
    hold: Callable[[list[Any]], Any] = list
    """Make of arrays what the functions take."""
    written: Callable[[Any], list[Any]] | None = None
    """The arrays of what is held, if the functions write to them."""
    compile: Callable[[Work], Work] | None = None
    muon: Mapping[str, Any] = field(default_factory=dict)
    """The arguments with which `orthogonalize` is the framework's own."""


def each(function: Callable[[Any, float], Any]) -> Callable[[Any, float], list[Any]]:
    """Apply a function to each of some arrays."""

    def apply(arrays: Any, value: float) -> list[Any]:
        return [function(array, value) for array in arrays]

    return apply


def native(mode: Mode, steps: Steps, held: Any) -> Any:
    """Apply the framework's own functions one after the other to what the mode holds."""
    for name, value in steps:
        result = mode.functions[name](held, value)
        held = held if mode.written else result
    return held


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Muon's iteration, in every library."""


# --- the demo --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A recurrent network that reads handwritten digits pixel by pixel, and how to train it.

    The loss is the cross-entropy summed over a batch; the optimizer is SGD with momentum.
    """

    weights: Tree
    """Initial weights: "rnn/input" [64], "rnn/recurrent" [64, 64], "rnn/bias" [64], "head/kernel" [64, 10],
    "head/bias" [10]."""
    logits: Callable[..., Any]
    """`logits(weights, images)` in any framework; `reduce=` is how to loop over pixels, by default in Python."""
    batches: tuple[tuple[Array, Array], ...]
    """One per step: images [128, 64], float32 from 0 to 1, and labels [128], int32."""
    test_images: Array
    test_labels: Array
    learning_rate: float
    momentum: float
