"""DTensors on an accelerator that is not there: what a process of a mesh of two does on its own shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without processes", allow_module_level=True)

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch_counts import Counted  # noqa: E402

import gradxform as gx  # noqa: E402
from gradxform_torch import parts, readable  # noqa: E402

LEAVES = 20
LAUNCHES = {  # of the second of two processes, whose elements have other numbers in their leaf than in their shard
    "clip_global_norm(1.0)": 75,
    "ema(0.9)": 50,
    "add_noise(0.1, 0)": 500 + LEAVES,
}


@pytest.fixture
def mesh() -> Iterator[Any]:
    """How to make a mesh of two processes, of which this is the second; the other is not there."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield lambda device: DeviceMesh(device, [0, 1])
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("tx", LAUNCHES)
def test_few_launches_and_nothing_sent_to_the_device(tx: str, mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    transform, on = gx.parse(tx), mesh("cuda")
    with FakeTensorMode(), torch.no_grad():
        shards = [torch.empty(32, 48, device="cuda") for _ in range(LEAVES)]
        given = [DTensor.from_local(shard, on, [Shard(0)], run_check=False) for shard in shards]
        state = transform.init(given)
        with Counted() as found:
            out, _ = transform.update(given, state, given)
    assert {type(leaf) for leaf in out} == {DTensor}
    assert 0 < found.launches.total() <= LAUNCHES[tx], found.launches
    assert found.between == found.waits == []


def test_an_element_has_the_noise_of_its_place_in_the_whole(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shards together and large ones a piece at a time, by the kernels of accelerators."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    monkeypatch.setattr(readable, "_is_on_host", lambda tensor: tensor.device.type == "mps")
    monkeypatch.setattr(parts, "LARGE", 20)
    monkeypatch.setattr(parts, "PART", 30)
    whole = {
        "rows": ((5, 3), Shard(0)),
        "other rows": ((4, 2), Shard(0)),
        "columns": ((3, 5), Shard(1)),
        "inner": ((2, 4, 3), Shard(1)),
        "large": ((14, 7), Shard(0)),
        "large columns": ((3, 30), Shard(1)),
        "none": ((1, 3), Shard(0)),
        "same": ((2, 2), Replicate()),
    }
    tx, on = gx.add_noise(0.1, 5), mesh("cpu")
    zeros = {name: np.zeros(shape, np.float32) for name, (shape, _) in whole.items()}
    noise = tx.update(zeros, tx.init(zeros))[0]

    def own(array: Any, placement: Any) -> Any:
        if not placement.is_shard():
            return array
        axis = placement.dim
        most = -(-array.shape[axis] // 2)
        return np.take(array, range(min(most, array.shape[axis]), array.shape[axis]), axis)

    def shard(name: str) -> Any:
        shape, placement = whole[name]
        part = torch.from_numpy(own(zeros[name], placement))
        stride = torch.empty(shape).stride()
        return DTensor.from_local(part, on, [placement], run_check=False, shape=torch.Size(shape), stride=stride)

    given = {name: shard(name) for name in whole}
    found = tx.update(given, tx.init(given))[0]
    for name, (_, placement) in whole.items():
        np.testing.assert_array_equal(found[name].to_local().numpy(), own(noise[name], placement), err_msg=name)
