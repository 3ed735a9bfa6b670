"""What frameworks call parts of a network, and how they lay them out: for `rename_from_torch` and for `compare`."""

from __future__ import annotations

import re

Axes = tuple[int, ...]

_TORCH = {
    "weight": ("kernel", "embedding", "embeddings", "scale", "gamma"),
    "bias": ("beta",),
    "running_mean": ("mean", "moving_mean"),
    "running_var": ("var", "moving_variance"),
}
TORCH = {other: name for name, others in _TORCH.items() for other in others}
"""The last key of a path in Flax or Keras, and in PyTorch."""
_ROLES = {
    "matrix": ("weight", "kernel", "w", "weight_ih", "w_i", "wx", "embedding", "embeddings"),
    "scale": ("scale", "gamma"),
    "bias": ("bias", "beta", "b", "offset", "bias_hh"),
    "bias of the input": ("bias_ih",),
    "recurrent": ("weight_hh", "recurrent_kernel", "w_h", "wh"),
}
ROLES = {name: role for role, names in _ROLES.items() for name in names}
"""The role of a leaf by the last key of its path; a weight with one axis is a scale."""
COLLECTIONS = frozenset({"params", "batch_stats"})
"""Of Flax linen's variables."""
WRAPPERS = COLLECTIONS | {"model", "module", "net", "network", "_orig_mod", "~", "variables"}
"""Modules that wrap a whole network."""
THIRDS = ("query", "key", "value")
"""The parts of a joint projection of attention, in PyTorch's order."""
OUT = ("out", "attention_output")
"""Flax's and Keras's projection of the heads together."""
_ALIASES = {
    "query": ("q", "q_proj", "to_q", "wq", "query_proj"),
    "key": ("k", "k_proj", "to_k", "wk", "key_proj"),
    "value": ("v", "v_proj", "to_v", "wv", "value_proj"),
    "out": ("out_proj", "o_proj", "to_out", "wo", "attention_output", "proj_out"),
    "norm": ("layernorm", "layer_norm", "ln", "batchnorm", "batch_norm", "bn", "normalization", "layer_normalization"),
    "linear": ("fc", "dense", "lin"),
    "conv": ("conv1d", "conv2d", "conv3d"),
    "embed": ("embedding", "embeddings", "emb", "wte"),
    "gate": ("gate_proj",),
    "up": ("up_proj",),
    "attention": ("attn", "self_attn", "self_attention", "multi_head_attention", "mha"),
}
ALIASES = {other: name for name, others in _ALIASES.items() for other in others}
"""One name for modules that frameworks and models name otherwise."""
FUSED = {
    "in_proj|qkv|qkv_proj|c_attn|query_key_value|wqkv|to_qkv": THIRDS,
    "kv|kv_proj|to_kv|key_value|wkv": ("key", "value"),
    "gate_up|gate_up_proj": ("gate", "up"),
}
"""Projections that are one leaf in some models, and their parts in others."""
SPELLINGS = (
    (re.compile(r"(weight|bias)_(ih|hh)_l(\d+)(_reverse)?$"), r"\3\4/\1_\2"),  # a layer of PyTorch's is a module
    (re.compile(r"dense_h/kernel$"), "weight_hh"),  # of Flax's recurrent cells
    (re.compile(r"dense_[ih]/(?=[^/]*$)"), ""),
)
"""Leaves of recurrent layers, as one framework writes them, and as all are read."""
GATES = {4: "ifgo", 3: "rzn"}
"""Input, forget, candidate and output gate of an LSTM, reset, update and candidate of a GRU: in the order of most."""
OTHER_GATES = {("recurrent_kernel", 3): "zrn"}
"""Of Keras."""


def to_kernel(count: int) -> Axes:
    """The axes of a weight, (out, in, ...), in the order of a kernel, (..., in, out)."""
    return (*range(2, count), 1, 0)


def usual_axes(name_a: str, name_b: str, count: int, wanted: int) -> list[Axes]:
    """The axes that the last keys of two paths stand for, of A in the order of B, likely ones first.

    A weight of PyTorch's becomes a kernel, or a kernel a weight; a kernel of attention may have its heads apart.
    """
    last_a, last_b = name_a.rpartition("/")[2], name_b.rpartition("/")[2]
    if last_a == "kernel" and last_b != "kernel" and wanted == 2 and count == 3:  # heads merged
        orders: list[Axes] = [(1, 2, 0), (2, 0, 1)]
        return orders[:: -1 if any(f"/{key}/" in f"/{name_a}/{name_b}/" for key in OUT) else 1]
    if last_a.startswith("weight") and "kernel" in last_b and count > 1:
        return [to_kernel(count)]
    if "kernel" in last_a and last_b.startswith("weight") and count > 1:
        return [(count - 1, count - 2, *range(count - 2))]
    return [tuple(range(count))]
