"""gradxform on NumPy arrays: the reference backend."""

from gradxform_numpy._inplace import apply_
from gradxform_numpy.kernels import backend as backend

__all__ = ["apply_"]
