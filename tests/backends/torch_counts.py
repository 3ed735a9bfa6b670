"""What PyTorch is asked to do on a device that is not there: launches, copies, memory, under FakeTensorMode."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import gradxform as gx

NO_LAUNCH = set(
    "device empty empty_like new_empty empty_strided new_empty_strided view _unsafe_view detach alias select slice "
    "narrow unbind as_strided expand permute transpose t unsqueeze squeeze view_as_real view_as_complex real imag "
    "lift_fresh split split_with_sizes _reshape_alias".split()
)
"""Operations that make a tensor without a kernel: they set memory aside, or look at it in another way."""
FORBIDDEN = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item", "unique", "masked_select"}
"""Operations for which the host waits."""


class Counted(TorchDispatchMode):
    """Counts operations, and watches memory, between devices too."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: collections.Counter[str] = collections.Counter()
        self.between: list[str] = []
        self.waits: list[str] = []
        self.dtypes: set[torch.dtype] = set()
        self.peak = 0
        self._live: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and takes it down."""
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        if name not in NO_LAUNCH:
            self.launches[name] += 1
        if name in FORBIDDEN:
            self.waits.append(name)
        if len({x.device.type for x in given + made}) > 1:
            self.between.append(name)
        for x in given:  # what was there before is not counted
            self._live.setdefault(x.untyped_storage()._cdata, (StorageWeakRef(x.untyped_storage()), 0))
        for x in made:
            self.dtypes.add(x.dtype)
            storage = x.untyped_storage()
            self._live.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self._live = {key: kept for key, kept in self._live.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out


def counted(
    tx: gx.GradientTransformation, shapes: Sequence[tuple[int, ...]], dtype: str, device: str, how: str = "apply_"
) -> Counted:
    """What one step of a transform asks for: `apply_`, a step with `attach`, or `update`."""
    with FakeTensorMode():
        parameters = [torch.nn.Parameter(torch.empty(s, dtype=getattr(torch, dtype), device=device)) for s in shapes]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        named = [(f"layer.{i}", parameter) for i, parameter in enumerate(parameters)]
        count = Counted()
        if how == "attach":
            optimizer = torch.optim.SGD(named, lr=0.1)
            optimizer.zero_grad = optimizer.step = lambda *_: None  # type: ignore[method-assign, assignment]
            handle = gx.torch.attach(optimizer, tx)
            with count:
                handle._before_step(optimizer, (optimizer,), {})
            return count
        state = gx.torch.init(tx, named) if tx.stateful else None
        if how == "apply_":
            with count:
                gx.torch.apply_(tx, named, state)
            return count
        gradients, values = ({n: t.detach() for n, t in pairs} for pairs in (_gradients(named), named))
        with torch.no_grad(), count:
            tx.update(gradients, state, values)
    return count


def _gradients(named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[tuple[str, torch.Tensor]]:
    return [(name, parameter.grad) for name, parameter in named if parameter.grad is not None]
