"""Transforms of updates in PyTorch: attach(..., on="updates")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import assert_ulp, bits, parameter

import gradxform as gx

torch = pytest.importorskip("torch")

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]
UNTOUCHED = {
    "identity": gx.identity(),
    "clip_rms": gx.clip_rms(1e9),
    "chain": gx.chain(gx.clip_norm(1e9), gx.clip_global_norm(1e9), gx.scale(1.0)),
    "trace": gx.trace(0.0),
    "skip_nonfinite": gx.skip_nonfinite(gx.clip_norm(1e9)),
    "measure": gx.measure(gx.clip_average_norm(1e9)),
    "masked": gx.masked(gx.clip_rms(1e9), "0"),
}
SHAPES = [(17, 5), (7,), (), (0, 3)]


def trained(
    tx: Any, make: Callable[[Any], Any], dtype: Any = torch.float32, steps: int = 4, unit: float = 1.0
) -> tuple[Any, Any]:
    """Parameters after some steps on random gradients, and the optimizer."""
    torch.manual_seed(1)
    parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    optimizer = make(parameters)
    if tx is not None:
        optimizer.handle = gx.torch.attach(optimizer, tx, on="updates")
    for _ in range(steps):
        for p in parameters:
            p.grad = unit * torch.randn(p.shape).to(dtype)
        optimizer.step()
    return parameters, optimizer


# --- untouched, bit for bit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNTOUCHED)
def test_unchanged_updates_leave_the_parameters_of_the_plain_optimizer(name: str, dtype: Any) -> None:
    """Also where new - old rounds: large steps change signs and exponents."""
    for rate in (0.1, 3.0, 1e-6):
        make = lambda p, rate=rate: torch.optim.AdamW(p, lr=rate, eps=1e-4)  # noqa: E731
        assert bits(trained(UNTOUCHED[name], make, dtype)[0]) == bits(trained(None, make, dtype)[0])


# --- right numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES[1:4], ids=str)
def test_changed_elements_are_rounded_once(dtype: Any) -> None:
    """The nearest number to old + update / 2, where the update is a difference without rounding."""
    old = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    ends = []
    for tx in (gx.scale(0.5), None):
        p = torch.nn.Parameter(old.clone())
        optimizer = torch.optim.SGD([p], lr=0.01)
        if tx is not None:
            gx.torch.attach(optimizer, tx, on="updates")
        p.grad = torch.ones(64, dtype=dtype)
        optimizer.step()
        ends.append(p.detach())
    update = ends[1].double() - old.double()
    exact = update == (ends[1].float() - old.float()).double()
    assert exact.sum() > 50 and not torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0][exact], (old.double() + 0.5 * update).to(dtype)[exact])


# --- closures, groups, scalers, states -------------------------------------------------------------------------------


def test_a_closure_is_one_step() -> None:
    def run(tx: Any, make: Any) -> Any:
        p = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        optimizer = make([p])
        handle = None if tx is None else gx.torch.attach(optimizer, tx, on="updates")

        def closure() -> Any:
            optimizer.zero_grad()
            loss = ((p - 1.0) ** 4).sum()
            loss.backward()
            return loss

        for _ in range(2):
            assert optimizer.step(closure) > 0
        return p.detach(), handle

    for make in (
        lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe", max_iter=3),
        lambda p: torch.optim.SGD(p, lr=0.01),
    ):
        assert torch.equal(run(gx.clip_norm(1e9), make)[0], run(None, make)[0])
        found, handle = run(gx.chain(gx.clip_norm(0.25), gx.ema(0.5)), make)
        assert int(handle.state[1].count) == 2
        assert 0 < float((found - torch.tensor([3.0, 4.0])).norm()) <= 0.5


def test_two_at_once_and_gradients_beside() -> None:
    p = parameter([30.0, 40.0])
    optimizer = torch.optim.SGD([p], lr=1.0)
    gx.torch.attach(optimizer, gx.clip_norm(8.0))
    first = gx.torch.attach(optimizer, gx.clip_norm(4.0), on="updates")
    second = gx.torch.attach(optimizer, gx.trace(0.5), on="updates")
    optimizer.step()
    assert_ulp(p.detach(), np.float32([-2.4, -3.2]), 1)
    assert_ulp(first.norm, np.float32(8.0), 1)
    assert_ulp(second.state.trace["0"], np.float32([-2.4, -3.2]), 1)
    first.remove()
    second.remove()
    optimizer.step()
    assert_ulp(p.detach(), np.float32([-7.2, -9.6]), 2)
    assert len(optimizer._optimizer_step_post_hooks) == len(optimizer._optimizer_step_pre_hooks) == 1


# --- what a handle tells, and errors ---------------------------------------------------------------------------------


# --- found by a review -----------------------------------------------------------------------------------------------


def test_an_error_takes_the_step_back() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    gx.torch.attach(optimizer, gx.orthogonalize(), on="updates")
    w.grad = torch.ones(2)
    with pytest.raises(ValueError, match="is not a matrix"):
        optimizer.step()
    assert w.tolist() == [0.0, 0.0]


def test_a_state_of_updates_is_not_one_of_gradients() -> None:
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=1.0)
    gx.torch.attach(optimizer, gx.trace(0.9), on="updates")
    w.grad = torch.ones(1)
    optimizer.step()
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    handle = gx.torch.attach(other, gx.trace(0.9))
    with pytest.warns(UserWarning, match=r"has no state of trace\(0\.9\)"):
        other.load_state_dict(optimizer.state_dict())
    assert handle.state.trace["0"].tolist() == [0.0]


def test_an_infinite_parameter_stays() -> None:
    w = torch.nn.Parameter(torch.tensor([-float("inf"), 1.0]))
    optimizer = torch.optim.SGD([w], lr=1.0)
    gx.torch.attach(optimizer, gx.identity(), on="updates")
    w.grad = torch.tensor([0.0, 0.1])
    optimizer.step()
    assert w.tolist() == [-float("inf"), float(np.float32(1.0) - np.float32(0.1))]


def test_a_flushed_window_of_cautious_updates_stays_as_it_is() -> None:
    """There is no gradient to compare it with."""
    weight = parameter([1.0, 1.0])
    optimizer = torch.optim.SGD([weight], lr=0.5)
    handle = gx.torch.attach(optimizer, gx.accumulate(gx.cautious(), 3), on="updates")
    weight.grad = torch.ones(2)
    optimizer.step()
    handle.flush()
    assert weight.tolist() == [-0.5, -0.5]
