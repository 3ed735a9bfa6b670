"""What the paths of leaves say across frameworks: modules under other names, and the role of a leaf in its module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

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
    "w_i": frozenset({"kernel"}),
    "w_h": frozenset({"recurrent"}),
    "wx": frozenset({"kernel"}),
    "wh": frozenset({"recurrent"}),
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
    "gate": ("gate_proj",),
    "up": ("up_proj",),
    "attention": ("attn", "self_attn", "self_attention", "multi_head_attention", "mha"),
}
_ALIAS = {other: name for name, others in _ALIASES.items() for other in others}
_LAYER = re.compile(r"^(weight|bias)_(ih|hh)_l(\d+)(_reverse)?$")


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
    """The parts of a path, a layer's number and direction in PyTorch's recurrent weights before the name."""
    match = _LAYER.match(parts[-1])
    if not match:
        return list(parts)
    return [*parts[:-1], match[3], *(["backward"] if match[4] else []), f"{match[1]}_{match[2]}"]


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


def role_in(name: Name, axes: int) -> frozenset[str]:
    """The role of a leaf with so many axes: a weight with one axis is a scale."""
    if len(name.role) == 1:
        return name.role
    return frozenset({"scale"}) if axes < 2 else name.role - {"scale"}


def is_known(role: frozenset[str]) -> bool:
    """Whether a role is one that the frameworks have a name for."""
    return any(role <= known for known in _ROLES.values())


def ranked(a: Sequence[Name], b: Sequence[Name]) -> tuple[list[Name], list[Name]]:
    """The names with numbers counted from 0 and without gaps: fc1 and fc2 are dense and dense_1, layers 0, 2 are 0, 1.

    Where one side has more numbers, they are left as they are.
    """
    modules = [[n.module for n in side] for side in (a, b)]
    place = 0
    while any(len(module) >= place for side in modules for module in side):
        groups = [_numbers(side, place) for side in modules]
        for prefix in groups[0].keys() & groups[1].keys():
            sizes = [len(group[prefix]) for group in groups]
            if sizes[0] == sizes[1] and any(set(group[prefix]) != {_NONE} for group in groups):
                for side, group in zip(modules, groups, strict=True):
                    _rank(side, prefix, group[prefix])
        place += 1
    one, other = (
        [n._replace(module=m) for n, m in zip(s, f, strict=True)] for s, f in zip((a, b), modules, strict=True)
    )
    return one, other


_NONE = -1
"""The number of a module without one, as of the first of dense, dense_1 and dense_2."""


def _number(module: tuple[str, ...], place: int) -> int:
    return int(module[place]) if len(module) > place and module[place].isdecimal() else _NONE


def _numbers(modules: Iterable[tuple[str, ...]], place: int) -> dict[tuple[str, ...], list[int]]:
    """The numbers at a place, in order, for each beginning of a module."""
    found: dict[tuple[str, ...], set[int]] = {}
    for module in modules:
        number = _number(module, place)
        if len(module) >= place and (place or number != _NONE or not module):
            found.setdefault(module[:place], set()).add(number)
    for numbers in found.values():
        if numbers != {_NONE} and 0 in numbers:
            numbers.discard(_NONE)  # a neighbour of what is numbered, not the first of it
    return {prefix: sorted(numbers) for prefix, numbers in found.items()}


def _rank(modules: list[tuple[str, ...]], prefix: tuple[str, ...], numbers: list[int]) -> None:
    place = len(prefix)
    for i, module in enumerate(modules):
        number = _number(module, place)
        if (
            len(module) >= place
            and module[:place] == prefix
            and number in numbers
            and (place or number != _NONE or not module)
        ):
            rank = () if len(numbers) == 1 else (str(numbers.index(number)),)
            modules[i] = (*prefix, *rank, *module[place + (number != _NONE) :])


def similar(a: Sequence[Name], b: Sequence[Name]) -> Any:
    """How alike the modules of names are, from 0 to 1, as a matrix: half for all words, half for the last one."""
    words = {word: i for i, word in enumerate({word for n in (*a, *b) for word in n.module})}
    one, other = (np.zeros((len(side), len(words) + 1)) for side in (a, b))
    for side, array in ((a, one), (b, other)):
        for i, name in enumerate(side):
            array[i, [words[word] for word in name.module]] = 1.0
    shared = one @ other.T
    either = one.sum(1)[:, None] + other.sum(1) - shared
    last = np.array([_last(n) for n in a], str)[:, None] == np.array([_last(n) for n in b], str)
    return 0.5 * np.where(either > 0, shared / np.maximum(either, 1.0), 1.0) + 0.5 * last


def _last(name: Name) -> str:
    """The last word of the modules of a name that is no number."""
    return next((word for word in reversed(name.module) if not word.isdecimal()), "")
