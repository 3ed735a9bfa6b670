"""Models, optimizers, schedulers and iterators where gradients or numbers belong, recognised by their types' names."""

from __future__ import annotations

from collections.abc import Iterator, ValuesView
from typing import Any, NamedTuple

_SHOWN = 72

_TORCH = (
    "after loss.backward() write gx.torch.apply_(tx, model), or hand in {name: p.grad for name, p in "
    "model.named_parameters()}"
)
_KERAS = "hand in tape.gradient(loss, model.trainable_variables), or train with gx.keras.wrap(optimizer, tx)"
_TENSORFLOW = "hand in tape.gradient(loss, module.trainable_variables)"
_JAX = "hand in jax.grad(loss)(params)"
_NNX = "hand in nnx.grad(loss)(model)"
_PAIRS = "write gx.tensorflow.apply(tx, grads_and_vars) before optimizer.apply_gradients"
_FUNCTION = "a schedule is a function of the step, such as lambda step: 0.1 * 0.99**step"


class Misplaced(NamedTuple):
    """What a value is, in one word and in a few, and what to write instead."""

    kind: str
    what: str
    instead: str


_KINDS = {
    "torch.Module": Misplaced("model", "a PyTorch model", _TORCH),
    "torch.Optimizer": Misplaced("optimizer", "a PyTorch optimizer", "write gx.torch.attach(optimizer, tx)"),
    "torch.LRScheduler": Misplaced("scheduler", "a PyTorch scheduler", _FUNCTION),
    "torch._LRScheduler": Misplaced("scheduler", "a PyTorch scheduler", _FUNCTION),
    "torch.ReduceLROnPlateau": Misplaced("scheduler", "a PyTorch scheduler", _FUNCTION),
    "keras.Layer": Misplaced("model", "a Keras model or layer", _KERAS),
    "keras.BaseOptimizer": Misplaced("optimizer", "a Keras optimizer", "write gx.keras.wrap(optimizer, tx)"),
    "tf_keras.Layer": Misplaced("model", "a Keras model or layer", _TENSORFLOW),
    "tf_keras.Optimizer": Misplaced("optimizer", "a Keras 2 optimizer", _PAIRS),
    "tensorflow.Module": Misplaced("model", "a TensorFlow module", _TENSORFLOW),
    "tensorflow.Optimizer": Misplaced("optimizer", "a TensorFlow optimizer", _PAIRS),
    "flax.Module": Misplaced("model", "a Flax module", _JAX),
    "nnx.Module": Misplaced("model", "a Flax NNX module", _NNX),
    "nnx.Optimizer": Misplaced("optimizer", "a Flax optimizer", "give it optax.chain(tx, optax.adam(...))"),
    "flax.TrainState": Misplaced("optimizer", "a Flax TrainState", "give it tx=optax.chain(tx, optax.adam(...))"),
    "haiku.Module": Misplaced("model", "a Haiku module", _JAX),
    "gradxform_keras.Transforming": Misplaced(
        "optimizer", "a wrapped optimizer", "of its state, write optimizer.gradient_transformation_state"
    ),
    "gradxform_torch.Attached": Misplaced(
        "handle", "the handle of gx.torch.attach", "of its state, write handle.state"
    ),
    "gradxform_tensorflow.GradientProcessor": Misplaced("handle", "a processor", "of its state, write processor.state"),
    "mlx.Optimizer": Misplaced("optimizer", "an MLX optimizer", "write optimizer.update(model, tx(gradients))"),
}
"""By the root of a class's module and its name."""
_PARAMETERS = ("Module.parameters", "Module.named_parameters")


def misplaced(value: Any) -> Misplaced | None:
    """What a value is that stands where it does not belong; None for arrays, containers and all that is unknown."""
    if getattr(value, "__qualname__", "") in _PARAMETERS and isinstance(value, Iterator):
        return Misplaced("model", "a PyTorch model's parameters", _TORCH)
    for base in (value if isinstance(value, type) else type(value)).__mro__:
        root = "nnx" if base.__module__.startswith("flax.nnx.") else base.__module__.partition(".")[0]
        found = _KINDS.get(f"{root}.{base.__name__}")
        if found is not None:
            return found
    if isinstance(value, (Iterator, ValuesView)):
        return Misplaced("iterator", "an iterator", "hand in a list or a dict of gradients: list(...)")
    return None


def is_iterator(value: Any) -> bool:
    """Whether a value is a generator or another iterator of Python's own, which is no node of any framework's trees."""
    return type(value).__module__ == "builtins" and isinstance(value, (Iterator, ValuesView))


def as_leaf(path: str, leaf: Any) -> str | None:
    """What is said of a leaf that is none; None for what is unknown."""
    found = misplaced(leaf)
    if found is None:
        return None
    where = f"the leaf at {path!r}" if path else "this"
    return f"expected gradients, but {where} is {found.what} ({kind_of(leaf)}); {found.instead}"


def instead(value: Any) -> str:
    """What to write instead of a value, as the end of a sentence; empty for what is unknown."""
    if isinstance(value, type):
        return "; it is a class: make an instance of it first"
    found = misplaced(value)
    return f"; {found.instead}" if found is not None else ""


def kind_of(value: Any) -> str:
    """The name of a value's type, or of a class itself."""
    return (value if isinstance(value, type) else type(value)).__name__


def short(value: Any) -> str:
    """The repr of a value in one line of at most 72 characters."""
    line = " ".join(repr(value).split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
