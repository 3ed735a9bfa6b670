"""gradxform on JAX arrays, and beside optax."""

from gradxform_jax import backend as backend
from gradxform_jax._optax import as_optax, freeze

__all__ = ["as_optax", "freeze"]
