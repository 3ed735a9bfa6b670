"""gradxform on DTensors and under FSDP2, in the processes of a gloo group; test_torch_sharded.py starts them.

Each case compares this process's shard with its part of the unsharded result, which every process computes.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import conformance
import ml_dtypes  # noqa: F401, without which NumPy knows no bfloat16
import numpy as np
import optree
import process_groups as groups
import torch
from drivers import TorchApply, TorchAttach
from process_groups import agree, collectives, fails, meshes, problems, rank
from support import array, assert_ulp, furthest, tensors
from torch.utils.flop_counter import FlopCounterMode
from trees import first, gradients

import gradxform as gx
from gradxform.proof import parity, products
from gradxform.proof.reference import norm as reference_norm
from gradxform.proof.registry import ROWS, Row
from gradxform.proof.ulp import DOUBLE
from gradxform.testing import max_ulp

case = groups.Cases()


def line() -> Any:
    return meshes["line"]


def shard(tensor: Any, *placements: Any, mesh: Any = None) -> Any:
    """Distribute a tensor that all processes have; an int placement is the sharded axis."""
    from torch.distributed.tensor import Partial, Shard, distribute_tensor

    placements = tuple(Shard(p) if isinstance(p, int) else p for p in placements)
    mesh = mesh or line()
    if not any(p.is_partial() for p in placements):
        return distribute_tensor(tensor, mesh, placements, src_data_rank=None)
    from torch.distributed.tensor import DTensor

    assert placements == (Partial(),)
    mine = (torch.arange(tensor.numel()).reshape(tensor.shape) + rank()) % mesh.size() == 0
    return DTensor.from_local(torch.where(mine, tensor, 0), mesh, placements, run_check=False)


def replicated(*_: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


def partial() -> Any:
    from torch.distributed.tensor import Partial

    return Partial()


def part(whole: Any, beside: Any) -> Any:
    """This process's part of a whole result, sharded like the gradient."""
    from torch.distributed.tensor import DTensor

    if not isinstance(beside, DTensor):
        return whole
    where = [replicated() if p.is_partial() else p for p in beside.placements]
    return shard(whole.detach(), *where, mesh=beside.device_mesh).to_local()


def own(tensor: Any) -> Any:
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def assert_same(found: Any, wanted: Any, given: Any, ulp: float = 2, expression: str = "") -> None:
    """Compare a tree of results with the unsharded results, sharded like the gradients."""
    flat = torch.utils._pytree.tree_leaves
    leaves = list(zip(flat(found), flat(wanted), flat(given), strict=True))
    assert leaves
    for new, whole, old in leaves:
        if old is None:
            assert new is None
            continue
        mine = part(whole, old)
        if (type(new), own(new).shape) != (type(old), mine.shape):
            problems.append(f"{type(new)} of {own(new).shape}, wanted {type(old)} of {mine.shape}")
            continue
        is_as, should_be = described(new), described(old)
        if is_as != should_be:
            problems.append(f"{is_as}, wanted {should_be}")
        distance = furthest([own(new)], [mine], expression)
        if not distance <= (max(ulp, DOUBLE) if ulp and mine.dtype in (torch.float64, torch.complex128) else ulp):
            problems.append(f"{distance} ULP: {own(new)}, wanted {mine} at {getattr(old, 'placements', 'no mesh')}")


def described(tensor: Any) -> tuple[Any, ...]:
    """Return values that must not change; partial sums are added."""
    if not hasattr(tensor, "placements"):
        return tensor.dtype, tensor.shape, tensor.device
    where = tuple(replicated() if p.is_partial() else p for p in tensor.placements)
    stride = tensor.stride() if tensor.numel() else ()
    return tensor.dtype, tensor.shape, tensor.device, tensor.device_mesh, where, stride


def counted(function: Callable[[], Any]) -> dict[str, int]:
    """Return the collectives of a call; traced calls have as many as others."""
    from torch.distributed.tensor.debug import CommDebugMode

    eager = collectives(function)
    with CommDebugMode() as watch:
        function()
    traced = {str(op).split(".")[-1].rstrip("')>"): count for op, count in watch.get_comm_counts().items()}
    assert sum(eager.values()) == sum(traced.values()), (eager, traced)
    return eager


def random(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3).to(dtype)


# --- the table of transforms -----------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[int, Any], Any]] = {
    "rows": lambda i, leaf: shard(leaf, 0) if leaf.ndim else leaf,
    "columns": lambda i, leaf: shard(leaf, leaf.ndim - 1) if leaf.ndim else shard(leaf, replicated()),
    "mixed": lambda i, leaf: mixed(i, leaf),
}


DTYPES = ["float32", "float64", "bfloat16", "complex64"]


def mixed(i: int, leaf: Any) -> Any:
    """Placements in turn: by rows, replicated, partial, and plain tensors."""
    if i % 4 == 3:
        return leaf
    return shard(leaf, [0, replicated(), partial()][i % 4] if leaf.ndim else replicated())


def laid_out(tree: Any, layout: str) -> Any:
    leaves, structure = torch.utils._pytree.tree_flatten(tree)
    made = [None if leaf is None else LAYOUTS[layout](i, leaf) for i, leaf in enumerate(leaves)]
    return torch.utils._pytree.tree_unflatten(made, structure)


def row_case(row: Row, dtype: str, layout: str) -> None:
    tx = row.tx
    steps = [tensors("torch", gradients(dtype, seed, row.matrix)) for seed in range(5 if row.tx.stateful else 1)]
    params = optree.tree_map(lambda x: x * 0.5 + 1, steps[0])
    sharded_params = laid_out(params, "rows" if layout == "mixed" else layout)
    states = tx.init(params), tx.init(sharded_params)
    for step in steps:
        given = laid_out(step, layout)
        wanted, first = tx.update(step, states[0], params, **parity.beside(tx, params))
        found, second = tx.update(given, states[1], sharded_params, **parity.beside(tx, sharded_params))
        states = first, second
        budget = 2 * row.budget("float32" if dtype == "bfloat16" else dtype, row.sums)
        assert_same(found, wanted, given, max(budget, 32) if "ord=" in row.expression else budget, row.expression)


def _rows() -> None:
    for row in ROWS:
        for layout in LAYOUTS if row in first() else ("rows", "mixed"):

            def run(row: Any = row, layout: str = layout) -> None:
                for dtype in DTYPES if layout == "mixed" else DTYPES[:1]:
                    if dtype in row.dtypes:
                        row_case(row, dtype, layout)

            case(f"{row.expression}, {layout}")(run)


_rows()


# --- norms -----------------------------------------------------------------------------------------------------------


def some() -> dict[str, Any]:
    """Five rows over two processes, one row, a transposed matrix, float64, half precision, a plain tensor."""
    return {
        "uneven": random(5, 3),
        "one": random(1, 7, seed=1),
        "wide": random(4, 6, seed=2),
        "half": random(9, dtype=torch.bfloat16, seed=3),
        "plain": random(3, seed=4),
        "same": random(2, 2, seed=5),
    }


def some_sharded(tree: dict[str, Any] | None = None) -> dict[str, Any]:
    tree = some() if tree is None else tree
    where = {"uneven": 0, "one": 0, "wide": 1, "half": 0, "same": replicated()}
    return {key: shard(leaf, where[key]) if key in where else leaf for key, leaf in tree.items()}


@case("global_norm is that of the whole, a plain tensor with the same bits everywhere")
def _() -> None:
    for dtype in (torch.float32, torch.float64):
        tree = {key: leaf.to(dtype) for key, leaf in some().items()}
        for ord in (None, 1, 3, math.inf):
            found = gx.global_norm(some_sharded(tree), ord=ord)
            assert type(found) is torch.Tensor
            assert found.dtype == dtype
            wanted = np.asarray(reference_norm([array(leaf) for leaf in tree.values()], ord or 2), array(found).dtype)
            assert max_ulp(array(agree(found)), wanted) <= (1 if ord != 3 else 4)


@case("a limit that all processes but one are above by rounding is kept or not by all alike")
def _() -> None:
    same = shard(torch.ones(3), replicated())
    same.to_local().mul_(1.0 + rank() * 2.0**-20)  # simulates diverged replicas
    for beside in (shard(torch.zeros(5, 2), 0), shard(torch.zeros(1), 0)):
        agree(gx.global_norm([same, beside]))
        agree(gx.global_norm([same.to_local(), beside]))
        agree(gx.global_norm([same.to_local().double(), beside]))


@case("a norm costs one collective for all leaves, rescaling and elements none")
def _() -> None:
    given = some_sharded()
    gather = "all_gather_into_tensor"
    for tx, wanted in {
        gx.clip_global_norm(1.0): {gather: 1},
        gx.clip_norm(1.0): {gather: 1},
        gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0), gx.scale(-0.1)): {gather: 1},
        gx.chain(gx.clip_value(0.5), gx.clip_global_norm(1.0)): {gather: 1},
        gx.skip_nonfinite(gx.clip_global_norm(1.0)): {gather: 1},
        gx.measure(gx.clip_global_norm(1.0), per_leaf=True): {gather: 1},
        gx.clip_value(0.5): {},
        gx.scale(0.3): {},
        gx.sign(): {},
        gx.zero_nonfinite(): {},
        gx.stop(): {},
        gx.ema(0.9): {},
        gx.elementwise(lambda g: g * 2.0): {},
        gx.add_noise(0.1, 3): {},
        gx.masked(gx.clip_norm(1.0, axes=1), "uneven"): {},
        gx.masked(gx.clip_norm(1.0, axes=0), "uneven"): {gather: 1},
    }.items():
        state = tx.init(given)
        found = counted(lambda tx=tx, state=state: tx.update(given, state))
        assert found == wanted, (tx, found)
    measured = gx.measure(gx.identity(), per_leaf=True)
    norms = gx.metrics(measured.update(given, measured.init(given))[1])
    for path, leaf in given.items():
        whole = leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf
        assert_ulp(norms[f"identity/norm_before/{path}"], np.float32(reference_norm([array(whole)])), 1, path)
    decay = gx.add_decayed_weights(0.1)
    assert counted(lambda: decay(given, given)) == {}


@case("in place nothing is told but norms, and the shards keep their memory")
def _() -> None:
    parameters = []
    for leaf in some_sharded().values():
        parameters.append(torch.nn.Parameter(torch.zeros_like(leaf)))
        parameters[-1].grad = leaf
    kept = [(p.grad, own(p.grad).data_ptr()) for p in parameters]
    tx = gx.chain(gx.clip_value(0.9), gx.clip_global_norm(1.0), gx.scale(0.3), gx.add_decayed_weights(0.1))
    assert counted(lambda: gx.torch.apply_(tx, parameters)) == {"all_gather_into_tensor": 1}
    for p, (grad, address) in zip(parameters, kept, strict=True):
        assert p.grad is grad
        assert own(grad).data_ptr() == address


@case("extreme numbers neither overflow nor vanish")
def _() -> None:
    for size, dtype in ((1e30, torch.float32), (1e-30, torch.float32), (1e300, torch.float64), (1e-290, torch.float64)):
        tree = [(random(*shape, dtype=torch.float64) * size).to(dtype) for shape in ((5, 3), (2,))]
        given = [shard(leaf, 0) for leaf in tree]
        for ord in (1, 2, 3, math.inf):
            for make in (gx.clip_norm, gx.clip_global_norm):
                tx = make(size / 10 if size < 1 else 1.0, ord=ord)
                wanted, found = tx(tree), tx(given)
                assert all(leaf.isfinite().all() and leaf.any() for leaf in wanted)
                assert_same(found, wanted, given, 4 if ord == 3 else 2)


@case("one number that is not finite in one shard makes NaN of the whole scope")
def _() -> None:
    for bad in (math.nan, math.inf):
        for dtype in (torch.float32, torch.float64):
            for at in range(5):
                tree = {"a": random(5, 3, dtype=dtype), "b": random(4, dtype=dtype)}
                tree["a"][at, 1] = bad
                given = {key: shard(leaf, 0) for key, leaf in tree.items()}
                for ord in (1, 2, 3, math.inf):
                    found = gx.clip_global_norm(1.0, ord=ord)(given)
                    assert own(found["a"]).isnan().all()
                    assert own(found["b"]).isnan().all()
                    found = gx.clip_norm(1.0, ord=ord)(given)
                    assert own(found["a"]).isnan().all()
                    assert not own(found["b"]).isnan().any()
                found = gx.clip_value(1.0)(given)
                assert_same(found, gx.clip_value(1.0)(tree), given, 0)


@case("a pure call writes to nothing, and within the limit the same tensors come back")
def _() -> None:
    given = some_sharded()
    same = (gx.clip_global_norm(1e3), gx.clip_norm(1e3), gx.identity(), gx.chain(gx.scale(2.0), gx.scale(0.5)))
    others = (gx.clip_global_norm(1.0), gx.clip_value(0.5), gx.chain(gx.scale(0.3), gx.clip_value(0.1)), gx.stop())
    for tx in same + others:
        versions = [own(leaf)._version for leaf in given.values()]
        found = tx(given)
        assert all(found[key] is given[key] for key in given) is (tx in same)
        assert_same(given, some(), given, 0)
        assert versions == [own(leaf)._version for leaf in given.values()]


@case("what is computed without a look at values, and compiled whole, is as right")
def _() -> None:
    for tx in (gx.clip_global_norm(1.0), gx.clip_norm(1.0, ord=3), gx.chain(gx.clip_value(0.5), gx.clip_norm(1.0))):
        for dtype in (torch.float32, torch.float64):
            tree, budget = {key: leaf.to(dtype) for key, leaf in some().items()}, 4 if "ord=3" in repr(tx) else 2
            given = {key: leaf.requires_grad_() for key, leaf in some_sharded(tree).items()}
            assert_same(tx(given), tx(tree), given, budget)
        torch.compiler.reset()
        given = some_sharded()
        assert_same(torch.compile(tx, fullgraph=True, backend="eager")(given), tx(some()), given, budget)


@case("derivatives flow through what is each process's own, and are refused where a norm is told")
def _() -> None:
    weights, point = random(5, 3, seed=9, dtype=torch.float64), random(5, 3, dtype=torch.float64)
    for tx in (gx.chain(gx.scale(0.3), gx.clip_value(0.5)), gx.clip_norm(1.0, axes=1), gx.clip_norm(1.0)):
        x = point.clone().requires_grad_()
        (tx(x) * weights).sum().backward()
        y = shard(point, 0).requires_grad_()
        loss = (tx(y) * shard(weights, 0)).sum()
        if tx == gx.clip_norm(1.0):
            fails(NotImplementedError, "no derivative flows through the norm", loss.backward)
        else:
            loss.backward()
            np.testing.assert_allclose(own(y.grad), part(x.grad, y), rtol=1e-12, atol=1e-14)


# --- other tensors beside the gradients ------------------------------------------------------------------------------


@case("bounds that are arrays, in part or whole, sharded or not")
def _() -> None:
    leaf = random(5, 3)
    for bound in (random(5, 3, seed=1).abs(), random(3, seed=1).abs(), random(5, 1, seed=1).abs(), torch.tensor(0.5)):
        for given in spread(leaf)[1:]:
            for high in (bound, bound.numpy(), shard(bound, replicated()), shard(bound, 0) if bound.ndim else bound):
                for scaled in (gx.identity(), gx.scale(0.3)):
                    make = lambda high, scaled=scaled: gx.chain(scaled, gx.clip_value(low=-1.0, high=high))  # noqa: E731
                    assert_same(make(high)([given]), make(bound)([leaf]), [given], 0 if scaled == gx.identity() else 1)


@case("parameters that are sharded otherwise, and limits from their norms")
def _() -> None:
    for shape in ((5, 3), (2, 2), (1, 4), (4, 4)):
        leaf, param = random(*shape), random(*shape, seed=1)
        limits = [gx.clip_adaptive(0.1, axes=axes) for axes in ("torch", "keras", (0, 1))]
        for tx in (gx.add_decayed_weights(0.3), *limits):
            for given in spread(leaf)[: 5 if tx not in limits else 4]:
                for other in spread(param):
                    assert_same(tx([given], [other]), tx([leaf], [param]), [given])


def spread(leaf: Any) -> list[Any]:
    """A matrix in every way."""
    return [leaf, shard(leaf, 0), shard(leaf, 1), shard(leaf, replicated()), shard(leaf, partial())]


@case("matrices are gathered one at a time, and stacks of them not at all")
def _() -> None:
    stack, matrix = random(5, 4, 6), random(6, 10, seed=1)
    tx = gx.orthogonalize(axes={"stack": ((1,), (2,)), "*": "torch"})
    wanted = tx({"stack": stack, "matrix": matrix})
    for axis, gathers in ((0, 0), (1, 1), (2, 1)):
        given = {"stack": shard(stack, axis)}
        assert_same(tx(given), {"stack": wanted["stack"]}, given, products.budget("jordan", 5))
        assert sum(counted(lambda given=given: tx(given)).values()) - measuring(given) == gathers, axis
    for placement in (0, 1, replicated(), partial()):
        given = {"matrix": shard(matrix, placement)}
        assert_same(tx(given), {"matrix": wanted["matrix"]}, given, products.budget("jordan", 5))


@case("each process iterates its own matrices, and the results travel once", 2, 4)
def _() -> None:
    shapes = {"wide": (6, 10), "tall": (13, 5), "square": (8, 8), "few": (1, 9), "same": (6, 10), "stack": (3, 5, 4)}
    placements = {"stack": 2, "tall": 1}
    tree = {path: random(*shape, seed=seed) for seed, (path, shape) in enumerate(shapes.items())}
    given = {path: shard(leaf, placements.get(path, 0)) for path, leaf in tree.items()}
    for dtype, budget in ((None, products.budget("jordan", 5)), ("bfloat16", 2.0**17)):
        tx = gx.orthogonalize(axes={"stack": ((1,), (2,)), "*": "torch"}, scale=None, dtype=dtype)
        assert_same(tx(given), tx(tree), given, budget)
        rounds = -(-len(shapes) // groups.world())
        assert counted(lambda tx=tx: tx(given))["alltoall_base_"] == 2 * rounds

    def multiplications(tree: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            tx(tree)
        return counter.get_total_flops()

    every = groups.told(multiplications(given))
    assert sum(every) == multiplications(tree) and max(every) < 0.75 * sum(every), every
    torch.compiler.reset()
    compiled = torch.compile(tx, fullgraph=True, backend="eager")(given)
    assert_same(compiled, tx(tree), given, budget)


@case("matrices of a mesh of two dimensions have owners along the one that shards them", 4)
def _() -> None:
    mesh, tx = meshes["square"], gx.orthogonalize(axes={"stack*": ((1,), (2,)), "*": "torch"})
    tree = {f"{kind}{i}": random(*shape, seed=i) for kind, shape in SIDES.items() for i in range(3)}
    layouts = {"rows": (replicated(), 0), "columns": (1, replicated()), "both": (0, 1), "stack": (0, 2)}
    given = {path: shard(leaf, *layouts[path[:-1]], mesh=mesh) for path, leaf in tree.items()}
    assert_same(tx(given), tx(tree), given, products.budget("jordan", 5))
    tx = gx.normalize_neurons(axes={"stack*": ((1,), (2,)), "*": "torch"})
    state = tx.update(tree, tx.init(tree))[1]
    for own in (state, tx.update(given, tx.init(given))[1]):
        assert_same(tx.update(given, own)[0], tx.update(tree, state)[0], given)


SIDES = {"rows": (6, 10), "columns": (7, 4), "both": (6, 6), "stack": (3, 4, 5)}


@case("the largest elements of the whole leaf are found in it, gathered alone")
def _() -> None:
    for shape in ((5, 6), (7,), (2, 3, 8), ()):
        leaf = random(*shape)
        for placement in (*range(len(shape)), replicated(), partial()):
            given = {"w": shard(leaf, placement)}
            for dtype in (torch.float32, torch.bfloat16):
                own = {"w": given["w"].to(dtype)}
                assert_same(gx.top_k(0.3)(own), gx.top_k(0.3)({"w": leaf.to(dtype)}), own, 0)
    many = {str(i): shard(random(5, 6, seed=i), 0) for i in range(9)}
    assert counted(lambda: gx.top_k(0.3)(many)) == {"all_gather_into_tensor": 9}
    fails(TypeError, "top_k: the gradient at '0' cannot become sparse", lambda: gx.top_k(0.3, sparse=True)(many))


def measuring(given: Any) -> int:
    """The collectives for the norms of the matrices."""
    return sum(counted(lambda: gx.clip_norm(1.0, axes=(1, 2))(given)).values())


@case("a limit that is a tensor")
def _() -> None:
    given, tree = some_sharded(), some()
    for limit in (torch.tensor(1.0), shard(torch.tensor(1.0), replicated())):
        assert_same(gx.clip_global_norm(limit)(given), gx.clip_global_norm(1.0)(tree), given)
        assert_same(gx.clip_value(limit)(given), gx.clip_value(1.0)(tree), given, 0)
        decayed = gx.add_decayed_weights(limit)(given, given), gx.add_decayed_weights(1.0)(tree, tree)
        assert_same(*decayed, given)


@case("mean, pcgrad, mgda, cagrad and upgrad of sharded tasks")
def _() -> None:
    trees = [{"a": random(5, 3, seed=i), "b": random(7, seed=i + 9), "c": random(seed=i + 5)} for i in range(3)]
    where = {"a": 0, "b": 0, "c": replicated()}
    given = [{key: shard(leaf, where[key]) for key, leaf in tree.items()} for tree in trees]
    assert_same(gx.mean(given), gx.mean(trees), given[0])
    assert_same(gx.pcgrad(given, 3), gx.pcgrad(trees, 3), given[0], 4)
    for function in (gx.mgda, gx.cagrad, gx.upgrad):
        assert_same(function(given), function(trees), given[0], 4)
    sizes = 1e200, 1e-200, 1.0
    far = [{key: x.double() * size for key, x in tree.items()} for tree, size in zip(trees, sizes, strict=True)]
    given = [{key: shard(leaf, where[key]) for key, leaf in tree.items()} for tree in far]
    for function in (gx.mgda, gx.cagrad, gx.upgrad):
        assert_same(function(given), function(far), given[0], 64)


@case("gradients of examples are refused")
def _() -> None:
    for function in (gx.per_example_clip_norm, gx.per_example_clip_global_norm):
        for given in ([shard(random(4, 3), 0)], [shard(random(4, 3), 1)], [shard(random(4), 0)]):
            fails(NotImplementedError, "take no DTensors", lambda: function(given, 1.0))  # noqa: B023


@case("a transposed gradient, and one that is not contiguous")
def _() -> None:
    leaf, scaled = random(6, 5), gx.chain(gx.scale(0.3), gx.clip_value(0.1))
    for tx in (gx.clip_norm(1.0), gx.clip_value(0.5), gx.scale(0.3), gx.sign(), scaled):
        given = shard(leaf, 0).t()
        assert_same([tx(given)], [tx(leaf.t())], [given])
    given = shard(leaf, 0).t()
    assert_same([gx.zero_nonfinite()(given) + 0], [leaf.t()], [given], 0)
    assert (gx.ema(0.0).update(given, gx.ema(0.0).init(given))[0].full_tensor() == leaf.t()).all()


@case("what a user's own function makes of DTensors")
def _() -> None:
    given, tree = some_sharded(), some()
    for tx in (
        gx.elementwise(lambda g: gx.xp(g).tanh(g)),
        gx.transform(lambda g: g.scaled(g.compute(lambda xp, n: 1.0 / (1.0 + n), g.global_norm()))),
    ):
        assert_same(tx(given), tx(tree), given)
    seen: list[Any] = []
    gx.masked(gx.identity(), lambda path, leaf: bool(seen.append((path, tuple(leaf.shape)))))(given)
    assert seen == [(key, tuple(leaf.shape)) for key, leaf in tree.items()]


@case("an array of NumPy in the place of a sharded tensor")
def _() -> None:
    for key, like in some_sharded().items():
        assert_same([gx.torch.backend.from_numpy(array(some()[key]), like)], [some()[key]], [like], 0)


@case("like= of every library")
def _() -> None:
    tree = {key: random(*shape) for key, shape in {"a": (5, 3), "b": (7,), "c": (1, 2)}.items()}
    given = {key: shard(leaf, 0) for key, leaf in tree.items()}
    for like in ("tensorflow", "keras", "torch", "paddle", "optax", "mlx"):
        for make in (gx.clip_norm, gx.clip_global_norm):
            assert_same(make(1.0, like=like)(given), make(1.0, like=like)(tree), given, 4)
    assert_same(
        gx.masked(gx.clip_norm(1.0, axes=0, like="tensorflow"), "a")(given),
        gx.masked(gx.clip_norm(1.0, axes=0, like="tensorflow"), "a")(tree),
        given,
        4,
    )


@case("states are sharded as the parameters are")
def _() -> None:
    given = some_sharded()
    state = gx.ema(0.9).init(given)
    for key, leaf in state.ema.items():
        assert type(leaf) is type(given[key])
        if key != "plain":
            assert leaf.placements == given[key].placements
            assert own(leaf).shape == own(given[key]).shape
    assert type(state.count) is torch.Tensor


# --- the suite of all adapters, on parameters whose rows are spread --------------------------------------------------


class OnShards:
    """Mixed into the drivers of one process; each process compares the whole."""

    scales, sparse = (), False
    optimizers = ("momentum", "adamw")
    dtypes = ("bfloat16", "float32", "float64")
    saved: ClassVar[dict[str, Any]] = {}

    def placed(self, tensor: Any) -> Any:
        return shard(tensor, 0 if tensor.ndim else replicated())

    def read(self) -> Any:
        return {path.replace(".", "/"): array(p.detach().full_tensor()).copy() for path, p in self.named.items()}

    def save(self, folder: Path) -> None:
        self.saved[str(folder)] = copy.deepcopy([self.read(), self.optimizer.state_dict(), self._state])

    def load(self, folder: Path) -> None:
        params, optimizer, self._state = self.saved[str(folder)]
        self.assign(params)
        self.optimizer.load_state_dict(optimizer)


def gathered_state(run: Any) -> Any:
    return optree.tree_map(lambda leaf: leaf.full_tensor() if hasattr(leaf, "placements") else leaf, run)


class ShardedApply(OnShards, TorchApply):
    name = "apply_"
    state = property(lambda self: gathered_state(self._state), TorchApply.state.fset)


class ShardedAttach(OnShards, TorchAttach):
    name = "attach"
    state = property(lambda self: gathered_state(self.attached.state), TorchAttach.state.fset)


class ShardedUpdates(ShardedAttach):
    name, on_updates = "attach, on updates", True


DRIVERS = [ShardedApply, ShardedAttach, ShardedUpdates]
for _driver, _case in conformance.pairs(DRIVERS):

    @case(f"{_driver}: {_case}")
    def _(driver: str = _driver, name: str = _case) -> None:
        with tempfile.TemporaryDirectory() as folder:
            conformance.check(DRIVERS, driver, name, Path(folder))


# --- modules, optimizers, the way back -------------------------------------------------------------------------------


@case("on_backward and its like on DTensors, alone and together with a plain tensor")
def _() -> None:
    for tx in (gx.clip_norm(1.0), gx.clip_global_norm(1.0), gx.chain(gx.clip_value(0.5), gx.scale(2.0))):
        w, v = random(5, 3), random(4, seed=1)
        for where in (0, 1, replicated()):
            x, z = shard(w * 0, where).requires_grad_(), (v * 0).requires_grad_()
            y, u = gx.on_backward(tx)([x, z])
            assert (type(y), y.placements, y.stride()) == (type(x), x.placements, x.stride())
            ((y * shard(w, where)).sum().full_tensor() + (u * v).sum()).backward()
            assert_same([x.grad, z.grad], tx([w, v]), [x, z])
            x = shard(w * 0, where).requires_grad_()
            (gx.on_backward(tx)(x) * shard(w, where)).sum().full_tensor().backward()
            assert_same([x.grad], [tx(w)], [x])
    x = shard(w, 0).requires_grad_()
    gx.straight_through(torch.sign, gx.clip_value(1.0))(x).sum().full_tensor().backward()
    assert_same([x.grad], [(w.abs() <= 1).float()], [x], 0)
    assert not gx.stop_gradient(x).requires_grad


class Net(torch.nn.Module):
    """Weights whose rows do not divide evenly, and one of a single row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(4, 5)
        self.body = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
        self.head = torch.nn.Linear(3, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(torch.tanh(self.first(x))))


CHAIN = gx.chain(gx.masked(gx.clip_norm(5.0), "**/weight"), gx.clip_global_norm(0.5))


def fsdp(model: Any, mesh: Any = None, **more: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for module in (model.first, *[m for m in model.body if isinstance(m, torch.nn.Linear)], model):
        fully_shard(module, mesh=mesh or line(), **more)
    return model


def data(step: int) -> Any:
    x = random(8, 4, seed=step + 50)
    return x, x.sum(1, keepdim=True) ** 2


def backward(model: Any, step: int, world: int = 1, place: int = 0, dtype: Any = torch.float32) -> None:
    """The gradients of a mean; each process has an equal part of the examples."""
    x, y = (t.chunk(world)[place].to(dtype) for t in data(step))
    model.zero_grad()
    ((model(x) - y) ** 2).mean().backward()


def gathered(model: Any) -> dict[str, Any]:
    return {name: p.grad.full_tensor().clone() for name, p in model.named_parameters() if p.grad is not None}


def trained(tx: Any, attached: bool, world: int, place: int, **more: Any) -> None:
    alone, model = Net(), fsdp(Net(), **more)
    optimizers = [torch.optim.SGD(m.named_parameters(), lr=0.1, momentum=0.9) for m in (alone, model)]
    if attached:
        for o in optimizers:
            gx.torch.attach(o, tx)
    for step in range(4):
        backward(alone, step)
        backward(model, step, world, place)
        before = gathered(model)
        norm = gx.global_norm([p.grad for p in model.parameters()])
        wanted = np.float32(reference_norm([array(g) for g in before.values()]))
        assert max_ulp(array(agree(norm)), wanted) <= 1
        assert step or wanted > 1
        if not attached:
            gx.torch.apply_(tx, alone)
            gx.torch.apply_(tx, model)
            right = tx({name.replace(".", "/"): g for name, g in before.items()})
            for name, g in gathered(model).items():
                assert_ulp(g, right[name.replace(".", "/")])
        for o in optimizers:
            o.step()
        for p, q in zip(alone.parameters(), model.parameters(), strict=True):
            np.testing.assert_allclose(q.full_tensor().detach(), p.detach(), rtol=1e-5, atol=1e-7)


for _attached in (False, True):

    @case(f"FSDP2 trains as one process does, {'attach' if _attached else 'apply_'}")
    def _(attached: bool = _attached) -> None:
        trained(gx.clip_global_norm(0.5) if attached else _by_name(), attached, 2, rank())


def _by_name() -> Any:
    weights, head = gx.masked(gx.clip_norm(2.0), "**/weight"), gx.masked(gx.scale(0.5), "head/*")
    return gx.chain(weights, gx.clip_global_norm(0.5), head)


@case("FSDP2 with mixed precision, and a model of bfloat16")
def _() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for model in (fsdp(Net(), mp_policy=policy), fsdp(Net().bfloat16())):
        backward(model, 0, 2, rank(), torch.bfloat16)
        before = gathered(model)
        gx.torch.apply_(gx.clip_global_norm(0.5), model)
        right = gx.clip_global_norm(0.5)(before)
        for name, g in gathered(model).items():
            assert_ulp(g, right[name], 1 if g.dtype == torch.bfloat16 else 2)


@case("a gradient of summands is replaced by its sum")
def _() -> None:
    leaf = random(5, 3)
    p = torch.nn.Parameter(shard(leaf * 0, replicated()))
    for tx in (gx.clip_norm(1.0), gx.clip_norm(100.0), gx.add_decayed_weights(0.1)):
        p.grad = shard(leaf, partial())
        gx.torch.apply_(tx, [p])
        assert p.grad.placements == (replicated(),)
        assert_same([p.grad], tx([leaf], [leaf * 0]), [p])


@case("a gradient that is still under way")
def _() -> None:
    leaf = random(6, 3)
    for tx in (gx.clip_norm(1.0), gx.chain(gx.scale(0.3), gx.clip_value(0.1)), gx.scale(0.3)):
        given = shard(leaf, 0).redistribute(placements=[replicated()], async_op=True)
        assert type(given._local_tensor) is not torch.Tensor
        assert_same([tx(given)], [tx(leaf)], [shard(leaf, replicated())])
        p = torch.nn.Parameter(shard(leaf * 0, replicated()))
        p.grad = shard(leaf, 0).redistribute(placements=[replicated()], async_op=True)
        gx.torch.apply_(tx, [p])
        assert_same([p.grad], [tx(leaf)], [p])


@case("sparse gradients beside DTensors")
def _() -> None:
    sparse = torch.sparse_coo_tensor([[0, 2]], [[3.0], [4.0]], (3, 1))
    leaf = random(5, 3)
    found = gx.clip_global_norm(1.0)([sparse, shard(leaf, 0)])
    wanted = gx.clip_global_norm(1.0)([sparse, leaf])
    assert found[0].layout == torch.sparse_coo
    assert_ulp(found[0], wanted[0])
    assert_same(found[1:], wanted[1:], [shard(leaf, 0)])


@case("a mesh that this process is not in")
def _() -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh("cpu", [0])
    shape = torch.Size([4, 2])
    given = DTensor.from_local(torch.ones(4, 2), mesh, [Shard(0)], run_check=False, shape=shape, stride=(2, 1))
    if rank() == 0:
        assert_same(gx.clip_norm(1.0)([given]), gx.clip_norm(1.0)([torch.ones(4, 2)]), [given])
    else:
        fails(ValueError, "this process is not in the DeviceMesh", lambda: gx.clip_norm(1.0)([given]))


# --- meshes of two dimensions, on four processes ---------------------------------------------------------------------


def square() -> Any:
    return meshes["square"]


PLACED: dict[str, Callable[[], Sequence[Any]]] = {
    "replicated, rows": lambda: (replicated(), 0),
    "rows, replicated": lambda: (0, replicated()),
    "rows, columns": lambda: (0, 1),
    "columns, rows": lambda: (1, 0),
    "rows twice": lambda: (0, 0),
}
WHOLE = [
    gx.clip_global_norm(1.0),
    gx.clip_norm(1.0, ord=math.inf),
    gx.clip_norm(1.0, axes=0),
    gx.clip_norm(1.0, axes=1),
    gx.clip_norm(0.3, axes=(0, 1), ord=1),
    gx.centralize(axes="keras"),
    gx.centralize(axes="torch"),
    gx.clip_value(low=-1.0, high=random(5, 6, seed=8).abs()),
    gx.clip_value(high=random(6, seed=8).abs()),
]


def same_over_a_square(given: Any, tree: Any) -> None:
    for tx in WHOLE:
        assert_same(tx(given), tx(tree), given, expression=repr(tx))
    noise = gx.add_noise(0.1, 5)
    assert_same(noise.update(given, noise.init(given))[0], noise.update(tree, noise.init(tree))[0], given, 0)


for _name, _placed in PLACED.items():

    @case(_name, 4)
    def _(placed: Any = _placed) -> None:
        for dtype in (torch.float32, torch.float64):
            tree = [random(5, 6, dtype=dtype), random(1, 6, dtype=dtype), random(7, 6, dtype=dtype, seed=2)]
            tree[1], tree[2] = tree[1].expand(5, 6).clone(), tree[2][:5].clone()
            same_over_a_square([shard(leaf, *placed(), mesh=square()) for leaf in tree], tree)


@case("placements and meshes together, one collective for each dimension of each", 4)
def _() -> None:
    tree = [random(5, 6, seed=i) for i in range(len(PLACED) + 2)]
    given = [shard(leaf, *placed(), mesh=square()) for leaf, placed in zip(tree, PLACED.values(), strict=False)]
    given += [shard(tree[-2], 0, mesh=square()["b"]), tree[-1]]
    same_over_a_square(given, tree)
    assert counted(lambda: gx.clip_norm(1.0)(given)) == {"all_gather_into_tensor": 3}
    agree(gx.global_norm(given))


@case("HSDP trains as one process does", 4)
def _() -> None:
    trained(_by_name(), False, 4, rank(), mesh=square())


@case("FSDP2 over tensor parallel layers", 4)
def _() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    alone, model = Net(), Net()
    model.body[0], model.body[2] = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)
    alone.body = copy.deepcopy(model.body)
    parallelize_module(model.body, square()["b"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for module in (model.body, model):
        fully_shard(module, mesh=square()["a"])
    noise = gx.add_noise(0.1, 5)
    for step in range(2):
        backward(alone, step)
        backward(model, step, 2, rank() // 2)
        before = [p.grad.full_tensor() for p in model.parameters()]
        given = [p.grad for p in model.parameters()]
        assert_same(noise.update(given, noise.init(given))[0], noise.update(before, noise.init(before))[0], given, 0)
        for m in (alone, model):
            gx.torch.apply_(CHAIN, m)
        right = CHAIN({n.replace(".", "/"): g for (n, _), g in zip(model.named_parameters(), before, strict=True)})
        for p, q, g in zip(alone.parameters(), model.parameters(), right.values(), strict=True):
            assert_ulp(q.grad.full_tensor(), g, what=(q.placements, own(q.grad)))
            np.testing.assert_allclose(own(q.grad), part(p.grad, q), rtol=1e-5, atol=1e-7)


if __name__ == "__main__":
    groups.main(case)
