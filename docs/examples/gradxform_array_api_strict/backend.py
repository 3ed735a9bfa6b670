"""array-api-strict: the array API standard, and nothing beyond it."""

from __future__ import annotations

import contextlib
from typing import Any

import array_api_strict as strict
import numpy as np

from gradxform.backend.lookup import register
from gradxform.backend.protocol import Containers
from gradxform_array_api_strict import namespace

# --- the backend -----------------------------------------------------------------------------------------------------


class Strict(Containers):
    """What only array-api-strict knows of its arrays."""

    name = "array_api_strict"
    types = (type(strict.asarray(0.0)),)
    xp = namespace
    module = strict
    custom_backward = None

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """No warnings of NumPy, which it is made of."""
        return np.errstate(all="ignore")

    def from_numpy(self, array: Any, like: Any = None) -> Any:
        """An array of the same dtype; the standard has neither float16 nor bfloat16."""
        return strict.asarray(np.asarray(array))

    def to_numpy(self, leaf: Any) -> Any:
        """A NumPy array."""
        return np.asarray(leaf)


backend = Strict()
register(backend)
