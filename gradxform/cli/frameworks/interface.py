"""What a framework brings to the commands: devices, sides of a benchmark, and a network that it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gradxform
from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Cost, Place

Array = Any
"""A NumPy array of float32, or labels."""
Tree = dict[str, Array]
"""Arrays by path."""


class Program(Protocol):
    """The interface of `gradxform.cli.frameworks.<framework>`; MLX has `find` only, NumPy no `train`."""

    MODES: Sequence[Mode]
    """The ways of running the framework that are timed."""
    GIVES_MEMORY_BACK: bool
    """Whether freed memory is returned to the system, so that resident memory shows the use of a call."""

    def find(self, name: str | None = None, index: int = 0) -> Place:
        """Return the named or default device; raise `Absent` if there is none."""

    def train(self, task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Array], Any]) -> Array:
        """Train from the initial weights on the batches, and return the logits [n, 10] of the test images.

        `put` converts a NumPy array to the framework, on the requested device.
        """


# --- the benchmark ---------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A transform's name and its hyperparameter."""

    name: str
    value: float


@dataclass(frozen=True)
class Mode:
    """A way of running a framework, such as eager or compiled."""

    name: str
    """"in place", "jit"."""
    native: str
    """The native functions, in words."""
    sides: Callable[[Sequence[Step], Tree, Place], tuple[Side, Side]]
    """gradxform and the native side at a place, each with its own arrays if it writes to them.

    Raises:
        ImportError: this version of the framework has no such native function.
    """
    compiled: bool = False


def nothing() -> None:
    """Restore nothing, for work that does not change its input."""


@dataclass(frozen=True)
class Side:
    """One implementation of the work."""

    run: Callable[[], Any]
    """Do the work and wait for the result; this is timed."""
    leaves: Callable[[Any], list[Array]]
    """The result as NumPy arrays in the order of the tree."""
    restore: Callable[[], None] = nothing
    """Restore the input before each run; not timed."""
    cost: Callable[[], Cost] = Cost
    """Cost of one run on the device, if the framework reports it."""


def transformation(steps: Sequence[Step], **muon: Any) -> GradientTransformation:
    """Build the chain in gradxform; `muon` are the arguments with which `orthogonalize` is the framework's own."""
    keywords = {"orthogonalize": {"scale": None, **muon}}
    made = [getattr(gradxform, step.name)(step.value, **keywords.get(step.name, {})) for step in steps]
    return made[0] if len(made) == 1 else gradxform.chain(*made)


def one_by_one(functions: Mapping[str, Callable[[Any, float], Any]], steps: Sequence[Step]) -> Callable[[Any], Any]:
    """The native functions of the steps, each on the result of the one before."""

    def native(grads: Any) -> Any:
        for name, value in steps:
            grads = functions[name](grads, value)
        return grads

    return native


def waiting(work: Callable[[Any], Any], grads: Any, place: Place, synchronize: Callable[[], Any]) -> Callable[[], Any]:
    """Do the work and wait for the device; on the CPU, an array that has been returned has its values."""
    wait = nothing if place.name == "cpu" else synchronize

    def run() -> Any:
        result = work(grads)
        wait()
        return result

    return run


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Muon's iteration, in every library."""


# --- the demo --------------------------------------------------------------------------------------------------------

OnStep = Callable[[float, Tree, Tree], None]
"""Called after each step with the batch loss, the gradients before the chain, and after it."""


@dataclass(frozen=True)
class Task:
    """A recurrent network that reads handwritten digits pixel by pixel, and how to train it.

    The network has one hidden vector h, which starts at zero. It reads the 64 pixels x of an image in turn::

        h <- tanh(x * input + h @ recurrent + bias)        for each pixel
        logits = h @ kernel + bias                         after the last pixel

    The loss is the cross-entropy summed over a batch; the optimizer is SGD with momentum.
    """

    weights: Tree
    """Initial weights: "rnn/input" [64], "rnn/recurrent" [64, 64], "rnn/bias" [64], "head/kernel" [64, 10],
    "head/bias" [10]."""
    batches: tuple[tuple[Array, Array], ...]
    """One per step: images [128, 64], float32 from 0 to 1, and labels [128], int32."""
    test_images: Array
    test_labels: Array
    learning_rate: float
    momentum: float
