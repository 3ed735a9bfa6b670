"""Trees of Flax, Equinox and Haiku, and custom nodes keep their types and numbers."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import one_sentence, run_advice, slow

import gradxform as gx
from gradxform.backend import lookup

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy
flax = pytest.importorskip("flax")
linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
eqx = pytest.importorskip("equinox")
hk = pytest.importorskip("haiku")

LIBRARY = "compiles for one library more; Flax NNX and Equinox stay quick"
IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), np.float32)


class FlaxNet(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(2)(linen.relu(linen.Dense(3)(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.linear = nnx.Linear(4, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(3, 2, rngs=rngs)])

    def __call__(self, x: Any) -> Any:
        return self.layers[0](self.norm(self.linear(x)))


class EqxNet(eqx.Module):
    linear: Any
    layers: list[Any]
    activation: Callable[[Any], Any]
    name: str = eqx.field(static=True, default="net")
    steps: int = 3

    def __call__(self, x: Any) -> Any:
        return self.layers[0](self.activation(self.linear(x)))


def eqx_net() -> Any:
    first, second = jax.random.split(jax.random.key(0))
    return EqxNet(eqx.nn.Linear(4, 3, key=first), [eqx.nn.Linear(3, 2, key=second)], jax.nn.relu)


def hk_net(x: Any) -> Any:
    return hk.nets.MLP([3, 2])(hk.Linear(4)(x))


class Pair(NamedTuple):
    kernel: Any
    bias: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["kernel", "bias"], meta_fields=["name"])
@dataclasses.dataclass
class Layer:
    kernel: Any
    bias: Any
    name: str = "layer"


@jax.tree_util.register_pytree_node_class
class Keyless:
    """A node with unnamed children."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> Any:
        return self.children, "aux"

    @classmethod
    def tree_unflatten(cls, aux: str, children: Any) -> Any:
        assert aux == "aux"
        return cls(*children)


def some() -> tuple[Any, Any]:
    return jnp.array([[3.0, -4.0], [1.0, 0.0]]), jnp.array([0.1, 12.0])


def mean_square(values: Any) -> Any:
    return jnp.mean(jnp.square(values - jnp.arange(values.size).reshape(values.shape)))


def of_linen() -> Any:
    params = FlaxNet().init(jax.random.key(0), IMAGES)
    return jax.grad(lambda params: mean_square(FlaxNet().apply(params, IMAGES)))(params)


def of_nnx() -> Any:
    return nnx.grad(lambda model: mean_square(model(IMAGES)))(NnxNet(nnx.Rngs(0)))


def of_equinox() -> Any:
    return eqx.filter_grad(lambda model: mean_square(jax.vmap(model)(IMAGES)))(eqx_net())


def of_haiku() -> Any:
    net = hk.transform(hk_net)
    params = net.init(jax.random.key(0), IMAGES)
    return jax.grad(lambda params: mean_square(net.apply(params, None, IMAGES)))(params)


TREES: dict[str, tuple[Callable[[], Any], list[str], str]] = {
    "Flax linen": (
        of_linen,
        ["params/Dense_0/bias", "params/Dense_0/kernel", "params/Dense_1/bias", "params/Dense_1/kernel"],
        "**/kernel",
    ),
    "Flax FrozenDict": (
        lambda: flax.core.freeze(of_linen()),
        ["params/Dense_0/bias", "params/Dense_0/kernel", "params/Dense_1/bias", "params/Dense_1/kernel"],
        "params/Dense_1/*",
    ),
    "Flax NNX": (
        of_nnx,
        ["layers/0/bias", "layers/0/kernel", "linear/bias", "linear/kernel", "norm/bias", "norm/scale"],
        "linear/kernel",
    ),
    "Flax NNX, pure": (
        lambda: nnx.to_pure_dict(of_nnx()),
        ["layers/0/bias", "layers/0/kernel", "linear/bias", "linear/kernel", "norm/bias", "norm/scale"],
        "linear/*",
    ),
    "Flax NNX, within a dict": (lambda: {"model": of_nnx()["linear"]}, ["model/bias", "model/kernel"], "model/kernel"),
    "Equinox": (of_equinox, ["layers/0/bias", "layers/0/weight", "linear/bias", "linear/weight"], "**/weight"),
    "Equinox, partitioned": (
        lambda: eqx.partition(eqx_net(), eqx.is_inexact_array)[0],
        ["layers/0/bias", "layers/0/weight", "linear/bias", "linear/weight"],
        "layers/**",
    ),
    "Haiku": (
        of_haiku,
        ["linear/b", "linear/w", "mlp/~/linear_0/b", "mlp/~/linear_0/w", "mlp/~/linear_1/b", "mlp/~/linear_1/w"],
        "mlp/~/*/w",
    ),
    "a registered dataclass": (
        lambda: [Layer(*some()), Layer(None, some()[1])],
        ["0/bias", "0/kernel", "1/bias"],
        "*/bias",
    ),
    "a node without names": (lambda: {"x": Keyless(*some())}, ["x/0", "x/1"], "x/1"),
    "a NamedTuple": (lambda: Pair(*some()), ["bias", "kernel"], "bias"),
    "an OrderedDict": (lambda: collections.OrderedDict(z=some()[0], a=some()[1]), ["a", "z"], "a"),
    "a defaultdict": (lambda: collections.defaultdict(list, z=some()[0], a=list(some())), ["a/0", "a/1", "z"], "a/*"),
    "MaskedNode, None and float0": (
        lambda: {"m": optax.MaskedNode(), "n": None, "v": np.zeros(2, jax.dtypes.float0), "w": list(some())},
        ["w/0", "w/1"],
        "w/0",
    ),
}
made = functools.cache(lambda name: TREES[name][0]())
"""A tree, which a process builds once."""
CHAIN = gx.chain(gx.clip_norm(0.3), gx.clip_global_norm(0.5), gx.clip_value(0.1), gx.scale(-0.3))
SLOW = ("Haiku", "Flax linen", "Flax FrozenDict", "Flax NNX, pure", "Equinox, partitioned")


def by_path(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by gradxform's paths, as a plain dict."""
    backend = lookup.backend("jax")
    pairs = zip(backend.paths(tree), backend.flatten(tree)[0], strict=True)
    return {path: leaf for path, leaf in pairs if leaf is not None and leaf.dtype != jax.dtypes.float0}


def nodes(tree: Any) -> Iterator[Any]:
    """The types of all nodes, from the root down."""
    yield type(tree)
    inner = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]
    for _, child in inner:
        if child is not tree:
            yield from nodes(child)


def assert_same_as_the_dict(result: Any, tree: Any, tx: Any) -> None:
    assert jax.tree.structure(result) == jax.tree.structure(tree)
    assert list(nodes(result)) == list(nodes(tree))
    wanted = tx(by_path(tree))
    found = by_path(result)
    assert list(found) == list(by_path(tree))
    for path, leaf in found.items():
        assert isinstance(leaf, jax.Array)
        assert np.asarray(leaf).tobytes() == np.asarray(wanted[path]).tobytes(), path


@slow(LIBRARY, name=SLOW)
@pytest.mark.parametrize("name", TREES)
def test_a_tree_keeps_its_paths_and_types(name: str) -> None:
    """The numbers and choices are those of a plain dict, also in a state, under a trace and around an optimizer."""
    tree, (_, paths, where) = made(name), TREES[name]
    assert sorted(by_path(tree)) == sorted(paths)
    assert_same_as_the_dict(CHAIN(tree), tree, CHAIN)
    for tx in (
        gx.masked(gx.clip_global_norm(1e-3), where),
        gx.partition({where: gx.clip_global_norm(1e-3)}, default=gx.scale(0.5)),
    ):
        result = tx(tree)
        assert_same_as_the_dict(result, tree, tx)
        found, before = by_path(result), by_path(tree)
        changed = {path for path in paths if not np.array_equal(found[path], before[path])}
        assert changed and (tx.name != "masked" or len(changed) < len(paths))
    if name == "MaskedNode, None and float0":
        tree = {key: part for key, part in tree.items() if key != "v"}  # rejected by jit and optax's optimizers
    tx = gx.chain(gx.clip_norm(0.01), gx.ema(0.5), gx.masked(gx.trace(0.5), where))
    state = tx.init(tree)
    assert list(nodes(state[1].ema)) == list(nodes(tree))
    updates, after = tx.update(tree, state)
    assert list(nodes(updates)) == list(nodes(tree))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    shapes = jax.eval_shape(tx.update, tree, state)
    assert jax.tree.structure(shapes) == jax.tree.structure((updates, after))
    optimizer = gx.jax.freeze(optax.adamw(0.1), where)
    after = optax.apply_updates(tree, optimizer.update(tree, optimizer.init(tree), tree)[0])
    assert list(nodes(after)) == list(nodes(tree))
    before, chosen = by_path(tree), gx.masked(gx.scale(0.0), where)(by_path(tree))
    for path, leaf in by_path(after).items():
        frozen = not np.any(np.asarray(chosen[path])) and np.any(np.asarray(before[path]))
        assert np.array_equal(leaf, before[path]) or not frozen, path
    assert any(not np.array_equal(leaf, before[path]) for path, leaf in by_path(after).items())


# --- as their own training loops have it -----------------------------------------------------------------------------


def test_an_nnx_module_is_a_tree_itself() -> None:
    model = NnxNet(nnx.Rngs(0))
    result = gx.masked(gx.scale(0.0), "**/kernel")(model)
    assert isinstance(result, NnxNet)
    assert not np.any(np.asarray(result.linear.kernel))
    np.testing.assert_array_equal(result.norm.scale, model.norm.scale)


@pytest.mark.parametrize("use", [gx.clip_norm(1.0), gx.ema(0.5).init], ids=["update", "init"])
@pytest.mark.parametrize("within", [False, True])
def test_a_function_in_an_equinox_model_is_named_by_its_path(use: Any, within: bool) -> None:
    model = {"model": eqx_net()} if within else eqx_net()
    path = "model/activation" if within else "activation"
    with pytest.raises(TypeError, match=rf"the leaf at '{path}'.*leave it out.*equinox\.filter"):
        use(model)


def test_an_equinox_model_without_gradients_comes_back() -> None:
    nothing = jax.tree.map(lambda _: None, eqx.filter(eqx_net(), eqx.is_inexact_array))
    assert gx.clip_global_norm(1.0)(nothing) == nothing


def test_the_message_of_a_pattern_that_matches_nothing_shows_nnx_paths() -> None:
    with pytest.raises(ValueError, match=r"'linear/weight' matches no path; the paths are 'layers/0/bias'"):
        gx.masked(gx.scale(0.0), "linear/weight")(of_nnx())


def test_an_nnx_variable_of_a_tree_and_one_of_none() -> None:
    state = nnx.State({"cache": nnx.Param({"k": jnp.array([3.0, 4.0]), "v": jnp.array([0.1])}), "n": nnx.Param(None)})
    result = gx.masked(gx.clip_norm(1.0), "cache/k")(state)
    np.testing.assert_allclose(result["cache"]["k"], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(result["cache"]["v"], state["cache"]["v"])


# --- what people really type -----------------------------------------------------------------------------------------

TYPED = [
    ("tx(FlaxNet())", "this is a Flax module (FlaxNet)", "jax.grad(loss)(params)"),
    ("gx.global_norm(FlaxNet())", "this is a Flax module (FlaxNet)", "jax.grad(loss)(params)"),
    ("gx.clip_norm(FlaxNet())", "max_norm", "jax.grad(loss)(params)"),
    ("gx.chain(tx, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param))", "optax.chain(tx, optax.adam(...))"),
    ("gx.chain(tx, TrainState.create(apply_fn=None, params={}, tx=optax.sgd(0.1)))", "give it tx=optax.chain(tx, "),
    ("gx.chain(tx, optax.adam)", "call it first"),
    ("gx.chain(tx, net)", "NnxNet(", "a Flax NNX module"),
    ("gx.jax.freeze('linear/**', optax.sgd(0.1))", "write gx.jax.freeze(optimizer, where)"),
    ("gx.jax.freeze('linear/**', tx)", "write gx.jax.freeze(optimizer, where)"),
]


@pytest.mark.parametrize(("typed", "words"), [(typed, words) for typed, *words in TYPED], ids=[row[0] for row in TYPED])
def test_one_sentence_says_what_to_write(typed: str, words: list[str]) -> None:
    from flax.training.train_state import TrainState

    names = {"gx": gx, "optax": optax, "nnx": nnx, "FlaxNet": FlaxNet, "TrainState": TrainState}
    with pytest.raises(TypeError) as caught:
        eval(typed, {**names, "tx": gx.clip_norm(1.0), "net": NnxNet(nnx.Rngs(0))})
    one_sentence(str(caught.value), *words)
    own = names | {"jax": jax, "params": jnp.ones(2), "model": NnxNet(nnx.Rngs(0)), "where": "w"}
    own |= {"optimizer": optax.sgd(0.1), "loss": lambda tree: sum(map(jnp.sum, jax.tree.leaves(tree)))}
    run_advice(str(caught.value), lambda: dict(own))


def test_a_haiku_module_is_no_tree_of_gradients() -> None:
    with pytest.raises(TypeError, match=r"this is a Haiku module \(Linear\); hand in jax\.grad\(loss\)\(params\)"):
        hk.without_apply_rng(hk.transform(lambda: gx.clip_norm(1.0)(hk.Linear(1)))).init(None)
