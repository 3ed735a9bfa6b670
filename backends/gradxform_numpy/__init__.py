"""gradxform on NumPy arrays: the reference."""

from gradxform_numpy._inplace import apply_
from gradxform_numpy.kernels import backend as backend

__all__ = ["apply_"]
