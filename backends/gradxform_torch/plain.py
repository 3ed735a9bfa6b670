"""PyTorch backend: eager, under torch.compile and torch.func."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gradxform.backend.protocol import Axes, Backend, Backward, Row
from gradxform.numerics import elementwise, formulas
from gradxform_torch import across
from gradxform_torch.namespace import Namespace, materialized
from gradxform_torch.private import pytree
from gradxform_torch.readable import transformed

Back = Callable[[torch.Tensor], torch.Tensor]

_LEAVES = {torch.Tensor, torch.nn.Parameter, int, type(None)}
"""Leaves of lists and dicts that need no tree engine; integers are positions."""


# --- the identity with a custom backward pass ------------------------------------------------------------------------


def _same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], backward: Backward) -> list[Any]:
    """Return the first tensors; a function computes what flows back to both lists."""
    return list(_Same.apply(backward, len(first), *first, *second))  # type: ignore[no-untyped-call]


class _Same(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(function: Backward, count: int, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Copies: what is written in place into one must not reach the other.
        if len(given) == 1 or not transformed():
            return tuple([tensor.clone() for tensor in given[:count]])
        # Each depends on all of them: under vmap, if one has a batch, all come out with one. Otherwise what flows back
        # to a leaf without a batch would be summed over the batch before it is transformed.
        either = functools.reduce(torch.logical_or, [(tensor.reshape(-1)[:1] == 0).any() for tensor in given])
        return tuple([torch.where(either.to(tensor.device), tensor, tensor) for tensor in given[:count]])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        function, count, *given = inputs
        ctx.function, ctx.rest = function, len(given) - count
        ctx.save_for_backward(*given[count:])

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        found, others = ctx.function(list(upstream), list(ctx.saved_tensors))
        return None, None, *(found or [None] * len(upstream)), *(others or [None] * ctx.rest)


# --- the backend -----------------------------------------------------------------------------------------------------


class Plain(Backend):
    """PyTorch without its own kernels."""

    name, title = "torch", "PyTorch"
    types: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)
    variables = (torch.nn.Parameter,)
    xp = Namespace(torch.device("cpu"))
    module = torch
    devices = across

    def namespace_of(self, array: torch.Tensor) -> Namespace:
        """The namespace of a tensor's device."""
        return Namespace(array.device, lasting=transformed())

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile with torch.compile, without graph breaks.

        Each call makes code of its own: torch counts recompilations by code object, and gives up after eight.
        """

        def own(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        own.__code__ = own.__code__.replace()
        return torch.compile(own, fullgraph=True, dynamic=False)

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Leaves and structure, by torch.utils._pytree except for lists and dicts of tensors; None is a leaf."""
        if type(tree) is list and _LEAVES.issuperset({type(leaf) for leaf in tree}):
            return list(tree), None
        if type(tree) is dict and _LEAVES.issuperset({type(leaf) for leaf in tree.values()}):
            return list(tree.values()), tuple(tree)
        return pytree.tree_flatten(tree)

    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """Rebuild the tree."""
        if structure is None:
            return list(leaves)
        if type(structure) is tuple:
            return dict(zip(structure, leaves, strict=True))
        return pytree.tree_unflatten(list(leaves), structure)

    def paths(self, tree: Any) -> list[str]:
        """One path per leaf."""
        return ["/".join(map(_key, path)) for path, _ in pytree.tree_flatten_with_path(tree)[0]]

    def dense(self, leaves: Row, whole: bool = False) -> tuple[Row, Sequence[Back | None] | None]:
        """Values of sparse COO tensors, duplicates summed, and a function that puts values back; or whole tensors."""
        if torch.compiler.is_compiling():  # in a backward pass, Dynamo refuses to read a layout
            strange = any([leaf.is_sparse for leaf in leaves])
        else:
            strange = any([leaf.layout is not torch.strided or leaf.is_nested for leaf in leaves])
        if not strange:
            return leaves, None
        for leaf in leaves:
            if leaf.layout not in _LAYOUTS or leaf.is_nested:
                raise TypeError(
                    f"a gradient has the layout {'nested' if leaf.is_nested else leaf.layout}; gradients are dense or "
                    "sparse COO tensors: write gradient.to_dense(), or a tree of the tensors in a nested one"
                )
        if whole:
            return [leaf.to_dense() for leaf in leaves], None
        values, backs = zip(*map(_dense, leaves), strict=True)
        return values, backs

    def sparse(self, leaf: torch.Tensor) -> Back | None:
        """Convert to a COO tensor of the elements that are not zero."""
        return torch.Tensor.to_sparse

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Compute a formula of numbers and vectors, once under torch.compile."""
        found = super().compute(formula, *operands, **static)
        # A part of a vector is stored already; inductor for CUDA would store the first one instead.
        return found if formula is formulas.take else materialized(found)

    def stored(self, value: Any, dtype: str, like: torch.Tensor) -> torch.Tensor:
        """Convert a number or vector to a dtype; a known count or bool in one step."""
        if isinstance(value, (bool, int, float)) and dtype in ("int32", "bool"):
            return torch.full((), value, dtype=getattr(torch, dtype), device=like.device)
        return super().stored(value, dtype, like)

    def from_numpy(self, array: Any, like: Any = None) -> torch.Tensor:
        """Copy to a tensor, on the device of another one; bfloat16 is copied by its bits."""
        array = np.array(array, order="C")
        if array.dtype.name == "bfloat16":
            made = torch.from_numpy(array.view(np.uint16).reshape(array.shape)).view(torch.bfloat16)
        else:
            made = torch.from_numpy(array)
        return made if like is None else made.to(like.device)

    def to_numpy(self, leaf: torch.Tensor) -> Any:
        """Convert to NumPy: sparse tensors become dense, bfloat16 the dtype of ml_dtypes."""
        leaf = leaf.detach().cpu().resolve_conj().resolve_neg()
        leaf = leaf.to_dense() if leaf.layout != torch.strided else leaf
        if leaf.dtype == torch.bfloat16:
            import ml_dtypes

            return leaf.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return leaf.numpy()

    custom_backward = staticmethod(_same)


class Leafwise(Plain):
    """PyTorch for groups of leaves, one by one: with autograd and under a compiler, where nothing is batched."""

    def multiply_over(self, leaves: Row, axes: Axes, factors: Any, inplace: Sequence[bool]) -> list[torch.Tensor]:
        """Leaves times factors of slices, one after the other."""
        each = split(leaves, axes, factors)
        return self._of_each(lambda xp, leaf, by: elementwise.times(xp, leaf, xp.float64(by)), leaves, each)


_LAYOUTS = (torch.strided, torch.sparse_coo)


def _key(entry: Any) -> str:
    return str(next(getattr(entry, kind) for kind in ("key", "idx", "name") if hasattr(entry, kind)))


def _dense(leaf: torch.Tensor) -> tuple[torch.Tensor, Back | None]:
    if not leaf.is_sparse:
        return leaf, None
    whole = leaf.coalesce()
    return whole.values(), lambda new: torch.sparse_coo_tensor(
        whole.indices(), new, whole.shape, is_coalesced=True, check_invariants=False
    )


def split(leaves: Row, axes: Axes, factors: Any) -> Row:
    """Split factors in the form of `norms_over` into those of each leaf."""
    if len(leaves) == 1:
        return [factors]
    shapes = []
    for leaf, over in zip(leaves, axes, strict=True):
        reduced = [axis % leaf.ndim for axis in over]
        shapes.append([1 if axis in reduced else size for axis, size in enumerate(leaf.shape)])
    parts = torch.split(factors, list(map(math.prod, shapes)))
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
