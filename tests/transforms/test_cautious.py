"""`cautious`: its edge cases, and how it gets the gradients; the table has its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import assert_bits, assert_ulp, call, f32, one_sentence, tensors

import gradxform as gx

NAN, INF = float("nan"), float("inf")
UPDATES, GRADIENTS = f32(0.3, 0.5, 0.6, -0.1), f32(1.0, -2.0, 3.0, 4.0)


def changed(tx: Any, updates: Any, gradients: Any) -> Any:
    return tx.update([updates], tx.init([updates]), gradients=[gradients])[0][0]


def test_both_placements(framework: str) -> None:
    """Before the learning rate signs agree; after it, and under a negative factor, they are opposite."""
    updates, gradients = tensors(framework, [UPDATES, GRADIENTS])
    assert_ulp(changed(gx.cautious(), updates, gradients), f32(0.6, 0.0, 1.2, 0.0))
    assert_ulp(changed(gx.cautious(negated=True), updates, gradients), f32(0.0, 1.0, 0.0, -0.2))
    before = changed(gx.chain(gx.cautious(), gx.scale(-0.5)), updates, gradients)
    after = changed(gx.chain(gx.scale(-0.5), gx.cautious(negated=True)), updates, gradients)
    assert_ulp(before, after, 0)
    for unit in (1.0, 2.0**-100):  # float32 has no product of two such numbers
        (decayed,) = gx.add_decayed_weights(0.5, cautious=True)([updates * unit], params=[gradients * unit])
        assert_ulp(decayed, f32(0.8, 0.5, 2.1, -0.1) * np.float32(unit))


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
@pytest.mark.parametrize("size", [8e-25, 1e-36])
def test_tiny_numbers_of_opposite_signs_do_not_decay(size: float, framework: str) -> None:
    """Compilers join a product's constants, those of single numbers too."""
    (gradient, param), decay = tensors(framework, [np.float32(size), np.float32(-1.5e-18)]), gx.add_decayed_weights
    decayed = call(framework, "compiled", lambda *given: decay(0.14, cautious=True)(*given), [gradient], [param])
    assert_bits(decayed, [np.float32(size)])


def test_all_that_agree_keep_every_bit() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert_bits(changed(gx.cautious(), values, values * 7), values)
    assert_bits(changed(gx.cautious(), np.zeros((), np.float32) + 3, np.float32(2.0)), np.float32(3.0))
    assert changed(gx.cautious(), np.zeros((0, 2)), np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize(
    ("eps", "share", "factor"), [(1e-3, 1, 1000.0), (0.1, 1, 10.0), (0.1, 500, 2.0), (0.0, 1, 1000.0), (0.0, 0, 0.0)]
)
def test_the_least_share(eps: float, share: int, factor: float, framework: str) -> None:
    updates, gradients = np.ones(1000, np.float32), np.full(1000, -1.0, np.float32)
    gradients[:share] = 1.0
    wanted = np.where(gradients > 0, np.float32(factor), np.float32(0.0))
    assert_ulp(changed(gx.cautious(eps=eps), *tensors(framework, [updates, gradients])), wanted, 4)


@pytest.mark.parametrize(
    ("update", "gradient", "wanted"),
    [
        (INF, 1.0, [INF, 0.0]),
        (INF, -1.0, [NAN, NAN]),
        (NAN, 1.0, [NAN, NAN]),
        (0.5, NAN, [NAN, NAN]),
        (0.5, INF, [1.0, 0.0]),
        (0.5, -INF, [NAN, NAN]),
        (0.0, 1.0, [0.0, 0.0]),
        (1e-40, 1e-40, [2e-40, 0.0]),
        (1e-30, 1e-30, [2e-30, 0.0]),
    ],
)
def test_edges(update: float, gradient: float, wanted: list[float]) -> None:
    """The second element disagrees. Nothing that is not finite becomes zero, and no product underflows."""
    found = changed(gx.cautious(), f32(update, 1.0), f32(gradient, -1.0))
    assert_ulp(found, f32(*wanted), 4)
    if not np.isfinite(gradient):  # an update that an earlier factor makes zero agrees with nothing
        found = changed(gx.chain(gx.scale(0.0), gx.cautious()), f32(update, 1.0), f32(gradient, -1.0))
        assert np.isnan(found).all()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_gradients_may_have_another_dtype_and_be_sparse(torch: Any) -> None:
    updates = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    gradients = torch.sparse_coo_tensor([[1]], [[1.0, -1.0]], (2, 2))
    found = changed(gx.cautious(), updates, gradients)
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [[0.0, 0.0], [12.0, 0.0]]


def test_in_place_in_numpy() -> None:
    updates = UPDATES.copy()
    gx.numpy.apply_(gx.cautious(), [updates], gradients=[GRADIENTS])
    assert_ulp(updates, f32(0.6, 0.0, 1.2, 0.0))


@pytest.mark.parametrize("tx", [gx.cautious(), gx.chain(gx.scale(0.5), gx.masked(gx.cautious(), "**"))])
def test_without_gradients_the_error_says_what_to_write(tx: Any) -> None:
    assert "gradients" in tx.traits.needs
    for one in (lambda: tx([UPDATES]), lambda: tx.update([UPDATES]), lambda: gx.numpy.apply_(tx, [UPDATES.copy()])):
        with pytest.raises(ValueError, match=r"cautious .*gradients=gradients.*on='updates'") as it:
            one()
        one_sentence(str(it.value))


def test_optax_drops_the_gradients_for_what_is_not_its_own_kind(jnp: Any, optax: Any) -> None:
    """The error names what to write, and with it the gradients arrive."""
    gradients, updates = [jnp.asarray(GRADIENTS)], [jnp.asarray(UPDATES)]
    bare, wrapped = optax.chain(gx.cautious()), optax.chain(gx.jax.as_optax(gx.cautious()))
    with pytest.raises(ValueError, match=r"gx\.jax\.as_optax\(tx\)"):
        bare.update(updates, bare.init(updates), gradients=gradients)
    (found,), _ = wrapped.update(updates, wrapped.init(updates), gradients=gradients)
    assert_ulp(found, f32(0.6, 0.0, 1.2, 0.0))


def test_adapters_of_gradients_name_those_of_updates(torch: Any) -> None:
    parameter = torch.nn.Parameter(torch.tensor(UPDATES))
    parameter.grad = torch.tensor(GRADIENTS)
    with pytest.raises(ValueError, match=r"gx\.torch\.attach\(optimizer, tx, on="):
        gx.torch.apply_(gx.cautious(), [parameter])
    with pytest.raises(ValueError, match=r"torch\.attach: .* on='updates'"):
        gx.torch.attach(torch.optim.SGD([parameter]), gx.chain(gx.cautious(), gx.scale(1.0)))


def test_a_factor_may_be_left_for_nothing() -> None:
    tx = gx.chain(gx.cautious(eps=lambda step: 0.5), gx.freeze("**"), gx.cautious(negated=True))
    assert tx.update([UPDATES], tx.init([UPDATES]), gradients=[UPDATES])[0][0].tolist() == [0.0] * UPDATES.size
