"""Checks against a reference in extended precision: rows, gradients and distances."""
