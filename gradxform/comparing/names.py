"""What the paths of leaves say across frameworks: modules under other names, and the role of a leaf in its module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_WRAPPERS = {"params", "model", "module", "net", "network", "_orig_mod", "batch_stats", "~", "variables"}
_ROLES = {
    "weight": frozenset({"kernel", "scale", "embedding"}),
    "w": frozenset({"kernel"}),
    "kernel": frozenset({"kernel"}),
    "scale": frozenset({"scale"}),
    "gamma": frozenset({"scale"}),
    "embedding": frozenset({"embedding"}),
    "embeddings": frozenset({"embedding"}),
    "bias": frozenset({"bias"}),
    "beta": frozenset({"bias"}),
    "b": frozenset({"bias"}),
    "offset": frozenset({"bias"}),
    "weight_ih": frozenset({"kernel"}),
    "weight_hh": frozenset({"recurrent"}),
    "recurrent_kernel": frozenset({"recurrent"}),
    "bias_hh": frozenset({"bias"}),
    "bias_ih": frozenset({"bias of the input"}),
}
"""What the last name of a path can mean."""
_ALIASES = {
    "query": ("q", "q_proj", "to_q", "wq", "query_proj"),
    "key": ("k", "k_proj", "to_k", "wk", "key_proj"),
    "value": ("v", "v_proj", "to_v", "wv", "value_proj"),
    "out": ("out_proj", "o_proj", "to_out", "wo", "attention_output", "proj_out"),
    "norm": ("layernorm", "layer_norm", "ln", "batchnorm", "batch_norm", "bn", "normalization", "layer_normalization"),
    "linear": ("fc", "dense", "lin"),
    "conv": ("conv1d", "conv2d", "conv3d"),
    "embed": ("embedding", "embeddings", "emb", "wte"),
    "attention": ("attn", "self_attn", "self_attention", "multi_head_attention", "mha"),
}
_ALIAS = {other: name for name, others in _ALIASES.items() for other in others}
_LAYER = re.compile(r"^(weight|bias)_(ih|hh)_l(\d+)$")


class Name(NamedTuple):
    """A path, read."""

    module: tuple[str, ...]
    """Names and numbers of the modules around, without wrappers, under one name in all frameworks."""
    role: frozenset[str]


def read(path: str) -> Name:
    """The modules and the role that a path names."""
    *modules, last = _in_order(path.lower().replace(".", "/").split("/"))
    if modules[-1:] == ["dense_h"] and last == "kernel":  # of Flax's recurrent cells
        return Name(_tokens(modules[:-1]), _ROLES["weight_hh"])
    if modules[-1:] in (["dense_i"], ["dense_h"]):
        modules = modules[:-1]
    role = _ROLES.get(last)
    return Name(_tokens(modules), role) if role else Name(_tokens([*modules, last]), frozenset({last}))


def _in_order(parts: Sequence[str]) -> list[str]:
    """The parts of a path, a layer's number in PyTorch's recurrent weights before the name."""
    match = _LAYER.match(parts[-1])
    return [*parts[:-1], match[3], f"{match[1]}_{match[2]}"] if match else list(parts)


def _tokens(modules: Iterable[str]) -> tuple[str, ...]:
    found: list[str] = []
    for module in modules:
        match = re.fullmatch(r"(.*?)_?(\d+)", module)
        for token in (match[1], match[2]) if match else (module,):
            if token and token not in _WRAPPERS:
                found.append(_ALIAS.get(token, token))
    return tuple(found)


def without_common(names: Sequence[Name]) -> list[Name]:
    """The names without the modules that all of them begin with."""
    shared = 0
    while len(names) > 1 and all(len(n.module) > shared for n in names):
        if len({n.module[shared] for n in names}) > 1:
            break
        shared += 1
    return [n._replace(module=n.module[shared:]) for n in names]


def similarity(a: Name, b: Name) -> float:
    """How alike two names are, from 0 to 1: half for the role, half for the words that both have."""
    words_a, words_b = set(a.module), set(b.module)
    either = words_a | words_b
    shared = len(words_a & words_b) / len(either) if either else 1.0
    return 0.5 * bool(a.role & b.role) + 0.5 * shared
