"""Functions of whole trees, and of what flows back."""
