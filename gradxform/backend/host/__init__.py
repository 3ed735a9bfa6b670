"""NumPy kernels for arrays in host memory."""
