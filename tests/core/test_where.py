"""Which paths a `where` selects."""

from __future__ import annotations

import functools
import pickle
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import assert_bits, one_sentence, tensors

import gradxform as gx
from gradxform.core.where import matches

TREE = {"encoder": {"dense": {"kernel": 1, "bias": 2}, "bias": 3}, "layers": [{"bias": 4}, {"kernel": 5}], "bias": 6}
PATHS = ["bias", "encoder/bias", "encoder/dense/bias", "encoder/dense/kernel", "layers/0/bias", "layers/1/kernel"]


def grads(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: grads(value) for key, value in tree.items()}
    return [grads(value) for value in tree] if isinstance(tree, list) else np.full(2, float(tree))


def selected(where: Any) -> list[str]:
    stopped = gx.to_numpy(gx.freeze(where)(grads(TREE)), by_path=True)
    return sorted(path for path, leaf in stopped.items() if not leaf.any())


def by_path_and_leaf(path: str, leaf: Any) -> bool:
    return path == "bias" and leaf.shape == (2,)


def by_path(path: str) -> bool:
    return path == "bias"


class ByPath:
    def __call__(self, path: str) -> bool:
        return path == "bias"


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("**", PATHS),
        ("bias", ["bias"]),
        ("*/bias", ["encoder/bias"]),
        ("**/bias", ["bias", "encoder/bias", "encoder/dense/bias", "layers/0/bias"]),
        ("encoder/**", ["encoder/bias", "encoder/dense/bias", "encoder/dense/kernel"]),
        ("encoder/**/kernel", ["encoder/dense/kernel"]),
        ("encoder/*/bias", ["encoder/dense/bias"]),
        ("layers/?/*", ["layers/0/bias", "layers/1/kernel"]),
        (re.compile("dense"), ["encoder/dense/bias", "encoder/dense/kernel"]),
        (re.compile("^bias$"), ["bias"]),
        (lambda path, leaf: leaf[0] > 4, ["bias", "layers/1/kernel"]),
        ({"encoder": True, "layers": False, "bias": False},
         ["encoder/bias", "encoder/dense/bias", "encoder/dense/kernel"]),
        ({"encoder": {"dense": True, "bias": False}, "layers": [False, True], "bias": np.bool_(True)},
         ["bias", "encoder/dense/bias", "encoder/dense/kernel", "layers/1/kernel"]),
        (["bias", "layers/**"], ["bias", "layers/0/bias", "layers/1/kernel"]),
        (("bias", re.compile("^layers/1")), ["bias", "layers/1/kernel"]),
        ([lambda path: path.endswith("kernel"), "bias"], ["bias", "encoder/dense/kernel", "layers/1/kernel"]),
        (lambda path: path.startswith("layers"), ["layers/0/bias", "layers/1/kernel"]),
        (lambda path, leaf=None: leaf is not None and leaf[0] == 6, ["bias"]),
        (lambda path, *rest: len(rest) == 1 and path == "bias", ["bias"]),
        (lambda *given: len(given) == 2, PATHS),
        (functools.partial(by_path_and_leaf), ["bias"]),
        (by_path, ["bias"]), (ByPath(), ["bias"]), (ByPath().__call__, ["bias"]),
        ([ByPath().__call__, "*/bias"], ["bias", "encoder/bias"]),
        (str.isidentifier, ["bias"]),
        ({"encoder.dense": False, "encoder.bias": False, "layers.0.bias": True, "layers/1": False, "bias": False},
         ["layers/0/bias"]),
        # A second argument with a default does not receive the leaf.
        (lambda path, name="layers": path.startswith(name), ["layers/0/bias", "layers/1/kernel"]),
        (functools.partial(re.search, "^bias"), ["bias"]), (re.compile("^bias").search, ["bias"]),
        ({"bias", "kernel"}.__contains__, ["bias"]), ({"bias": True, "encoder/bias": False}.get, ["bias"]),
    ],
)  # fmt: skip
def test_chosen_paths(where: Any, paths: list[str]) -> None:
    assert selected(where) == paths


def test_a_callable_tree_of_bools_is_a_tree() -> None:
    """Equinox modules are callable; their leaves decide (optax issue 913)."""

    class Module:
        def __init__(self, bias: Any, kernel: Any) -> None:
            self.bias, self.kernel = bias, kernel

        def __call__(self, path: str, leaf: Any) -> bool:
            raise AssertionError("taken for a function")

    pytest.importorskip("jax").tree_util.register_pytree_with_keys(
        Module, lambda m: ([("bias", m.bias), ("kernel", m.kernel)], None), lambda _, children: Module(*children)
    )
    import jax.numpy as jnp

    out = gx.freeze(Module(True, False))(Module(jnp.ones(1), jnp.ones(1)))
    assert (float(out.bias[0]), float(out.kernel[0])) == (0.0, 1.0)


@pytest.mark.parametrize("where", [[], (), {}])
def test_an_empty_list_is_the_mask_of_an_empty_tree_alone(where: Any) -> None:
    """As in optax."""
    tx = gx.masked(gx.scale(2.0), where)
    assert tx.update(where, tx.init(where))[0] == where
    for act in (tx, tx.init) if not isinstance(where, dict) else (tx,):
        with pytest.raises(ValueError, match="where is an empty list"):
            act({"w": np.ones(1)})


@pytest.mark.parametrize("where", [lambda params: {"encoder": True}, lambda path, leaf: [False], lambda path: (path,)])
def test_a_function_that_returns_a_tree_is_refused(where: Any) -> None:
    """optax calls mask functions with the parameters; a nonempty tree would be true."""
    with pytest.raises(TypeError, match="must return a bool"):
        selected(where)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (["bias", True], "True"),
        (["bias", None], "None"),
        (["bias", ["encoder/**"]], "list"),
        (lambda: True, r"\(\)"),
        (lambda path, leaf, more: True, r"\(path, leaf, more\)"),
        (lambda path, *, strict: True, "strict"),
        ((name for name in ("bias",)), r"list\(\.\.\.\)"),
    ],
)
def test_what_is_no_choice_is_refused_when_the_transform_is_built(where: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"where.*{message}"):
        gx.freeze(where)


@pytest.mark.parametrize(
    ("where", "paths", "chosen_paths"),
    [
        # A dict of PyTorch gradients keeps the dots of the names.
        ("layer/0/weight", ["layer.0.weight", "layer.1.weight"], ["layer.0.weight"]),
        ("layer.0.weight", ["layer.0.weight", "layer.1.weight"], ["layer.0.weight"]),
        ("layer.0.weight", ["layer/0/weight", "layer/1/weight"], ["layer/0/weight"]),
        ("layer.0.*", ["layer/0/weight", "layer/1/weight"], ["layer/0/weight"]),
        ("**/weight", ["layer.0.weight", "weight", "layer.0.bias"], ["layer.0.weight", "weight"]),
        ("layer/*/weight", ["layer.0.weight", "layer.0.bias"], ["layer.0.weight"]),
        ("*", ["layer.0.weight", "bias"], ["layer.0.weight", "bias"]),
        (re.compile(r"layer\.0\."), ["layer/0/weight", "layer/1/weight"], ["layer/0/weight"]),
        (re.compile("layer/0/"), ["layer.0.weight", "layer.1.weight"], ["layer.0.weight"]),
        (re.compile(r"^(?!layer/0)"), ["layer/0/weight", "layer/1/weight"], ["layer/1/weight"]),
        (re.compile(r"^(?!layer\.0)"), ["layer.0.weight", "layer.1.weight"], ["layer.1.weight"]),
        # The literal path comes first.
        ("a.b", ["a.b", "a/b"], ["a.b"]),
        ("a/b", ["a.b", "a/b"], ["a/b"]),
        # torch.compile and FSDP, at the root and below.
        ("encoder/**", ["_orig_mod/encoder/w", "_orig_mod/head/w"], ["_orig_mod/encoder/w"]),
        ("encoder/*", ["encoder/_orig_mod/w", "head/w"], ["encoder/_orig_mod/w"]),
        ("*/w", ["encoder/_orig_mod/w", "head/w"], ["encoder/_orig_mod/w", "head/w"]),
        ("encoder.w", ["_orig_mod.encoder.w", "_orig_mod.head.w"], ["_orig_mod.encoder.w"]),
        ("encoder/w", ["_fsdp_wrapped_module/encoder/_fsdp_wrapped_module/w", "b"],
         ["_fsdp_wrapped_module/encoder/_fsdp_wrapped_module/w"]),
        ("_orig_mod/encoder/w", ["_orig_mod/encoder/w", "_orig_mod/head/w"], ["_orig_mod/encoder/w"]),
        ("_orig_mod/**", ["_orig_mod/w", "head/w"], ["_orig_mod/w"]),
        (re.compile("^encoder"), ["_orig_mod/encoder/w", "_orig_mod/head/w"], ["_orig_mod/encoder/w"]),
        (re.compile("^(?!encoder)"), ["_orig_mod/encoder/w", "_orig_mod/head/w"], ["_orig_mod/head/w"]),
        (re.compile("^_orig_mod/encoder"), ["_orig_mod/encoder/w", "_orig_mod/head/w"], ["_orig_mod/encoder/w"]),
        # DistributedDataParallel.
        ("encoder/**", ["module/encoder/w", "module/head/w"], ["module/encoder/w"]),
        ("head/w", ["module._orig_mod.encoder.w", "module._orig_mod.head.w"], ["module._orig_mod.head.w"]),
        ("module/head/w", ["module/encoder/w", "module/head/w"], ["module/head/w"]),
        (re.compile("^head"), ["module/encoder/w", "module/head/w"], ["module/head/w"]),
        ("*/w", ["module/w", "module/head/w"], ["module/w"]),
    ],
)  # fmt: skip
def test_paths_that_read_alike(where: Any, paths: list[str], chosen_paths: list[str]) -> None:
    tree = {path: np.ones(1) for path in paths}
    stopped = gx.freeze(where)(tree)
    assert [path for path in paths if stopped[path][0] == 0] == chosen_paths


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("w", ["encoder/w", "encoder/b"]),  # neither a wrapper's key nor a Keras model
        ("module/w", ["w", "b"]),
        ("w", ["module/w", "encoder/w"]),
        ("encoder/w", ["encoder_w", "encoder-w"]),
        ("encoder/w", ["my_orig_mod/encoder/w"]),
        (re.compile("^w"), ["encoder/w"]),
    ],
)
def test_paths_that_do_not_read_alike(where: Any, paths: list[str]) -> None:
    with pytest.raises(ValueError, match="matches no path"):
        gx.freeze(where)({path: np.ones(1) for path in paths})


def test_a_gradient_that_is_none_counts_among_the_paths() -> None:
    """Otherwise the selection would depend on the gradients of a step."""
    tree = {"w": None, "module": {"w": np.ones(1)}}
    assert gx.freeze("w")(tree)["module"]["w"].tolist() == [1.0]


ENCODER = ["encoder/0/bias", "encoder/0/kernel", "head/kernel"]


@pytest.mark.parametrize(
    ("where", "paths", "advice"),
    [
        ("encoder", ENCODER, "; did you mean 'encoder/**'?"),
        ("bias", ENCODER, "; did you mean '**/bias'?"),
        ("*/bias", ENCODER, "; did you mean '**/bias'?"),
        ("encoder/*", ENCODER, "; did you mean 'encoder/**'?"),
        ("/encoder/**", ENCODER, "; did you mean 'encoder/**'?"),
        ("encodr/**", ENCODER, "; did you mean 'encoder/**'?"),
        ("encoder/0/kernal", ENCODER, "; did you mean 'encoder/0/kernel'?"),
        ("heads.kernel", ENCODER, "; did you mean 'head/kernel'?"),
        ("model/encoder/**", ENCODER, "; did you mean 'encoder/**'?"),  # under another prefix
        ("params.head.kernel", ENCODER, "; did you mean 'head/kernel'?"),
        ("encoder/**", [f"model/backbone/{path}" for path in ENCODER], "; did you mean '**/encoder/**'?"),
        ("encoder/*", [f"model/{path}" for path in ENCODER], "; did you mean '**/encoder/**'?"),
        ("encoder/**", ["net/head/kernel", "net/head/bias"], "'net/head/bias'"),  # all of it is never meant
        ("0/kernel", [f"model/{path}" for path in ENCODER], "; did you mean '**/0/kernel'?"),
        ("encoder", [f"model/{path}" for path in ENCODER], "; did you mean '**/encoder/**'?"),
        ("zzz", ENCODER, "'head/kernel'"),
        (".*kernel$", ENCODER, "re.compile('.*kernel$')"),
        ("(", ENCODER, "'head/kernel'"),
        ("", ENCODER, "'head/kernel'"),
        (re.compile("zzz"), ENCODER, "'head/kernel'"),
        ("bias", ["0", "1"], "gx.tensorflow.apply(tx, grads_and_vars)"),
    ],
)
def test_a_pattern_that_matches_nothing_gets_advice(where: Any, paths: list[str], advice: str) -> None:
    tree = {path: np.ones(1) for path in paths}
    for call in (gx.freeze(where), gx.masked(gx.scale(2.0), ["**", where]), gx.partition({where: gx.stop()})):
        for act in (call, call.init):
            with pytest.raises(ValueError, match="matches no path") as raised:
                act(tree)
            assert all(word in str(raised.value) for word in (repr(where), advice, *map(repr, paths)))
            assert ("did you mean" in str(raised.value)) == ("did you mean" in advice)
    if "did you mean" in advice or "re.compile" in advice:
        gx.freeze(eval(advice.removeprefix("; did you mean ").removesuffix("?")))(tree)


@pytest.mark.parametrize(
    "tx",
    [
        gx.chain(gx.scale(1.0), gx.freeze("a")),
        gx.chain(gx.trace(0.5), gx.freeze("a")),
        gx.accumulate(gx.freeze("a"), 2),
        gx.masked(gx.trace(0.5), "a"),
        gx.masked(gx.freeze("a"), "**"),
        gx.partition({"a": gx.stop(), "**": gx.identity()}),
    ],
    ids=repr,
)
def test_init_checks_patterns_wherever_they_stand(tx: gx.GradientTransformation) -> None:
    with pytest.raises(ValueError, match="'a' matches no path"):
        tx.init({"b": np.ones(1)})
    tx.init({"a": np.ones(1), "b": np.ones(1)})


@pytest.mark.parametrize("outer", [lambda tx: tx, lambda tx: gx.chain(gx.trace(0.9), gx.masked(tx, "**"))])
@pytest.mark.parametrize("first", [gx.stop(), gx.trace(0.9)])
def test_a_rule_that_is_never_reached_is_told_of_once(first: Any, outer: Any) -> None:
    rules, params = {"a/**": first, ("*/w", "a/b"): gx.scale(2.0)}, {"a": {"b": np.ones(1), "w": np.ones(1)}}
    with pytest.warns(UserWarning, match=r"the rule \('\*/w', 'a/b'\) is never reached.* before 'a/\*\*'") as caught:
        outer(gx.partition(rules)).init(params)
    assert len(caught) == 1
    outer(gx.partition(rules)).init(params | {"b": {"w": np.ones(1)}})


@pytest.mark.parametrize("params", [{}, None, [None], {"a": object()}], ids=["empty", "none", "a hole", "an object"])
def test_init_takes_what_has_no_arrays(params: Any) -> None:
    assert gx.freeze("b").init(params) == gx.EmptyState()


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("a**", "a/b", True),
        ("a/**", "a", True),
        ("**/**/a", "a", True),
        ("**/a/**", "b/a/c/d", True),
        ("***", "a/b", True),
        ("a?c", "a/c", False),
        ("a+b", "aab", False),
        ("*\n*", "a\nb", True),
        ("**/" * 7 + "b", "a/" * 12 + "a", False),
        ("**/l/**/[b]/**/*e*/**/*k*", "l/0/[b]/dense/out/kernel", True),
        ("*a*a*ab", "a" * 200, False),
    ],
)
def test_a_glob_and_a_path(pattern: str, path: str, fits: bool) -> None:
    start = time.process_time()
    assert matches(pattern, [path], alone=True) == [fits]
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("pattern", ["*a" * 9, "**/" * 9 + "b", ["a", "*a*" * 8]])
def test_a_glob_of_many_wildcards_is_refused(pattern: Any) -> None:
    """A regular expression could take exponential time."""
    for make in (gx.freeze, lambda where: gx.masked(gx.trace(0.5), where)):
        with pytest.raises(ValueError, match="8 wildcards"):
            make(pattern)
    with pytest.raises(ValueError, match="matches no path"):  # whose advice has no ninth
        gx.masked(gx.trace(0.5), "x*/*/*/*/*/*/*/*").init({"a": np.ones(1)})


def test_transforms_with_lists_are_values() -> None:
    tx = gx.chain(gx.freeze(["a/**", re.compile("b", re.IGNORECASE)]), gx.masked(gx.scale(2.0), ("c",)))
    assert gx.parse(repr(tx)) == tx == pickle.loads(pickle.dumps(tx))
    assert hash(tx) == hash(gx.parse(repr(tx)))
    assert gx.freeze(["a", "b"]) != gx.freeze(["b", "a"])
    given = ["a"]
    tx = gx.freeze(given)
    given.append("b")
    assert tx == gx.freeze(["a"])


def test_a_tree_does_not_know_variables() -> None:
    """Arrays of a plain tree have no owner; the error says what to write instead."""
    array = np.ones(2)
    tx = gx.freeze([array])
    assert tx == gx.freeze([array]) != gx.freeze([np.ones(2)])
    assert repr(tx) == repr(gx.freeze(array)) == "freeze(<1 variable>)"
    assert repr(gx.freeze(["a", array])) == "freeze(['a', <1 variable>])"
    for act in (tx, tx.init):
        with pytest.raises(TypeError, match=r"choose by path \('encoder/\*\*'\)"):
            act({"a": array})


def test_paths_of_a_tree() -> None:
    assert sorted(gx.paths(grads(TREE))) == PATHS
    assert gx.paths({"b": np.ones(1), "a": None}) == ["b"]
    assert gx.paths([]) == gx.paths({}) == gx.paths(None) == []
    assert gx.paths(np.ones(1)) == [""]
    given = iter([np.ones(1), np.ones(1)])
    assert gx.paths(given) == ["0", "1"]
    with pytest.raises(ValueError, match=r"used up.*write list"):
        gx.paths(given)
    with pytest.raises(TypeError, match=r"'a'.*not an array"):
        gx.paths({"a": object()})


# --- functions of the parameters, as optax calls them -----------------------------------------------------------------


jax: Any = None
traverse_util: Any = None
"""Which these functions name, and of which nothing is called."""


def of_items(params: Any) -> Any:
    return {key: leaf.ndim > 1 for key, leaf in params.items()}


TREE_FUNCTIONS: list[tuple[Callable[..., Any], str]] = [
    (lambda params: jax.tree.map(lambda p: p.ndim > 1, params), "tree of bools"),
    (lambda params: jax.tree_util.tree_map_with_path(lambda path, _: True, params), "mask(params)"),
    (lambda params: traverse_util.flatten_dict(params), "tree"),
    (of_items, "'items'"),
    (lambda params: params["w"], "raised TypeError"),
    (lambda path: path[99], "raised IndexError"),
    (lambda leaf, path: leaf.ndim > 1, "raised AttributeError"),
]


@pytest.mark.parametrize(("where", "words"), TREE_FUNCTIONS, ids=range(len(TREE_FUNCTIONS)))
def test_a_function_of_the_parameters(where: Callable[..., Any], words: str) -> None:
    with pytest.raises(TypeError) as caught:
        gx.masked(gx.scale(2.0), where)({"w": np.ones((2, 2))})
    one_sentence(str(caught.value), words)


@pytest.mark.parametrize("where", [lambda path: False, re.compile("absent").search, lambda path: re.search("no", path)])
def test_a_function_may_choose_nothing(where: Any, framework: str) -> None:
    given = tensors(framework, {"w": np.ones(2), "b": np.ones(1)})
    for tx in (gx.masked(gx.scale(2.0), where), gx.partition({where: gx.stop()}), gx.freeze(where)):
        assert_bits(tx(given), given)


def test_what_a_function_of_path_and_leaf_raises_of_values_is_its_own() -> None:
    def of_values(path: str, leaf: Any) -> bool:
        raise TypeError("a traced array has no truth")

    with pytest.raises(TypeError, match=r"^a traced array has no truth$"):
        gx.freeze(of_values)({"w": np.ones(2)})
    gx.masked(gx.scale(2.0), of_values).init({"w": np.ones(2)})  # without a state, nothing is asked of values


def test_a_layer_with_the_name_of_its_model() -> None:
    """As written comes first: so the pattern is for the model."""
    paths = ["net/net/kernel", "net/net/bias", "net/other/kernel"]
    for pattern, wanted in [
        ("net/**", paths),
        ("net/net/**", paths[:2]),
        ("net/kernel", paths[:1]),
        ("other/**", paths[2:]),
    ]:
        found = matches(pattern, paths, rooted=True)
        assert [path for path, inside in zip(paths, found, strict=True) if inside] == wanted
