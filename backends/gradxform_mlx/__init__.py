"""gradxform on MLX arrays."""

from typing import Any

from gradxform.core import hints
from gradxform_mlx.backend import backend as backend

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    """Of a name that is not here, the error says what to write."""
    raise hints.no_attribute_of(__name__, name, __all__)
