"""A wrong call raises the right exception; the message names the argument or path, the value, and what to write."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import EVERYWHERE, PROCESSES, one_sentence, python, run_advice, slow, tensors

import gradxform as gx
from gradxform.core.transform import factories

W = np.float32([3.0, 4.0])
TREE = {"encoder": {"kernel": W, "bias": W}, "head": W}
GRADS = {"w": W, "b": None}
M, K = np.ones((2, 3)), np.ones((2, 3, 4))
STEPS = {"head": W, "encoder": [{"step": 1}]}


class LearningRate:
    def __call__(self, step: Any) -> Any:
        return 0.1


class WarmUp(LearningRate):
    def __call__(self, step: Any, peak: Any) -> Any:  # type: ignore[override]
        return peak


class Half:
    """An object with only one of init and update."""

    def init(self, params: Any) -> int:
        return 0


class Counter(Half):
    """A stateful transformation of another library."""

    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        return updates, state + 1


class Loser(Counter):
    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        return {"head": updates["head"], "encoder": None}, state


class Short(Half):
    def update(self, updates: Any, state: Any) -> Any:
        return updates, state


class Alone(Half):
    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        return updates


def two(step: Any, peak: Any) -> Any:
    return peak


def update(tx: Any, state: Any = None) -> Any:
    return tx.update(TREE, tx.init(TREE) if state is None else state)


LIMITS = [
    ("-1.0", ValueError, "-1.0"), ("np.float32(-2)", ValueError, "-2"), ("-inf", ValueError, "-inf"),
    ("nan", ValueError, "NaN"), ("np.float64(nan)", ValueError, "NaN"), ("'1.0'", TypeError, "'1.0'"),
    ("None", TypeError, "None"), ("True", TypeError, "True"), ("np.True_", TypeError, "True"), ("1j", TypeError, "1j"),
    ("np.complex64(1j)", TypeError, "1j"), ("[1.0]", TypeError, "[1.0]"), ("np.ones(2)", ValueError, "(2,)"),
    ("np.ones((1, 1))", ValueError, "(1, 1)"), ("np.array([])", ValueError, "(0,)"), ("float", TypeError, "float"),
    ("np.array(True)", TypeError, "bool"), ("np.array(1j, 'c8')", TypeError, "complex64"),
]  # fmt: skip
ORDERS = [("0", ValueError), ("0.5", ValueError), ("-1", ValueError), ("-inf", ValueError), ("nan", ValueError),
          ("'fro'", TypeError), ("True", TypeError), ("2j", TypeError), ("array(2.)", TypeError)]  # fmt: skip
FOREIGN = ["None", "3", "'clip_norm(1.0)'", "lambda g: g", "Half()", "gx.clip_norm", "gx.stop", "Half", "Counter",
           "gx.GradientTransformation"]  # fmt: skip
KINDS: dict[str, list[Any]] = {
    "Scalar": LIMITS, "decay": [*LIMITS, ("1.5", ValueError, "1.5")],
    "percentile": [*LIMITS, ("101", ValueError, "101")],
    "int": [("0.5", TypeError, "0.5"), ("True", TypeError, "True"), ("-1", ValueError, "-1")],
    "seed": [("0.5", TypeError, "0.5"), ("True", TypeError, "True"), ("2**64", ValueError, "64 bits")],
    "tx": [(tx, TypeError, f"{eval(tx)!r}"[:12], type(eval(tx)).__name__, "init", "update") for tx in FOREIGN],
}  # fmt: skip
"""What an argument refuses, by its name or the kind of its numbers."""
NEEDED = {"tx": "gx.stop()", "where": "'**'"}


def arguments() -> Iterator[tuple[Any, ...]]:
    """Each argument of each factory that refuses something; None may be a default, and factors negative."""
    for name, make in factories.items():
        given = inspect.signature(make).parameters
        needed = {key: NEEDED.get(key, "1") for key, argument in given.items() if argument.default is argument.empty}
        for key, argument in given.items():
            kind = key if key in KINDS else argument.annotation.removesuffix(" | None")
            for value, error, shown, *more in KINDS.get(kind, ()):
                may_be = (argument.default is None and value == "None") or (
                    key in ("factor", "weight_decay") and shown[0] == "-"
                )
                if not may_be:
                    call = ", ".join(f"{k}={v}" for k, v in (needed | {key: value}).items())
                    yield f"gx.{name}({call})", error, name, key if key != "tx" else "", shown, *more


NORMS = ["clip_norm(1.0)", "clip_norm(1.0, axes=0)", "clip_global_norm(1.0)", "clip_norm(1.0, ord=inf)",
         "clip_value(1.0)", "scale(2.0)", "scale(1.0)", "chain(gx.identity(), gx.scale(0.5))", "sign()",
         "clip_rms(1.0)", "zero_nonfinite()", "normalize_norm()"]  # fmt: skip
WRONG: list[tuple[Any, ...]] = [
    # --- names of other libraries, and typos
    ("gx.clip_by_norm", AttributeError, "'clip_by_norm'; did you mean gx.clip_norm?"),
    ("gx.ClipByValue", AttributeError, "did you mean gx.clip_value?"),
    ("gx.clip_grad_norm_", AttributeError, "gx.clip_global_norm", "gx.torch.apply_(tx, model)"),
    ("gx.tf", AttributeError, "gx.tensorflow"),
    ("gx.clip_golbal_norm", AttributeError, "'clip_golbal_norm'; did you mean gx.clip_global_norm?"),
    ("gx.skip_non_finite", AttributeError, "did you mean gx.skip_nonfinite?"),
    # --- hyperparameters
    *arguments(),
    *((f"gx.{name}(1.0, ord={ord})", error, name, "ord", ord) for name in ("clip_norm", "clip_global_norm")
      for ord, error in ORDERS),
    ("gx.clip_value(low=1.0, high=-1.0)", ValueError, "clip_value", "low=1.0", "high=-1.0"),
    ("gx.clip_value(low=nan, high=1.0)", ValueError, "clip_value", "low", "NaN"),
    ("gx.clip_value(low=0.0, high=nan)", ValueError, "clip_value", "high", "NaN"),
    ("gx.clip_value(low='0', high=1.0)", TypeError, "clip_value", "low", "'0'"),
    ("gx.clip_value(high=float)", TypeError, "clip_value", "high", "type"),
    ("gx.clip_value(1.0, low=-1.0)", TypeError, "clip_value", "max_abs=1.0", "low=-1.0"),
    ("gx.clip_value()", TypeError, "clip_value", "max_abs", "low", "high"),
    *((f"gx.clip_norm(1.0, axes={axes})", TypeError, "clip_norm", "axes", axes)
      for axes in ("'0'", "1.0", "(0, '1')", "True", "(0, True)", "[[0]]", "{0: 1}")),
    ("gx.clip_norm(1.0, axes=(1, 0, 1))", ValueError, "clip_norm", "axes", "(1, 0, 1)"),
    ("gx.clip_norm(1.0, axes=(0, -1))(TREE)", ValueError, "axes", "(0, -1)", "'encoder/bias'"),
    ("gx.clip_norm(1.0, axes=-2)({'a': np.ones((2, 2)), 'b': [W]})", ValueError, "axes", "-2", "'b/0'", "(2,)"),
    ("gx.clip_norm(1.0, axes=(0, 5))({'a': np.ones((2,) * 6), 'b': [W]})", ValueError, "0, 5", "'b/0'", "(2,)"),
    # --- arguments by position
    ("gx.clip_value(-1.0, 1.0)", TypeError, "too many", "gx.clip_value(max_abs=None, *, low=None, high=None)"),
    ("gx.clip_norm(1.0, 2.0)", TypeError, "gx.clip_norm(max_norm, *, axes=None, ord=None, like="),
    ("gx.clip_percentile(10, 100, True)", TypeError, "gx.clip_percentile(percentile", "per_leaf=False"),
    ("gx.sign(1.0)", TypeError, "gx.sign()"),
    # --- gradients among the arguments
    ("gx.clip_global_norm(GRADS, 1.0)", TypeError, "tx = gx.clip_global_norm(...), then tx(gradients)"),
    ("gx.clip_global_norm(GRADS, max_norm=1.0)", TypeError, "multiple values", "then tx(gradients)"),
    ("gx.clip_norm(GRADS)", TypeError, "tx = gx.clip_norm(...), then tx(gradients)"),
    ("gx.clip_norm(GRADS['w'])", ValueError, "tx = gx.clip_norm(...), then tx(gradients)"),
    ("gx.clip_norm((g for g in GRADS), 1.0)", TypeError, "list(...)"),
    ("gx.clip_norm(GRADS, clip_norm=1.0)", TypeError, "'clip_norm'", "then tx(gradients)"),
    ("gx.sign(GRADS)", TypeError, "tx = gx.sign(...), then tx(gradients)"),
    ("gx.trace(GRADS, 0.9)", TypeError, "tx = gx.trace(...), then tx"),
    ("gx.chain(gx.stop(), GRADS)", TypeError, "tx(gradients)"),
    ("gx.stop()()", TypeError, "tx(gradients)"),
    ("gx.trace(0.9)()", TypeError, "state = tx.init(params)"),
    # --- arguments with other names
    ("gx.clip_norm(max_nrm=1.0)", TypeError, "'max_norm'", "gx.clip_norm(max_norm, *"),
    ("gx.clip_norm(1.0, axis=0)", TypeError, "'axis'", "axes=None"),
    ("gx.accumulate(gx.stop(), every_k_schedule=4)", TypeError, "'every'", "gx.accumulate(tx, every"),
    ("gx.clip_norm(1.0, foo=0)", TypeError, "'foo'", "gx.clip_norm(max_norm, *, axes=None"),
    ("gx.add_decayed_weights(1e-4, mask={'w': True})", TypeError, "gx.masked(gx.add_decayed_weights(...), where)"),
    ("gx.clip_norm(1.0, where='w')", TypeError, "'where'", "gx.masked(gx.clip_norm(...), where)"),
    ("gx.partition({'w': gx.stop()}, lambda path: 'w')", TypeError, "default must be"),
    ("gx.partition({'a': gx.stop()}, {'w': 'a'})", TypeError, "{'encoder/**': tx}"),
    # --- the wrong order
    ("gx.masked('*w', gx.stop())", TypeError, "masked", "expected a transformation", "'*w'"),
    ("gx.accumulate(4, gx.stop())", TypeError, "accumulate", "expected a transformation", "4", "comes first"),
    ("gx.measure('name', gx.stop())", TypeError, "measure", "expected a transformation", "'name'"),
    ("gx.partition(gx.stop(), {'**/bias': gx.stop()})", TypeError, "partition", "{'**/bias': tx}"),
    ("gx.numpy.apply_(GRADS, gx.stop())", TypeError, "gx.numpy.apply_(tx, gradients)"),
    ("gx.chain([gx.stop(), gx.sign()])", TypeError, "gx.chain(*txs)", "list"),
    # --- schedules
    ("gx.scale(LearningRate)", TypeError, "it is a class: make an instance of it first"),
    ("gx.scale(two)", TypeError, "(step: 'Any', peak: 'Any')"),
    ("gx.scale(WarmUp())", TypeError, "lambda step: 0.1 * 0.99**step"),
    ("gx.clip_norm(lambda: 1.0)", TypeError, "max_norm is a function of ()", "lambda step: 0.1 * 0.99**step"),
    ("update(gx.scale(lambda step: np.ones(4)))", ValueError, "scale", "factor", "(4,)"),
    ("update(gx.trace(lambda step: [0.5, 0.9]))", TypeError, "trace", "decay", "[0.5, 0.9]"),
    ("gx.scale(gx.stop())", TypeError, "got stop() of type GradientTransformation"),
    # --- where
    *((f"gx.masked(gx.stop(), {where})", TypeError, "masked", "where", where) for where in ("None", "1", "b'head'")),
    ("gx.freeze(gx.stop())", TypeError, "where", "stop()"),
    ("gx.partition({0.5: gx.stop()})", TypeError, "partition", "where", "0.5"),
    ("gx.masked(gx.stop(), {'encoder': True})(TREE)", ValueError, "masked", "'head'", "'encoder'"),
    *((f"gx.masked(gx.stop(), {{'encoder': True, 'head': {leaf}}})(TREE)", TypeError, "masked", "'head'", leaf)
      for leaf in ("'yes'", "1", "1.0")),
    *((f"gx.partition({rules})", TypeError, "partition", "rules", rules.replace("gx.", ""))
      for rules in ("None", "'head'", "[('head', gx.stop())]")),
    # --- other objects
    *((call % tx, TypeError, call[3:].split("(")[0], "init", "update", repr(eval(tx))[:12], type(eval(tx)).__name__)
      for tx in FOREIGN for call in ("gx.chain(gx.identity(), %s)", "gx.partition({'head': %s})",
                                     "gx.partition({'head': gx.stop()}, default=%s)")
      if "default" not in call or tx != "None"),
    ("gx.chain(gx.stop)", TypeError, "call it first"),
    ("gx.flush(gx.accumulate(gx.stop(), 2), ())", ValueError, "no parameters in None", "gx.flush(tx, state, params)"),
    ("gx.numpy.apply_(gx.stop, [])", TypeError, "numpy.apply_", repr(gx.stop)),
    ("gx.torch.apply_('stop()', [])", TypeError, "torch.apply_", "'stop()'"),
    ("gx.tensorflow.apply(None, [])", TypeError, "tensorflow.apply", "None"),
    *((f"{tx}{call}", TypeError, "state = tx.init(params)", "Counter") for call in ("(TREE)", ".update(TREE)")
      for tx in ("gx.chain(Counter())", "gx.masked(Counter(), 'head')", "gx.partition({'head': Counter()})")),
    ("update(gx.chain(Loser()))", TypeError, "Loser", "1", "3"),
    ("gx.chain(Short())", TypeError, "Short.update", "(updates, state, params=None)"),
    ("update(gx.chain(Alone()))", TypeError, "Alone.update", "(updates, state)", "dict"),
    ("update(gx.chain(Counter(), Counter()), (0,))", (TypeError, ValueError), "state"),
    ("update(gx.ema(0.9), {'w': np.ones((9, 9))})", ValueError, "ema", "EmaState", "of type dict"),
    ("gx.to_numpy(gx.stop())", TypeError, "tx.init(params)"),
    ("gx.from_numpy('state.npz', GRADS)", TypeError, "np.load('state.npz')"),
    ("pickle.dumps(gx.GradientTransformation(lambda v, s, c: (v, s)))", TypeError, "factory", "pickled"),
    # --- gradients
    *((f"gx.{tx}({{**STEPS, 'encoder': [{{'step': np.ones(2, '{dtype}')}}]}})", TypeError, "'encoder/0/step'", dtype)
      for tx in NORMS for dtype in ("int32", "int64", "uint8", "bool")),
    *((f"gx.{tx}(STEPS)", TypeError, "'encoder/0/step'", "int64") for tx in NORMS),
    *((f"gx.clip_norm(1.0)({{'w': W, 'x': [{leaf}]}})", TypeError, *shown) for leaf, *shown in (
        ("'text'", "'x/0'", "str"), ("object()", "'x/0'", "object"), ("True", "'x/0'", "bool"), ("{1, 2}", "set"),
        ("b'x'", "bytes"), ("np.array(['a'])", "str"), ("np.array([None])", "object"))),
    ("gx.clip_value(1.0)([np.ones(2, np.int16)])", TypeError, "int16", "cast it", "masked(...)"),
    ("gx.clip_value(1.0)([np.ones(2) * 1j])", TypeError, "complex128", "use clip_norm"),
    ("gx.sign()([np.ones(2) * 1j])", TypeError, "complex"),
    ("gx.global_norm(g for g in [np.ones(2)])", TypeError, "iterator (generator)", "list(...)"),
    ("gx.norms(GRADS.values())", TypeError, "dict_values", "list(...)"),
    ("gx.stop()({'w': map(abs, [1.0])})", TypeError, "'w' is an iterator (map)", "list(...)"),
    *((f"gx.clip_value({name}=np.ones({shape}))({{'head': W}})", ValueError, "clip_value", name, shape, "'head'")
      for name in ("low", "high") for shape in ("(3, 2)", "(3,)", "(1, 1)")),
    # --- products of matrices, choices of elements
    ("gx.orthogonalize(0)", ValueError, "orthogonalize: steps", "0"),
    ("gx.orthogonalize(5, 'you')", ValueError, "coefficients", "'jordan', 'polar_express'", "'you'"),
    ("gx.orthogonalize(5, (1.0, 2.0))", ValueError, "coefficients", "(1.0, 2.0)"),
    ("gx.orthogonalize(5, (1.0, nan, 0.0))", ValueError, "coefficient", "NaN"),
    ("gx.orthogonalize(scale='keras')", ValueError, "scale", "None, 'shape', 'rms'", "'keras'"),
    ("gx.orthogonalize(dtype='int8')", ValueError, "dtype", "'bfloat16'", "'int8'"),
    ("gx.orthogonalize(like='jax')", ValueError, "like", "'optax'", "'jax'"),
    ("gx.orthogonalize(axes='flax')", ValueError, "axes", "'keras'", "'flax'"),
    ("gx.orthogonalize()({'w': M, 'b': W})", ValueError, "'b'", "(2,)", "masked(orthogonalize(...), where)"),
    ("gx.orthogonalize()([K])", ValueError, "'0'", "(2, 3, 4)", "axes", "stack"),
    ("gx.orthogonalize(axes=(0, 1))([M])", ValueError, "axes (0, 1)", "'0'", "outputs"),
    ("gx.orthogonalize(axes=((0,), (0,)))([M])", ValueError, "axes", "'0'"),
    ("gx.orthogonalize(axes=((1,), (2,)))({'h': {'w': M}})", ValueError, "'h/w'", "(2, 3)", "{'h/w': 'torch', "),
    ("gx.orthogonalize(2.5)", TypeError, "steps"),
    ("gx.orthogonalize(5, 1.5)", TypeError, "coefficients", "1.5"),
    ("gx.orthogonalize()({'w': M * 1j})", TypeError, "orthogonalize", "'w'", "complex128"),
    ("gx.orthogonalize()({'w': M.astype(int)})", TypeError, "orthogonalize", "'w'", "int64"),
    *((f"gx.top_k({given})", ValueError, "top_k: fraction") for given in ("0.0", "1.5", "nan")),
    *((f"gx.top_k({given})", TypeError, "top_k: fraction") for given in ("True", "np.array(0.5)", "abs", "'a'")),
    ("gx.top_k(10)", ValueError, "write k / n"),
    ("gx.top_k(0.5, sparse='False')", TypeError, "'False'"),
    *((f"gx.top_k(0.5)({{'w': np.ones(3, '{dtype}')}})", TypeError, "'w'", dtype) for dtype in ("complex64", "int32")),
    *((f"gx.cautious({given})", ValueError, f"{given.partition('=')[0]} must be")
      for given in ("negated=0", "negated=1", "negated='yes'", "eps=-1.0")),
    ("gx.cautious().update([W * 1j], gradients=[W])", TypeError, "cautious: ", "'0' has dtype complex64"),
    ("gx.cautious().update([np.ones(2)], gradients=[np.array([1j, -1])])", TypeError, "'0' has dtype complex128"),
    # --- expressions
    ("gx.parse('clip_norm(-1.0)')", ValueError, "max_norm", "-1.0"),
    ("gx.parse('clip_norm(float(\"nan\"))')", ValueError, "max_norm", "NaN"),
    ("gx.parse('clip_norm()')", TypeError, "max_norm"),
    ("gx.parse('clip_norm(1.0, eps=2.0)')", TypeError, "eps"),
    ("gx.parse('chain(1.0)')", TypeError, "chain", "1.0"),
    ("gx.parse('masked(stop(), re.compile(\"(\"))')", ValueError, "re.compile"),
    ("gx.parse('masked(stop(), re.compile(1))')", ValueError, "re.compile(1)", "string"),
    ("gx.parse('clip_value(-1, 1)')", TypeError, "gx.clip_value(max_abs=None, *, low"),
    ("gx.parse('gx.chain(gx.clip_norm(max_nrm=1.0))')", TypeError, "'max_norm'", "gx.clip_norm(max_norm"),
    ("gx.parse(b'stop()')", TypeError, "parse", "expression", "b'stop()'"),
    ("gx.parse(gx.stop())", TypeError, "parse", "expression", "stop()"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), [(c, e, w) for c, e, *w in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_call(call: str, error: type[Exception], words: list[str]) -> None:
    for framework in ("torch", "tensorflow"):
        if f"gx.{framework}." in call:
            pytest.importorskip(framework)
    with pytest.raises(error) as caught:
        eval(call, {**vars(np), **globals(), "pickle": pickle})
    one_sentence(str(caught.value), *words)
    tx = gx.accumulate(gx.stop(), 2) if "flush" in call else gx.stop()
    names: dict[str, Any] = {"gx": gx, "numpy": np, "tx": tx, "txs": [tx], "state": tx.init(GRADS)}
    names |= {"every": 2, "where": "w"}
    names |= {key: {"w": W.copy(), "b": None} for key in ("gradients", "params", "updates", "result")}
    names |= dict.fromkeys(("decay", "factor", "max_abs", "max_norm"), 0.5)
    run_advice(str(caught.value), lambda: dict(names))


def test_code_of_a_message_is_run() -> None:
    message = "f: no; write x = f(a, (1,)), [g for g in a], gx.torch.no(x), f(...), f(a, *, b=1), f(f)(2) or array(3)"
    wanted = ["x = f(a, (1,))", "[g for g in a]", "f(f)(2)"]
    assert run_advice(message, lambda: {"f": lambda *given: print, "a": [1]}) == wanted
    with pytest.raises(AttributeError, match="nowhere"):
        run_advice("write a.nowhere()", lambda: {"a": 1})


def test_a_state_of_a_shorter_chain_says_how_to_keep_the_places() -> None:
    short, long = gx.chain(gx.trace(0.5)), gx.chain(gx.stop(), gx.trace(0.5))
    with pytest.raises(ValueError, match=r"'1/trace/w'.*'0/trace/w'.*gx\.identity\(\)"):
        gx.from_numpy(short.init({"w": W}), long.init({"w": W}))


def test_what_fits_is_none_of_these() -> None:
    assert repr(gx.scale(LearningRate())).startswith("scale(<")
    assert gx.clip_value(low=-1, high=1) == gx.parse("clip_value(low=-1, high=1)")
    assert gx.clip_norm(lambda step, peak=1.0: peak).stateful
    assert gx.clip_value(high=np.ones(1))(W).tolist() == [1.0, 1.0]
    assert gx.clip_value(high=np.float32([1.0, 5.0]))(W).tolist() == [1.0, 4.0]
    assert gx.scale(-1.0)(W).tolist() == [-3.0, -4.0]


def test_a_pattern_that_matches_nothing_among_many_paths_lists_some() -> None:
    with pytest.raises(ValueError, match=r"'77'.*'0'.*'4'") as caught:
        gx.freeze("77")([W] * 17 + [None] * 2 + [W] * 3)
    assert len(str(caught.value)) < 300


def test_a_schedule_of_keras_on_another_framework() -> None:
    """Keras schedules call Keras's backend, which rejects other tracers with a TypeError."""

    class ExponentialDecay:
        def __call__(self, step: Any) -> Any:
            raise TypeError("__array__() was called on a traced array")

    ExponentialDecay.__module__ = "keras.src.optimizers.schedules.learning_rate_schedule"
    with pytest.raises(TypeError) as caught:
        update(gx.scale(ExponentialDecay()))
    one_sentence(str(caught.value), "ExponentialDecay", "Keras", "lambda step:")


def _tensor(framework: str) -> Any:
    return tensors(framework, np.ones(2, np.float32))


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_a_limit_with_axes_of_each_framework(framework: str) -> None:
    with pytest.raises(ValueError, match=r"max_norm.*\(2,\)"):
        gx.clip_norm(_tensor(framework))


@pytest.mark.parametrize(("one", "other"), [("jax", "torch"), ("torch", "tensorflow"), ("tensorflow", "jax")])
@pytest.mark.parametrize("numpy_first", [False, True])
def test_two_frameworks_in_one_tree(one: str, other: str, numpy_first: bool) -> None:
    first, second = _tensor(one), _tensor(other)
    tree = {**({"0": W} if numpy_first else {}), "a": {"w": first}, "b": [first, second]}
    with pytest.raises(TypeError, match="two frameworks") as caught:
        gx.clip_norm(1.0)(tree)
    one_sentence(str(caught.value), "'b/1'", other, "'a/w'", one)


# --- containers without an end ---------------------------------------------------------------------------------------


def _endless(kind: str, leaf: Any) -> Any:
    tree: Any = {"a": leaf} if kind == "dict" else [leaf]
    if kind == "dict":
        tree["b"] = tree
    elif kind == "list":
        tree.append(tree)
    else:
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        tree.append(deep)
    return tree


@pytest.mark.parametrize("leaf", [None, *EVERYWHERE])
@pytest.mark.parametrize("kind", ["dict", "list", "deep"])
@pytest.mark.parametrize("use", [gx.clip_norm(1.0), gx.ema(0.5).init, gx.global_norm, gx.paths, gx.to_numpy])
def test_a_container_that_contains_itself_or_is_very_deep(leaf: str | None, kind: str, use: Any) -> None:
    tree = _endless(kind, None if leaf is None else W if leaf == "numpy" else _tensor(leaf))
    for _ in range(2):  # the first error leaves the interpreter its stack
        with pytest.raises(ValueError, match="contains itself, or is nested too deeply"):
            use(tree)


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("clip_by_global_norm(1.0)", "'clip_by_global_norm' (did you mean clip_global_norm?); "),
        ("chain(clip_golbal_norm(1.0))", "'clip_golbal_norm' (did you mean clip_global_norm?); "),
        ("get_total_norm()", "'get_total_norm'"),  # a function here, not a transform
        *((f"chain(stop(), {name}(1.0))", f"{name!r}") for name in ("print", "GradientTransformation", "parse")),
    ],
)
def test_an_unknown_name_in_an_expression_lists_the_known_ones(expression: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(hint)}.*chain, clip_adagc.*clip_norm.*stop"):
        gx.parse(expression)


def test_an_attribute_without_a_hint() -> None:
    assert not hasattr(gx, "clip_by_norm")
    for name in ("frobnicate", "_clip_nrom", "__wrapped__", "__clip_nrom__"):
        with pytest.raises(AttributeError) as caught:
            getattr(gx, name)
        assert str(caught.value) == f"module 'gradxform' has no attribute {name!r}"


def test_python_adds_no_guess_of_its_own() -> None:
    with pytest.raises(AttributeError) as caught:
        gx.clip_nrom  # noqa: B018
    assert traceback.format_exception_only(caught.value)[-1].endswith("'clip_nrom'; did you mean gx.clip_norm?\n")


IMPORTS = [
    ("from gradxform import frobnicate", "ImportError: cannot import name 'frobnicate' from 'gradxform'"),
    ("from gradxform import cli, proof, testing, numpy; from gradxform_numpy import kernels", ""),
    ("import gradxform.frobnicate", "ModuleNotFoundError: No module named 'gradxform.frobnicate'"),
    ("from gradxform import *", ""),
]


@slow(PROCESSES, line="from gradxform import *")
@pytest.mark.parametrize(("line", "last"), IMPORTS, ids=[line for line, _ in IMPORTS])
def test_an_import(line: str, last: str) -> None:
    done = python("-c", line, check=False)
    assert done.returncode == (1 if last else 0), done.stderr
    assert last in (done.stderr.strip().splitlines() or [""])[-1]


APPLY = "gx.torch.apply_(tx, model)"
ADAPTERS = [
    ("torch", "clip_grad_norm_", "gx.clip_global_norm", APPLY),
    ("torch", "clip_norm", "gx.clip_norm", APPLY),
    ("torch", "get_total_norm", "gx.global_norm"),
    ("torch", "AdamW", "gx.torch.attach(optimizer, tx)"),
    ("torch", "wrap", "gx.torch.attach"),
    ("torch", "apply", "gx.torch.apply_"),
    ("jax", "clip_by_global_norm", "gx.clip_global_norm", "optax.chain(tx, optimizer)"),
    ("jax", "as_optx", "did you mean gx.jax.as_optax?"),
    ("keras", "clipnorm", "gx.clip_norm", "gx.keras.wrap(optimizer, tx)"),
    ("keras", "Adam", "gx.keras.wrap(optimizer, tx)"),
    ("tensorflow", "clip_by_global_norm", "gx.clip_global_norm", "gx.tensorflow.apply(tx, grads_and_vars)"),
    ("tensorflow", "wrap", "gx.tensorflow.GradientProcessor"),
    ("numpy", "clip", "gx.clip_value"),
    ("numpy", "apply", "gx.numpy.apply_"),
    ("mlx", "apply", "gx.mlx.wrap"),
]


@pytest.mark.parametrize(
    ("adapter", "name", "words"), [(a, n, w) for a, n, *w in ADAPTERS], ids=[f"{a}.{n}" for a, n, *_ in ADAPTERS]
)
def test_a_name_of_another_library_in_an_adapter(adapter: str, name: str, words: list[str]) -> None:
    pytest.importorskip(adapter)
    with pytest.raises(AttributeError) as caught:
        getattr(getattr(gx, adapter), name)
    one_sentence(str(caught.value), f"'gradxform_{adapter}'", repr(name), *words)
    with pytest.raises(AttributeError, match=f"^module 'gradxform_{adapter}' has no attribute '_clip_norm'$"):
        getattr(gx, adapter)._clip_norm  # noqa: B018
