"""Present transforms to type checkers as `optax.GradientTransformation`, as optax's functions require.

That type is a named tuple, so no other class can satisfy it. Pyright, which reads optax's types, sees it as the base
class. At run time nothing is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    MYPY = False
    if MYPY:  # true for mypy, to which optax's types are unknown, so that its functions take anything
        Base = object  # pyright: ignore
    else:
        from typing import Self

        from optax import GradientTransformationExtraArgs

        class Base(GradientTransformationExtraArgs):
            """The base class that pyright sees."""

            init: Any  # pyright: ignore
            update: Any  # pyright: ignore

            def __new__(cls, *args: Any, **kwargs: Any) -> Self:
                """Takes what the class itself takes."""
                ...
