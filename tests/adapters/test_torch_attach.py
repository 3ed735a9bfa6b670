"""Transforms attached to PyTorch optimizers, and their states."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import math
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optree
import pytest
from conformance import ONES, drawn
from drivers import TorchAttach
from support import INDUCTOR, assert_ulp, bits, parameter, slow

import gradxform as gx

torch = pytest.importorskip("torch")
from torch._dynamo.testing import CompileCounter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")

W, CLIPPED = [3.0, 4.0], [0.6, 0.8]
STATEFUL = gx.chain(gx.clip_percentile(50.0, 3), gx.masked(gx.trace(0.5), "body/**"), gx.clip_norm(lambda t: 2.0 + t))


class Model(torch.nn.Module):
    """A small net whose gradients vary from step to step."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        self.scale = torch.nn.Parameter(torch.ones(1, 3))

    def loss(self, step: int) -> Any:
        x = torch.sin(torch.arange(20.0).reshape(5, 4) + step)
        return ((self.body(x) * self.scale) ** 2).sum() * (1.0 + 3.0 * (step % 3))


def backward(optimizer: Any, model: Model, step: int) -> None:
    optimizer.zero_grad()
    model.loss(step).backward()


def train(optimizer: Any, model: Model, steps: range, before: Callable[[], None] = lambda: None) -> None:
    for step in steps:
        backward(optimizer, model, step)
        before()
        optimizer.step()


def weights(model: Any) -> Any:
    return bits(list(model.parameters()))


def saved_and_loaded(state_dict: Any) -> Any:
    """Save to a file and load with weights_only."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# --- any optimizer ---------------------------------------------------------------------------------------------------


def optimizers() -> Iterator[Any]:
    for name, kind in sorted(vars(torch.optim).items()):
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            if name not in ("LBFGS", "SparseAdam"):  # tested separately
                yield pytest.param(kind, id=name)


@pytest.mark.parametrize("kind", list(optimizers()))
def test_any_optimizer_steps_as_after_apply(kind: Any) -> None:
    first, second = Model(), Model()
    keep = {"Muon": lambda model: [p for p in model.named_parameters() if p[1].ndim == 2]}
    named = keep.get(kind.__name__, lambda model: list(model.named_parameters()))
    attached, by_hand = kind(named(first), lr=0.1), kind(named(second), lr=0.1)
    handle = gx.torch.attach(attached, STATEFUL)
    state = gx.torch.init(STATEFUL, named(second))

    def apply_() -> None:
        nonlocal state
        state = gx.torch.apply_(STATEFUL, named(second), state)

    train(attached, first, range(4))
    train(by_hand, second, range(4), apply_)
    assert weights(first) == weights(second) != weights(Model())
    assert bits(handle.state) == bits(state)
    handle.remove()
    train(attached, first, range(2))
    train(by_hand, second, range(2))
    assert weights(first) == weights(second)
    assert bits(handle.state) == bits(state)
    models = [Model(), Model()]
    for model, unchanged in zip(models, (True, False), strict=True):
        optimizer = kind(named(model), lr=0.1)
        if unchanged:
            gx.torch.attach(optimizer, gx.clip_norm(1e9), on="updates")
        train(optimizer, model, range(4))
    assert weights(models[0]) == weights(models[1]) != weights(Model())


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS], ids=["SGD", "LBFGS"])
@pytest.mark.parametrize("keyword", [False, True])
def test_the_gradients_that_a_closure_makes(make: Any, keyword: bool) -> None:
    w = torch.nn.Parameter(torch.tensor(W))
    optimizer = make([w], lr=1.0, **({"max_iter": 1} if make is torch.optim.LBFGS else {}))
    handle = gx.torch.attach(optimizer, gx.chain(gx.trace(0.5), gx.clip_norm(0.5)))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (w**2).sum() / 2
        loss.backward()
        return loss

    loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    assert loss.detach() == 12.5
    assert_ulp(w.grad, [0.3, 0.4])
    assert_ulp(handle.state[0].trace["0"], W)


PATHS = ["scale", "body/0/weight", "body/0/bias", "body/2/weight", "body/2/bias"]


def test_paths_of_what_has_parameters() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.named_parameters())
    handle = gx.torch.attach(optimizer, gx.freeze("scale"))
    for given in (model, optimizer, handle, model.named_parameters(), list(model.named_parameters())):
        assert gx.paths(given) == PATHS
    assert gx.paths(model.body[0]) == ["weight", "bias"]
    assert gx.paths(torch.compile(model))[0] == "_orig_mod/scale"
    assert gx.paths(torch.optim.SGD(model.parameters())) == gx.paths(model.parameters()) == list("01234")
    assert gx.paths({name: p.grad for name, p in model.named_parameters()}) == []
    assert gx.paths(dict(model.named_parameters()))[1] == "body.0.weight"
    optimizer.add_param_group({"params": [("new", torch.nn.Parameter(torch.ones(1)))]})
    assert gx.paths(handle) == [*PATHS, "new"]
    del optimizer
    gc.collect()
    assert gx.paths(handle) == PATHS


# --- the handle ------------------------------------------------------------------------------------------------------


def test_two_at_once_run_in_the_order_they_were_attached_in() -> None:
    p = parameter(W)
    optimizer = torch.optim.SGD([p], lr=1.0)
    first = gx.torch.attach(optimizer, gx.chain(gx.trace(0.5), gx.clip_norm(1.0)))
    second = gx.torch.attach(optimizer, gx.chain(gx.scale(3.0), gx.trace(0.25)))
    optimizer.step()
    assert_ulp(p.grad, [1.8, 2.4])
    kept = saved_and_loaded(optimizer.state_dict())
    assert saved_in(optimizer) == ["gradient_transformation", "gradient_transformation_1"]
    wanted = [bits(handle.state) for handle in (first, second)]
    p.grad = torch.tensor(W)
    optimizer.step()
    optimizer.load_state_dict(kept)
    assert [bits(handle.state) for handle in (first, second)] == wanted
    first.remove()
    assert saved_in(optimizer) == ["gradient_transformation"]
    first.remove()  # a second call does nothing


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_an_optimizer_that_lightning_wraps() -> None:
    lightning = pytest.importorskip("lightning")
    wrapped = lightning.pytorch.core.optimizer.LightningOptimizer(torch.optim.SGD([parameter(W)], lr=1.0))
    gx.torch.attach(wrapped, gx.trace(0.5))
    gx.torch.attach(wrapped.optimizer, gx.trace(0.9))
    assert saved_in(wrapped.optimizer) == ["gradient_transformation", "gradient_transformation_1"]
    with gx.torch.attach(wrapped, gx.measure(gx.clip_norm(1.0), name="own")):
        assert "own/norm_before" in gx.metrics(wrapped)


def saved_in(optimizer: Any) -> list[str]:
    return [key for key in optimizer.state_dict()["param_groups"][0] if key.startswith("gradient")]


def test_the_optimizer_is_freed_with_what_is_attached() -> None:
    optimizer = torch.optim.SGD([parameter(W)], lr=1.0)
    handle = gx.torch.attach(optimizer, gx.trace(0.5))
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    handle.remove()


def test_a_copy_of_an_optimizer_has_no_hooks() -> None:
    optimizer = torch.optim.SGD([parameter(W)], lr=1.0)
    gx.torch.attach(optimizer, gx.clip_norm(1.0))
    other = copy.deepcopy(optimizer)
    other.param_groups[0]["params"][0].grad = torch.tensor(W)
    other.step()
    assert other.param_groups[0]["params"][0].tolist() == [-3.0, -4.0]


def test_groups_that_are_added_later() -> None:
    first, second = parameter(W), parameter(W)
    optimizer = torch.optim.SGD([{"params": [first]}], lr=1.0)
    handle = gx.torch.attach(optimizer, gx.chain(gx.clip_global_norm(1.0), gx.trace(0.5)))
    optimizer.step()
    assert_ulp(handle.state[1].trace["0"], CLIPPED)
    optimizer.add_param_group({"params": [second], "lr": 0.5})
    first.grad, second.grad = torch.tensor(W), torch.tensor(W)
    optimizer.step()
    alone = torch.tensor(W) / 50**0.5
    assert_ulp(handle.state[1].trace["0"], alone + torch.tensor(CLIPPED) / 2, ulp=4)
    assert_ulp(handle.state[1].trace["1"], alone)
    assert_ulp(second.detach(), -alone / 2)


def test_a_group_that_is_added_later_has_no_row_in_a_table() -> None:
    optimizer = torch.optim.SGD([parameter(W)], lr=1.0)
    gx.torch.attach(optimizer, gx.clip_percentile(50.0, 3, per_leaf=True))
    optimizer.add_param_group({"params": [parameter(W)]})
    with pytest.raises(ValueError, match=r"clip_percentile.*'count' .*attach again"):
        optimizer.step()


@pytest.mark.parametrize("on", ["gradients", "updates"])
def test_a_class_that_calls_the_step_of_its_base(on: str) -> None:
    """PyTorch calls the hooks of both classes if the base class was used before."""

    class Mine(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    for closure in (None, lambda: None):
        torch.optim.SGD([parameter(W)], lr=1.0)
        p = parameter(W)
        optimizer = Mine([p], lr=1.0)
        handle = gx.torch.attach(optimizer, gx.chain(gx.scale(0.5), gx.ema(0.5)), on=on)
        for count in (1, 2):
            p.grad = torch.tensor(W)
            optimizer.step(closure)
            assert int(handle.state[1].count) == count
            assert_ulp(p.detach(), np.float32([-1.5, -2.0]) * count, 1)
        with pytest.raises(RuntimeError, match="in the closure"):
            optimizer.step(raising)
        optimizer.step()
        assert int(handle.state[1].count) == 3


def raising() -> None:
    raise RuntimeError("in the closure")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_distributed_checkpoints_hold_the_state() -> None:
    """These functions initialize the optimizer's state with a step of zeros, which must not count."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = Model()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1)
    handle = gx.torch.attach(optimizer, gx.ema(0.9))
    fresh = bits(handle.state)
    checkpoint.get_optimizer_state_dict(model, optimizer)
    assert bits(handle.state) == fresh
    train(optimizer, model, range(2))
    kept = copy.deepcopy(checkpoint.get_optimizer_state_dict(model, optimizer))
    other = Model()
    restored = torch.optim.AdamW(other.named_parameters(), lr=0.1)
    other_handle = gx.torch.attach(restored, gx.ema(0.9))
    other.load_state_dict(model.state_dict())
    checkpoint.set_optimizer_state_dict(other, restored, kept)  # includes the transform's state
    assert bits(other_handle.state) == bits(handle.state)
    train(optimizer, model, range(2, 4))
    train(restored, other, range(2, 4))
    assert weights(model) == weights(other)


def test_a_handle_that_is_pickled_keeps_its_state_and_is_attached_to_nothing() -> None:
    optimizer = torch.optim.SGD([parameter(W)], lr=1.0)
    handle = gx.torch.attach(optimizer, gx.chain(gx.clip_norm(1.0), gx.trace(0.5)))
    optimizer.step()
    for other in (pickle.loads(pickle.dumps(handle)), copy.deepcopy(handle)):
        assert other.tx == handle.tx and bits(other.state) == bits(handle.state)
        other.state = gx.to_numpy(handle.state)
        other.remove()
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_a_model_that_has_moved_to_another_device_takes_its_state_along() -> None:
    optimizer = torch.optim.SGD([parameter(W)], lr=1.0)
    handle = gx.torch.attach(optimizer, gx.chain(gx.trace(0.5), gx.clip_norm(lambda t: 10.0 + t)))
    optimizer.step()
    moved = torch.nn.Parameter(torch.zeros(2, device="meta"))
    moved.grad = torch.zeros(2, device="meta")
    optimizer.param_groups[0]["params"][0] = moved
    optimizer.step()
    assert {leaf.device.type for leaf in optree.tree_leaves(handle.state)} == {"meta"}


# --- state_dict ------------------------------------------------------------------------------------------------------


def test_a_state_dict_that_was_loaded_is_not_changed_and_one_that_is_refused_changes_nothing() -> None:
    optimizer = torch.optim.SGD([parameter(W)], lr=1.0)
    handle = gx.torch.attach(optimizer, gx.trace(0.5))
    gx.torch.attach(optimizer, gx.ema(0.5))
    optimizer.step()
    kept = optimizer.state_dict()
    before = bits(kept["param_groups"][0]["gradient_transformation"])
    optimizer.load_state_dict(kept)
    optimizer.step()
    assert bits(kept["param_groups"][0]["gradient_transformation"]) == before
    state = bits(handle.state)
    groups = kept["param_groups"]
    for refused in ([], groups * 2, [groups[0] | {"gradient_transformation_1": {}}]):
        with pytest.raises(ValueError, match=r"parameter groups|not of ema\(0\.5\)"):
            optimizer.load_state_dict(kept | {"param_groups": refused})
        assert bits(handle.state) == state


def test_a_state_dict_that_was_loaded_before_the_attachment_is_found() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1)
    handle = gx.torch.attach(optimizer, gx.chain(gx.clip_norm(1.0), gx.ema(0.9)))
    second = gx.torch.attach(optimizer, gx.trace(0.5))
    train(optimizer, model, range(3))
    kept, other = saved_and_loaded(optimizer.state_dict()), Model()
    other.load_state_dict(model.state_dict())
    restored = torch.optim.AdamW(other.named_parameters(), lr=0.1)
    restored.load_state_dict(kept)
    between = torch.optim.AdamW(other.named_parameters(), lr=0.1)
    between.load_state_dict(saved_and_loaded(restored.state_dict()))  # in a program without a transform
    for found in (restored, between):
        first = gx.torch.attach(found, gx.chain(gx.clip_norm(1.0), gx.ema(0.9)))
        assert bits(first.state) == bits(handle.state)
        assert bits(gx.torch.attach(found, gx.trace(0.5)).state) == bits(second.state)
        assert all(not str(key).startswith("gradient_transformation") for key in found.param_groups[0])
    train(optimizer, model, range(3, 6))
    train(restored, other, range(3, 6))
    assert weights(model) == weights(other)


def test_a_state_dict_that_was_loaded_before_the_attachment_of_another_transformation_is_refused() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    gx.torch.attach(optimizer, gx.ema(0.9))
    train(optimizer, model, range(1))
    restored = torch.optim.SGD(Model().named_parameters(), lr=0.1)
    restored.load_state_dict(optimizer.state_dict())
    message = (
        r"torch\.attach: the state_dict has a state that is not of trace\(0.5\): the state lacks .* "
        r"convert them with gx\.from_numpy\(state, like, rename\)\. Attach .*param_groups\[0\]\.pop"
    )
    with pytest.raises(ValueError, match=message):
        gx.torch.attach(restored, gx.trace(0.5))
    assert not restored._optimizer_step_pre_hooks
    gx.torch.attach(restored, gx.clip_norm(1.0))  # stateless
    restored.param_groups[0].pop("gradient_transformation")
    assert not gx.torch.attach(restored, gx.trace(0.5)).state.trace["scale"].any()


@pytest.mark.parametrize("wrapped", [torch.compile, lambda model: torch.nn.ModuleDict({"module": model})])
def test_a_state_is_loaded_within_and_without_what_wraps_a_model(wrapped: Any) -> None:
    """`ModuleDict` stands for DistributedDataParallel."""
    runs = []
    for made in (wrapped, lambda model: model):
        model = Model()
        model.module = torch.nn.ParameterDict({"scale": torch.ones(1, 3)})  # a twin, under the name of a wrapper
        optimizer = torch.optim.AdamW(made(model).named_parameters(), lr=0.1)
        tx = gx.chain(gx.freeze("**/0/bias"), gx.clip_percentile(50.0, 3, per_leaf=True), gx.trace(0.5))
        runs.append((model, optimizer, gx.torch.attach(optimizer, tx)))
        gx.torch.attach(optimizer, gx.masked(gx.clip_norm(0.5), "**/0/weight"))  # stateless
    for (model, optimizer, handle), (other, restored, fresh) in (runs, runs[::-1]):
        train(optimizer, model, range(2))
        paths = gx.paths(restored)
        restored.load_state_dict(saved_and_loaded(optimizer.state_dict()))
        other.load_state_dict(model.state_dict())
        assert bits(list(fresh.state[2].trace.values())) == bits(list(handle.state[2].trace.values()))
        for each in ((model, optimizer), (other, restored)):
            train(*each[::-1], range(2, 4))
        assert weights(model) == weights(other)
        assert gx.paths(restored) == paths


def test_a_state_dict_from_before_the_attachment_is_loaded_with_a_warning() -> None:
    p = parameter(W)
    optimizer = torch.optim.SGD([p], lr=1.0, momentum=0.9)
    optimizer.step()
    kept = saved_and_loaded(optimizer.state_dict())
    gx.torch.attach(optimizer, gx.trace(0.5))
    with pytest.warns(UserWarning, match=r"torch\.attach: the state_dict has no state of trace\(0\.5\)"):
        optimizer.load_state_dict(kept)


@pytest.mark.parametrize("on", ["gradients", "updates"])
def test_a_run_is_unfrozen_and_keeps_what_fits(on: str) -> None:
    """The state of phase 1, or its checkpoint, goes on in a transform of as many parts; of fewer, an error says so."""
    optimizer = torch.optim.SGD([("a", parameter(W)), ("b", parameter(W))], lr=1.0)
    with gx.torch.attach(optimizer, gx.chain(gx.freeze("a"), gx.trace(0.5)), on=on) as handle:
        optimizer.step()
        state, kept = handle.state, saved_and_loaded(optimizer.state_dict())
    for load in (lambda: setattr(handle, "state", state), lambda: optimizer.load_state_dict(kept)):
        with gx.torch.attach(optimizer, gx.chain(gx.identity(), gx.trace(0.5)), on=on) as handle:
            load()
            assert bits(handle.state) == bits(state)
    handle = gx.torch.attach(optimizer, gx.trace(0.5), on=on)
    with pytest.raises(ValueError, match=r"lacks 'trace/a'.* no place for '1/trace/a'.*gx\.identity\(\) keeps"):
        optimizer.load_state_dict(kept)
    assert not any(leaf.any() for leaf in handle.state.trace.values())


# --- what a handle tells --------------------------------------------------------------------------------------------


def one_step(tx: gx.GradientTransformation, *gradients: Any) -> Any:
    """A handle after one step."""
    parameters = [parameter(gradient) for gradient in gradients]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    handle = gx.torch.attach(optimizer, tx)
    assert handle.norm is None
    optimizer.step()
    handle.optimizer = optimizer  # does not keep the optimizer alive
    return handle


def test_the_norm_of_the_gradients_that_came_in() -> None:
    """The norm is known if every gradient was measured, in any order; otherwise it would cost a pass."""
    for expression, norm in {
        "clip_global_norm(1.0)": 13.0,
        "chain(clip_norm(2.0), clip_global_norm(1.0))": 13.0,
        "chain(scale(0.5), clip_global_norm(1.0), clip_value(0.1))": 13.0,
        "partition({'0': clip_norm(1.0)}, clip_global_norm(2.0))": 13.0,
        "clip_global_norm(1.0, like='torch')": 13.0,
        "clip_global_norm(1.0, ord=1)": 19.0,
        "skip_large(clip_norm(0.5), 100.0)": 13.0,
        "chain(clip_global_norm(1.0), trace(0.9))": 13.0,
        "chain(freeze('1'), clip_global_norm(1.0))": 5.0,
        "chain(freeze('1'), clip_norm(1.0))": 5.0,
        "chain(clip_global_norm(1.0), freeze('1'))": 5.0,
        "clip_value(0.5)": None,
        "scale(0.5)": None,
        "masked(clip_global_norm(1.0), '0')": None,
        "chain(clip_value(2.5), clip_global_norm(1.0))": None,
        "stop()": None,
    }.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            given = [torch.tensor(leaf, dtype=dtype) for leaf in ([3.0, -4.0], [12.0])]
            found = one_step(gx.parse(expression), *given).norm
            assert (None if found is None else found.item()) == norm, (expression, dtype)
            if found is not None:
                assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and not found.shape


NORMS = (
    "chain(skip_nonfinite(identity()), clip_global_norm(1.0, ord=1))",
    "chain(skip_nonfinite(freeze('b')), clip_global_norm(1.0, ord=1))",
    "chain(skip_large(identity(), 9.0), clip_global_norm(1.0, ord=1))",
    "chain(masked(skip_large(scale(2.0), 9.0), 'w'), clip_global_norm(1.0))",
    "partition({'b': skip_nonfinite(scale(2.0))}, default=clip_global_norm(1.0))",
    "skip_nonfinite(chain(scale(2.0), clip_global_norm(1.0, ord=1)))",
    "accumulate(clip_global_norm(1.0), 2)",
    "chain(stop(), skip_large(identity(), 1.0))",
    "chain(freeze('**'), clip_global_norm(1.0))",
)


@pytest.mark.parametrize("expression", NORMS)
def test_the_norm_of_steps_of_which_some_are_skipped(expression: str) -> None:
    """Where `attach` has one, it is that of `apply_`, which measures what the transform does not."""
    named = [("w", torch.nn.Parameter(torch.zeros(3))), ("b", torch.nn.Parameter(torch.zeros(2)))]
    optimizer = torch.optim.SGD(named, lr=0.1)
    tx = gx.parse(expression)
    handle, state = gx.torch.attach(optimizer, tx), gx.torch.init(tx, named)
    for values in ([1.0, 2.0, 2.0], [3.0, 0.0, 4.0], [math.inf, 1.0, 1.0], [10.0, 2.0, 2.0]):
        for (_, own), gradient in zip(named, (values, [1.0, 1.0]), strict=True):
            own.grad = torch.tensor(gradient)
        optimizer.step()
        for (_, own), gradient in zip(named, (values, [1.0, 1.0]), strict=True):
            own.grad = torch.tensor(gradient)
        new = gx.torch.apply_(tx, named, state, return_norm=True)
        state, norm = new if tx.stateful else (state, new)
        assert handle.norm is None or str(handle.norm) == str(norm)


@pytest.mark.parametrize("optimizer", TorchAttach.optimizers)
def test_with_a_scaler_the_norm_is_that_of_unscaled_gradients(optimizer: str) -> None:
    run = TorchAttach(gx.clip_global_norm(2.0), ONES, optimizer, scale="scaler")
    run.step(drawn(0))
    assert_ulp(run.handle.norm, gx.global_norm(drawn(0)), 1)


def test_the_norm_keeps_no_gradient_alive_and_is_new_each_time() -> None:
    handle = one_step(gx.chain(gx.clip_norm(1.0), gx.clip_global_norm(0.5)), [3.0, 4.0])
    (p,) = handle.optimizer.param_groups[0]["params"]
    gradient = weakref.ref(p.grad)
    kept = handle.norm
    p.grad = None
    assert gradient() is None
    p.grad = torch.tensor([0.3, 0.4])
    handle.optimizer.step()
    assert_ulp(kept, np.float32(5.0), 0)
    assert_ulp(handle.norm, np.float32(0.5), 1)
    p.grad = None
    handle.optimizer.step()
    assert handle.norm is None


# --- compiled, and beside torch.func ---------------------------------------------------------------------------------


@slow(INDUCTOR)
@pytest.mark.parametrize("on", ["gradients", "updates"])
def test_a_compiled_step(on: str) -> None:
    """The step is one graph, compiled once for changing gradients; hooks run outside it."""
    models = [Model(), Model()]
    made = [torch.optim.SGD(model.named_parameters(), lr=0.1) for model in models]
    tx = gx.chain(gx.clip_global_norm(1.0), gx.trace(0.5))
    handles = [gx.torch.attach(optimizer, tx, on=on) for optimizer in made]
    counter = CompileCounter()
    compiled = torch.compile(made[0].step, backend=counter)
    for step in range(3):
        backward(made[0], models[0], step)
        compiled()
    assert counter.frame_count == 1
    train(made[1], models[1], range(3))
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert bool((handles[0].state[1].trace["scale"] != 0).all())


def test_groups_of_bare_parameters_get_the_names_of_a_model() -> None:
    """nanoGPT's groups: what has two dimensions decays, the rest does not."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    def optimizer() -> torch.optim.Optimizer:
        two = [p for p in model.parameters() if p.dim() >= 2]
        return torch.optim.AdamW([{"params": two}, {"params": [p for p in model.parameters() if p.dim() < 2]}], lr=0.1)

    made = optimizer()
    tx = gx.chain(gx.freeze("0/**"), gx.trace(0.5))
    with gx.torch.attach(made, tx, names=model):
        assert gx.paths(made) == ["0/weight", "1/weight", "0/bias", "1/bias"]
        before = [p.detach().clone() for p in model.parameters()]
        model(torch.ones(1, 2)).sum().backward()
        made.step()
        moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
        assert moved == [False, False, True, True]
        saved = made.state_dict()
    other = optimizer()
    handle = gx.torch.attach(other, tx, names=dict(model.named_parameters()))
    other.load_state_dict(saved)
    assert torch.equal(handle.state[1].trace["1/bias"], torch.ones(2))
    with pytest.raises(ValueError, match=r"names lacks a parameter of shape \(2, 2\); give the whole model"):
        gx.torch.attach(optimizer(), tx, names=model[1])


@pytest.mark.parametrize("on", ["gradients", "updates"])
def test_a_parameter_that_grows_is_attached_again(on: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
    handle = gx.torch.attach(optimizer, gx.trace(0.5), on=on)
    longer = torch.nn.Parameter(torch.zeros(3))
    optimizer.param_groups[0]["params"][0] = longer
    longer.grad = torch.ones(3)
    with pytest.raises(ValueError, match=r"0' .*\(2,\).* \(3,\).*handle.remove\(\) and attach again"):
        optimizer.step()
    handle.remove()
    gx.torch.attach(optimizer, gx.trace(0.5), on=on)
    optimizer.step()
    assert torch.equal(longer, torch.full((3,), -1.0))


# --- the loss --------------------------------------------------------------------------------------------------------


def test_every_handle_gets_the_loss_and_none_keeps_it() -> None:
    w, tx = parameter(torch.zeros(2)), gx.skip_spikes(gx.identity(), of="loss")
    optimizer = torch.optim.SGD([w], lr=1.0)
    handles = [gx.torch.attach(optimizer, tx, on=on) for on in ("gradients", "updates")]
    w.grad, loss = torch.ones(2), torch.tensor(1.0, requires_grad=True)
    optimizer.step(lambda: None, value=loss)  # a closure may return none
    kept = weakref.ref(loss)
    del loss
    assert kept() is None
    assert [int(handle.state.count) for handle in handles] == [1, 1]
    assert not any(handle.state.history.requires_grad for handle in handles)


def test_a_loss_that_nothing_needs_is_an_error_of_the_optimizer() -> None:
    optimizer = torch.optim.SGD([parameter(torch.zeros(2))], lr=1.0)
    gx.torch.attach(optimizer, gx.clip_norm(1.0))
    with pytest.raises(TypeError, match="value"):
        optimizer.step(value=1.0)


def test_an_equal_transform_that_is_attached_twice_is_noticed() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    handle = gx.torch.attach(optimizer, gx.scale(2.0))
    gx.torch.attach(optimizer, gx.scale(3.0))
    gx.torch.attach(optimizer, gx.scale(2.0), on="updates")
    with pytest.warns(UserWarning, match="attached already"):
        again = gx.torch.attach(optimizer, gx.scale(2.0))
    again.remove()
    handle.remove()
    gx.torch.attach(optimizer, gx.scale(2.0))


def test_a_state_that_was_made_in_inference_mode() -> None:
    w = parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    with torch.inference_mode():
        gx.torch.attach(optimizer, gx.trace(0.5))
    for expected in (1.0, 1.5, 1.75):
        w.grad = torch.ones(2)
        optimizer.step()
        assert w.grad.tolist() == [expected] * 2
