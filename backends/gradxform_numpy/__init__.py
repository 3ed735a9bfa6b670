"""gradxform on NumPy arrays: the reference backend."""

from typing import Any

from gradxform.backend import errors
from gradxform_numpy.apply_ import apply_
from gradxform_numpy.kernels import backend as backend

__all__ = ["apply_"]


def __getattr__(name: str) -> Any:
    """Of a name that is not here, the error says what to write."""
    raise errors.unknown(__name__, name, __all__)
