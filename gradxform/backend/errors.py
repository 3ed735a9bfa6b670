"""Error messages: what to write instead of a foreign or mistyped name, a misplaced object or a wrong call."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, ValuesView
from typing import Any

_ALIASES = {
    "accumulate": "MultiSteps apply_every gradient_accumulation",
    "add_decayed_weights": "weight_decay",
    "add_noise": "gradient_noise",
    "attach": "wrap apply_gradients GradientProcessor",
    "centralize": "gradient_centralization",
    "chain": "named_chain",
    "clip_adaptive": "AGC adaptive_grad_clip unitwise_clip",
    "clip_global_norm": "ClipGradByGlobalNorm global_clipnorm clip_grad_norm clip_grads clip_grads_with_norm",
    "clip_norm": "clip_by_norm ClipGradByNorm",
    "clip_percentile": "AutoClip",
    "clip_rms": "clip_by_block_rms",
    "clip_spikes": "SPAM",
    "clip_value": "clip clip_by_value ClipGradByValue clip_grad_value",
    "clip_zscore": "ZClip",
    "elementwise": "stateless_with_tree_map",
    "ema": "exponential_moving_average",
    "global_norm": "get_total_norm grad_norm l2_norm",
    "GradientProcessor": "wrap attach init",
    "grokfast": "gradfilter_ema",
    "normalize_global_norm": "normalize_by_update_norm",
    "numpy": "np",
    "on_backward": "scale_gradient custom_gradient",
    "orthogonalize": "muon scale_by_muon newton_schulz",
    "partition": "multi_transform",
    "pcgrad": "project_conflicting",
    "reverse_gradient": "GradReverse gradient_reversal",
    "scale": "scale_by_learning_rate",
    "sign": "scale_by_sign",
    "skip_nonfinite": "apply_if_finite skip_not_finite",
    "stop": "set_to_zero",
    "straight_through": "grad_pass_through",
    "tensorflow": "tf",
    "trace": "momentum",
    "transform": "stateless",
    "wrap": "attach apply_gradients GradientProcessor",
    "zero_nonfinite": "zero_nans",
}
"""From a name here to names of the same thing in other libraries, compared without case and underscores."""
_NEAR = 0.7
_SHOWN = 72


_APPLY = (
    "after loss.backward() write gx.torch.apply_(tx, model), or hand in {name: p.grad for name, p in "
    "model.named_parameters()}"
)
_TAPE = "hand in tape.gradient(loss, model.trainable_variables)"
_PAIRS = "write gx.tensorflow.apply(tx, grads_and_vars) before optimizer.apply_gradients"
_STEP = "a schedule is a function of the step, such as lambda step: 0.1 * 0.99**step"
_KINDS = {
    "torch.Module": ("a PyTorch model", _APPLY),
    "torch.Optimizer": ("a PyTorch optimizer", "write gx.torch.attach(optimizer, tx)"),
    "torch.LRScheduler": ("a PyTorch scheduler", _STEP),
    "keras.Layer": ("a Keras model or layer", f"{_TAPE}, or train with gx.keras.wrap(optimizer, tx)"),
    "keras.KerasTensor": ("a symbolic Keras tensor", "put a layer there, such as gx.keras.GradientTransform"),
    "keras.BaseOptimizer": ("a Keras optimizer", "write gx.keras.wrap(optimizer, tx)"),
    "tf_keras.Optimizer": ("a Keras 2 optimizer", _PAIRS),
    "tensorflow.Module": ("a TensorFlow module", _TAPE),
    "tensorflow.Optimizer": ("a TensorFlow optimizer", _PAIRS),
    "flax.Module": ("a Flax module", "hand in jax.grad(loss)(params)"),
    "flax.TrainState": ("a Flax TrainState", "give it tx=optax.chain(tx, optax.adam(...))"),
    "nnx.Module": ("a Flax NNX module", "hand in nnx.grad(loss)(model)"),
    "nnx.Optimizer": ("a Flax optimizer", "give it optax.chain(tx, optax.adam(...))"),
    "haiku.Module": ("a Haiku module", "hand in jax.grad(loss)(params)"),
    "mlx.Optimizer": ("an MLX optimizer", "write gx.mlx.wrap(optimizer, tx)"),
    "gradxform_keras.Transforming": ("a wrapped optimizer", "write optimizer.gradient_transformation_state"),
    "gradxform_torch.Attached": ("the handle of gx.torch.attach", "of its state, write handle.state"),
    "gradxform_tensorflow.GradientProcessor": ("a processor", "of its state, write processor.state"),
}
"""By the root of a class's module and the class's name, so that no framework is imported."""


def misplaced(value: Any) -> tuple[str, str] | None:
    """Say what a model, optimizer, scheduler or iterator is, and what to write instead; None for everything else."""
    if getattr(value, "__qualname__", "") in ("Module.parameters", "Module.named_parameters") and is_iterator(value):
        return "a PyTorch model's parameters", _APPLY
    for base in (value if isinstance(value, type) else type(value)).__mro__:
        root = "nnx" if base.__module__.startswith("flax.nnx.") else base.__module__.partition(".")[0]
        if f"{root}.{base.__name__}" in _KINDS:
            return _KINDS[f"{root}.{base.__name__}"]
    if isinstance(value, (Iterator, ValuesView)):
        return "an iterator", "hand in a list or a dict of gradients: list(...)"
    return None


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of Python's own, which is a leaf in every framework's trees."""
    return type(value).__module__ == "builtins" and isinstance(value, (Iterator, ValuesView))


def instead(value: Any) -> str:
    """Say what to write instead of an object, as the end of a sentence; empty if unknown."""
    if isinstance(value, type):
        return "; it is a class: make an instance of it first"
    found = misplaced(value)
    return f"; {found[1]}" if found is not None else ""


def wrong_type(what: str, expected: str, value: Any, hint: str | None = None) -> TypeError:
    """Return the error for an argument of another type; by default it ends with what to write instead."""
    end = instead(value) if hint is None else hint
    return TypeError(f"{what}: expected {expected}, got {short(value)} of type {type(value).__qualname__}{end}")


def not_an_array(path: str, leaf: Any, frameworks: Collection[str]) -> TypeError:
    """Return the error for a leaf that no framework owns."""
    where, kind, found = f"the leaf at {path!r}" if path else "this", type(leaf), misplaced(leaf)
    if found is not None:
        return TypeError(f"expected gradients, but {where} is {found[0]} ({kind.__name__}); {found[1]}")
    hint = "hand in a pytree of arrays, with None where there is no gradient"
    if callable(getattr(leaf, "init", None)) and callable(getattr(leaf, "update", None)):
        hint = "it is a transformation, whose state is what tx.init(params) returns"
    elif callable(leaf):
        hint = "leave it out: hand in the arrays of a model, such as equinox.filter(model, equinox.is_inexact_array)"
    what = f"{kind.__module__}.{kind.__qualname__}, {short(leaf)}"
    return TypeError(f"{where} is a {what}, not an array of a known framework ({', '.join(frameworks)}); {hint}")


def parameter(path: str) -> TypeError:
    """Return the error for a PyTorch parameter where its gradient is expected."""
    end = "; of the weights themselves, hand in p.detach(), or p.view_as(p) to differentiate"
    return TypeError(f"expected gradients, but the leaf at {path!r} is a PyTorch parameter; {_APPLY}{end}")


def wrong_call(make: Callable[..., Any], why: TypeError, given: Collection[Any], arrays: bool) -> TypeError:
    """Return the error for arguments that do not fit a factory's signature.

    Args:
        make: the factory.
        why: the error of `inspect.Signature.bind`.
        given: all arguments.
        arrays: whether one of them holds arrays.
    """
    name, signature = make.__name__, inspect.signature(make)
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    call = f"{name}{signature.replace(parameters=plain, return_annotation=signature.empty)}"
    if arrays:
        return TypeError(f"{name}: {why}; gradients come later: write tx = gx.{name}(...), then tx(gradients)")
    hint = next(filter(None, map(instead, given)), f"; write gx.{call}")
    if str(why).endswith(("argument 'mask'", "argument 'where'")):
        hint = f"; write gx.masked(gx.{name}(...), where)"
    return TypeError(f"{name}: {why}{hint}")


def check_schedule(transform: str, name: str, schedule: Callable[..., Any]) -> None:
    """Reject a function that cannot be called with the step alone.

    Raises:
        TypeError: names the argument.
    """
    try:
        signature = inspect.signature(schedule)
    except ValueError:  # of a built-in function
        return
    try:
        signature.bind(0.0)
    except TypeError as error:
        raise TypeError(f"{transform}: {name} is a function of {signature}, {error}; {_STEP}") from None


def meant(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a name of another library, or a mistyped one, stands for."""
    keys, key = {_key(own): own for own in known}, _key(name)
    if key in keys:
        return keys[key]
    for own, others in _ALIASES.items():
        if own in known and key in map(_key, others.split()):
            return own
    return next((keys[near] for near in difflib.get_close_matches(key, keys, 1, _NEAR)), None)


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def unknown(module: str, name: str, known: Collection[str], use: str = "") -> AttributeError:
    """Return the error for a name that gradxform, or a package `gradxform_<framework>`, does not have.

    Args:
        module: the module's name.
        name: the name.
        known: the names that it has.
        use: how transforms are used there.
    """
    hint = ""
    if not name.startswith("_"):
        hint = f"; transforms are used in {use}" if use else ""
        own, other = meant(name, known), meant(name, sys.modules["gradxform"].__all__)
        if own is not None:
            hint += f"; did you mean {module.replace('radxform', 'x').replace('_', '.', 1)}.{own}?"
        elif other is not None:
            hint += f"; did you mean gx.{other}?"
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)  # else Python adds a guess


def of_module(module: str, known: Collection[str], use: str = "") -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module, which raises the error `unknown`."""

    def refuse(name: str) -> Any:
        raise unknown(module, name, known, use)

    return refuse


def install(extra: str) -> str:
    """Say how to install an extra while gradxform is on no package index."""
    return f"install gradxform[{extra}] (in a clone: pip install -e '.[{extra}]')"


def short(value: Any) -> str:
    """Return the repr of a value in one line of at most 72 characters."""
    line = " ".join(repr(value).split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
