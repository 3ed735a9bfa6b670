"""Two ways to branch: by reading the condition where that is free, else in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def cond(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One of two results; neither branch may have a side effect."""
    if tf.executing_eagerly():
        return yes() if bool(condition) else no()
    return tf.cond(condition, yes, no)


def select(condition: Any, yes: Any, no: Callable[[], Any]) -> Any:
    """A tensor, bit by bit, or what is made instead of it."""
    if tf.executing_eagerly():
        return yes if bool(condition) else no()
    return tf.where(condition, yes, no())
