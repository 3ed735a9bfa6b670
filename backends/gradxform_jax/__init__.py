"""gradxform on JAX arrays, and beside optax."""

from gradxform.backend import errors
from gradxform_jax.kernels import backend as backend
from gradxform_jax.optax import as_optax, freeze

__all__ = ["as_optax", "freeze"]
__getattr__ = errors.of_module(__name__, __all__, "optax.chain(tx, optimizer)")
