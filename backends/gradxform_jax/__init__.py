"""gradxform on JAX arrays, and beside optax."""

from typing import Any

from gradxform.backend import errors
from gradxform_jax.kernels import backend as backend
from gradxform_jax.optax import as_optax, freeze

__all__ = ["as_optax", "freeze"]


def __getattr__(name: str) -> Any:
    """Of a name that is not here, the error says what to write."""
    raise errors.unknown(__name__, name, __all__, "optax.chain(tx, optimizer)")
