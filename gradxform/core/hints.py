"""What is said of a name that is not here: the name that it has here, what to write instead, or the nearest."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterable
from typing import Any

from gradxform.core.other_names import KEYWORDS, NAMES
from gradxform.core.transform import factories

ADAPTERS = ("jax", "keras", "mlx", "numpy", "tensorflow", "torch")
"""The frameworks that have a package here, `gradxform_<framework>`."""
_NEAR = 0.7
_USES = {
    "jax": "optax.chain(gx.{}(...), optimizer)",
    "keras": "gx.keras.wrap(optimizer, gx.{}(...))",
    "tensorflow": "gx.tensorflow.apply(gx.{}(...), grads_and_vars)",
    "torch": "gx.torch.apply_(gx.{}(...), model)",
}
"""How an adapter uses a transform."""
_OPTIMIZERS = {
    "jax": ("optax", "optax.chain(tx, optax.{}(...))"),
    "keras": ("keras.optimizers", "gx.keras.wrap(keras.optimizers.{}(...), tx)"),
    "tensorflow": ("keras.optimizers", "gx.keras.wrap(keras.optimizers.{}(...), tx)"),
    "torch": ("torch.optim", "gx.torch.attach(torch.optim.{}(...), tx)"),
}
"""Where each has its optimizers, and how one is used."""
_ENTRIES = {
    "jax": "optax.chain(tx, optimizer)",
    "keras": "gx.keras.wrap(optimizer, tx)",
    "tensorflow": "gx.tensorflow.GradientProcessor(tx, variables)",
    "torch": "gx.torch.attach(optimizer, tx)",
}
_LIKE_ENTRIES = {"GradientProcessor", "apply", "apply_", "apply_gradients", "as_optax", "attach", "init", "wrap"}
"""What leads into an adapter, under the names of all of them."""


@functools.lru_cache(maxsize=256)
def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The name that is most like a mistyped one; None if none is."""
    import difflib  # which is needed for errors alone

    return next(iter(difflib.get_close_matches(name, known, 1, _NEAR)), None)


def no_attribute(name: str, known: Iterable[str]) -> AttributeError | ImportError:
    """The error of a name that the package does not have: an ImportError in `from gradxform import name`.

    To be called by the package's `__getattr__` alone. Python drops the message of an AttributeError in an import.
    """
    hint = ""
    if name in NAMES:
        hint = f"; its name here is gx.{NAMES[name]}"
        if name.endswith("_"):  # as PyTorch calls what works in place
            hint += f", in place gx.torch.apply_(gx.{NAMES[name]}(...), model)"
    elif (near := nearest(name, tuple(known))) is not None:
        hint = f"; did you mean gx.{near}?"
    if hint and sys._getframe(2).f_code.co_name == "_handle_fromlist" and not _is_submodule(name):
        return ImportError(f"cannot import name {name!r} from 'gradxform'{hint}", name="gradxform")
    return AttributeError(f"module 'gradxform' has no attribute {name!r}{hint}", name=name)  # else Python adds a guess


def no_attribute_of(package: str, name: str, known: Iterable[str]) -> AttributeError | ImportError:
    """The error of a name that an adapter `gradxform_<framework>` does not have; for its `__getattr__` alone."""
    adapter = package.removeprefix("gradxform_")
    hint = "" if name.startswith("_") else _instead(adapter, name, tuple(known))
    if hint and sys._getframe(2).f_code.co_name == "_handle_fromlist" and not _is_submodule(name, package):
        return ImportError(f"cannot import name {name!r} from {package!r}{hint}", name=package)
    return AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)


def _instead(adapter: str, name: str, known: tuple[str, ...]) -> str:
    """What to write instead of a name that an adapter does not have."""
    own = NAMES.get(name, name)
    if own in factories and adapter in _USES:
        return f"; write {_USES[adapter].format(own)}"
    if own in getattr(sys.modules.get("gradxform"), "__all__", ()):
        return f"; its name is gx.{own}"
    where, use = _OPTIMIZERS.get(adapter, ("", ""))
    if hasattr(sys.modules.get(where), name):
        return f"; write {use.format(name)}"
    near = nearest(name, known)
    if near is not None:
        return f"; did you mean gx.{adapter}.{near}?"
    return f"; write {_ENTRIES[adapter]}" if name in _LIKE_ENTRIES and adapter in _ENTRIES else ""


class Finder:
    """Says of ``import gradxform.torch`` how the adapter is imported; asked last, and finds nothing."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """None, but for the adapters.

        Raises:
            ModuleNotFoundError: says what to write.
        """
        package, _, adapter = name.partition(".")
        if package == "gradxform" and adapter in ADAPTERS:
            raise ModuleNotFoundError(
                f"No module named {name!r}; write import gradxform as gx, then gx.{adapter}, or from "
                f"gradxform_{adapter} import ...",
                name=name,
            )


def transform_named(name: str, known: Iterable[str]) -> str:
    """A hint of the transform that may have been meant; empty if none is near."""
    names = tuple(known)
    if NAMES.get(name) in names:
        return f" (its name here is {NAMES[name]})"
    near = nearest(name, names)
    return f" (did you mean {near}?)" if near is not None else ""


def argument_named(name: str, known: Iterable[str]) -> str | None:
    """The argument that may have been meant."""
    names = tuple(known)
    return next((own for own in KEYWORDS.get(name, ()) if own in names), None) or nearest(name, names)


def _is_submodule(name: str, package: str = "gradxform") -> bool:
    return importlib.util.find_spec(f"{package}.{name}") is not None
