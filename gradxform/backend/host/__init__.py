"""What NumPy can read, computed by NumPy: arrays in the memory of the host."""
