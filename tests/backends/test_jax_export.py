"""Code lowered for GPUs and TPUs: no loops or branches, only operations of a TPU, and how many."""

from __future__ import annotations

from typing import Any

import pytest
from support import XLA, slow, without_addresses

import gradxform as gx

jax = pytest.importorskip("jax")
jnp, optax = jax.numpy, pytest.importorskip("optax")

from jax_export import exported, faults  # noqa: E402
from jax_mesh import TRANSFORMS  # noqa: E402

AGAIN = "lowers each once more; float32 for a TPU stays quick"
SUMS = "sum of 64 bits"
"""Fused into the reduction. A TPU's float64 has float32's range, which is enough: see test_jax_tpu.py."""
ELEMENTS = "elements of 64 bits"
"""Fused into the loop that rounds to float32; none is larger than the result or its inputs."""
NORMS = ("clip_norm(", "clip_global_norm(", "clip_average_norm(", "clip_rms(", "clip_adaptive(", "clip_percentile(")
NORMS += ("clip_adagc(", "clip_zscore(", "normalize_norm(", "normalize_global_norm(")
WIDE: dict[str, set[str]] = {
    **{words: {SUMS, ELEMENTS} for words in (*NORMS, "cautious(", "centralize(", "mars(", "orthogonal_to_parameters(")},
    "add_noise(": {ELEMENTS},
    "top_k(": {"while"},  # over the bits of a number, not over leaves
    "ord=float('inf')": set(),  # a maximum in the leaf's own dtype
}
"""The 64-bit operations of transforms by words in their expressions; for ord=inf only the last."""


def wide(expression: str) -> set[str]:
    """The 64-bit operations of a transform."""
    if "ord=float('inf')" in expression:
        return WIDE["ord=float('inf')"]
    return {fault for words, found in WIDE.items() if words in expression for fault in found}


@slow(AGAIN, machine=("bfloat16 for a TPU", "float32 for a GPU"))
@pytest.mark.parametrize("tx", TRANSFORMS)
@pytest.mark.parametrize("machine", ["float32 for a TPU", "bfloat16 for a TPU", "float32 for a GPU"])
def test_operations_of(machine: str, tx: str) -> None:
    """A GPU has 64-bit operations, with float64's range."""
    dtype, platform = machine.split()[0], "tpu" if "TPU" in machine else "cuda"
    found = faults(exported(TRANSFORMS[tx], dtype, platform))
    assert found == wide(tx) or (platform == "cuda" and found <= {SUMS, ELEMENTS} | wide(tx))


def test_what_is_looked_for_is_found() -> None:
    def looped(g: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, x: x + 1, g)

    def branched(g: Any) -> Any:
        return jax.lax.cond(g.sum() > 0, lambda: g * 2, lambda: g)

    def split(g: Any) -> Any:
        with jax.enable_x64(True):
            return jax.lax.bitcast_convert_type(jnp.float64(g.sum()), jnp.int64).astype(jnp.float32) * g

    def ordered(g: Any) -> Any:
        with jax.enable_x64(True):
            return jnp.sort(g[:4].astype(jnp.float64)).sum().astype(jnp.float32) * g

    wanted = {looped: "while", branched: "case", split: "bitcast_convert of 64 bits", ordered: "sort of 64 bits"}
    for function, fault in wanted.items():
        tx = optax.stateless_with_tree_map(lambda g, _, function=function: function(g))
        assert fault in faults(exported(tx, "float32", "tpu"))


# --- how much there is to compile ------------------------------------------------------------------------------------


def llama(layers: int | None = None) -> dict[str, tuple[int, ...]]:
    """The shapes of Llama-7B; by default with stacked layers, as in a scan."""
    square, wide = (4096, 4096), (11008, 4096)
    layer = dict.fromkeys("qkvo", square) | {"gate": wide, "up": wide, "down": wide[::-1], "n1": (4096,), "n2": (4096,)}
    ends = {"embedding": (32000, 4096), "head": (32000, 4096), "norm": (4096,)}
    if layers is None:
        return ends | {name: (32, *shape) for name, shape in layer.items()}
    return ends | {f"{i}/{name}": shape for i in range(layers) for name, shape in layer.items()}


CHAIN = gx.chain(gx.clip_norm(5.0), gx.clip_global_norm(1.0), gx.scale(-0.1))


@pytest.mark.parametrize(("tx", "most"), [(gx.clip_global_norm(1.0), 9), (gx.clip_norm(1.0), 9), (CHAIN, 16)])
def test_lines_of_code_of_each_of_291_leaves(tx: Any, most: int) -> None:
    assert exported(tx, "float32", "cuda", shapes := llama(32)).count(" = ") <= most * len(shapes) == most * 291


@slow(XLA)
@pytest.mark.parametrize("tx", [gx.clip_global_norm(1.0), gx.clip_norm(1.0), CHAIN, gx.ema(0.9)], ids=without_addresses)
def test_layers_in_one_leaf_need_no_temporaries(tx: Any) -> None:
    grads = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in llama().items()}
    state = jax.eval_shape(tx.init, grads)
    compiled = jax.jit(lambda g, s: tx.update(g, s)).lower(grads, state).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1 << 16  # of 27 GB
