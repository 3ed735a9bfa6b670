"""gradxform on PyTorch: in place on parameters' gradients, compiled, under torch.func and autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import INDUCTOR, PROCESSES, array, assert_ulp, bits, parameter, python, slow

import gradxform as gx

torch = pytest.importorskip("torch")
from test_derivatives import TXS  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

# PyTorch's warnings about itself on first use.
NOISY = ("`torch.jit:DeprecationWarning", "Sparse invariant checks:UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore:{each}") for each in NOISY]

CLIP = gx.clip_norm(1.0)
W, CLIPPED = [3.0, 4.0], [0.6, 0.8]


# --- what apply_ takes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        lambda p: [("a", p[0]), ("b", p[1])],
        lambda p: iter([("a", p[0]), ("b", p[1])]),
        lambda p: {"a": p[0], "b": p[1]}.items(),
        lambda p: p,
        lambda p: p[0],
        lambda p: (q for q in p),
        lambda p: {"a": p[0], "b": p[1]},
        lambda p: torch.nn.ParameterDict({"a": p[0], "b": p[1]}),
        lambda p: torch.nn.ParameterList(p),
        lambda p: torch.nn.ParameterList(p).parameters(),
        lambda p: torch.nn.ParameterList(p).named_parameters(),
    ],
    ids="pairs iterator items list one generator dict ParameterDict module parameters named_parameters".split(),
)
def test_what_parameters_may_be(given: Callable[[Any], Any]) -> None:
    parameters = [parameter(W), parameter([0.3, 0.4])]
    assert gx.torch.apply_(CLIP, given(parameters)) is None
    assert_ulp(parameters[0].grad, CLIPPED)
    assert_ulp(parameters[1].grad, [0.3, 0.4], ulp=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize(
    "tx",
    [
        "clip_global_norm(1.0)",
        "chain(clip_norm(2.0), clip_global_norm(1.0))",
        "clip_value(0.5)",
        "scale(-0.1)",
        "masked(clip_norm(1.0), '0')",
        "identity()",
    ],
)
def test_the_norm_before_is_the_one_that_clip_grad_norm_returns(tx: str, dtype: Any) -> None:
    if tx.startswith("clip_value") and dtype.is_complex:
        pytest.skip("complex numbers are in no order")
    leaves = np.random.default_rng(0).standard_normal((2, 300))
    parameters = [parameter(leaf, dtype) for leaf in leaves]
    wide = torch.stack([p.grad.to(torch.complex128) for p in parameters])
    wanted = torch.linalg.vector_norm(wide).numpy()
    norm = gx.torch.apply_(gx.parse(tx), parameters, return_norm=True)
    assert norm.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert not norm.shape and not norm.requires_grad
    assert_ulp(norm, wanted.astype(array(norm).dtype), ulp=1)


# --- gradients of every kind -----------------------------------------------------------------------------------------


def test_a_tied_parameter_counts_and_is_scaled_once() -> None:
    tied = parameter(W)
    model = torch.nn.ModuleDict({"a": torch.nn.ParameterList([tied]), "b": torch.nn.ParameterList([tied])})
    for given in (model, [tied, tied], model.named_parameters(remove_duplicate=False)):
        tied.grad = torch.tensor(W)
        gx.torch.apply_(gx.chain(gx.clip_global_norm(1.0), gx.scale(0.5)), given)
        assert_ulp(tied.grad, [0.3, 0.4])


def test_one_gradient_of_two_parameters_is_scaled_once() -> None:
    first, second = parameter(W), parameter(W)
    second.grad = first.grad
    gx.torch.apply_(CLIP, [first, second])
    assert_ulp(first.grad, CLIPPED)
    assert_ulp(second.grad, CLIPPED)


@pytest.mark.parametrize(
    "tx", [gx.scale(0.5), gx.clip_norm(1.0), gx.clip_value(1.0), gx.clip_norm(1.0, axes=0), gx.top_k(0.2)], ids=repr
)
def test_a_gradient_of_any_strides_is_written_in_place_unless_elements_share_memory(tx: Any) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    for view in (whole.clone().t(), whole.clone()[1::2, ::3], whole.clone()[:, 2], torch.tensor(3.0).expand(4)):
        wanted, p = tx(view.clone()), parameter(view)
        gx.torch.apply_(tx, [p])
        assert (p.grad is view) is bool(view.stride()[0])
        assert_ulp(p.grad, wanted, ulp=0)


def test_a_gradient_with_a_history() -> None:
    x = torch.tensor(W, requires_grad=True)
    p = parameter(x * 1.0)
    gx.torch.apply_(CLIP, [p])
    assert_ulp(p.grad.detach(), CLIPPED)


# --- in place --------------------------------------------------------------------------------------------------------

IN_PLACE = [
    gx.clip_norm(1.0),
    gx.clip_global_norm(1.0),
    gx.clip_value(0.5),
    gx.clip_norm(1.0, axes=0),
    gx.clip_norm(0.0),
    gx.scale(-0.5),
    gx.scale(1e-40),
    gx.chain(gx.scale(0.7), gx.clip_value(0.4), gx.clip_global_norm(0.5), gx.clip_norm(0.3), gx.scale(2.0)),
]


@pytest.mark.parametrize(
    "tx",
    [
        gx.clip_norm(9.0),
        gx.clip_global_norm(9.0),
        gx.clip_norm(5.0),
        gx.identity(),
        gx.chain(gx.scale(2.0), gx.scale(0.5)),
    ],
    ids=repr,
)
def test_nothing_is_written_when_no_clip_is_due(tx: Any) -> None:
    p, q = parameter(W), parameter([0.0, 0.0])
    before = [(x.grad, x.grad.data_ptr(), x.grad._version) for x in (p, q)]
    gx.torch.apply_(gx.chain(tx, tx), [p, q])
    assert [(x.grad.data_ptr(), x.grad._version) for x in (p, q)] == [entry[1:] for entry in before]
    assert all(x.grad is entry[0] for x, entry in zip((p, q), before, strict=True))


@pytest.mark.parametrize("tx", [gx.scale(0.5), gx.add_decayed_weights(0.1, cautious=True)], ids=repr)
def test_autograd_notices_that_a_gradient_was_overwritten(tx: Any) -> None:
    p, x = parameter(W), torch.ones(2, requires_grad=True)
    product = (x * p.grad).sum()
    gx.torch.apply_(tx, [p])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_the_results_of_a_pure_call_are_no_views_of_each_other() -> None:
    given = torch.tensor(W)
    first, second = gx.chain(gx.scale(2.0), gx.clip_value(1.0))([given, given])
    assert len({given.data_ptr(), first.data_ptr(), second.data_ptr()}) == 3


WEIGHTS = torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)


def slope(tx: Any, point: Any) -> Any:
    x = torch.as_tensor(point).clone().requires_grad_()
    return torch.autograd.grad((WEIGHTS.to(x.dtype) * tx(x)).sum(), x)[0]


def test_a_large_leaf_has_a_derivative() -> None:
    x = torch.full((20000,), 2.0, requires_grad=True)
    CLIP(x)[:2].sum().backward()
    factor = 1 / (2 * 20000**0.5)
    np.testing.assert_allclose(x.grad[:3], [factor, factor, 0.0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", TXS)
@pytest.mark.parametrize("point", [[0.0, 0.0, 0.0], [0.3, 0.2, 0.1], [3.0, -4.0, 2.0]], ids=["zero", "below", "beyond"])
def test_torch_func_grad_and_jacobians(name: str, point: Any) -> None:
    tx, x = TXS[name], torch.tensor(point, dtype=torch.float64)
    wanted = slope(tx, x)
    found = torch.func.grad(lambda x: (WEIGHTS * tx(x)).sum())(x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-15)
    for jacobian in (torch.func.jacrev(tx), torch.func.jacfwd(tx)):
        np.testing.assert_allclose(WEIGHTS @ jacobian(x), wanted, rtol=0, atol=1e-15)


# --- compiled, traced, without a look at values ----------------------------------------------------------------------

COLD = """
import {imports}
tx = gx.chain(gx.clip_value(3.5), gx.clip_norm(2.0), gx.clip_global_norm(1.0), gx.scale(-0.1))
tree = {{"w": torch.tensor([3.0, 4.0]), "b": [torch.tensor([0.1]), None]}}
compiled = torch.compile(tx, fullgraph=True, backend="eager")
assert [compiled(nothing) for nothing in ({{}}, {{"w": None}})] == [{{}}, {{"w": None}}]
result = compiled(tree)
wanted = tx(tree)
assert result["b"][1] is None
assert gx.testing.max_ulp(result["w"].numpy(), wanted["w"].numpy()) <= 1, (result, wanted)

@torch.compile(fullgraph=True, backend="eager")
def built_inside(tree, limit):
    return gx.partition({{"w": gx.clip_norm(limit)}}, default=gx.stop())(tree)

result = built_inside(tree, torch.tensor(1.0))
assert gx.testing.max_ulp(result["w"].numpy(), gx.clip_norm(1.0)(tree["w"]).numpy()) <= 1, result
assert result["b"][0].tolist() == [0.0]
"""


COLD_INSIDE = """
import {imports}
@torch.compile(fullgraph=True, backend="eager")
def clipped(tree):
    return gx.chain(gx.clip_norm(1.0), gx.scale(2.0))(tree)

result = clipped({{"w": torch.tensor([3.0, 4.0]), "b": None}})
assert result["b"] is None
assert (result["w"] - torch.tensor([1.2, 1.6])).abs().max() < 1e-6, result
"""


@slow(PROCESSES, code=COLD)
@pytest.mark.parametrize(
    ("code", "imports"),
    [(COLD, "torch, gradxform as gx"), (COLD_INSIDE, "gradxform as gx, torch")],
    ids=["given", "built"],
)
def test_compile_cold(code: str, imports: str) -> None:
    python("-c", code.format(imports=imports))


def named_b(path: str, name: str = "b") -> bool:
    return path == name


def test_functions_as_where_in_a_compiled_function() -> None:
    """Functions with a leaf argument, with a default for it, and without; defined inside and outside."""
    tree = {"a": torch.ones(2), "b": torch.ones(3)}

    def made_within(tree: Any) -> Any:
        wheres = (lambda path: path == "b", lambda path, leaf: len(leaf) == 3, lambda path, leaf=None: len(leaf) == 3)
        return [gx.freeze(where)(tree) for where in wheres]

    outside = gx.freeze(named_b)
    for found in [*torch.compile(made_within, fullgraph=True, backend="eager")(tree),
                  torch.compile(outside, fullgraph=True, backend="eager")(tree)]:  # fmt: skip
        assert (found["a"].tolist(), found["b"].tolist()) == ([1.0] * 2, [0.0] * 3)


COMPILED = [
    gx.clip_norm(1.0),
    gx.clip_norm(1.0, ord=3),
    gx.clip_norm(1.0, axes=0),
    gx.clip_global_norm(1.0),
    gx.clip_global_norm(1.0, ord=float("inf")),
    gx.clip_value(0.5),
    gx.scale(-0.1),
    gx.stop(),
    gx.top_k(0.2),
    gx.chain(gx.scale(0.7), gx.clip_value(0.4), gx.clip_global_norm(0.5), gx.clip_norm(0.3), gx.scale(2.0)),
    gx.chain(gx.masked(gx.clip_norm(1.0), "a"), gx.freeze("b"), gx.scale(0.5)),
    gx.partition({"a": gx.scale(2.0)}, default=gx.clip_norm(0.1)),
]


def test_apply_compiled_whole() -> None:
    torch.compiler.reset()
    clipped, stopped, none = parameter(W), parameter(W), parameter(None)
    named = {"clipped": clipped, "stopped": stopped, "none": none}
    tx = gx.chain(gx.freeze("stopped"), gx.trace(0.5), gx.clip_global_norm(1.0), gx.clip_value(0.7))
    state = gx.torch.init(tx, named.items())
    torch.compile(lambda: gx.torch.apply_(tx, named, state), fullgraph=True, dynamic=True, backend="eager")()
    assert_ulp(clipped.grad, [0.6, 0.7])
    assert stopped.grad is None
    assert none.grad is None


def test_hooks_of_tensors_and_parameters() -> None:
    p, q = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    p.register_hook(CLIP)
    q.register_post_accumulate_grad_hook(lambda q: gx.torch.apply_(CLIP, [q]))
    ((p + q) * torch.tensor(W)).sum().backward()
    assert_ulp(p.grad, CLIPPED)
    assert_ulp(q.grad, CLIPPED)


def test_under_autocast_nothing_is_cast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_ulp(CLIP(torch.tensor(W)), CLIPPED)
        assert_ulp(CLIP(torch.tensor(W, requires_grad=True)).detach(), CLIPPED)
        large = CLIP(torch.full((20000,), 2.0))
    assert bits(large) == bits(CLIP(torch.full((20000,), 2.0)))


class NoRead(TorchDispatchMode):
    """Raise on a host sync."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            raise AssertionError(f"a value is read by {func}")
        return func(*args, **(kwargs or {}))


def test_the_watch_sees_a_read() -> None:
    with NoRead(), pytest.raises(AssertionError, match="a value is read"):
        torch.ones(1).item()


def first_step(tx: Any, tree: Any) -> Any:
    updates, state = tx.update(tree, tx.init(tree))
    return updates, gx.metrics(state)


MEASURED = [*COMPILED, gx.measure(gx.chain(gx.clip_norm(2.0), gx.clip_global_norm(1.0), gx.scale(-0.1)))]


@pytest.mark.parametrize("tx", MEASURED, ids=repr)
def test_no_value_is_read_where_gradients_flow(tx: Any) -> None:
    tree = {"a": torch.tensor(W, requires_grad=True), "b": torch.tensor([[0.1, 7.0]], requires_grad=True)}
    with NoRead():
        result, metrics = first_step(tx, tree)
    assert len(metrics) == 15 * tx.stateful
    wanted, _ = first_step(tx, {k: v.detach() for k, v in tree.items()})
    for key in tree:
        assert_ulp(result[key].detach(), wanted[key])


class Clipper(torch.nn.Module):
    def forward(self, gradient: Any) -> Any:
        return gx.chain(CLIP, gx.clip_value(0.7))(gradient)


def traced(mode: str) -> Any:
    """A program that was traced with small numbers."""
    from torch.fx.experimental.proxy_tensor import make_fx

    small = torch.tensor([0.1, 0.1])
    if mode == "export":
        return torch.export.export(Clipper(), (small,)).module()
    if mode == "jit":
        return torch.jit.trace(lambda gradient: Clipper()(gradient), (small,), check_trace=False)
    return make_fx(gx.chain(CLIP, gx.clip_value(0.7)), tracing_mode=mode)(small)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("mode", ["export", "jit", "real", "fake", "symbolic"])
def test_a_traced_program_has_no_value_baked_in(mode: str) -> None:
    assert_ulp(traced(mode)(torch.tensor(W)), [0.6, 0.7])


# --- trees and modes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(mode: Any) -> None:
    with mode():
        p = parameter(W)
        gx.torch.apply_(gx.chain(CLIP, gx.clip_value(0.7)), [p])
        assert_ulp(p.grad, [0.6, 0.7])
        assert_ulp(CLIP(torch.tensor(W)), CLIPPED)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("tx", IN_PLACE, ids=repr)
def test_a_default_dtype_or_device_of_the_user_changes_nothing(tx: Any, requires_grad: bool) -> None:
    given = torch.tensor(W, requires_grad=requires_grad)
    wanted = tx(given).detach()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            result = tx(given).detach()
    finally:
        torch.set_default_dtype(torch.float32)
    assert bits(result) == bits(wanted)


def test_a_subclass_of_tensor() -> None:
    class Own(torch.Tensor):
        pass

    result = CLIP(torch.tensor(W).as_subclass(Own))
    assert isinstance(result, Own)
    assert_ulp(result.as_subclass(torch.Tensor), CLIPPED)


VIEWS = {
    "conjugate": lambda: torch.tensor([3.0 + 4.0j, 1.0 - 2.0j]).conj(),
    "negative": lambda: torch.tensor([3.0 + 4.0j, 1.0 - 2.0j]).conj().imag,
}
"""As autograd gives them to parameters that are used conjugated."""
OF_VIEWS = ["scale(0.5)", "clip_norm(1.0)", "clip_value(0.5)", "trace(0.9)", "add_decayed_weights(1.0)"]
OF_VIEWS += ["chain(top_k(0.5), scale(2.0))"]  # writes into what `top_k` made


@pytest.mark.parametrize(
    ("view", "expression"),
    [(v, e) for v in VIEWS for e in OF_VIEWS if v == "negative" or not e.startswith(("clip_value", "chain(top_k"))],
)
def test_views_that_conjugate_or_negate(view: str, expression: str) -> None:
    """In a call, also of what a gradient is asked of, in place, and within an optimizer."""
    given, tx = VIEWS[view](), gx.parse(expression)
    assert given.is_conj() or given.is_neg()
    plain = given.resolve_conj().resolve_neg().clone()
    np.testing.assert_array_equal(gx.torch.backend.to_numpy(given), plain.numpy())
    ones = {"a": torch.ones_like(plain), "b": torch.ones_like(plain)}
    state = tx.init(ones)
    wanted = tx.update(dict.fromkeys(ones, plain), state, ones)[0]
    asked = [{name: VIEWS[view]().requires_grad_(asked) for name in ones} for asked in (False, True)]
    found = [tx.update(tree, state, ones)[0] for tree in asked]
    for attached in (False, True):
        named = {name: torch.nn.Parameter(leaf.clone()) for name, leaf in ones.items()}
        optimizer = torch.optim.SGD(named.items(), lr=1.0)
        for p in named.values():
            p.grad = VIEWS[view]()
        if attached:
            gx.torch.attach(optimizer, tx)
            optimizer.step()
        else:
            gx.torch.apply_(tx, named, gx.torch.init(tx, named) if tx.stateful else None)
        found.append({name: p.grad for name, p in named.items()})
    for each in found:
        assert bits({name: leaf.detach().resolve_conj().resolve_neg() for name, leaf in each.items()}) == bits(wanted)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", ["sparse_csr", "sparse_csc", "nested", "jagged", "mkldnn"])
def test_a_layout_that_is_no_gradients_says_what_to_write(layout: str) -> None:
    parts, x = [torch.ones(2), torch.ones(3)], torch.ones(2, 2)
    given = {
        "sparse_csr": x.to_sparse_csr,
        "sparse_csc": x.to_sparse_csc,
        "nested": lambda: torch.nested.nested_tensor(parts),
        "jagged": lambda: torch.nested.nested_tensor(parts, layout=torch.jagged),
        "mkldnn": x.to_mkldnn,
    }[layout]()
    with pytest.raises(TypeError, match=r"a gradient has the layout .*write gradient.to_dense\(\)"):
        gx.clip_norm(1.0)([torch.ones(1), given])


def test_clips_of_examples_compile_once_for_batches_of_all_lengths() -> None:
    graphs: list[Any] = []

    def kept(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def clip(x: Any, y: Any) -> Any:
        return gx.per_example_clip_norm({"x": x, "y": y}, 1.0)[0]

    compiled = torch.compile(clip, fullgraph=True, dynamic=True, backend=kept)
    for length in (3, 4, 7):
        compiled(torch.ones(length, 12), torch.ones(length, 13))
    assert len(graphs) == 1


@slow(INDUCTOR, make=(gx.scale, gx.clip_norm))
@pytest.mark.parametrize("make", [gx.clip_value, gx.scale, gx.clip_norm, gx.ema])
def test_torch_compile_of_a_schedule_that_returns_a_constant(make: Any) -> None:
    tx, tree = make(lambda step: 0.5), {"a": torch.tensor([3.0, 0.1])}
    state = tx.init(tree)
    found = torch.compile(tx.update, fullgraph=True, backend="eager")(tree, state)[0]
    assert_ulp(found, tx.update(tree, state)[0], 1)
