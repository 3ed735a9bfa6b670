"""A folder of recorded steps, read."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from gradxform.recording import files

Shape = tuple[int, ...]


class Recording:
    """The steps of a folder that `gx.record` has written."""

    def __init__(self, folder: str | Path) -> None:
        """Opens the folder and its first step.

        Raises:
            ValueError: no folder, one without steps, or a step that cannot be read.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ValueError(f"{str(folder)!r} is no folder")
        self._paths = files.steps_in(self.folder)
        if not self._paths:
            raise ValueError(f"{str(folder)!r} holds no recording: no file is named like step_00000000.safetensors")
        self._opened: dict[int, files.Step] = {}
        self.first = self.step(self.steps[0])

    @property
    def steps(self) -> list[int]:
        """The recorded steps, in order."""
        return list(self._paths)

    def step(self, number: int) -> files.Step:
        """The file of a step, whose header has been read."""
        if number not in self._opened:
            self._opened[number] = files.Step(self._paths[number])
        return self._opened[number]

    def close(self, number: int) -> None:
        """Let the file of a step go."""
        self._opened.pop(number, None)

    def shapes(self, number: int, name: str) -> dict[str, Shape]:
        """The shapes of the leaves of one tree at a step, by path, in the order in which they were recorded."""
        found: dict[str, list[int]] = self.step(number).about["shapes"].get(name, {})
        return {path: tuple(shape) for path, shape in found.items()}

    def dtypes(self, number: int, name: str) -> dict[str, str]:
        """The dtypes of the leaves of one tree at a step."""
        return dict(self.step(number).about["dtypes"].get(name, {}))

    def names(self, number: int) -> list[str]:
        """What was recorded at a step: "gradients", "loss" and so on."""
        return list(self.step(number).about["order"])

    def read(self, number: int, name: str, path: str) -> Any:
        """One leaf as a NumPy array."""
        step = self.step(number)
        try:
            return step.read(f"{name}/{path}" if path else name)
        except Exception as error:
            raise ValueError(f"{str(step.path)!r} lacks {name}/{path}: {error}") from error

    @property
    def norms_only(self) -> bool:
        """Whether two numbers a leaf were kept, and not the values."""
        return bool(self.first.about["norms_only"])

    @property
    def framework(self) -> str:
        """The framework of the arrays."""
        return str(self.first.about["framework"])

    @cached_property
    def versions(self) -> str:
        """What took part, in one line."""
        return ", ".join(f"{name} {version}" for name, version in self.first.about["versions"].items())
