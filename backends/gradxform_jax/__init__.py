"""gradxform on JAX arrays, and beside optax."""

from gradxform_jax._optax import as_optax, freeze
from gradxform_jax.kernels import backend as backend

__all__ = ["as_optax", "freeze"]
