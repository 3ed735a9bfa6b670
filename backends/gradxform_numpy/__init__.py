"""gradxform on NumPy arrays: the reference."""

from gradxform_numpy import backend as backend
from gradxform_numpy._inplace import apply_

__all__ = ["apply_"]
