"""What PyTorch is asked to do, and how much memory that takes: launches, copies, waits, bytes."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from gradxform_torch import private
from gradxform_torch.parts import is_dense
from gradxform_torch.private import pytree

NO_LAUNCH = set(
    "device empty empty_like new_empty empty_strided new_empty_strided view _unsafe_view detach alias select slice "
    "narrow unbind as_strided expand permute transpose t unsqueeze squeeze view_as_real view_as_complex real imag "
    "lift_fresh split split_with_sizes _reshape_alias _record_function_enter_new _record_function_exit".split()
)
"""Operations without a kernel: they set memory aside, look at it in another way, or mark a span for the profiler."""
FORBIDDEN = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item", "unique", "masked_select"}
"""Operations for which the host waits."""
_REDUCTIONS = {"sum", "mean", "linalg_vector_norm"}
"""Operations that, on CUDA, first copy what they are given into the dtype of the result, but half precision."""


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, and watches memory, between devices too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: collections.Counter[str] = collections.Counter()
        self.between: list[str] = []
        self.waits: list[str] = []
        self.dtypes: set[torch.dtype] = set()
        self.peak = 0
        self._held = 0
        self._live: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and takes it down."""
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        if name not in NO_LAUNCH:
            self.launches[name] += _launches(name, args, given, made)
        if name in FORBIDDEN:
            self.waits.append(name)
        if len({x.device.type for x in given + made}) > 1:
            self.between.append(name)
        for x in given:  # what was there before is not counted
            self._keep(x, 0)
        for x in made:
            self.dtypes.add(x.dtype)
            self._keep(x, x.untyped_storage().nbytes())
        if self._held > self.peak:  # by what has been freed since, too
            self._live = {key: kept for key, kept in self._live.items() if not kept[0].expired()}
            self._held = sum(size for _, size in self._live.values())
            self.peak = max(self.peak, self._held)
        return out

    def _keep(self, tensor: torch.Tensor, size: int) -> None:
        storage = private.storage_of(tensor)
        known = self._live.get(storage)
        if known is None or known[0].expired():
            self._live[storage] = StorageWeakRef(tensor.untyped_storage()), size  # type: ignore[no-untyped-call]
            self._held += size - (known[1] if known else 0)


def _launches(name: str, args: Sequence[Any], given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> int:
    """The launches of an operation; of a multi-tensor call one, where PyTorch does not take the tensors one by one."""
    if name.startswith("_foreach_"):
        lists = [x for x in args if isinstance(x, (list, tuple)) and x and isinstance(x[0], torch.Tensor)]
        return 1 if _is_fused(name, lists, [x for x in args if isinstance(x, torch.Tensor)]) else len(lists[0])
    return 2 if name in _REDUCTIONS and made[0].dtype.itemsize > max(given[0].dtype.itemsize, 4) else 1


def _is_fused(name: str, lists: Sequence[Sequence[torch.Tensor]], scalars: Sequence[torch.Tensor]) -> bool:
    """Whether CUDA's multi-tensor kernels take these lists, by the conditions in ATen's ForeachUtils.h.

    On MPS there is a kernel a tensor.
    """
    first = lists[0][0]
    for tensors in lists:
        dtype = tensors[0].dtype if "copy" in name else first.dtype
        if not all([x.dtype == dtype and x.device == first.device and is_dense(x) for x in tensors]):
            return False
    laid_out = [[[(n, s) for n, s in zip(x.shape, x.stride(), strict=True) if n != 1] for x in xs] for xs in lists]
    shapes = [[x.shape for x in xs] for xs in lists]
    alike = all([there == laid_out[0] for there in laid_out]) and all([there == shapes[0] for there in shapes])
    return first.device.type != "mps" and alike and all([x.dtype == first.dtype for x in scalars])
