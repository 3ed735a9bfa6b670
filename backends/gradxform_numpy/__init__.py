"""gradxform on NumPy arrays: the reference backend."""

from typing import Any

from gradxform.core import hints
from gradxform_numpy._inplace import apply_
from gradxform_numpy.kernels import backend as backend

__all__ = ["apply_"]


def __getattr__(name: str) -> Any:
    """Of a name that is not here, the error says what to write."""
    raise hints.no_attribute_of(__name__, name, __all__)
