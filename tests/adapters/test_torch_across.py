"""`across` in PyTorch: torch_across_cases.py in the processes of a gloo group, and tests in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import assert_ulp, f32, parameter, tensors

import gradxform as gx

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("PyTorch was built without gloo", allow_module_level=True)

import process_groups as groups  # noqa: E402
import torch_across_cases as cases  # noqa: E402

found, test_in_processes = groups.tests(cases)
CLIP = gx.clip_global_norm(1.0)


@pytest.fixture
def alone() -> Iterator[Any]:
    """A group with only this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("split", ["tree", "leaves"])
def test_torch_of_one_process_gives_what_no_group_gives(alone: Any, split: str) -> None:
    tree = tensors("torch", {"a": f32(3, 4), "b": [f32(12), None], "tied": f32(84)})
    for tx in (CLIP, gx.clip_rms(0.5), gx.chain(gx.clip_norm(2.0), CLIP), gx.clip_norm(1.0)):
        for replicated in (None, "tied"):
            assert_ulp(gx.across(tx, alone, split=split, replicated=replicated)(tree), tx(tree), 1)


def test_torch_of_one_process_has_the_first_place(alone: Any) -> None:
    noise, zeros = gx.add_noise(1.0, seed=3), {"a": torch.zeros(8), "b": torch.zeros(8)}
    spread = gx.across(noise, alone, replicated="b")
    own, plain = (tx.update(zeros, tx.init(zeros))[0] for tx in (spread, noise))
    assert_ulp(own["b"], plain["b"], 0)
    assert not np.array_equal(own["a"], plain["a"])


def test_torch_parameters_without_gradients(alone: Any) -> None:
    given = [parameter(None), parameter(f32(30, 40))]
    gx.torch.apply_(gx.across(CLIP, alone), given)
    assert given[0].grad is None
    assert_ulp(given[1].grad, f32(0.6, 0.8), 1)
    gx.torch.apply_(gx.across(CLIP, alone), given[:1])
    assert gx.across(CLIP, alone)({"a": None}) == {"a": None}
    assert gx.across(CLIP, alone)([]) == []


def test_torch_without_a_group_of_processes() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    group = torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
    with pytest.raises(ValueError, match=r"call torch\.distributed\.init_process_group first"):
        gx.across(CLIP, group)([torch.ones(2)])
