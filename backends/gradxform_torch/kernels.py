"""Where each kernel runs: by NumPy and fused calls on the host, batched on an accelerator, or as it is written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradxform.numerics.elementwise import Formula
from gradxform_torch import _readable
from gradxform_torch._namespace import OfLeaves
from gradxform_torch.batched import Batched
from gradxform_torch.host import Host
from gradxform_torch.plain import Leafwise

_WAYS: dict[str, Leafwise] = {_readable.HOST: Host(), _readable.DEVICE: Batched()}


def way_of(arguments: Sequence[Any]) -> Leafwise | None:
    """The kernels for the tensors among some arguments; None for the plain ones."""
    return _WAYS.get(_readable.place_of(_tensors_in(arguments)))


def _tensors_in(arguments: Sequence[Any]) -> list[torch.Tensor]:
    found = [x for x in arguments if isinstance(x, torch.Tensor)]
    if len(found) < len(arguments):
        for x in arguments:
            if isinstance(x, (list, tuple)):
                found += _tensors_in(x)
    return found


def _chosen(name: str) -> Any:
    """A kernel that runs where its tensors are."""

    def kernel(self: Kernels, *given: Any, **static: Any) -> Any:
        run: Callable[..., Any] = getattr(way_of(given) or super(Kernels, self), name)
        return run(*given, **static)

    return kernel


class Kernels(Leafwise):
    """PyTorch, with as few operations as may be."""

    norms = _chosen("norms")
    groups = _chosen("groups")
    norms_over = _chosen("norms_over")
    sum_over = _chosen("sum_over")
    multiply = _chosen("multiply")
    multiply_over = _chosen("multiply_over")
    centered = _chosen("centered")
    inner_products = _chosen("inner_products")
    clip = _chosen("clip")
    each = _chosen("each")
    compute = _chosen("compute")
    of_matrices = _chosen("of_matrices")
    largest = _chosen("largest")
    cast = _chosen("cast")
    copied = _chosen("copied")
    zeros = _chosen("zeros")
    peer_norm = _chosen("peer_norm")
    _elementwise = _chosen("elementwise")

    def elementwise(
        self,
        formula: Formula,
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        out: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's elements; of parts of leaves, one after the other where nothing is batched."""
        given = formula, columns, numbers, factors, out
        if not isinstance(formula, OfLeaves) or isinstance(way_of(given), Batched):
            return self._elementwise(*given, **static)
        made: list[Any] = []
        for i in range(len(columns[0])):
            own = formula.of(functools.partial(_index, formula, i))
            by = None if factors is None else [factors[i]]
            made += self._elementwise(own, [[column[i]] for column in columns], numbers, by, **static)
        return made


def _index(formula: OfLeaves, i: int, xp: Any, x: Any) -> Any:
    return formula.in_whole(i, xp.iota(x))
