"""gradxform on MLX arrays."""

from gradxform_mlx import backend as backend

__all__: list[str] = []
