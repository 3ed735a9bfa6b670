"""gradxform on the arrays of array-api-strict."""

from gradxform_array_api_strict.backend import backend as backend

__all__: list[str] = []
