"""Common mistakes: one sentence says what to write instead. The adapters' tests cover models and optimizers."""

from __future__ import annotations

import inspect
import re
import traceback
from typing import Any

import numpy as np
import pytest
from support import one_sentence, python

import gradxform as gx
from gradxform.core.other_names import KEYWORDS, NAMES
from gradxform.core.transformation import factories

GRADS = {"w": np.float32([3.0, 4.0]), "b": None}


class LearningRate:
    def __call__(self, step: Any) -> Any:
        return 0.1


class WarmUp(LearningRate):
    def __call__(self, step: Any, peak: Any) -> Any:  # type: ignore[override]
        return peak


def two(step: Any, peak: Any) -> Any:
    return peak


TYPED = [
    # names of other libraries, and typos
    ("gx.clip_by_norm", AttributeError, "'clip_by_norm'; its name here is gx.clip_norm"),
    ("gx.clip_by_global_norm(1.0)", AttributeError, "gx.clip_global_norm"),
    ("gx.clip_by_value", AttributeError, "gx.clip_value"),
    ("gx.clip_grad_norm_", AttributeError, "gx.torch.apply_(gx.clip_global_norm(...), model)"),
    ("gx.clip_grad_value_", AttributeError, "gx.torch.apply_(gx.clip_value(...), model)"),
    ("gx.clip", AttributeError, "gx.clip_value"),
    ("gx.adaptive_grad_clip", AttributeError, "gx.clip_adaptive"),
    ("gx.zero_nans", AttributeError, "gx.zero_nonfinite"),
    ("gx.apply_if_finite", AttributeError, "gx.skip_nonfinite"),
    ("gx.MultiSteps", AttributeError, "gx.accumulate"),
    ("gx.multi_transform", AttributeError, "gx.partition"),
    ("gx.set_to_zero", AttributeError, "gx.stop"),
    ("gx.clip_by_block_rms", AttributeError, "gx.clip_rms"),
    ("gx.gradient_reversal", AttributeError, "gx.reverse_gradient"),
    ("gx.GradientReversal", AttributeError, "gx.reverse_gradient"),
    ("gx.tf", AttributeError, "gx.tensorflow"),
    ("gx.clip_golbal_norm", AttributeError, "'clip_golbal_norm'; did you mean gx.clip_global_norm?"),
    ("gx.clip_nrom", AttributeError, "did you mean gx.clip_norm?"),
    ("gx.skip_non_finite", AttributeError, "did you mean gx.skip_nonfinite?"),
    # arguments by position
    ("gx.clip_value(-1, 1)", TypeError, "gx.clip_value(low=-1, high=1)"),
    ("gx.clip_value(-1.0, 1.0)", TypeError, "low and high by name: write gx.clip_value(low=-1.0, high=1.0)"),
    ("gx.clip_norm(1.0, 2.0)", TypeError, "gx.clip_norm(1.0, axes=..., ord=..., like=...)"),
    ("gx.centralize(0)", TypeError, "gx.centralize(axes=0)"),
    ("gx.clip_percentile(10, 100, True)", TypeError, "gx.clip_percentile(10, 100, per_leaf=True)"),
    ("gx.scale(0.1, 0.2)", TypeError, "scale takes factor alone, got 0.1, 0.2"),
    ("gx.sign(1.0)", TypeError, "sign takes no arguments, got 1.0"),
    # gradients among the arguments
    ("gx.clip_global_norm(GRADS, 1.0)", TypeError, "called with gradients: gx.clip_global_norm(1.0)(gradients)"),
    ("gx.clip_global_norm(GRADS, max_norm=1.0)", TypeError, "gx.clip_global_norm(max_norm=1.0)(gradients)"),
    ("gx.clip_norm(np.float32)", TypeError, "must be a real number", "it is a class: make an instance of it first"),
    ("gx.clip_norm(GRADS)", TypeError, "gx.clip_norm(max_norm)(gradients)"),
    ("gx.clip_norm(GRADS['w'])", ValueError, "tx = gx.clip_norm(max_norm), then tx(gradients)"),
    ("gx.clip_norm(list(GRADS.values()), 1.0)", TypeError, "gx.clip_norm(1.0)(gradients)"),
    ("gx.clip_norm((g for g in GRADS), 1.0)", TypeError, "gx.clip_norm(1.0)(gradients)"),
    ("gx.clip_norm(GRADS, clip_norm=1.0)", TypeError, "gx.clip_norm(max_norm=1.0)(gradients)"),
    ("gx.clip_value(GRADS, -1, 1)", TypeError, "gx.clip_value(low=-1, high=1)(gradients)"),
    ("gx.scale(GRADS, 0.1)", TypeError, "gx.scale(0.1)(gradients)"),
    ("gx.sign(GRADS)", TypeError, "gx.sign()(gradients)"),
    ("gx.elementwise(np.abs, GRADS)", TypeError, "gx.elementwise(fn)(gradients)"),
    ("gx.trace(GRADS, 0.9)", TypeError, "tx = gx.trace(0.9), then tx.update(gradients, state)"),
    ("gx.trace(GRADS)", TypeError, "tx = gx.trace(decay), then tx.update(gradients, state)"),
    ("gx.add_noise(GRADS, 0.1)", TypeError, "tx = gx.add_noise(0.1, seed), then tx.update(gradients, state)"),
    ("gx.chain(gx.stop(), GRADS)", TypeError, "gradients come later: tx(gradients)"),
    ("gx.stop()()", TypeError, "stop() must be called with gradients: tx(gradients)"),
    ("gx.trace(0.9)()", TypeError, "state = tx.init(params)"),
    # arguments with other names
    ("gx.clip_norm(max_nrm=1.0)", TypeError, "no argument 'max_nrm'; did you mean max_norm?"),
    ("gx.clip_norm(1.0, axis=0)", TypeError, "did you mean axes?"),
    ("gx.clip_global_norm(1.0, norm_type=2)", TypeError, "did you mean ord?"),
    ("gx.clip_value(clip_value_min=-1)", TypeError, "did you mean low?"),
    ("gx.accumulate(gx.stop(), every_k_schedule=4)", TypeError, "did you mean every?"),
    ("gx.clip_norm(1.0, foo=0)", TypeError, "its arguments are max_norm, axes, ord, like"),
    (
        "gx.add_decayed_weights(1e-4, mask={'w': True})",
        TypeError,
        "write gx.masked(gx.add_decayed_weights(...), where)",
    ),
    ("gx.clip_norm(1.0, where='w')", TypeError, "no argument 'where'; write gx.masked(gx.clip_norm(...), where)"),
    (
        "gx.partition({'w': gx.stop()}, lambda path: 'w')",
        TypeError,
        "default must be a transformation",
        "need no labels",
    ),
    (
        "gx.partition({'a': gx.stop()}, {'w': 'a'})",
        TypeError,
        "the keys of rules choose, and need no labels: {'encoder/**': tx}",
    ),
    # the wrong order
    ("gx.masked('*w', gx.stop())", TypeError, "the arguments are swapped; write gx.masked(tx, where)"),
    ("gx.masked(lambda path, leaf: True, gx.stop())", TypeError, "write gx.masked(tx, where)"),
    ("gx.accumulate(4, gx.stop())", TypeError, "write gx.accumulate(tx, every)"),
    ("gx.skip_large(1.0, gx.stop())", TypeError, "write gx.skip_large(tx, max_norm)"),
    ("gx.measure('name', gx.stop())", TypeError, "write gx.measure(tx, name)"),
    ("gx.partition(gx.stop(), {'**/bias': gx.stop()})", TypeError, "write gx.partition(rules, default)"),
    ("gx.partition(gx.stop())", TypeError, "such as {'**/bias': tx}"),
    ("gx.numpy.apply_(GRADS, gx.stop())", TypeError, "write gx.numpy.apply_(tx, gradients)"),
    ("gx.chain([gx.stop(), gx.sign()])", TypeError, "write gx.chain(*txs)"),
    # schedules
    ("gx.scale(LearningRate)", TypeError, "it is a class: make an instance of it first"),
    ("gx.scale(two)", TypeError, "factor is a function of (step: 'Any', peak: 'Any')"),
    ("gx.scale(WarmUp())", TypeError, "lambda step: 0.1 * 0.99**step"),
    ("gx.clip_norm(lambda: 1.0)", TypeError, "max_norm is a function of ()"),
    ("gx.scale(gx.stop())", TypeError, "got stop() of type GradientTransformation"),
    # not trees
    ("gx.global_norm(g for g in [np.ones(2)])", TypeError, "this is an iterator (generator)", "list(...)"),
    ("gx.norms(GRADS.values())", TypeError, "dict_values", "list(...)"),
    ("gx.stop()({'w': map(abs, [1.0])})", TypeError, "the leaf at 'w' is an iterator (map)"),
    ("gx.stop()([np.ones(2), iter([])])", TypeError, "the leaf at '1' is an iterator (list_iterator)", "list(...)"),
    # dtypes and states
    ("gx.clip_value(1.0)([np.ones(2, np.int16)])", TypeError, "int16", "cast it, or exclude it with masked(...)"),
    ("gx.sign()([np.ones(2, np.int16)])", TypeError, "int16", "cast it, or exclude it with masked(...)"),
    ("gx.clip_value(1.0)([np.ones(2) * 1j])", TypeError, "complex128", "use clip_norm"),
    ("gx.sign()([np.ones(2) * 1j])", TypeError, "a complex number has no sign"),
    (
        "gx.mgda([{'w': np.ones(2, np.int16)}])",
        TypeError,
        "mgda: the gradient at 'w' of tree 0",
        "int16",
        "put None there",
    ),
    ("gx.cagrad([[np.ones(2)], [np.ones(2) * 1j]])", TypeError, "cagrad: the gradient at '0' of tree 1", "complex128"),
    (
        "gx.upgrad([[np.ones(2, bool)]])",
        TypeError,
        "upgrad: ",
        "has dtype bool",
        "real floating-point numbers: cast it",
    ),
    (
        "gx.ema(0.9).update(GRADS, {'w': np.ones((9, 9))})",
        ValueError,
        "ema: the state must be EmaState",
        "of type dict",
    ),
    ("gx.to_numpy(gx.stop())", TypeError, "it is a transformation, whose state is what tx.init(params) returns"),
    ("gx.from_numpy('state.npz', GRADS)", TypeError, "write np.load('state.npz')"),
    ("gx.ema(0.9).update(GRADS, gx.trace(0.9).init(GRADS))", ValueError, "ema: the state must be EmaState"),
]


@pytest.mark.parametrize(("typed", "error", "words"), [(t, e, w) for t, e, *w in TYPED], ids=[row[0] for row in TYPED])
def test_one_sentence_says_what_to_write(typed: str, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        eval(typed)
    one_sentence(str(caught.value), *words)


PARSED = [
    ("clip_value(-1, 1)", "gx.clip_value(low=-1, high=1)"),
    ("gx.chain(gx.clip_norm(max_nrm=1.0))", "did you mean max_norm?"),
    ("masked('*w', stop())", "the arguments are swapped; write gx.masked(tx, where)"),
    ("scale(0.1, 0.2)", "scale takes factor alone"),
    ("chain([stop()])", "write gx.chain(*txs)"),
]


@pytest.mark.parametrize(("typed", "words"), PARSED, ids=[typed for typed, _ in PARSED])
def test_an_expression_says_the_same(typed: str, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        gx.parse(typed)
    one_sentence(str(caught.value), words)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (
            "clip_by_global_norm(1.0)",
            "'clip_by_global_norm' (its name here is clip_global_norm); the known ones are acc",
        ),
        ("chain(clip_golbal_norm(1.0))", "'clip_golbal_norm' (did you mean clip_global_norm?); the known ones are acc"),
        ("gx.zero_nans()", "'zero_nans' (its name here is zero_nonfinite); the known"),
        ("get_total_norm()", "'get_total_norm'; the known ones"),  # a function here, not a transform
        ("print(1.0)", "'print'; the known ones"),
    ],
)
def test_an_unknown_name_in_an_expression(typed: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        gx.parse(typed)


def test_what_fits_is_none_of_these() -> None:
    assert repr(gx.scale(LearningRate())).startswith("scale(<")
    assert gx.clip_value(low=-1, high=1) == gx.parse("clip_value(low=-1, high=1)")
    assert gx.clip_norm(lambda step, peak=1.0: peak).stateful


def test_a_schedule_of_keras_on_another_framework() -> None:
    """Keras schedules call Keras's backend, which rejects other tracers with a TypeError."""

    class ExponentialDecay:
        def __call__(self, step: Any) -> Any:
            raise TypeError("__array__() was called on a traced array")

    ExponentialDecay.__module__ = "keras.src.optimizers.schedules.learning_rate_schedule"
    tx = gx.scale(ExponentialDecay())
    with pytest.raises(TypeError) as caught:
        tx.update(GRADS, tx.init(GRADS))
    one_sentence(str(caught.value), "ExponentialDecay of Keras works only with Keras's backend", "lambda step:")


# --- names -----------------------------------------------------------------------------------------------------------


def test_each_name_of_the_table_leads_to_one_that_is_here() -> None:
    assert set(NAMES.values()) <= set(gx.__all__)
    assert not set(NAMES) & {*dir(gx), *factories}


def test_each_keyword_of_the_table_leads_to_an_argument() -> None:
    arguments = {name for make in factories.values() for name in inspect.signature(make).parameters}
    assert {own for names in KEYWORDS.values() for own in names} <= arguments


def test_an_attribute_without_a_hint() -> None:
    for name in ("frobnicate", "_clip_norm", "__wrapped__", "__clip_norm__"):
        with pytest.raises(AttributeError) as caught:
            getattr(gx, name)
        assert str(caught.value) == f"module 'gradxform' has no attribute {name!r}"
        assert not hasattr(gx, name)
        assert getattr(gx, name, None) is None
    assert not hasattr(gx, "clip_by_norm")


def test_private_names_cost_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("difflib.get_close_matches", lambda *_: pytest.fail("it was searched"))
    assert not hasattr(gx, "__clip_nrom__")
    assert not hasattr(gx, "_clip_nrom")


def test_python_adds_no_guess_of_its_own() -> None:
    with pytest.raises(AttributeError) as caught:
        gx.clip_nrom  # noqa: B018
    last = traceback.format_exception_only(caught.value)[-1]
    assert last == "AttributeError: module 'gradxform' has no attribute 'clip_nrom'; did you mean gx.clip_norm?\n"


@pytest.mark.parametrize(
    ("line", "last"),
    [
        (
            "from gradxform import clip_norm, clip_by_norm",
            "ImportError: cannot import name 'clip_by_norm' from 'gradxform'; its name here is gx.clip_norm",
        ),
        ("from gradxform import clip_nrom", "did you mean gx.clip_norm?"),
        ("from gradxform import frobnicate", "ImportError: cannot import name 'frobnicate' from 'gradxform'"),
        ("from gradxform import cli, proof, testing", ""),
        (
            "from gradxform.torch import attach",
            "write import gradxform as gx, then gx.torch, or from gradxform_torch i",
        ),
        ("import gradxform.keras", "No module named 'gradxform.keras'; write import gradxform as gx, then gx.keras"),
        ("import gradxform.frobnicate", "ModuleNotFoundError: No module named 'gradxform.frobnicate'"),
        ("from gradxform import numpy; from gradxform_numpy import kernels, bench", ""),
        ("from gradxform_numpy import clip", "cannot import name 'clip' from 'gradxform_numpy'; its name is gx.clip_v"),
        ("from gradxform import *", ""),
    ],
)
def test_an_import(line: str, last: str) -> None:
    done = python("-c", line, check=False)
    assert done.returncode == (1 if last else 0), done.stderr
    assert last in (done.stderr.strip().splitlines() or [""])[-1]


ADAPTERS = [
    ("torch", "clip_grad_norm_", "write gx.torch.apply_(gx.clip_global_norm(...), model)"),
    ("torch", "clip_grad_value_", "write gx.torch.apply_(gx.clip_value(...), model)"),
    ("torch", "clip_norm", "write gx.torch.apply_(gx.clip_norm(...), model)"),
    ("torch", "get_total_norm", "its name is gx.global_norm"),
    ("torch", "AdamW", "write gx.torch.attach(torch.optim.AdamW(...), tx)"),
    ("torch", "wrap", "write gx.torch.attach(optimizer, tx)"),
    ("torch", "apply", "did you mean gx.torch.apply_?"),
    ("jax", "clip_by_global_norm", "write optax.chain(gx.clip_global_norm(...), optimizer)"),
    ("jax", "attach", "write optax.chain(tx, optimizer)"),
    ("jax", "as_optx", "did you mean gx.jax.as_optax?"),
    ("keras", "clipnorm", "write gx.keras.wrap(optimizer, gx.clip_norm(...))"),
    ("keras", "Adam", "write gx.keras.wrap(keras.optimizers.Adam(...), tx)"),
    ("keras", "apply", "write gx.keras.wrap(optimizer, tx)"),
    ("tensorflow", "clip_by_global_norm", "write gx.tensorflow.apply(gx.clip_global_norm(...), grads_and_vars)"),
    ("tensorflow", "wrap", "write gx.tensorflow.GradientProcessor(tx, variables)"),
    ("tensorflow", "apply_", "did you mean gx.tensorflow.apply?"),
    ("numpy", "clip", "its name is gx.clip_value"),
]


@pytest.mark.parametrize(("adapter", "name", "words"), ADAPTERS, ids=[f"{a}.{name}" for a, name, _ in ADAPTERS])
def test_a_name_of_another_library_in_an_adapter(adapter: str, name: str, words: str) -> None:
    pytest.importorskip(adapter)
    with pytest.raises(AttributeError) as caught:
        getattr(getattr(gx, adapter), name)
    assert str(caught.value) == f"module 'gradxform_{adapter}' has no attribute {name!r}; {words}"
    for strange in ("_clip_norm", "frobnicate"):
        with pytest.raises(AttributeError, match=f"^module 'gradxform_{adapter}' has no attribute '{strange}'$"):
            getattr(getattr(gx, adapter), strange)
