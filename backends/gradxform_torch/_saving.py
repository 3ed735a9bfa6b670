"""Keep the state of an attached transform in the optimizer's state_dict."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gradxform import GradientTransformation
from gradxform.core.holder import GRADIENTS
from gradxform.functions.convert import matched
from gradxform_torch._optimizers import device_of, named_of
from gradxform_torch._parameters import paths_of, started
from gradxform_torch.dtensor import backend

_KEY = "gradient_transformation"
attached: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[Any]] = weakref.WeakKeyDictionary()
"""The handles of each optimizer, in the order of attachment."""


class Held(NamedTuple):
    """A state, and what it was made for: the parameters' paths, and where they are."""

    paths: list[str]
    device: Any
    state: Any


def held(tx: GradientTransformation, optimizer: torch.optim.Optimizer) -> Held:
    """The first state for the parameters that an optimizer has now, where they are now."""
    named = named_of(optimizer)
    return Held(paths_of(named), device_of(named), started(tx, named))


def by_path(state: Any) -> dict[str, torch.Tensor]:
    """The tensors of a state by their paths, as a state_dict holds them."""
    leaves = zip(backend.paths(state), backend.flatten(state)[0], strict=True)
    return {path: leaf for path, leaf in leaves if leaf is not None}


class Saving:
    """The part of a handle that saves and loads."""

    tx: GradientTransformation
    on: str
    _optimizer: Callable[[], torch.optim.Optimizer | None]
    _held: Held
    _loaded: Held | None = None

    def _saving(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        """Add the hooks that save and load."""
        return [
            optimizer.register_state_dict_post_hook(self._after_saving),
            optimizer.register_load_state_dict_pre_hook(self._before_loading),
            optimizer.register_load_state_dict_post_hook(self._after_loading),
        ]

    def _found(self, optimizer: torch.optim.Optimizer) -> Held:
        """The initial state, or the state of a state_dict that the optimizer loaded earlier, kept in its groups."""
        fresh = held(self.tx, optimizer)
        rank = sum(self._shares(handle) for handle in attached.get(optimizer, ()))
        key = _key(self.on, rank)
        left = left_in(optimizer).get(key) if self.tx.stateful else None
        if left is None:
            return fresh
        try:
            return fresh._replace(state=matched("torch.attach", left, fresh.state))
        except (TypeError, ValueError) as error:
            why = str(error).removeprefix("torch.attach: ")
            raise ValueError(
                f"torch.attach: the optimizer has loaded a state_dict with a state that is not of {self.tx!r}: {why}. "
                "Attach the transformation of that run, or drop its state: "
                f"optimizer.param_groups[0].pop({key!r})"
            ) from error

    def _after_saving(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        if self.tx.stateful:
            state_dict[self._key()] = kept = by_path(self._held.state)
            if groups := state_dict["param_groups"]:  # where load_state_dict leaves what it does not know
                groups[0] = {**groups[0], self._key(): kept}

    def _before_loading(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        self._loaded = None
        if not self.tx.stateful:
            return
        groups = state_dict.get("param_groups") or [{}]
        given = state_dict.get(self._key(), groups[0].get(self._key()))
        if given is not None:
            fresh = held(self.tx, optimizer)
            self._loaded = fresh._replace(state=matched("torch.attach", given, fresh.state))
        else:
            warnings.warn(
                f"torch.attach: the state_dict has no state of {self.tx!r}, which goes on with the state that it has",
                UserWarning,
                stacklevel=3,
            )

    def _after_loading(self, optimizer: torch.optim.Optimizer) -> None:
        if self._loaded is not None:
            self._held, self._loaded = self._loaded, None
            left_in(optimizer).pop(self._key(), None)

    def _key(self) -> str:
        """Key in a state_dict, beside "state" and "param_groups"; numbered if several transforms are attached."""
        optimizer = self._optimizer()
        handles = [handle for handle in attached.get(optimizer, ()) if self._shares(handle)] if optimizer else [self]
        return _key(self.on, handles.index(self) if self in handles else 0)

    def _shares(self, other: Any) -> bool:
        """Whether another handle keeps a state for the same place."""
        return bool(other.tx.stateful) and other.on == self.on


def _key(on: str, rank: int) -> str:
    place = _KEY if on == GRADIENTS else "_".join((_KEY, "on", on))
    return f"{place}_{rank}" if rank else place


def left_in(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The parameter group in which a loaded state_dict left transforms' states."""
    groups = optimizer.param_groups
    return groups[0] if groups else {}
