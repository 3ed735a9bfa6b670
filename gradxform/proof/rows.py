"""The rows of the registry."""

from gradxform.proof.registry import COMPLEX, DTYPES, MIXED, ROWS, STATEFUL, STATELESS, Row, first

__all__ = ["COMPLEX", "DTYPES", "MIXED", "ROWS", "STATEFUL", "STATELESS", "Row", "first"]
