"""Transforms on a simulated accelerator: launches and memory without a device, numbers on the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from entries import on_devices
from support import DTYPES_ALIKE, FAKE, assert_right, built, shared_group, slow

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch_counts import Counted, Still, counted
from trees import first

import gradxform as gx
from gradxform.proof import registry
from gradxform.proof.registry import Row
from gradxform.proof.ulp import ulps
from gradxform_torch import parts, readable
from gradxform_torch.apply_ import in_place

LEAVES = 300
"""The number of small gradients."""
SMALL, LARGE = (64, 48), (4096, 8192)
TREE = 4 * math.prod(LARGE) * 4
"""Bytes of the large gradients in float32."""
TRANSFORMS = {text.replace("<where>", "**/*"): cost for _, text, cost in on_devices("devices")}
OWNED = {expression: cost.owned for expression, cost in TRANSFORMS.items() if cost.owned is not None}
"""Memory if the adapter owns the state and overwrites it."""
ON_GRADIENTS = [expression for expression in TRANSFORMS if "gradients" not in built(expression).traits.needs]

ON_UPDATES = {  # the same around a step: launches, and memory with one copy of the parameters and their updates
    "clip_rms(0.1)": (70, 2),
    "chain(clip_norm(1.0), freeze('**/*0'))": (70, 2),
    "masked(clip_global_norm(1.0), '**/0')": (60, 0.5),
    "skip_nonfinite(clip_global_norm(1.0))": (120, 2),
    "trace(0.9)": (40, 2),
    "cautious()": (80, 3),
    "chain(scale(0.5), cautious())": (80, 3),
    "chain(clip_norm(1.0), cautious())": (120, 3),
}

AGAIN = "counts once more, in another dtype"
QUICK = ("clip_global", "chain(clip_v", "ema")
DECIDED = ("accumulate(", "skip_")
CAPTURED = ["masked(accumulate(ema(0.5), 2), '**/*0')", "masked(skip_nonfinite(trace(0.5)), '**/*0')"]


def counted_apart(tx: str, shapes: Any, dtype: str) -> Counted:
    """Count in place, or a call if updates need gradients."""
    return counted(built(tx), shapes, dtype, "cuda", "apply_" if tx in ON_GRADIENTS else "update")


@slow(AGAIN, dtype="bfloat16")
@slow(FAKE, lambda tx: not tx.startswith(QUICK))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tx", TRANSFORMS)
def test_few_launches_no_large_copy_and_nothing_between_host_and_device(tx: str, dtype: str) -> None:
    small = counted_apart(tx, [SMALL] * LEAVES, dtype)
    assert min(1, TRANSFORMS[tx].launches) <= small.launches.total() <= TRANSFORMS[tx].launches, small.launches
    large = counted_apart(tx, [LARGE] * 4 + [SMALL] * 10, dtype)
    most = 0.04 if tx in ALONG and dtype == "float32" else TRANSFORMS[tx].memory
    assert large.peak <= most * TREE + 2**18
    assert small.between == small.waits == large.between == large.waits == []


@slow(DTYPES_ALIKE, dtype="bfloat16")
@slow(FAKE, lambda tx: not tx.startswith("ema"))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tx", OWNED)
def test_a_state_that_is_owned_is_written_into(tx: str, dtype: str) -> None:
    found = counted(gx.parse(tx), [LARGE] * 4 + [SMALL] * 10, dtype, "cuda", "attach")
    assert found.peak <= OWNED[tx] * TREE + 2**18
    assert found.between == found.waits == []


@slow(FAKE, lambda tx, dtype: not tx.startswith("masked") or dtype == "bfloat16")
@pytest.mark.parametrize(("tx", "dtype"), [*((tx, "float32") for tx in ON_UPDATES), ("clip_rms(0.1)", "bfloat16")])
def test_updates_take_few_launches_and_a_copy_of_the_chosen_parameters(tx: str, dtype: str) -> None:
    """Half precision has float32 updates, so a copy and twice its size."""
    launches, size = ON_UPDATES[tx]
    found = counted(gx.parse(tx), [SMALL] * LEAVES, dtype, "cuda", "updates")
    assert found.launches.total() <= launches, found.launches
    assert found.between == found.waits == []
    found = counted(gx.parse(tx), [(4096, 2048)] * 4, dtype, "cuda", "updates")
    assert found.peak <= size * TREE / 4 * (1.0 if dtype == "float32" else 0.75) + 2**26  # and some chunks of leaves
    assert found.between == found.waits == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tx", [*ON_UPDATES, "chain(clip_norm(1e9), scale(1.0))", "accumulate(ema(0.5), 2)"])
def test_updates_with_the_kernels_of_accelerators(tx: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same parameters as with the CPU's, to a rounding; bit for bit where updates stay."""

    class Kept(list[Any]):
        """A recorder, of updates."""

        is_due = staticmethod(lambda step: True)

        def __call__(self, step: int, updates: Any, **trees: Any) -> None:
            self += [torch.as_tensor(array).double().clone() for array in dict(updates).values()]

    def trained(given: gx.GradientTransformation) -> list[torch.Tensor]:
        draw = torch.Generator().manual_seed(0)
        shapes = [(3, 40), (5,), (2, 2), (), (1, 1)]
        ps = [torch.nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape in shapes]
        optimizer = torch.optim.AdamW([(f"layer.{i}0"[: 7 + i % 2], p) for i, p in enumerate(ps)], lr=0.1)
        kept = Kept()
        gx.torch.attach(optimizer, given, on="updates").record(kept)
        for _ in range(4):
            for p in ps:
                p.grad = torch.randn(p.shape, generator=draw).to(dtype)
            optimizer.step()
        return [p.detach().double() for p in ps] + kept

    transform = gx.parse(tx.replace("'**/0'", "'**/10'").replace("'**/*0'", "'layer/*0'"))
    wanted, plain = trained(transform), trained(gx.identity())
    accelerated_by(monkeypatch)
    found = trained(transform)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2.0 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
    if "1e9" in tx:
        assert all(map(torch.equal, found, plain))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tx", [*(tx for tx in ON_GRADIENTS if not tx.startswith(DECIDED)), *CAPTURED])
def test_a_captured_step_finds_its_memory_again(tx: str, dtype: str) -> None:
    """A CUDA graph reuses memory, so gradients and all numbers of a state must stay in place."""
    with FakeTensorMode():
        parameters = [torch.nn.Parameter(torch.empty(SMALL, dtype=getattr(torch, dtype), device="cuda")) for _ in "ab"]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        named = [(f"layer.{i}0", parameter) for i, parameter in enumerate(parameters)]
        optimizer = Still(named, {})
        handle = gx.torch.attach(optimizer, built(tx))

        def memory() -> list[tuple[torch.Tensor, StorageWeakRef]]:
            there = [*pytree.tree_leaves(handle.state), *(parameter.grad for parameter in parameters)]
            return [(found, StorageWeakRef(found.untyped_storage())) for found in there if found is not None]

        def step() -> None:
            with Counted() as found:
                optimizer.step()
            assert found.between == found.waits == []

        step()
        before = memory()
        step()
        assert [found for _, found in memory()] == [found for _, found in before]


@pytest.mark.parametrize(("tx", "launches"), [("clip_global_norm(1.0)", 1), ("clip_norm(1.0)", 25)])
def test_the_norm_of_a_handle_costs_nothing_until_it_is_read(tx: str, launches: int) -> None:
    """No extra pass and no sync; in a CUDA graph, the norm uses the memory that a replay writes."""
    with FakeTensorMode():
        parameters = [torch.nn.Parameter(torch.empty(SMALL, device="cuda")) for _ in range(LEAVES)]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer = Still(parameters, {})
        handle = gx.torch.attach(optimizer, gx.parse(tx))
        with Counted() as step:
            optimizer.step()
        with Counted() as read:
            norm = handle.norm
    assert (norm.device.type, norm.dtype, norm.shape) == ("cuda", torch.float32, ())
    assert 0 < read.launches.total() <= launches, read.launches
    assert read.between == read.waits == []
    assert step.launches.total() == counted(gx.parse(tx), [SMALL] * LEAVES, "float32", "cuda").launches.total()


def test_states_that_change_places(accelerated: None) -> None:
    """A new array may be an older part of the state that is overwritten."""
    older = [torch.full((3,), value) for value in (1.0, 2.0)]
    found = in_place(older, [torch.full((3,), 3.0), older[0]])
    assert [part.tolist() for part in found] == [[3.0] * 3, [1.0] * 3]
    assert found[0] is older[0] and found[1] is older[1]


def test_what_is_counted_can_be_seen() -> None:
    """The counters see a read, a transfer and a copy."""
    with FakeTensorMode(), Counted() as found:
        x = torch.empty(1024, device="cuda") * torch.ones(())
        with pytest.raises(Exception, match="local_scalar_dense"):
            x.sum().item()
    assert found.launches["mul"] == 1 and found.between == ["mul"]
    assert 2 * 4096 > found.peak - 2 * 4 >= 4096 and found.dtypes == {torch.float32}


def test_a_multi_tensor_call_that_falls_back_counts_as_a_launch_a_leaf() -> None:
    """ATen's conditions: one dtype, equal shapes and strides, no gaps."""
    with FakeTensorMode():
        leaves = [torch.empty(8, 4, device="cuda") for _ in range(10)]
        rows, half = [leaf.t() for leaf in leaves], [leaf.bfloat16() for leaf in leaves]
        wide = torch.empty((), dtype=torch.float64, device="cuda")
        for launches, function, *given in (
            (1, torch._foreach_mul_, leaves, leaves),
            (1, torch._foreach_copy_, half, leaves),
            (1, torch._foreach_norm, rows, 2, torch.float64),
            (10, torch._foreach_mul_, leaves, wide),
            (10, torch._foreach_mul_, leaves, half),
            (10, torch._foreach_copy_, [*leaves[:9], half[9]], leaves),
            (10, torch._foreach_zero_, [leaf.narrow(1, 0, 2) for leaf in leaves]),
        ):
            with Counted() as found:
                function(*given)
            assert found.launches.total() == launches, (function, found.launches)
        with Counted() as found:
            torch.sum(leaves[0], 0, dtype=torch.float64)
        assert found.launches.total() == 2  # one of them a copy


def test_a_factor_for_each_leaf_of_several_shapes() -> None:
    """Leaves that lie alike have their factors in one launch, another puts them together; the copies are shared."""
    shapes = [(64, 48), (64,), (48,), (9, 64), (3, 3, 16), (1 << 19,)]
    few, many = (counted(gx.clip_norm(1.0), shapes[:5] * n + shapes[5:], "float32", "cuda").launches for n in (2, 40))
    assert many.total() == few.total() <= 35 + 2 * 5 + 1


ALONG = {  # launches of PyTorch's functions for each gradient
    "clip_norm(0.1, axes=0)": 6,  # as clip_grad_norm_ has it: norm, + eps, c / norm in two, clamp, multiply
    "clip_adaptive(0.01, axes=0)": 10,
    "centralize(axes=0)": 2,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tx", ALONG)
def test_along_axes_no_more_launches_than_by_hand(tx: str, dtype: str) -> None:
    """Gradients no two of which have one shape; and for each shape a few, however many gradients have it."""
    shapes = [(64 + i, 48) for i in range(40)]
    each, few, many = (counted(gx.parse(tx), some, dtype, "cuda") for some in (shapes, shapes[:5], shapes[:5] * 8))
    more = 5 if dtype == "float32" else 9  # half precision is copied into float32 and back
    assert each.launches.total() <= ALONG[tx] * len(shapes) + more, each.launches
    assert many.launches.total() <= few.launches.total() + 2 * len(shapes[:5])  # puts their numbers together


IN_PLACE = [
    "accumulate(ema(0.5), 2)",
    "skip_nonfinite(trace(0.5))",
    "add_noise(0.1, 0)",
    "sign()",
    "zero_nonfinite()",
    "chain(scale(0.5), ema(0.9))",
    "chain(scale(0.5), error_feedback(clip_norm(0.5)))",
    "error_feedback(sign())",
    "chain(scale(0.5), clip_spikes(1.5, 0.5, warmup=1))",
    "chain(scale(0.5), grokfast())",
    "chain(clip_norm(1.0), trace(0.9))",
    "chain(trace(0.5), scale(-0.1), clip_value(0.05))",
]


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU as an accelerator: NumPy reads nothing, and multi-tensor kernels do the work."""
    accelerated_by(monkeypatch)


def accelerated_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "_is_on_host", lambda tensor: tensor.device.type == "mps")
    monkeypatch.setattr(parts, "LARGE", 20)
    monkeypatch.setattr(parts, "PART", 30)


@slow(DTYPES_ALIKE, lambda row, dtype: dtype in ("float16", "float64") or row not in first())
@pytest.mark.parametrize(
    ("row", "dtype"),
    [(row, dtype) for row in registry.ROWS for dtype in registry.DTYPES[:4] if dtype != "float16" or row in first()],
    ids=str,
)
def test_right_numbers_with_the_kernels_of_accelerators(row: Row, dtype: str, accelerated: None) -> None:
    assert_right(row, shared_group(row, dtype, large=True), "torch", "eager")


@pytest.mark.parametrize("attached", [False, True], ids=["apply_", "attach"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tx", [*OWNED, *IN_PLACE])
def test_in_place_as_by_numpy(tx: str, dtype: Any, attached: bool, accelerated: None) -> None:
    """Several steps on parameters, one with a read-only gradient, compared with NumPy."""
    shapes = {"a": (3, 40), "b": (5,), "c": (2, 2), "d": (1, 1), "e": (1, 1, 1), "f": ()}
    transform, rng = gx.parse(tx), np.random.default_rng(0)
    parameters = {name: torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for name, shape in shapes.items()}
    start = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    expected, state = transform.init(start), gx.torch.init(transform, parameters.items())
    optimizer = Still(parameters.items(), {})
    if attached:
        gx.torch.attach(optimizer, transform)
    for _ in range(4):
        given = {name: torch.tensor(rng.standard_normal(shape)).to(dtype) for name, shape in shapes.items()}
        given["c"] = given["c"][:1].expand(2, 2)
        wanted, expected = transform.update({name: g.float().numpy() for name, g in given.items()}, expected)
        for name, parameter in parameters.items():
            parameter.grad = given[name].clone() if name != "c" else given[name]
        if attached:
            optimizer.step()
        else:
            state = gx.torch.apply_(transform, parameters.items(), state)
        for name, parameter in parameters.items():
            found = np.zeros(shapes[name]) if parameter.grad is None else parameter.grad.float().numpy()
            near = torch.tensor(wanted[name]).to(dtype).float().numpy()
            # Of terms, which are about one.
            unit = 2.0**-20 if dtype == torch.float32 else 2.0**-6
            assert np.abs(found - near).max() <= unit * max(1.0, np.abs(near).max())


@pytest.mark.parametrize("tx", ["ema(0.9)", "trace(0.9)", "sign()", "clip_global_norm(1.0)", "clip_norm(1.0)"])
def test_gradients_on_two_devices(tx: str) -> None:
    transform = gx.parse(tx)
    with FakeTensorMode():
        given = {name: torch.empty(3, 4, device=device) for name, device in (("a", "cuda:0"), ("b", "cuda:1"))}
        updates, _ = transform.update(given, transform.init(given))
        assert [str(leaf.device) for leaf in updates.values()] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("tx", ["add_decayed_weights(0.1)", "clip_adaptive(0.1, axes=0)"])
def test_parameters_that_require_a_gradient(tx: str, accelerated: None) -> None:
    parameters = {"w": torch.nn.Parameter(torch.ones(3, 4))}
    found = gx.parse(tx)({"w": torch.ones(3, 4)}, params=parameters)["w"]
    wanted = gx.parse(tx)({"w": np.ones((3, 4), np.float32)}, params={"w": np.ones((3, 4), np.float32)})["w"]
    assert ulps(found.detach().numpy(), wanted).max() <= 2


def test_float32_beside_float64(accelerated: None) -> None:
    tx = gx.chain(gx.clip_norm(1.0), gx.trace(0.9))
    given = {"w": np.full(30, 2.0, np.float32), "v": np.full(4, 3.0)}
    tensors = {name: torch.from_numpy(leaf) for name, leaf in given.items()}
    found, wanted = (tx.update(tree, tx.init(tree))[0] for tree in (tensors, given))
    for name, leaf in wanted.items():
        assert ulps(found[name].numpy(), leaf).max() <= (32 if leaf.dtype == np.float64 else 8)


OVER_AXES = ("clip_norm(1.0, {})", "clip_norm(1.0, {}, ord=1)", "clip_norm(9.0, {}, ord=3)")
OVER_AXES += ("clip_adaptive(0.1, {})", "centralize({})")
SHAPES = [*[(2, 3, 2)] * 3, (3, 2, 2), (2, 3, 2), (1, 1, 7), (4, 2, 9), (90, 2, 1), (1, 2, 90), (2, 0, 3)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "tx",
    [tx.format(f"axes={axes}") for tx in OVER_AXES for axes in ("(0,)", "(-1, 0)", "(0, 1, 2)")] + ["clip_norm(1.0)"],
)
def test_leaves_that_lie_alike_and_their_slices(tx: str, dtype: str, accelerated: None) -> None:
    """Of several shapes and sizes, some with other strides or gaps, and more elements than are copied at a time."""
    rng, shapes = np.random.default_rng(0), SHAPES if "axes" in tx else [*SHAPES, (), ()]
    sizes = [3.0 if "central" in tx else 10.0 ** (i % 7) for i in range(len(shapes))]
    given = [
        torch.tensor(rng.standard_normal(shape) * size).to(getattr(torch, dtype))
        for shape, size in zip(shapes, sizes, strict=True)
    ]
    given[1], given[2] = given[1].mT.contiguous().mT, torch.cat([given[2], given[2]], 1)[:, :3]
    params = [torch.tensor(rng.standard_normal(shape), dtype=given[0].dtype) for shape in shapes]
    transform = gx.parse(tx)
    wide = [[leaf.double().numpy() for leaf in tree] for tree in (given, params)]
    wanted = transform(wide[0], params=wide[1])
    before = [leaf.clone() for leaf in given]
    found = transform(given, params=params)
    assert all(torch.equal(leaf, old) for leaf, old in zip(given, before, strict=True))
    parameters = list(map(torch.nn.Parameter, params))
    for parameter, leaf in zip(parameters, given, strict=True):
        parameter.grad = leaf
    gx.torch.apply_(transform, parameters)
    kind = np.float64 if dtype == "float64" else np.float32
    budget = (
        2**16 if dtype == "bfloat16" else 32 if "ord=3" in tx or dtype == "float64" else 8 if "central" in tx else 4
    )
    least = {"float64": 1e-14, "float32": 1e-6}.get(dtype, 0.0)  # where means are nearly subtracted from themselves
    for new, parameter, right in zip(found, parameters, wanted, strict=True):
        near = torch.tensor(right).to(new.dtype).to(torch.double).numpy().astype(kind)
        for result in (new, parameter.grad):
            distance = ulps(result.double().numpy().astype(kind), near)
            close = np.isclose(result.double().numpy(), right, rtol=0, atol=least) if "central" in tx else False
            assert np.all((distance <= budget) | close)


def test_infinity_times_what_float32_does_not_hold(accelerated: None) -> None:
    found = gx.scale(1e-300)({"w": torch.tensor([math.inf, 1.0, -math.inf, math.nan])})["w"]
    np.testing.assert_array_equal(found.numpy(), np.float32([math.inf, 0.0, -math.inf, math.nan]))
