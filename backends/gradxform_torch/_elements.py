"""Formulas of elements, and sums over axes: on the host where values may be read, else in float64 tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradxform.backend.host import elements as host
from gradxform.numerics import sums
from gradxform.numerics.double_double import Pair
from gradxform.numerics.elementwise import in_range, of_elements
from gradxform.numerics.ranged import evaluate, in_float64
from gradxform_torch import _sharded, _sharded_norms
from gradxform_torch._readable import readable
from gradxform_torch._scalars import Namespace

_WIDE = {torch.float64, torch.complex128}


def elementwise(
    formula: Callable[..., Any], column: Sequence[Any], numbers: Sequence[Any], factor: Any, static: dict[str, Any]
) -> Any:
    """A formula of one leaf's elements, in float32, or float64 for float64 leaves; complex ones by their parts."""
    if _sharded.any_sharded(column):
        own, of_shard = _sharded.beside(column), _sharded.numbered(formula, column[0])
        return _sharded.like(column[0], own[0], elementwise(of_shard, own, numbers, factor, static))
    if _is_readable([*column, *numbers, factor]):
        known = list(map(_on_host, numbers))
        return torch.from_numpy(host.elementwise(formula, list(map(_on_host, column)), known, _on_host(factor), static))
    leaf, double = column[0], column[0].dtype in _WIDE
    space = Namespace(leaf.device)
    given = [_wide(number, leaf.device) for number in numbers]
    factor = None if factor is None else _wide(factor, leaf.device)

    def real(parts: Sequence[Any]) -> Any:
        wide = [part if isinstance(part, Pair) else _wide(part, leaf.device) for part in parts]
        made = of_elements(formula, space, wide, given, factor, double, static)
        return made.to(torch.float64 if double else torch.float32)

    if not leaf.is_complex():
        return real(column)
    return torch.complex(*(real([_part(part, name) for part in column]) for name in ("real", "imag")))


def _part(x: Any, part: str) -> Any:
    return getattr(x, part) if x.is_complex() else x if part == "real" else torch.zeros_like(x)


def _is_readable(operands: Sequence[Any]) -> bool:
    if any(isinstance(operand, Pair) for operand in operands):
        return False
    return readable([operand for operand in operands if isinstance(operand, torch.Tensor)])


def _on_host(operand: Any) -> Any:
    if not isinstance(operand, torch.Tensor):
        return operand
    whole = operand.detach().resolve_conj().resolve_neg()
    return (whole.float() if whole.dtype == torch.bfloat16 else whole).numpy()


def _wide(number: Any, device: torch.device) -> Any:
    if isinstance(number, Pair):
        return number
    return torch.as_tensor(_sharded.whole(number), dtype=torch.float64, device=device)


def sum_over(leaf: torch.Tensor, axes: tuple[int, ...], weights: Any) -> Any:
    """Sums over some axes: NumPy arrays where values may be read, else tensors; a pair for a float64 leaf."""
    if _sharded.any_sharded((leaf, weights)):
        return _sum_of_shards(leaf, axes, weights)
    if _is_readable([leaf, weights]):
        return host.sum_over(_on_host(leaf), axes, _on_host(weights))

    def add(values: torch.Tensor) -> torch.Tensor:
        return values.sum(axes, keepdim=True) if axes else values  # of no axes, PyTorch takes all

    space, wide = Namespace(leaf.device), leaf.double()
    if weights is None:
        return sums.total_signed(space, wide, add) if leaf.dtype == torch.float64 else add(wide)
    if leaf.dtype != torch.float64:
        return add(wide * _wide(evaluate(in_float64, space, [weights], {}), leaf.device))
    weights = in_range(space, weights)
    parts = [_wide(part, leaf.device).expand(leaf.shape) for part in _parts(weights)]
    return sums.total_products(space, wide, Pair(*parts) if len(parts) > 1 else parts[0], add)


def _sum_of_shards(leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
    plain = weights is None and not axes and leaf.ndim == 1
    if plain or (weights is not None and tuple(weights.shape) != tuple(leaf.shape)):
        raise NotImplementedError(
            "per_example_clip_norm and per_example_clip_global_norm take no DTensors; hand in each process's own "
            "examples, whole (full_tensor()), and add the sums up over the mesh"
        )
    own = _sharded.beside([leaf] if weights is None else [leaf, weights])
    return _sharded_norms.sum_over(leaf, axes, sum_over(own[0], axes, own[1] if len(own) > 1 else None))


def _parts(weights: Any) -> tuple[Any, ...]:
    return weights[:2] if isinstance(weights, Pair) else (weights,)
