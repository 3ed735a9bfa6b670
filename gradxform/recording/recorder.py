"""`gx.record`: what a training run computes, kept step by step."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.errors import short
from gradxform.core import align, arguments
from gradxform.core.holder import GRADIENTS
from gradxform.core.leaves import INEXACT
from gradxform.core.tree import Tree
from gradxform.core.where import Where, check, chosen, keys_of
from gradxform.functions.convert import values
from gradxform.functions.inspecting import by_path, listed_leaves, norms
from gradxform.recording import files

_LIBRARIES = ("gradxform", "numpy", "jax", "optax", "flax", "tensorflow", "keras", "torch", "mlx.core")


def record(
    folder: str | Path, *, every: int = 1, where: Where = None, norms_only: bool = False, progress: bool = False
) -> Recorder:
    """Make a recorder, which writes what a training run computes into a folder, one safetensors file a step.

    `gradxform compare` and `gx.compare` read two such folders and say where the runs part. Each file is written beside
    its place and renamed, so that a killed run leaves no half file. Dtypes are kept, bfloat16 and float16 too.

    Args:
        folder: where to write; made if it is not there. A step that is there already is replaced, so a run that goes
            on from a checkpoint goes on with its recording. Later steps of an earlier run stay until then: a warning
            says so.
        every: record each step that is a multiple of it, and ignore the others.
        where: which leaves to record, as `masked` takes it: a glob, a pattern, a function of the path, a list of these
            or a tree of bools. All by default. Arrays without a path, such as a loss, are always recorded.
        norms_only: keep two numbers a leaf, the 2-norm and the largest magnitude, both measured on the leaf's device.
        progress: write a line with the number of steps and of megabytes to standard error after each step.

    Returns:
        A `Recorder`, to be called as ``recorder(step, gradients=..., parameters=..., loss=...)``.

    Raises:
        ImportError: the safetensors library is missing; it comes with ``gradxform[record]``.
        OSError: the folder cannot be made.
        TypeError: an `every` that is no integer.
        ValueError: an `every` below 1.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import gradxform as gx
        >>> recorder = gx.record(tempfile.mkdtemp(), every=10)
        >>> for step in range(20):
        ...     recorder(step, gradients={"w": np.ones((2, 3), np.float32)}, loss=0.5)
        >>> recorder.steps, recorder.megabytes < 0.01
        ([0, 10], True)

    Source:
        The safetensors format, https://huggingface.co/docs/safetensors.
    """
    return Recorder(folder, every=every, where=where, norms_only=norms_only, progress=progress)


class Recorder:
    """What `record` returns: call it with a step and the trees to keep.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import gradxform as gx
        >>> recorder, model = gx.record(tempfile.mkdtemp()), torch.nn.Linear(2, 1)
        >>> loss = model(torch.ones(1, 2)).sum()
        >>> loss.backward()
        >>> recorder(0, gradients=model, parameters=model, loss=loss)
        >>> recorder.steps
        [0]

    Source:
        The safetensors format, https://huggingface.co/docs/safetensors.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 1,
        where: Where = None,
        norms_only: bool = False,
        progress: bool = False,
    ) -> None:
        """Makes the folder; see `record`."""
        self.folder, self.norms_only, self.progress = Path(folder), norms_only, progress
        self.every = arguments.places("record", "every", every)
        files.library()
        self._where, self._written = None if where is None else check("record", where), set[int]()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"record: the folder {str(folder)!r} cannot be made: {error.strerror}") from error

    def is_due(self, step: Any) -> bool:
        """Whether a step is recorded: one that is a multiple of `every`."""
        return _number(step) % self.every == 0

    def __call__(self, step: Any, **trees: Any) -> None:
        """Record a step, if it is due; else return at once. A later call of the same step adds its leaves.

        Args:
            step: the number of the step: a Python integer, or a 0-d array of any framework.
            **trees: what to keep, under any names: pytrees of arrays of any framework, sharded ones too, None among
                them; lists of variables, of (name, parameter) or (gradient, variable) pairs; a model, of which
                the parameters are kept; numbers. Of PyTorch's models and parameters under the name ``gradients``, the
                ``.grad`` of each is kept.
                `gx.compare` looks at the names ``gradients``, ``parameters``, ``updates`` and ``loss``.

        Raises:
            OSError: the disk is full, or the folder is gone or not writable.
            TypeError: a leaf that is no array, or that is traced; names the path.
            ValueError: a negative step, nothing to record, or a pattern of `where` that matches no path.

        Warns:
            UserWarning: ``gradients`` holds none; or the first step that is recorded comes before steps that are in the
                folder already, of an earlier run.
        """
        number = arguments.count("record", "step", _number(step))
        if number % self.every:
            return
        leaves = {name: _leaves_of(name, tree) for name, tree in trees.items() if tree is not None}
        empty = [name for name, found in leaves.items() if name.startswith(GRADIENTS) and not found]
        leaves = self._chosen(leaves)
        if self.norms_only:
            leaves = {name: {p: x for p, x in tree.items() if _dtype_of(x) in INEXACT} for name, tree in leaves.items()}
        read = _numbers_of if self.norms_only else _arrays_of
        arrays: dict[str, Any] = {}
        for name, found in leaves.items():
            for path, array in read(name, found).items():
                key = files.key_of(name, path)
                if key in arrays or key == "__metadata__":
                    raise ValueError(f"record: {key!r} is recorded twice; rename {name!r}")
                arrays[key] = array
        files.printable(arrays, "record: ", "; rename it")
        hint = "write recorder(step, gradients=..., loss=...)"
        if empty:
            hint = f"{empty[0]} holds none (before loss.backward(), after zero_grad(), or an iterator that is used up)"
            if arrays:
                warnings.warn(f"record: step {number}: {hint}", stacklevel=2)
        if not arrays:
            raise ValueError(f"record: step {number} has no array: {hint}")
        if not _is_first_process():
            return
        if not self._written and (later := [each for each in self.steps if each > number]):
            held = f"record: {str(self.folder)!r} holds later steps of an earlier run, up to {later[-1]}, which stay"
            advice = "record each run in a folder of its own, or delete them"
            warnings.warn(f"{held} until they are recorded again; {advice}", stacklevel=2)
        file, described = files.path_of(self.folder, number), self._about(number, leaves)
        if number in self._written and file.exists():
            _add_earlier(files.Step(file), arrays, described)
        files.write(file, arrays, described)
        self._written.add(number)
        if self.progress:
            print(f"\rrecorded step {number}: {self!r}", end="", file=sys.stderr, flush=True)

    def _chosen(self, leaves: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if self._where is None:
            return leaves
        found, refused = {}, []
        for name, tree in leaves.items():
            try:
                found[name] = tree if list(tree) == [""] else _choose(self._where, tree)
            except ValueError as error:  # a pattern may be for one of the trees alone
                refused.append(error)
        if refused and len(refused) == sum(list(tree) != [""] for tree in leaves.values()):
            raise refused[0]
        return found

    def _about(self, step: int, leaves: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """The metadata of a step."""
        owners = [lookup.owner(leaf) for tree in leaves.values() for leaf in tree.values()]
        first = next((owner.name for owner in owners if owner is not None and owner.name != "numpy"), "numpy")
        versions = {name.partition(".")[0]: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
        return {
            "step": step,
            "framework": first,
            "versions": {name: str(version) for name, version in versions.items() if version},
            "norms_only": self.norms_only,
            "order": {name: list(tree) for name, tree in leaves.items()},
            "dtypes": {name: {path: _dtype_of(leaf) for path, leaf in tree.items()} for name, tree in leaves.items()},
            "shapes": {name: {path: list(np.shape(x)) for path, x in tree.items()} for name, tree in leaves.items()},
        }

    @property
    def steps(self) -> list[int]:
        """The steps in the folder, in order."""
        return list(files.steps_in(self.folder))

    @property
    def megabytes(self) -> float:
        """The size of the files in the folder, in units of a million bytes."""
        return sum(path.stat().st_size for path in files.steps_in(self.folder).values()) / 1e6

    def __repr__(self) -> str:
        """The folder, and what is in it."""
        return f"<record: {len(self.steps)} steps, {self.megabytes:.1f} MB in {str(self.folder)!r}>"


def _add_earlier(earlier: files.Step, arrays: dict[str, Any], described: dict[str, Any]) -> None:
    """Add the leaves of an earlier call that this one does not have."""
    for name, paths in earlier.about["order"].items():
        own = [path for path in paths if path not in described["shapes"].get(name, ())]
        arrays |= {key: earlier.read(key) for key in [files.key_of(name, path) for path in own]}
        described["order"][name] = own + described["order"].get(name, [])
        for field in ("dtypes", "shapes"):
            new = described[field].get(name, {})
            described[field][name] = {path: earlier.about[field][name][path] for path in own} | new


def _number(step: Any) -> int:
    """The number of a step.

    Raises:
        TypeError: what is no integer, or is traced.
    """
    owner = lookup.owner(step)
    try:
        return operator.index(step if owner is None else owner.to_numpy(step).item())
    except Exception as error:  # JAX's and TensorFlow's, of a traced number
        call = "jax.debug.callback(recorder, step, gradients=gradients)"
        hint = f"; inside of jax.jit write {call}, inside of tf.function return the gradients" if owner else ""
        raise TypeError(f"record: the step must be an integer with a value, got {short(step)}{hint}") from error


def _is_first_process() -> bool:
    """Whether this process writes: of several, the one of rank 0."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank()) == 0
    return jax is None or not jax.distributed.is_initialized() or int(jax.process_index()) == 0


# --- what a training loop has at hand, as leaves by path and as NumPy arrays ------------------------------------------


def _leaves_of(name: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path, without None; one array or number alone has the empty path.

    Raises:
        TypeError: a leaf that is no array; names the path.
        ValueError: two leaves of a tree have one path.
    """
    tree = _opened(name, tree)
    listed = listed_leaves(tree)
    if listed is not None:
        paths, leaves = [path for path, _ in listed], [leaf for _, leaf in listed]
    else:
        try:
            backend, (leaves, _) = lookup.opened(tree)
        except TypeError as error:
            raise TypeError(f"record: {name}: {error}") from error
        paths = [] if backend is None else backend.paths(tree)
    leaves = [_own(name, leaf) for leaf in leaves]
    keys = [path.replace(".", "/") for path in paths]
    return by_path(f"record: {name}", keys if listed is None else keys_of(keys), leaves, "'/' or '.'")


def _opened(name: str, tree: Any) -> Any:
    """The named parameters or variables of a model; other trees are themselves."""
    if hasattr(tree, "trainable_variables"):
        return list(tree.trainable_variables)
    if hasattr(tree, "named_parameters"):
        return list(tree.named_parameters())
    return list(tree) if isinstance(tree, Iterator) else tree


def _own(name: str, leaf: Any) -> Any:
    """The array of a leaf; of PyTorch's parameters the gradient, if gradients are recorded.

    Raises:
        TypeError: a variable of Keras among the gradients, which has none.
    """
    array, gradients = lookup.unwrapped(leaf), name.startswith(GRADIENTS)
    owner = lookup.owner(array)
    if owner is not None and align.is_parameter(array, owner):
        return array.grad if gradients else array.detach()
    if gradients and hasattr(leaf, "trainable") and array is not leaf:
        advice = "hand in (gradient, variable) pairs, or record it as parameters"
        raise TypeError(f"record: {name}: {short(leaf)} is a variable, not a gradient; {advice}")
    return array


def _choose(where: Where, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves that `where` is for.

    Raises:
        ValueError: a pattern that matches no path.
    """
    view = Tree.read(dict(leaves))
    if view is None:
        return {}
    mask = dict(zip(view.source.paths, chosen("record", where, view), strict=True))
    return {path: leaf for path, leaf in leaves.items() if mask[path]}


def _arrays_of(name: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves as NumPy arrays, which may share memory with them.

    Raises:
        TypeError: a traced or symbolic leaf, a masked one, or one whose values NumPy cannot hold; names the path.
    """
    masked = next((path for path, leaf in leaves.items() if isinstance(leaf, np.ma.MaskedArray)), None)
    if masked is not None:
        raise TypeError(f"record: {name}: the leaf at {masked!r} is masked; record its data and its mask as two leaves")
    return {path: values(f"record: {name}", path, leaf) for path, leaf in leaves.items()}


def _numbers_of(name: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The 2-norm and the largest magnitude of each floating leaf, measured on its device."""
    two, largest = (_arrays_of(name, norms(dict(leaves), ord=order)) for order in (2, float("inf")))
    return {path: np.array([float(two[path]), float(largest[path])]) for path in leaves}


def _dtype_of(leaf: Any) -> str:
    """The name of a leaf's dtype."""
    owner = lookup.owner(leaf)
    return str(np.asarray(leaf).dtype) if owner is None else owner.dtype(leaf)
