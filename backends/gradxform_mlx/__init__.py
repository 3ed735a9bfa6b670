"""gradxform on MLX arrays, and in MLX optimizers."""

from gradxform.backend import errors
from gradxform_mlx.backend import backend as backend
from gradxform_mlx.wrap import wrap

__all__ = ["wrap"]
__getattr__ = errors.of_module(__name__, __all__, "gx.mlx.wrap(optimizer, tx)")
