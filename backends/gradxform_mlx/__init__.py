"""gradxform on MLX arrays."""

from gradxform_mlx.backend import backend as backend

__all__: list[str] = []
