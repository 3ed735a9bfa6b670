"""What a type checker takes a transformation for: an `optax.GradientTransformation`, since optax's functions say so.

That is a named tuple, which nothing else can be; so pyright, which reads optax's types, is shown it as the base class.
Nothing is imported when a program runs.
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
