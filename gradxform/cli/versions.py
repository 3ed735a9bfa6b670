"""Versions of Python, gradxform and the frameworks."""

from __future__ import annotations

import importlib.metadata
import platform

import gradxform

_PACKAGES = ("numpy", "ml_dtypes", "jax", "jaxlib", "optax", "tensorflow", "keras", "torch", "mlx")


def versions() -> dict[str, str]:
    """Return the versions of Python, gradxform and each installed package."""
    found = {"Python": platform.python_version(), "gradxform": gradxform.__version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
