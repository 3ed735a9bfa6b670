"""gradxform on MLX arrays, and in MLX optimizers."""

from typing import Any

from gradxform.backend import errors
from gradxform_mlx.backend import backend as backend
from gradxform_mlx.wrap import wrap

__all__ = ["wrap"]


def __getattr__(name: str) -> Any:
    """Of a name that is not here, the error says what to write."""
    raise errors.unknown(__name__, name, __all__, "gx.mlx.wrap(optimizer, tx)")
