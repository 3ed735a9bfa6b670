"""States with other names and layouts: PyTorch states in Flax and Keras."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from support import STATEFUL, array, one_sentence, tensors

import gradxform as gx


def numbers(*shape: int) -> Any:
    """All different."""
    return np.arange(1.0, 1.0 + np.prod(shape), dtype=np.float32).reshape(shape)


def as_kernel(path: str, array: Any) -> dict[str, Any]:
    return {path.replace("weight", "kernel"): array.T}


# --- any function ----------------------------------------------------------------------------------------------------


def test_only_the_parameters_of_a_state_are_renamed(framework: str) -> None:
    """Counts have no layout."""
    tx = gx.chain(gx.clip_percentile(50.0, 3), gx.skip_nonfinite(gx.accumulate(gx.ema(0.9), 2)), gx.scale(2.0))
    old, new = {"weight": numbers(2, 3), "b": None}, {"kernel": numbers(3, 2), "b": None}
    seen = []

    def rename(path: str, array: Any) -> dict[str, Any]:
        seen.append(path)
        return as_kernel(path, array)

    state = tx.init(old)
    for _ in range(2):
        _, state = tx.update(old, state)
    for given in (gx.to_numpy(state), gx.to_numpy(state, by_path=True)):
        found = gx.from_numpy(given, like=tx.init(tensors(framework, new)), rename=rename)
        ema, wanted = found[1].inner.inner, state[1].inner.inner
        np.testing.assert_array_equal(array(ema.ema["kernel"]), wanted.ema["weight"].T)
        np.testing.assert_array_equal(array(ema.divisor), wanted.divisor)
        np.testing.assert_array_equal(array(found[0].history), state[0].history)
    assert set(seen) == {"weight"}


@pytest.mark.filterwarnings("ignore::gradxform.OrderWarning")
def test_no_field_of_a_state_has_a_name_that_parameters_have() -> None:
    """A string that is replaced in all paths, or a rule for all names that hold a word, changes no field."""
    tx = gx.skip_nonfinite(gx.skip_large(gx.accumulate(gx.error_feedback(gx.chain(*STATEFUL.values())), 2), 1e6))
    names = {key for path in gx.to_numpy(tx.init({"parameter": ZERO}), by_path=True) for key in path.split("/")}
    assert {"count", "ema", "trace", "history", "deviation", "sum", "due", "norm_before"} < names
    known = {"b", "beta", "bias", "embedding", "embeddings", "gamma", "offset", "w"}
    assert not names & (known | {"mean", "var", "variance", "running_mean", "running_var"})
    assert not names & {"moving_mean", "moving_variance"}
    assert not [name for name in names for word in ("weight", "bias", "kernel", "scale") if word in name]


def test_states_of_optax_in_a_chain_and_measures(jax: Any, optax: Any) -> None:
    tx = gx.chain(gx.measure(gx.clip_norm(1.0)), optax.chain(optax.adam(0.1), optax.identity()))
    old, new = {"weight": jax.numpy.ones((2, 3))}, {"kernel": jax.numpy.ones((3, 2))}
    _, state = tx.update(old, tx.init(old))
    found = gx.from_numpy(gx.to_numpy(state), like=tx.init(new), rename=as_kernel)
    np.testing.assert_array_equal(found[1][0][0].mu["kernel"], state[1][0][0].mu["weight"].T)
    assert int(found[1][0][0].count) == 1 and float(gx.metrics(found)["clip_norm/norm_after"]) == 1.0


def test_a_leaf_may_be_split_or_left_out() -> None:
    def rename(path: str, array: Any) -> dict[str, Any]:
        return {"low": array[:1], "high": array[1:]} if path == "both" else {}

    found = gx.from_numpy({"both": numbers(3), "unused": numbers(1)}, {"high": ZERO, "low": ZERO[:1]}, rename)
    assert {path: leaf.tolist() for path, leaf in found.items()} == {"low": [1.0], "high": [2.0, 3.0]}


def test_a_transposed_leaf_has_rows_of_its_own_in_memory() -> None:
    found = gx.from_numpy({"weight": numbers(2, 3)}, like={"kernel": numbers(3, 2)}, rename=as_kernel)
    assert found["kernel"].flags.c_contiguous and found["kernel"].tolist() == numbers(2, 3).T.tolist()


ZERO = np.zeros(2, np.float32)


class Pair(NamedTuple):
    one: Any
    two: Any


def both(path: str, array: Any) -> dict[str, Any]:
    return {"both": array}


ONE_TWO = {"one": ZERO, "two": ZERO}
MISFITS: list[tuple[Any, Any, Any, str]] = [
    ({"a/weight": ZERO}, {"a/scale": ZERO}, as_kernel, r"'a/scale'.*'a/kernel' \(from 'a/weight'\)"),
    (ONE_TWO, {"both": ZERO}, both, "'both': 'one' and 'two'"),
    (Pair(ONE_TWO, ZERO), Pair({"both": ZERO}, ZERO), both, "'one/both': 'one/one' and 'one/two'"),
    ({"weight": numbers(2, 3)}, {"kernel": numbers(2, 3)}, as_kernel,
     r"'kernel' \(from 'weight'\) has shape \(3, 2\), .*\(2, 3\).*array\.transpose\(1, 0\)"),
    ({"x": numbers(2, 3, 5, 5)}, {"x": numbers(5, 5, 3, 2)}, None,
     r"array\.transpose\(2, 3, 1, 0\) or array\.transpose\(3, 2, 1, 0\)"),
    ({"x": numbers(2, 3)}, {"x": numbers(2, 2)}, None, r"has \(2, 2\)$"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "like", "rename", "match"), MISFITS)
def test_what_does_not_fit(state: Any, like: Any, rename: Any, match: str) -> None:
    with pytest.raises(ValueError, match=r"^from_numpy: .*" + match):
        gx.from_numpy(state, like=like, rename=rename)


@pytest.mark.parametrize(
    ("like", "rename", "match"),
    [
        ({"kernel": ZERO}, lambda path, array: ("kernel", array), r"dict .*'weight' .*\('kernel', "),
        (ZERO, as_kernel, "like with paths"),
        ({"kernel": ZERO}, {"weight": "kernel"}, r"function of path and array.*\{'weight': 'kernel'\}"),
    ],
)
def test_what_is_no_renaming(like: Any, rename: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        gx.from_numpy({"weight": ZERO}, like=like, rename=rename)


@pytest.mark.parametrize(
    "tx", [gx.clip_percentile(50.0, 3, per_leaf=True), gx.clip_zscore(per_leaf=True), gx.clip_adagc()]
)
def test_rows_of_a_table_would_change_places(tx: gx.GradientTransformation) -> None:
    """Rows are sorted by path: the weight is last, and becomes the kernel, which is first."""
    old, new = {"weight": ZERO, "other": ZERO}, {"kernel": ZERO, "other": ZERO}
    tx = gx.chain(gx.scale(1.0), tx)
    with pytest.raises(ValueError, match=r"'1' .*one row per parameter"):
        gx.from_numpy(tx.init(old), like=tx.init(new), rename=as_kernel)
    assert gx.from_numpy(tx.init(old), like=tx.init(new))[1].count.tolist() == [0, 0]


# --- PyTorch's names -------------------------------------------------------------------------------------------------


def moved(params: Any, given: dict[str, Any], modules: Any = None) -> dict[str, Any]:
    found = gx.from_numpy(given, like=params, rename=gx.rename_from_torch(params, modules))
    return gx.to_numpy(found, by_path=True)


@pytest.mark.parametrize("axes", [(1, 0), (2, 1, 0), (2, 3, 1, 0), (2, 3, 4, 1, 0)])
def test_a_weight_that_becomes_a_kernel_is_transposed_though_it_is_square(axes: tuple[int, ...]) -> None:
    weight = numbers(*[3] * len(axes))
    found = moved({"fc": {"kernel": weight, "bias": ZERO}}, {"fc.weight": weight, "fc.bias": numbers(2)})
    np.testing.assert_array_equal(found["fc/kernel"], weight.transpose(axes))
    assert found["fc/bias"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["embedding", "embeddings", "scale", "gamma", "weight"])
def test_a_weight_of_another_name_is_not(name: str) -> None:
    found = moved({f"net/layer/{name}": numbers(3, 3)}, {"layer.weight": numbers(3, 3)}, {"layer": "net/layer"})
    np.testing.assert_array_equal(found[f"net/layer/{name}"], numbers(3, 3))


NORM = {"weight": numbers(2), "bias": -numbers(2), "running_mean": numbers(2) / 2, "running_var": numbers(2) / 4}


@pytest.mark.parametrize(
    "names",
    [
        ("norm/scale", "norm/bias", "norm/mean", "norm/var"),
        ("norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance"),
        ("params/norm/scale", "params/norm/bias", "batch_stats/norm/mean", "batch_stats/norm/var"),
    ],
)
def test_batch_norm(names: tuple[str, ...]) -> None:
    given = {f"body.0.{name}": leaf for name, leaf in NORM.items()}
    given["body.0.num_batches_tracked"] = np.array(7)
    found = moved(dict.fromkeys(names, ZERO), given, modules={"body.0": "norm"})
    assert {name: leaf.tolist() for name, leaf in found.items()} == {
        name: leaf.tolist() for name, leaf in zip(names, NORM.values(), strict=True)
    }


@pytest.mark.parametrize("out", ["out", "attention_output"])
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("outer", ["", "block/attention/"])
def test_attention(out: str, joint: bool, outer: str, rng: Any) -> None:
    """A head's share of the query equals PyTorch's rows of that head."""
    heads, width, size = 2, 3, 6
    weights = {name: rng.standard_normal((size, size)).astype(np.float32) for name in "qkvo"}
    biases = {name: rng.standard_normal(size).astype(np.float32) for name in "qkvo"}
    given = {f"{name}_proj_weight": weights[name] for name in "qkv"}
    if joint:
        given = {"in_proj_weight": np.concatenate([weights[name] for name in "qkv"])}
    given |= {"in_proj_bias": np.concatenate([biases[name] for name in "qkv"])}
    given |= {"out_proj.weight": weights["o"], "out_proj.bias": biases["o"]}
    params: dict[str, Any] = {
        f"{outer}{out}/kernel": np.zeros((heads, width, size)),
        f"{outer}{out}/bias": np.zeros(size),
    }
    for part in ("query", "key", "value"):
        params[f"{outer}{part}/kernel"] = np.zeros((size, heads, width))
        params[f"{outer}{part}/bias"] = np.zeros((heads, width))
    found = moved(params, {f"{outer}{name}": leaf for name, leaf in given.items()})
    x = rng.standard_normal(size)
    for part in ("query", "key", "value"):
        wanted = (weights[part[0]] @ x + biases[part[0]]).reshape(heads, width)
        got = np.einsum("i,ihd->hd", x, found[f"{outer}{part}/kernel"]) + found[f"{outer}{part}/bias"]
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    each = rng.standard_normal((heads, width))
    got = np.einsum("hd,hdo->o", each, found[f"{outer}{out}/kernel"]) + found[f"{outer}{out}/bias"]
    np.testing.assert_allclose(got, weights["o"] @ each.ravel() + biases["o"], rtol=1e-6)


def test_attention_of_four_linear_layers() -> None:
    params: dict[str, Any] = {f"{part}/kernel": np.zeros((4, 2, 2)) for part in ("query", "key", "value")}
    params |= {"out/kernel": np.zeros((2, 2, 4)), "query/bias": np.zeros((2, 2))}
    given = {f"{part}.weight": numbers(4, 4) for part in ("q_proj", "key", "value", "out")}
    found = moved(params, given | {"q_proj.bias": numbers(4)}, modules={"q_proj": "query"})
    for part, kernel in found.items():
        wanted = numbers(4) if part == "query/bias" else numbers(4, 4).T
        np.testing.assert_array_equal(kernel, wanted.reshape(params[part].shape))


def test_layers_that_are_merely_called_so_are_no_attention() -> None:
    params = {f"{part}/kernel": np.zeros((4, 4)) for part in ("query", "key", "value", "out")}
    found = moved(params, {f"{part}.weight": numbers(4, 4) for part in ("query", "key", "value", "out")})
    assert all(np.array_equal(kernel, numbers(4, 4).T) for kernel in found.values())


def test_the_longest_name_of_a_module_counts() -> None:
    modules = {"": "net", "body.1": "net/last", "body": "net/first", "body.10": "net/tenth"}
    names = ("net/first/0", "net/last", "net/tenth", "net/head", "net/first/11")
    given = dict.fromkeys(("body.0.weight", "body.1.weight", "body.10.weight", "head.weight", "body.11.weight"), ZERO)
    assert set(moved({f"{name}/scale": ZERO for name in names}, given, modules)) == {f"{name}/scale" for name in names}


def test_a_parameter_that_is_not_covered_is_named() -> None:
    with pytest.raises(ValueError, match=r"'rnn/weight_hh_l0' \(from 'rnn.weight_hh_l0'\)"):
        moved({"rnn/kernel": ZERO}, {"rnn.weight_hh_l0": ZERO})


def test_no_parameters() -> None:
    assert moved({}, {}) == {}


def test_functions_of_ones_own_go_around_it() -> None:
    params = {"up/kernel": numbers(2, 5, 5), "fc/kernel": numbers(3, 2)}
    usual = gx.rename_from_torch(params)

    def rename(path: str, array: Any) -> dict[str, Any]:
        return {"up/kernel": array} if path == "up.weight" else usual(path, array)

    found = gx.from_numpy({"up.weight": numbers(2, 5, 5), "fc.weight": numbers(2, 3)}, like=params, rename=rename)
    np.testing.assert_array_equal(found["up/kernel"], numbers(2, 5, 5))
    np.testing.assert_array_equal(found["fc/kernel"], numbers(2, 3).T)


def named(name: str, module: str) -> Any:
    """An object that is recognised by its class's names."""
    return type(name, (), {"__module__": module})()


MISPLACED: list[tuple[Any, ...]] = [
    (lambda: gx.rename_from_torch(named("Module", "torch.nn.modules.module")), "PyTorch", "of the new model"),
    (lambda: gx.rename_from_torch(named("Layer", "keras.src.layers.layer")), "Keras", "{v.path: v for v in model.weig"),
    (lambda: gx.rename_from_torch({}, modules=["fc"]), "modules must be a dict", "['fc']"),
    (lambda: gx.from_numpy({"w": ZERO}, {"w": ZERO}, rename=gx.rename_from_torch), "rename=gx.rename_from_torch(param"),
]


@pytest.mark.parametrize(("call", "words"), [(call, words) for call, *words in MISPLACED], ids=range(4))
def test_what_is_no_tree_of_parameters(call: Any, words: list[str]) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    one_sentence(str(caught.value), *words)
