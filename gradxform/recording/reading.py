"""A folder of recorded steps, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradxform.recording import files

_FIXED = ("gradients", "updates", "parameters")
"""Trees whose leaves keep their shapes over all steps."""


class Recording:
    """The steps of a folder that `gx.record` has written."""

    def __init__(self, folder: str | Path) -> None:
        """Opens the folder and its first step.

        Raises:
            ValueError: no folder, one without steps, or a step that cannot be read.
        """
        self.folder = Path(folder)
        try:
            if not self.folder.is_dir():
                raise ValueError(f"{str(folder)!r} is no folder")
            self._paths = files.steps_in(self.folder)
        except OSError as error:
            raise ValueError(f"{str(folder)!r} cannot be read: {error.strerror}") from error
        if not self._paths:
            raise ValueError(f"{str(folder)!r} holds no recording: no file is named like step_00000000.safetensors")
        self._opened: dict[int, files.Step] = {}
        self.first = self.step(self.steps[0])

    @property
    def steps(self) -> list[int]:
        """The recorded steps, in order."""
        return list(self._paths)

    def step(self, number: int) -> files.Step:
        """The file of a step, whose header has been read.

        Raises:
            ValueError: a file that cannot be read, or that does not go with the first one.
        """
        if number not in self._opened:
            found = files.Step(self._paths[number])
            if number != self.steps[0]:
                _check_same(self.first, found)
            self._opened[number] = found
        return self._opened[number]

    def close(self, number: int) -> None:
        """Let the file of a step go."""
        self._opened.pop(number, None)

    def shapes(self, number: int, name: str) -> dict[str, files.Shape]:
        """The shapes of the leaves of one tree at a step, by path, in the order in which they were recorded."""
        return dict(self.step(number).about["shapes"].get(name, {}))

    def dtypes(self, number: int, name: str) -> dict[str, str]:
        """The dtypes of the leaves of one tree at a step."""
        return dict(self.step(number).about["dtypes"].get(name, {}))

    def names(self, number: int) -> list[str]:
        """What was recorded at a step: "gradients", "loss" and so on."""
        return list(self.step(number).about["order"])

    def read(self, number: int, name: str, path: str) -> Any:
        """One leaf as a NumPy array.

        Raises:
            ValueError: no such leaf, or one of a dtype that NumPy lacks.
        """
        return self.step(number).read(files.key_of(name, path))

    @property
    def norms_only(self) -> bool:
        """Whether two numbers a leaf were kept, and not the values."""
        return bool(self.first.about["norms_only"])

    @property
    def framework(self) -> str:
        """The framework of the arrays."""
        return str(self.first.about["framework"])

    @property
    def versions(self) -> str:
        """What took part, in one line."""
        return ", ".join(f"{name} {version}" for name, version in self.first.about["versions"].items())


def _check_same(first: files.Step, found: files.Step) -> None:
    """Refuse steps of two runs in one folder.

    Raises:
        ValueError: one step has norms alone and the other values, or a leaf has two shapes.
    """
    kinds = ["norms alone" if step.about["norms_only"] else "values" for step in (first, found)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"{str(found.path)!r} has {kinds[1]} and {first.path.name} {kinds[0]}: record each run apart")
    for name in _FIXED:
        shapes, before = (step.about["shapes"].get(name, {}) for step in (found, first))
        for path in shapes.keys() & before.keys():
            if shapes[path] != before[path]:
                text = f"{name}/{path} has the shape {tuple(shapes[path])}, and {tuple(before[path])}"
                raise ValueError(f"{str(found.path)!r}: {text} in {first.path.name}: record each run apart")
