"""Faults that are easily mistaken for others: each is named, or answered with alternatives, and never with another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy_runs import adam, begin, clipped, dropping, each, rmsprop, sgd, train
from support import RUNS, slow

import gradxform as gx
from gradxform.recording.reading import Recording


class Case(NamedTuple):
    """Options of both runs, what must be found, and words that must and must not be said."""

    a: dict[str, Any]
    b: dict[str, Any]
    kinds: str
    words: str
    never: str = "dropout|summed"


def clip_value(limit: float) -> Any:
    return each(lambda name, g: np.clip(g, -limit, limit))


def clip_norm(limit: float) -> Any:
    return each(lambda name, g: g * min(1.0, limit / float(np.linalg.norm(g))))


def half_of_float16(name: str, g: Any) -> Any:
    return g.astype(np.float16)


def moved_by(a: Any, b: Any, kinds: str, words: str, never: str = Case._field_defaults["never"], **both: Any) -> Case:
    """Runs with two optimizers, which are made anew in each run."""
    return Case({"optimizer": a, **both}, {"optimizer": b, **both}, kinds, words, never)


def opt(make: Any, *args: Any, **kwargs: Any) -> Any:
    return lambda: make(*args, **kwargs)


def decaying(rate: float) -> Any:
    moves = sgd(rate)
    return lambda step, name, g, p: moves(step, name, g, p) + 1e-3 * p


ADAM, SGD, MOMENTUM = opt(adam), opt(sgd), opt(sgd, 0.05, 0.9)
LONG = {"steps": 31, "every": 10}
OPTIMIZERS = {
    "bias correction counted from 2": moved_by(ADAM, opt(adam, first=2), "bias_correction", "step 1; B .* step 2"),
    "bias correction counted from 0": moved_by(ADAM, opt(adam, first=0), "bias_correction", "step 1; B .* step 0"),
    "Adam's epsilon": moved_by(
        ADAM, opt(adam, epsilon=1e-4), "epsilon", r"A is Adam with epsilon (1e-08|9\.9\de-09); .* epsilon 0\.0001"
    ),
    "Keras's epsilon": moved_by(
        opt(adam, epsilon=1e-3), opt(adam, epsilon=1e-3, place="hat"), "epsilon", "B .* before the bias correction"
    ),
    "epsilon under the root": moved_by(
        opt(adam, epsilon=1e-4), opt(adam, epsilon=1e-4, place="inside"), "epsilon", "B .* added under the root"
    ),
    "Adam's L2 and AdamW": moved_by(
        opt(adam, l2=0.01), opt(adam, decay=0.01), "weight_decay", r"L2 in the gradient 0\.01; B .* 0\.0001 of"
    ),
    "two decays of AdamW": moved_by(
        opt(adam, decay=0.01), opt(adam, decay=0.1), "weight_decay", r"A .* 0\.0001 of .*; B .* 0\.001 of"
    ),
    "decays as settings": moved_by(
        opt(adam, 1e-3, decay=0.01),
        opt(adam, 1e-3, decay=0.004),
        "weight_decay",
        r"0\.01 times the learning rate; .* 0\.004 times the learning rate",
        "alone|epsilon",
    ),
    "a small decay of AdamW": moved_by(
        opt(adam, 1e-3, decay=1e-4), opt(adam, 1e-3, decay=0.02), "weight_decay", "B is .* 2e-05 of"
    ),
    "other betas": moved_by(ADAM, opt(adam, betas=(0.9, 0.95)), "optimizer", "second beta 0.999; .* second beta 0.95"),
    "RMSprop for Adam": moved_by(
        opt(adam, 1e-3), opt(rmsprop), "optimizer", "Adam with .* 0.9, second beta 0.999.* RMSprop .*second beta 0.9"
    ),
    "Nesterov": moved_by(MOMENTUM, opt(sgd, 0.05, 0.9, nesterov=True), "optimizer", "A .* no Nesterov"),
    "another momentum": moved_by(MOMENTUM, opt(sgd, 0.05, 0.95), "optimizer", "momentum 0.9; B .* momentum 0.95"),
    "L2 in SGD": moved_by(SGD, opt(sgd, l2=0.01), "weight_decay", "A is SGD with no decay .*; B .* 0.001"),
    "a learning rate that drops": moved_by(
        SGD, opt(dropping, 15), "learning_rate", "0.1 times as far at step 15", "dropout|other batches", steps=20
    ),
    "a rate, every tenth step": moved_by(
        opt(adam, 1e-3),
        opt(adam, 2e-3),
        "optimizer|learning_rate|unknown|unrelated",
        "optimizers move|times as far from step 0 to 10",
        "rounding that has grown",
        **LONG,
    ),
    "a decay, every tenth step": moved_by(
        opt(sgd, 1e-3), opt(decaying, 1e-3), "unknown|unrelated|constant", "optimizers move", **LONG
    ),
}


def further(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: p * np.float32(1.05) for name, p in tree.items()}


def labelled(step: int, x: Any, y: Any) -> dict[str, Any]:
    return {"labels": y}


def missing(step: int, tree: dict[str, Any]) -> dict[str, Any]:
    return {name: g for name, g in tree.items() if step < 3 or name != "mid.bias"}


def changed(change: Any) -> dict[str, Any]:
    return {"change": change}


WITHOUT_LOSSES, LABELLED = {"trees": ("gradients", "parameters")}, {"extra": labelled}
UNKNOWN = "unknown|unrelated"
GRADIENTS = {
    "initial weights 5 % apart": Case({}, {"start": further}, "initial", "by up to 4.76 %"),
    "initial weights 5 % apart, counted from 1": Case(
        {"first": 1}, {"first": 1, "start": further}, "initial", "step 1, the first .* by up to 4.76 %"
    ),
    "recordings off by one": Case({}, {"first": 1}, "offset", "step 1 in A .* step 2 in B", "initial|dropout|order"),
    "L2 of a summed loss": Case(
        {},
        {"reduction": "sum", "decay": 0.5},
        "factor|weight_decay",
        r"32 times larger(.|\n)*B adds 0\.5 times the parameters",
        "dropout",
    ),
    "a summed loss": Case({}, {"reduction": "sum"}, "factor", "it is summed in one", "loss scale"),
    "a loss scale": Case(
        {"optimizer": opt(sgd, 1e-5)},
        {"optimizer": opt(sgd, 1e-5), **changed(each(lambda name, g: 1024 * g))},
        "factor",
        "1024 times larger in B, and the losses are equal: either a loss scale",
        "dropout|loss is summed",
    ),
    "a summed loss without losses": Case(
        WITHOUT_LOSSES,
        {**WITHOUT_LOSSES, "reduction": "sum"},
        "factor",
        "either the loss is summed in one .* or a loss scale",
        "dropout",
    ),
    "a double softmax": Case({}, {"double": True}, f"{UNKNOWN}|constant", "losses differ too", "summed|decay"),
    "a summed loss, clipped in both": Case(
        changed(clipped(5.0)),
        {**changed(clipped(5.0)), "reduction": "sum"},
        "factor|clip_global_norm",
        "the loss 32 times.* or all clipped together",
        "summed in one|dropout",
    ),
    "B all zeros": Case({}, changed(each(lambda name, g: 0 * g)), "zero", "no gradient reaches the parameters"),
    "label smoothing": Case({}, {"smoothing": 0.1}, f"constant|{UNKNOWN}|precision", "losses? differ|smoothing"),
    "limits of a global norm": Case(
        changed(clipped(0.5)),
        changed(clipped(0.25)),
        "clip_global_norm",
        "A .* to 0.5; B .* to 0.25",
        "does not|summed",
    ),
    "limits of norms": Case(
        changed(clip_norm(0.02)), changed(clip_norm(0.01)), "clip_norm", "A .* to 0.02; B .* to 0.01", "does not|summed"
    ),
    "limits of elements": Case(
        changed(clip_value(0.02)), changed(clip_value(0.01)), "clip_value", "A .* to 0.02; B .* to 0.01", "does not"
    ),
    "two decays in the gradient": Case({"decay": 0.01}, {"decay": 0.02}, "weight_decay", "A does not, or so much less"),
    "dropout from step 4 on": Case({}, {"dropout": 4}, f"{UNKNOWN}|precision", "up to step 3: either something", "^$"),
    "dropout, on recorded batches": Case(
        LABELLED, {**LABELLED, "dropout": 0}, UNKNOWN, "either dropout or augmentation", "other batches"
    ),
    "other batches, recorded": Case(LABELLED, {**LABELLED, "data": 1}, "data", "labels differs at step 0", "dropout"),
    "float16": Case({}, changed(each(half_of_float16)), "precision", "B computes in float16", "TF32"),
    "a loss that is reported as a sum": Case({}, {"report": lambda x: 32 * x}, "loss", "losses differ at step 0"),
    "a leaf that is missing from step 3 on": Case(
        {}, changed(missing), "frozen", "B .* mid.bias from step 3 on.* at 3 of 3 steps"
    ),
}


def compared(case: Case, folder: Path) -> gx.Comparison:
    for name, options, twin in (("a", case.a, True), ("b", case.b, False)):
        made = {key: value() if key == "optimizer" else value for key, value in options.items()}
        train(folder / name, twin=twin, **made)
    return gx.compare(folder / "a", folder / "b")


@slow(RUNS, lambda name: [*OPTIMIZERS, *GRADIENTS].index(name) % 2 == 1)
@slow(RUNS, name=tuple(GRADIENTS))
@pytest.mark.parametrize("name", [*OPTIMIZERS, *GRADIENTS])
def test_a_cause_is_named_or_alternatives_are(name: str, tmp_path: Path) -> None:
    case = {**OPTIMIZERS, **GRADIENTS}[name]
    found = compared(case, tmp_path)
    text = str(found)
    assert not found.within, text
    assert {finding.kind for finding in found.findings if finding.is_fault} <= set(case.kinds.split("|")), text
    assert re.search(case.words, text), text
    assert not re.search(case.never, text), text


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (lambda g, p, rate: -rate * g, "updates are 2 times .*learning rate"),
        (lambda g, p, rate: -rate * np.sign(g), "clips or normalizes each element"),
        (lambda g, p, rate: np.where(np.arange(g.size).reshape(g.shape) == 20 * rate, 1, 1e-6 * g), "point elsewhere"),
        (lambda g, p, rate: -0.1 * (g + rate * p), "A adds 0.01 times the parameters to the updates, .* of B, if"),
    ],
)
def test_updates_that_differ_are_no_other_gradients(move: Any, words: str, tmp_path: Path) -> None:
    """Of SGD, of Adam's first step, which clips nothing, with one large element each, and of a weight decay."""
    p, g = begin(0)["mid.weight"], begin(1)["mid.weight"]
    for name, rate in (("a", np.float32(0.1)), ("b", np.float32(0.2))):
        gx.record(tmp_path / name)(0, gradients={"w": g}, parameters={"w": p}, updates={"w": move(g, p, rate)})
    text = str(gx.compare(tmp_path / "a", tmp_path / "b"))
    assert re.search(words, text) and not re.search("gradients are|loss scale|gradients, a", text), text


def kept(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """Return the recorded gradients and parameters of a step."""
    recording = Recording(folder)
    return {
        tree: {path: recording.read(step, tree, path) for path in recording.shapes(step, tree)}
        for tree in ("gradients", "parameters")
    }


def in_torch_and_flax(folder: Path, copy: Any, seed: int = 0) -> gx.Comparison:
    """Compare runs of one network: A as PyTorch has it, B as Flax has it, with a square weight as `copy` makes it."""
    train(folder / "plain", steps=4)
    train(folder / "other", steps=4, start=lambda tree: tree | {"mid.weight": copy(tree["mid.weight"])}, seed=seed)
    for name, source, last in (("a", "plain", "weight"), ("b", "other", "kernel")):
        recorder = gx.record(folder / name)
        for step in range(4):
            trees = kept(folder / source, step)
            for tree, leaves in trees.items():
                named = {path.replace("weight", last): leaf for path, leaf in leaves.items()}
                trees[tree] = {path: leaf.T.copy() if name == "a" else leaf for path, leaf in named.items()}
            recorder(step, **trees)
    return gx.compare(folder / "a", folder / "b")


def test_a_square_weight_that_is_copied_without_its_transposition(tmp_path: Path) -> None:
    assert in_torch_and_flax(tmp_path / "right", lambda weight: weight).within
    found = in_torch_and_flax(tmp_path / "wrong", lambda weight: weight.T.copy())
    assert not found.within
    assert not [finding for finding in found.findings if finding.is_fault and finding.is_certain], str(found)


def test_parameters_of_another_seed_under_other_names(tmp_path: Path) -> None:
    found = in_torch_and_flax(tmp_path, lambda weight: weight, seed=1)
    assert not found.within
    assert re.search("other seeds|initial parameters differ", str(found)), str(found)


@pytest.mark.parametrize("late", ["a", "b"])
def test_parameters_that_are_recorded_after_the_step(late: str, tmp_path: Path) -> None:
    for name in "ab":
        train(tmp_path / f"{name}_all", steps=6, twin=name == "b")
        recorder = gx.record(tmp_path / name)
        for step in range(5):
            now, later = (kept(tmp_path / f"{name}_all", at) for at in (step, step + 1))
            parameters = (later if name == late else now)["parameters"]
            recorder(step, gradients=now["gradients"], parameters=parameters)
    (finding,) = gx.compare(tmp_path / "a", tmp_path / "b").findings
    assert finding.kind == "late_parameters" and finding.is_certain, str(finding)
    assert f"{late.upper()} records its parameters after the optimizer's step" in str(finding)
