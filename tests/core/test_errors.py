"""Bad input raises the right exception; the message names the argument or the path, and the value."""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import INF, NAN

import gradxform as gx

W = np.float32([3.0, 4.0])
TREE = {"encoder": {"kernel": W, "bias": W}, "head": W}


def raises(error: type[Exception], *words: str) -> Any:
    """Expect an error whose message contains all these words."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*{re.escape(word)})" for word in words))


# --- hyperparameters -------------------------------------------------------------------------------------------------

LIMITS = [
    (-1.0, ValueError, "-1.0"),
    (-1, ValueError, "-1"),
    (np.float32(-2), ValueError, "-2"),
    (-INF, ValueError, "-inf"),
    (NAN, ValueError, "NaN"),
    (np.float64(NAN), ValueError, "NaN"),
    ("1.0", TypeError, "'1.0'"),
    (None, TypeError, "None"),
    (True, TypeError, "True"),
    (np.True_, TypeError, "True"),
    (np.bool_(False), TypeError, "False"),
    (1j, TypeError, "1j"),
    (np.complex64(1j), TypeError, "1j"),
    ([1.0], TypeError, "[1.0]"),
    ((1.0,), TypeError, "(1.0,)"),
    (np.ones(2), ValueError, "(2,)"),
    (np.ones((1, 1)), ValueError, "(1, 1)"),
    (np.array([]), ValueError, "(0,)"),
    (float, TypeError, "float"),
]
LIMITED = [
    (gx.clip_norm, "clip_norm", "max_norm"),
    (gx.clip_global_norm, "clip_global_norm", "max_norm"),
    (gx.clip_value, "clip_value", "max_abs"),
]


@pytest.mark.parametrize(
    ("make", "name", "argument"), LIMITED, ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize(("limit", "error", "shown"), LIMITS, ids=repr)
def test_a_limit_that_is_none(
    make: Callable[..., Any], name: str, argument: str, limit: Any, error: type[Exception], shown: str
) -> None:
    with raises(error, name, argument, shown):
        make(limit)


@pytest.mark.parametrize(("limit", "error", "shown"), [row for row in LIMITS if "-" not in row[2]], ids=repr)
def test_a_factor_that_is_none(limit: Any, error: type[Exception], shown: str) -> None:
    with raises(error, "scale", "factor", shown):
        gx.scale(limit)


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_a_limit_with_axes_of_each_framework(framework: str) -> None:
    with raises(ValueError, "max_norm", "(2,)"):
        gx.clip_norm(_tensor(framework))


def test_an_array_of_bools_as_a_limit() -> None:
    with raises(TypeError, "max_norm", "bool"):
        gx.clip_norm(np.array(True))


def test_a_complex_array_as_a_limit() -> None:
    with raises(TypeError, "max_norm", "complex64"):
        gx.clip_norm(np.array(1j, np.complex64))


@pytest.mark.parametrize(
    ("low", "high", "error", "words"),
    [
        (1.0, -1.0, ValueError, ("low=1.0", "high=-1.0")),
        (INF, 0.0, ValueError, ("low=inf", "high=0.0")),
        (NAN, 1.0, ValueError, ("low", "NaN")),
        (0.0, NAN, ValueError, ("high", "NaN")),
        ("0", 1.0, TypeError, ("low", "'0'")),
        (0.0, True, TypeError, ("high", "True")),
        (1j, None, TypeError, ("low", "1j")),
        ([0.0], None, TypeError, ("low", "[0.0]")),
        (None, float, TypeError, ("high", "type")),
    ],
)
def test_bounds(low: Any, high: Any, error: type[Exception], words: tuple[str, ...]) -> None:
    with raises(error, "clip_value", *words):
        gx.clip_value(low=low, high=high)


def test_bounds_in_both_forms() -> None:
    with raises(TypeError, "clip_value", "max_abs=1.0", "low=-1.0"):
        gx.clip_value(1.0, low=-1.0)


def test_bounds_in_no_form() -> None:
    with raises(TypeError, "clip_value", "max_abs", "low", "high"):
        gx.clip_value()


@pytest.mark.parametrize("make", [gx.clip_norm, gx.clip_global_norm])
@pytest.mark.parametrize(
    ("ord", "error", "shown"),
    [
        (0, ValueError, "0"),
        (0.5, ValueError, "0.5"),
        (-1, ValueError, "-1"),
        (-INF, ValueError, "-inf"),
        (NAN, ValueError, "nan"),
        ("fro", TypeError, "'fro'"),
        (True, TypeError, "True"),
        (2j, TypeError, "2j"),
        (np.array(2.0), TypeError, "array(2.)"),
    ],
)
def test_the_order_of_a_norm(make: Callable[..., Any], ord: Any, error: type[Exception], shown: str) -> None:
    with raises(error, make.__name__, "ord", shown):
        make(1.0, ord=ord)


@pytest.mark.parametrize("axes", ["0", 1.0, (0, "1"), True, (0, True), [[0]], {0: 1}])
def test_axes_that_are_no_ints(axes: Any) -> None:
    with raises(TypeError, "clip_norm", "axes", repr(axes)):
        gx.clip_norm(1.0, axes=axes)


@pytest.mark.parametrize("axes", [(0, 0), (1, 0, 1)])
def test_axes_given_twice(axes: Any) -> None:
    with raises(ValueError, "clip_norm", "axes", repr(axes)):
        gx.clip_norm(1.0, axes=axes)


def test_axes_that_are_the_same_axis_of_a_gradient() -> None:
    with raises(ValueError, "axes", "(0, -1)", "'encoder/bias'"):
        gx.clip_norm(1.0, axes=(0, -1))(TREE)


@pytest.mark.parametrize("axes", [1, -2, (0, 5)])
def test_axes_that_a_gradient_has_not(axes: Any) -> None:
    with raises(ValueError, "axes", str(axes).strip("()"), "'b/0'", "(2,)"):
        gx.clip_norm(1.0, axes=axes)({"a": np.ones((2, 2, 2, 2, 2, 2)), "b": [W]})


@pytest.mark.parametrize("argument", ["max_nrom", "eps"])
def test_an_argument_that_does_not_exist(argument: str) -> None:
    with raises(TypeError, argument):
        gx.clip_norm(1.0, **{argument: 2.0})


# --- where -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, 1, 0.5, b"head", gx.stop()], ids=repr)
@pytest.mark.parametrize("make", ["freeze", "masked", "partition"])
def test_a_where_of_no_known_form(make: str, where: Any) -> None:
    with raises(TypeError, make if make != "freeze" else "where", "where", repr(where)):
        {
            "freeze": lambda: gx.freeze(where),
            "masked": lambda: gx.masked(gx.stop(), where),
            "partition": lambda: gx.partition({where: gx.stop()}),
        }[make]()(TREE)


@pytest.mark.parametrize("where", ["decoder/**", "encoder", re.compile("decoder"), "HEAD", ""], ids=repr)
@pytest.mark.parametrize(
    "make",
    [gx.freeze, functools.partial(gx.masked, gx.stop()), lambda where: gx.partition({where: gx.stop()})],
    ids=["freeze", "masked", "partition"],
)
def test_a_pattern_that_matches_nothing_lists_the_paths(make: Callable[[Any], Any], where: Any) -> None:
    with raises(ValueError, repr(where), "'encoder/bias'", "'encoder/kernel'", "'head'"):
        make(where)(TREE)


def test_a_pattern_that_matches_nothing_among_many_paths_lists_some() -> None:
    with raises(ValueError, "'77'", "'0'", "and 15 more") as caught:
        gx.freeze("77")([W] * 17 + [None] * 2 + [W] * 3)
    assert len(str(caught.value)) < 300


def test_a_tree_of_bools_without_one_for_a_gradient() -> None:
    with raises(ValueError, "masked", "'head'", "'encoder'"):
        gx.masked(gx.stop(), {"encoder": True})(TREE)


@pytest.mark.parametrize("leaf", ["yes", 1, 1.0, np.ones(2)], ids=repr)
def test_a_tree_of_what_is_no_bool(leaf: Any) -> None:
    with raises(TypeError, "masked", "where", "'head'", repr(leaf)[:5]):
        gx.masked(gx.stop(), {"encoder": True, "head": leaf})(TREE)


@pytest.mark.parametrize("rules", [None, 3, "head", [("head", gx.stop())]], ids=repr)
def test_rules_that_are_no_mapping(rules: Any) -> None:
    with raises(TypeError, "partition", "rules", repr(rules)):
        gx.partition(rules)


# --- other objects ---------------------------------------------------------------------------------------------------


class Half:
    """An object with only one of init and update."""

    def init(self, params: Any) -> None: ...


class Whole(Half):
    def update(self, updates: Any, state: Any, params: Any = None) -> Any: ...


FOREIGN = [
    None,
    3,
    "clip_norm(1.0)",
    lambda g: g,
    Half(),
    gx.clip_norm,
    gx.stop,
    Half,
    Whole,
    gx.GradientTransformation,
]


@pytest.mark.parametrize(
    ("make", "tx"),
    [
        (make, tx)
        for make in ("chain", "masked", "partition", "default")
        for tx in FOREIGN
        if (make, tx) != ("default", None)
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:20]),
)
def test_what_is_no_transformation(make: str, tx: Any) -> None:
    name = "partition" if make == "default" else make
    with raises(TypeError, name, "init", "update", repr(tx), type(tx).__name__):
        {
            "chain": lambda: gx.chain(gx.identity(), tx),
            "masked": lambda: gx.masked(tx, "head"),
            "partition": lambda: gx.partition({"head": tx}),
            "default": lambda: gx.partition({"head": gx.stop()}, default=tx),
        }[make]()


def test_a_factory_instead_of_its_transformation_is_told_to_be_called() -> None:
    with raises(TypeError, "call it first"):
        gx.chain(gx.stop)


def test_a_list_of_transformations() -> None:
    with raises(TypeError, "chain", "list"):
        gx.chain([gx.stop(), gx.identity()])


@pytest.mark.parametrize("tx", [gx.stop, None, "stop()"], ids=["factory", "None", "text"])
@pytest.mark.parametrize("framework", ["numpy", "tensorflow", "torch"])
def test_an_adapter_given_what_is_no_transformation(framework: str, tx: Any) -> None:
    pytest.importorskip(framework)
    adapter = getattr(gx, framework)
    name = "apply" if framework == "tensorflow" else "apply_"
    with raises(TypeError, f"{framework}.{name}", repr(tx)):
        getattr(adapter, name)(tx, [])


class Counter:
    """A stateful transformation of another library."""

    def init(self, params: Any) -> int:
        return 0

    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        return updates, state + 1


class Loser(Counter):
    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        return {"head": updates["head"], "encoder": None}, state


@pytest.mark.parametrize(
    "tx",
    [gx.chain(Counter()), gx.masked(Counter(), "head"), gx.partition({"head": Counter()})],
    ids=["chain", "masked", "partition"],
)
def test_a_stateful_one_called_like_a_function(tx: Any) -> None:
    with raises(TypeError, "state = tx.init(params)", "tx.update", "Counter"):
        tx(TREE)
    with raises(TypeError, "state = tx.init(params)", "Counter"):
        tx.update(TREE)


def test_a_foreign_transformation_that_loses_gradients() -> None:
    tx = gx.chain(Loser())
    with raises(TypeError, "Loser", "1", "3"):
        tx.update(TREE, tx.init(TREE))


def test_a_state_of_another_transformation() -> None:
    tx = gx.chain(Counter(), Counter())
    with raises((TypeError, ValueError), "state"):
        tx.update(TREE, (0,))


def test_a_transformation_with_a_foreign_rule_says_that_it_cannot_be_pickled() -> None:
    own = gx.GradientTransformation(lambda view, state, context: (view, state))
    with raises(TypeError, "factory", "pickled"):
        pickle.dumps(own)


# --- gradients -------------------------------------------------------------------------------------------------------

NORMS = [
    gx.clip_norm(1.0),
    gx.clip_norm(1.0, axes=0),
    gx.clip_global_norm(1.0),
    gx.clip_norm(1.0, ord=INF),
    gx.clip_value(1.0),
    gx.scale(2.0),
    gx.scale(1.0),
    gx.chain(gx.identity(), gx.scale(0.5)),
]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("tx", NORMS, ids=repr)
def test_an_integer_gradient_is_named(tx: Any, dtype: Any) -> None:
    with raises(TypeError, "'encoder/0/step'", np.dtype(dtype).name):
        tx({"head": W, "encoder": [{"step": np.ones(2, dtype)}]})


@pytest.mark.parametrize("tx", NORMS, ids=repr)
def test_a_python_int_is_an_integer_gradient(tx: Any) -> None:
    with raises(TypeError, "'n'", "int64"):
        tx({"w": W, "n": 3})


@pytest.mark.parametrize(
    "leaf",
    ["text", object(), {1, 2}, b"x", True, np.array(["a"]), np.array([None])],
    ids=["str", "object", "set", "bytes", "bool", "array of str", "array of objects"],
)
def test_a_leaf_that_is_no_array(leaf: Any) -> None:
    with raises(TypeError, type(leaf).__name__ if not isinstance(leaf, np.ndarray) else leaf.dtype.name):
        gx.clip_norm(1.0)({"w": W, "x": [leaf]})


@pytest.mark.parametrize("leaf", ["text", object(), True], ids=["str", "object", "bool"])
def test_a_leaf_that_is_no_array_is_named(leaf: Any) -> None:
    with raises(TypeError, "'x/0'", type(leaf).__name__):
        gx.clip_norm(1.0)({"w": W, "x": [leaf]})


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (np.ones((3, 2)), ("(3, 2)", "'head'", "(2,)")),
        (np.ones(3), ("(3,)", "'head'", "(2,)")),
        (np.ones((1, 1)), ("(1, 1)", "'head'", "(2,)")),
    ],
)
def test_a_bound_that_would_broadcast_a_gradient(bound: Any, words: tuple[str, ...]) -> None:
    for name in ("low", "high"):
        with raises(ValueError, "clip_value", name, *words):
            gx.clip_value(**{name: bound})({"head": W})


def test_a_bound_that_broadcasts_to_the_gradient_is_none_of_these() -> None:
    assert gx.clip_value(high=np.ones(1))(W).tolist() == [1.0, 1.0]
    assert gx.clip_value(high=np.float32([1.0, 5.0]))(W).tolist() == [1.0, 4.0]


# --- two frameworks --------------------------------------------------------------------------------------------------


def _tensor(framework: str) -> Any:
    module = pytest.importorskip(framework)
    make = {"jax": lambda: module.numpy.ones(2), "torch": lambda: module.ones(2), "tensorflow": lambda: module.ones(2)}
    return make[framework]()


@pytest.mark.parametrize(("one", "other"), [("jax", "torch"), ("torch", "tensorflow"), ("tensorflow", "jax")])
@pytest.mark.parametrize("numpy_first", [False, True])
def test_two_frameworks_in_one_tree(one: str, other: str, numpy_first: bool) -> None:
    first, second = _tensor(one), _tensor(other)
    tree = {**({"0": W} if numpy_first else {}), "a": {"w": first}, "b": [first, second]}
    with raises(TypeError, "two frameworks", "'b/1'", other, "'a/w'", one):
        gx.clip_norm(1.0)(tree)


# --- parse -----------------------------------------------------------------------------------------------------------

MALICIOUS = [
    "__import__('os').system('x')",
    "__import__('os')",
    "clip_norm(__import__('os').getpid())",
    "clip_norm(**{})",
    "clip_norm(**{'max_norm': 1.0})",
    "clip_norm(*[1.0])",
    "clip_norm.__globals__",
    "clip_norm(1.0).rule",
    "clip_norm(1.0)(2)",
    "os.system('x')",
    "re.sub('a', 'b', 'c')",
    "re.__loader__('x')",
    "gx.jax.freeze(1, 2)",
    "gradxform.testing.max_ulp(1, 2)",
    "(lambda: clip_norm(1.0))()",
    "[clip_norm(1.0) for _ in (1,)][0]",
    "clip_norm(1.0) if True else stop()",
    "clip_norm(2 ** 999999999)",
    "clip_norm(1.0 + 1.0)",
    "(x := clip_norm(1.0))",
    "f'{stop()}'",
    "clip_norm(f'{1}')",
    "eval('stop()')",
    "float('1.0')",
    "clip_norm(float('1e400'))",
    "print(stop())",
    "stop() and stop()",
    "{'a': stop(), **{}}",
    "masked(stop(), {**{}})",
    "clip_norm(1j)",
    "clip_norm(b'1')",
    "clip_norm(...)",
    "masked(stop(), {'a', 'b'})",
    "-clip_norm(1.0)",
    "not stop()",
    "stop",
    "1.0",
    "[stop()]",
    "",
    "   ",
    "stop(); stop()",
    "import os",
    "stop(",
    "stop())",
    "\x00",
]


@pytest.mark.parametrize("expression", MALICIOUS)
def test_an_expression_that_is_no_transform(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.system", lambda command: pytest.fail("it was run"))
    with raises(ValueError, "parse"):
        gx.parse(expression)


@pytest.mark.parametrize("name", ["clip_nrom", "print", "eval", "GradientTransformation", "parse", "optax"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with raises(ValueError, f"{name!r}", "chain, clip_adagc", "clip_norm", "stop"):
        gx.parse(f"chain(stop(), {name}(1.0))")


@pytest.mark.parametrize("expression", [None, 1, b"stop()", gx.stop()], ids=repr)
def test_an_expression_that_is_no_string(expression: Any) -> None:
    with raises(TypeError, "parse", "expression", repr(expression)):
        gx.parse(expression)


@pytest.mark.parametrize(
    ("expression", "error", "words"),
    [
        ("clip_norm(-1.0)", ValueError, ("max_norm", "-1.0")),
        ("clip_norm(float('nan'))", ValueError, ("max_norm", "NaN")),
        ("clip_norm()", TypeError, ("max_norm",)),
        ("clip_norm(1.0, 2.0)", TypeError, ("clip_norm",)),
        ("clip_norm(1.0, eps=2.0)", TypeError, ("eps",)),
        ("clip_norm(True)", TypeError, ("max_norm", "True")),
        ("chain(1.0)", TypeError, ("chain", "1.0")),
        ("masked(stop(), re.compile('('))", ValueError, ("re.compile",)),
        ("masked(stop(), re.compile(1))", ValueError, ("re.compile(1)", "string")),
    ],
)
def test_arguments_in_an_expression(expression: str, error: type[Exception], words: tuple[str, ...]) -> None:
    with raises(error, *words):
        gx.parse(expression)


@pytest.mark.parametrize(
    "expression", ["chain(" * 5000 + ")" * 5000, f"clip_norm({'-' * 50000}1)", f"stop(){'.a' * 50000}", "9" * 5000]
)
def test_an_expression_beyond_all_sense(expression: str) -> None:
    with raises(ValueError, "parse"):
        gx.parse(expression)


# --- names -----------------------------------------------------------------------------------------------------------


def test_an_unknown_attribute() -> None:
    with raises(AttributeError, "gradxform", "'clip_nrom'"):
        gx.clip_nrom  # noqa: B018


def test_a_framework_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] in ("gradxform_torch", "torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(vars(gx), "torch", raising=False)
    with raises(ImportError, "gradxform.torch", "'torch'", "gradxform[torch]"):
        gx.torch  # noqa: B018
