"""gradxform on NumPy arrays: the reference backend."""

from gradxform.backend import errors
from gradxform_numpy.apply_ import apply_
from gradxform_numpy.kernels import backend as backend

__all__ = ["apply_"]
__getattr__ = errors.of_module(__name__, __all__)
