"""Import frameworks without their messages, and in an order in which they run."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(**environment: str) -> Iterator[None]:
    """Silence standard error by its file descriptor: TensorFlow's C++ code ignores `sys.stderr` and log levels.

    Triton, which `torch.compile` imports if it is installed, is imported before TensorFlow: both register the options
    of an LLVM, and Triton aborts the process if it comes second.

    Args:
        **environment: environment variables to set inside the block.
    """
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        if "tensorflow" not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module("triton")
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        for key, value in before.items():
            os.environ.pop(key)
            os.environ.update({key: value} if value is not None else {})
