"""PyTorch's undocumented functions do what this backend uses them for; a failure says what breaks in gradxform."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from support import f32

torch = pytest.importorskip("torch")

from gradxform_torch import _private  # noqa: E402
from gradxform_torch._private import FakeTensor, StorageWeakRef, TorchDispatchMode, pytree  # noqa: E402


def tensors(*values: float, dtype: object = None) -> list[object]:
    return [torch.tensor([value], dtype=dtype) for value in values]


CALLS = {
    "foreach_add_": ([1.5], [2.5]),
    "foreach_clamp_max": (2.0,),
    "foreach_clamp_max_": (2.0,),
    "foreach_clamp_min": (2.0,),
    "foreach_clamp_min_": (2.0,),
    "foreach_copy_": (tensors(7.0, 8.0),),
    "foreach_div_": ([2.0, 4.0],),
    "foreach_mul": (3.0,),
    "foreach_mul_": (3.0,),
    "foreach_zero_": (),
}
RESULTS = {
    "foreach_add_": [2.5, 5.5],
    "foreach_clamp_max": [1.0, 2.0],
    "foreach_clamp_min": [2.0, 3.0],
    "foreach_copy_": [7.0, 8.0],
    "foreach_div_": [0.5, 0.75],
    "foreach_mul": [3.0, 9.0],
    "foreach_zero_": [0.0, 0.0],
}
CALLS["foreach_add_"] = ([1.5, 2.5],)


@pytest.mark.parametrize("name", CALLS)
def test_one_call_for_many_tensors(name: str) -> None:
    given = tensors(1.0, 3.0)
    found = getattr(_private, name)(given, *CALLS[name])
    results = given if name.endswith("_") else found
    wanted = RESULTS.get(name) or RESULTS[name.removesuffix("_")]
    assert [x.item() for x in results] == wanted, f"kernels on accelerators, states and noise use torch._{name}"


def test_norms_of_many_tensors_are_accumulated_in_float64() -> None:
    given = [torch.full((3,), 3e19), torch.full((2,), 300.0, dtype=torch.float16)]
    for x, norm in zip(given, _private.foreach_norm(given[:1], 2, torch.float64), strict=False):
        assert norm.dtype == torch.float64, "norms on accelerators would overflow"
        np.testing.assert_allclose(norm.item(), np.linalg.norm(x.double().numpy()), rtol=1e-15)


def test_half_precision_times_a_number_is_rounded_once() -> None:
    given, found, factor = [torch.tensor([3.0], dtype=torch.float16)], torch.zeros(()), torch.tensor(1.0 / 3.0)
    try:
        _private.unscale_(given, found, factor)
    except NotImplementedError:
        pytest.skip("this PyTorch has the kernel on accelerators only")
    assert given[0].item() == 1.0, "products of half-precision gradients on accelerators change"


def test_a_dispatch_mode_is_seen() -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            seen.append((_private.is_in_mode(), func.overloadpacket.__name__))
            return func(*args, **(kwargs or {}))

    seen: list[object] = []
    assert not _private.is_in_mode()
    with Mode():
        assert _private.is_in_mode(), "values would be read under fake tensors, export and counters"
        torch.ones(1)
    assert seen == [(False, "ones")], "counting.py names operations by it"


def test_transformed_code_is_seen() -> None:
    def note(x: object) -> object:
        seen.append(_private.is_in_transform())
        return x * 1.0

    seen: list[bool] = []
    x = torch.ones(2)
    note(x)
    torch.func.vmap(note)(x)
    torch.func.grad(lambda y: note(y).sum())(x)
    with torch.autograd.forward_ad.dual_level():
        note(x)
    with pytest.warns(DeprecationWarning) if _deprecated() else contextlib.nullcontext():
        torch.jit.trace(note, x, check_trace=False)
    note(x)
    assert seen == [False, True, True, True, True, False], "values of tracers would be read: vmap, grad, jvp, jit.trace"


def _deprecated() -> bool:
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)


def test_memory_that_tensors_share_has_one_id() -> None:
    x, mode = torch.zeros(4), torch._subclasses.fake_tensor.FakeTensorMode()
    assert _private.storage_of(x[1:]) == _private.storage_of(x), "in-place states would be written over each other"
    assert _private.storage_of(x) != _private.storage_of(x.clone())
    with mode:
        fake = torch.zeros(4)
        assert isinstance(fake, FakeTensor), "the kernels of accelerators refuse tensors without memory"
        assert _private.storage_of(fake[1:]) == _private.storage_of(fake)
    kept = StorageWeakRef(x.untyped_storage())
    assert not kept.expired()
    del x
    assert kept.expired(), "counting.py counts memory that is freed"


def test_trees_have_leaves_structure_and_paths() -> None:
    tree = {"a": [torch.zeros(1), None], "b": (torch.ones(1),)}
    leaves, structure = pytree.tree_flatten(tree)
    assert pytree.tree_unflatten(leaves, structure) == tree, "gradient trees of PyTorch cannot be rebuilt"
    paths = [[getattr(key, "key", getattr(key, "idx", None)) for key in path] for path, _ in _with_path(tree)]
    assert paths == [["a", 0], ["a", 1], ["b", 0]], "paths such as 'encoder/0' change"


def _with_path(tree: object) -> list[tuple[object, object]]:
    return pytree.tree_flatten_with_path(tree)[0]


def test_a_compiled_function_is_known() -> None:
    compiled = torch.compile(lambda x: x)
    assert _private.is_compiled(compiled), "`parity --device` would count launches of compiled code"
    assert not _private.is_compiled(len)


def test_the_devices_of_a_process_group() -> None:
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert "cpu" in _private.device_types(distributed.group.WORLD), (
            "across would gather on a device without backend"
        )
    finally:
        distributed.destroy_process_group()


def test_the_step_inside_a_step_is_known() -> None:
    class Derived(torch.optim.SGD):
        def step(self, closure: object = None) -> object:
            return super().step(closure)

    torch.optim.SGD([torch.zeros(1)])  # PyTorch puts hooks into a class's step with its first optimizer
    seen = []
    weight = torch.nn.Parameter(torch.tensor(f32(1.0)))
    optimizer = Derived([weight], lr=0.1)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(_private.is_inner_call(o)))
    weight.grad = torch.ones(1)
    optimizer.step()
    assert seen == [False, True], "attach would transform twice for optimizers that derive from another"


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_the_iteration_of_muon() -> None:
    found = _private.muon_iteration()(torch.eye(3), (3.4445, -4.7750, 2.0315), 5, 1e-7)
    assert found.dtype == torch.bfloat16
    assert 0.6 < found[0, 0] < 1.25, "`gradxform bench` would time something else"
