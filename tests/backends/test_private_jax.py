"""JAX's unstable functions do what this backend uses them for; a failure says what breaks in gradxform."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from gradxform_jax import _private  # noqa: E402


def test_a_dtype_becomes_weak_and_strong() -> None:
    strong = jnp.float32(1.0)
    weak = _private.with_weak_type(strong, True)
    assert (strong.weak_type, weak.weak_type) == (False, True), "a weak gradient would come back strong, and retrace"
    assert not _private.with_weak_type(weak, False).weak_type
    assert weak.dtype == strong.dtype


def test_an_array_sharded_like_another_keeps_its_values() -> None:
    found = jax.jit(lambda leaf: _private.sharded_alike(leaf, jnp.arange(4.0)))(jnp.ones(4))
    assert found.tolist() == [0.0, 1.0, 2.0, 3.0], "states of sharded parameters would be wrong"


@pytest.mark.skipif(_private.shard_alike is None, reason="this JAX has no shard_alike")
def test_the_compiler_is_asked_to_shard_both_alike() -> None:
    text = jax.jit(lambda leaf: _private.sharded_alike(leaf, jnp.arange(4.0))).lower(jnp.ones(4)).as_text()
    assert "shard_group" in text or "sharding_group" in text, (
        "the state of a sharded parameter would be on every device"
    )


@pytest.mark.skipif(_private.shard_alike is not None, reason="this JAX has shard_alike, which asks the compiler")
def test_the_compiler_sees_both_alike_and_reads_no_leaf_for_it() -> None:
    step = jax.jit(lambda leaf: _private.sharded_alike(leaf, jnp.zeros_like(leaf)))
    compiled = step.lower(jnp.ones((64, 32))).compile().as_text()
    assert step.lower(jnp.ones((64, 32))).as_text().count("compare") == 2, "one would be folded before sharding"
    assert "compare" not in compiled, "zeros would read the gradients"


def test_the_iteration_of_muon() -> None:
    contrib = pytest.importorskip("optax").contrib
    if not hasattr(contrib, "muon"):
        pytest.skip("this optax has no Muon")
    found = _private.muon_iteration()(jnp.eye(3), jnp.asarray((3.4445, -4.7750, 2.0315)), 5)
    assert 0.6 < found[0, 0] < 1.25, "`gradxform bench` would time something else"
