"""gradxform on NumPy: in place, every memory layout, every optree container."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import optree
import pytest
from support import arrays, assert_bits
from trees import Same

import gradxform as gx
from gradxform.testing import max_ulp

EVERY = [
    gx.clip_norm(1.0),
    gx.clip_norm(1.0, axes=0),
    gx.clip_norm(1.0, ord=1),
    gx.clip_norm(1.0, ord=float("inf")),
    gx.clip_norm(0.0),
    gx.clip_global_norm(1.0),
    gx.clip_value(0.5),
    gx.clip_value(low=0.0),
    gx.scale(-0.5),
    gx.scale(0.0),
    gx.stop(),
    gx.identity(),
    gx.top_k(0.2),
    gx.chain(gx.scale(0.7), gx.clip_value(0.4), gx.clip_global_norm(0.5), gx.clip_norm(0.3), gx.scale(2.0)),
    gx.chain(gx.masked(gx.clip_norm(1.0), "a"), gx.freeze("b"), gx.scale(0.5)),
    gx.partition({"a": gx.stop()}, default=gx.chain(gx.scale(2.0), gx.clip_value(1.0))),
]
DTYPES = ["float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16]


def some(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed).normal(size=shape) * 3).astype(dtype)


def skip_values(tx: Any, dtype: Any) -> bool:
    return ("clip_value" in repr(tx) or tx.name == "top_k") and np.dtype(dtype).kind == "c"


# --- in place --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tx", "dtype"), [(tx, dtype) for tx in EVERY for dtype in DTYPES if not skip_values(tx, dtype)], ids=repr
)
def test_in_place_gives_what_a_pure_call_gives_in_the_same_arrays(tx: Any, dtype: Any) -> None:
    tree = {"a": some(4, 5, dtype=dtype), "b": some(3, dtype=dtype, seed=1), "n": None}
    wanted = tx(tree)
    arrays, addresses = dict(tree), {key: leaf.ctypes.data for key, leaf in tree.items() if leaf is not None}
    assert gx.numpy.apply_(tx, tree) is None
    for key, address in addresses.items():
        assert tree[key] is arrays[key]
        assert tree[key].ctypes.data == address
        assert tree[key].tobytes() == wanted[key].tobytes()
    assert tree["n"] is None


def test_in_place_on_an_array_that_is_in_the_tree_twice_scales_it_once() -> None:
    shared = np.float32([3.0, 4.0])
    gx.numpy.apply_(gx.clip_norm(1.0), {"a": shared, "b": shared})
    assert max_ulp(shared, np.float32([0.6, 0.8])) <= 2


def test_in_place_around_a_foreign_transformation_that_changes_nothing() -> None:
    tx, leaf = gx.chain(gx.scale(0.5), Same(), gx.scale(3.0)), np.float32([3.0, 4.0])
    gx.numpy.apply_(tx, [leaf], tx.init([leaf]))
    assert leaf.tolist() == [4.5, 6.0]
    with pytest.raises(TypeError, match=r"state = tx\.init"):
        gx.numpy.apply_(tx, [leaf])


def read_only() -> Any:
    leaf = np.ones(2)
    leaf.flags.writeable = False
    return leaf


@pytest.mark.parametrize(
    ("leaf", "word"),
    [
        (read_only(), "read-only"),
        (np.broadcast_to(np.float32(1), (3,)), "read-only"),
        (1.0, "float"),
        (np.float32(1), "float32"),
        (np.float64(1), "float64"),
        ("text", "str"),
    ],
    ids=["read-only", "broadcast", "number", "scalar", "float64 scalar", "text"],
)
def test_in_place_refuses_what_it_cannot_write_to_and_writes_nothing(leaf: Any, word: str) -> None:
    first = np.float32([3.0, 4.0])
    with pytest.raises(TypeError, match=rf"'layers/1'.*{word}"):
        gx.numpy.apply_(gx.clip_norm(1.0), {"first": first, "layers": [None, leaf]})
    assert first.tolist() == [3.0, 4.0]


def test_in_place_refuses_an_array_of_which_elements_share_memory() -> None:
    shared = np.lib.stride_tricks.as_strided(np.float32([3.0]), (2,), (0,))
    before = shared.copy()
    try:
        gx.numpy.apply_(gx.scale(0.5), [shared])
    except TypeError as error:
        assert "'0'" in str(error)
        assert np.array_equal(shared, before)
    else:
        assert np.array_equal(shared, before * 0.5)


def test_in_place_leaves_everything_as_it_was_when_it_raises() -> None:
    tree = {"a": np.float32([3.0, 4.0]), "b": np.array([1, 2])}
    with pytest.raises(TypeError, match="'b'"):
        gx.numpy.apply_(gx.chain(gx.masked(gx.clip_norm(1.0), "a"), gx.clip_norm(0.1)), tree)
    assert tree["a"].tolist() == [3.0, 4.0]


# --- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tx", EVERY[:14], ids=repr)
def test_an_array_of_any_layout_gives_what_a_contiguous_one_gives_also_in_place(tx: Any) -> None:
    plain = some(4, 6)
    base = np.zeros((8, 18), np.float32)
    base[1::2, 2::3] = plain
    whole = base.copy()
    layouts = np.asfortranarray(plain), base[1::2, 2::3], plain[::-1, ::-1].copy()[::-1, ::-1], plain.T.copy().T
    for leaf in layouts:
        result, wanted = tx(leaf), tx(plain)
        assert result.dtype == leaf.dtype
        assert max_ulp(np.ascontiguousarray(result), wanted) == 0
        assert np.array_equal(leaf, plain)
        gx.numpy.apply_(tx, leaf)
        assert max_ulp(np.ascontiguousarray(leaf), wanted) == 0
    whole[1::2, 2::3] = tx(plain)
    assert np.array_equal(base, whole)


@pytest.mark.parametrize("tx", [tx for tx in EVERY[:14] if "axes" not in repr(tx)], ids=repr)
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if np.dtype(dtype).kind != "c"])
def test_a_leaf_without_axes_and_a_numpy_scalar(tx: Any, dtype: Any) -> None:
    array, scalar = np.array(2.5).astype(dtype), np.dtype(dtype).type(2.5)
    alone, pure = tx(array), tx(scalar)
    assert isinstance(pure, np.generic)
    assert (pure.shape, pure.dtype) == (alone.shape, alone.dtype) == ((), np.dtype(dtype))
    assert alone.tobytes() == pure.tobytes() == tx(array[None])[0].tobytes()


@pytest.mark.parametrize(
    "tx",
    [
        gx.ema(0.9),
        gx.trace(0.9),
        gx.grokfast(),
        gx.clip_spikes(warmup=1),
        gx.accumulate(gx.trace(0.5), 2),
        gx.error_feedback(gx.top_k(0.5)),
        gx.skip_nonfinite(gx.chain(gx.clip_norm(1.0), gx.ema(0.5))),
        gx.chain(gx.scale(np.array(0.3)), gx.trace(0.9)),
        gx.chain(gx.masked(gx.scale(0.0), "0"), gx.masked(gx.scale(-0.0), "1"), gx.mars()),
    ],
    ids=repr,
)
def test_in_place_a_state_is_overwritten(tx: Any) -> None:
    steps = [[some(3), some(20_000) * step] for step in (1.0, 5.0, np.nan, 3.0)]
    kept, state = [tx.init(steps[0]) for _ in range(2)]
    for grads in steps:
        own, before = [leaf.copy() for leaf in grads], arrays(state)
        state = gx.numpy.apply_(tx, own, state)
        wanted, kept = tx.update(grads, kept)
        assert_bits([*own, *arrays(state)], [*wanted, *arrays(kept)])
        large = [leaf for leaf in arrays(state) if leaf.size == 20_000]
        assert large and all(any(np.shares_memory(leaf, old) for old in before) for leaf in large)
        assert not any(np.shares_memory(leaf, new) for leaf in arrays(state) for new in own)


AVERAGES = [gx.ema(0.9), gx.trace(0.9, nesterov=True), gx.grokfast(), gx.accumulate(gx.identity(), 1), gx.clip_spikes()]


AVERAGES += [
    gx.chain(gx.scale(0.3), tx) for tx in (*AVERAGES, gx.accumulate(gx.chain(gx.scale(0.3), gx.trace(0.9)), 2))
]


@pytest.mark.parametrize("tx", [*AVERAGES, gx.add_decayed_weights(0.1), gx.add_noise(0.1, 0)], ids=repr)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_averages_keep_arrays_and_scalars_apart(tx: Any, dtype: Any) -> None:
    leaves = [np.array(2.5, dtype), np.dtype(dtype).type(2.5)]
    for params in (leaves, leaves[::-1]):
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(params, state, params)
            assert [(type(new), new.dtype) for new in updates] == [(type(old), old.dtype) for old in params]


@pytest.mark.parametrize("tx", [gx.clip_norm(1.0), gx.clip_value(1.0), gx.stop(), gx.identity()], ids=repr)
def test_an_array_without_axes_stays_an_array(tx: Any) -> None:
    assert type(tx(np.array(2.5))) is np.ndarray


def test_the_results_of_a_transform_share_no_memory_with_each_other() -> None:
    leaf = some(3)
    results = gx.chain(gx.scale(2.0), gx.clip_value(1.0))([leaf, leaf])
    assert not np.shares_memory(*results)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_an_array_limit_is_read_when_the_transform_runs() -> None:
    limit = np.array(1.0)
    tx = gx.clip_norm(limit)
    limit[()] = 2.0
    assert max_ulp(tx(np.float32([3.0, 4.0])), np.float32([1.2, 1.6])) <= 2


def test_an_array_limit_keeps_its_digits() -> None:
    for make in (gx.clip_norm, gx.clip_global_norm):
        assert max_ulp(make(np.array(0.1))([np.array([3.0, 4.0])])[0], np.array([0.06, 0.08])) <= 1


def test_an_array_limit_is_equal_to_itself_only() -> None:
    limit = np.array(1.0)
    assert gx.clip_norm(limit) == gx.clip_norm(limit)
    assert gx.clip_norm(limit) != gx.clip_norm(np.array(1.0))
    assert gx.clip_norm(1) == gx.clip_norm(1.0) == gx.clip_norm(np.float32(1.0))


# --- trees -----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


W, CLIPPED = np.float32([3.0, 4.0]), gx.clip_norm(1.0)(np.float32([3.0, 4.0]))
TREES = {
    "an array": (W, ""),
    "a list": ([W], "0"),
    "a tuple": ((W,), "0"),
    "a namedtuple": (Point(None, W), "y"),
    "a dict": ({"b": W}, "b"),
    "a dict with numbers for keys": ({1: W}, "1"),
    "an OrderedDict": (collections.OrderedDict([("z", None), ("a", W)]), "a"),
    "a defaultdict": (collections.defaultdict(list, {"a": W}), "a"),
    "a deque": (collections.deque([None, W]), "1"),
    "all together": ({"p": [(Point(W, {"k": None}),)]}, "p/0/0/x"),
}


@pytest.mark.parametrize(("tree", "path"), TREES.values(), ids=TREES)
def test_the_containers_of_optree(tree: Any, path: str) -> None:
    seen: list[str] = []
    gx.masked(gx.stop(), lambda path, leaf: bool(seen.append(path)))(tree)
    assert seen == [path]
    result = gx.clip_norm(1.0)(tree)
    assert optree.tree_structure(result, none_is_leaf=True) == optree.tree_structure(tree, none_is_leaf=True)
    assert type(result) is type(tree)
    assert [leaf.tobytes() for leaf in optree.tree_leaves(result)] == [CLIPPED.tobytes()]


def test_the_order_of_keys_is_kept() -> None:
    assert list(gx.scale(2.0)({"z": W, "a": W, "m": None})) == ["z", "a", "m"]
    assert list(gx.scale(2.0)(collections.OrderedDict([("z", W), ("a", W)]))) == ["z", "a"]


def test_a_defaultdict_keeps_its_factory() -> None:
    assert gx.scale(2.0)(collections.defaultdict(list, {"a": W}))["new"] == []


@dataclasses.dataclass
class Unregistered:
    w: Any


def test_a_class_that_optree_does_not_know_is_named() -> None:
    with pytest.raises(TypeError, match="Unregistered"):
        gx.clip_norm(1.0)({"w": W, "x": Unregistered(W)})


# --- where -----------------------------------------------------------------------------------------------------------


def test_the_global_norm_as_a_number() -> None:
    tree = {"w": np.float32([3.0, 0.0]), "b": [np.float16([-4.0]), None]}
    for order, wanted in ((None, 5.0), (2, 5.0), (1, 7.0), (float("inf"), 4.0)):
        norm = gx.global_norm(tree, ord=order)
        assert (norm.shape, norm.dtype, float(norm)) == ((), np.float32, wanted)
    wide = gx.global_norm([*tree.values(), np.float64([1e200])])
    assert (wide.dtype, float(wide)) == (np.float64, 1e200)
    assert np.isnan(gx.global_norm([np.float32([np.nan])]))
    assert (gx.global_norm({}).dtype, float(gx.global_norm([None]))) == (np.float32, 0.0)
