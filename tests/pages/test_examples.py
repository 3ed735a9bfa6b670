"""The scripts of the how-to pages run and give the shown numbers."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT, assert_drawn, rows

import gradxform as gx

ONLY_W1, REVERSE, STRAIGHT, BETWEEN, SAME = (
    (ROOT / f"docs/how-to/{name}.md").read_text()
    for name in (
        "only-w1-learns",
        "reverse-a-gradient",
        "straight-through",
        "clip-between-layers",
        "same-numbers-everywhere",
    )
)


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "tensorflow", "torch", "sklearn", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))


def percent(cell: str) -> float:
    return float(cell.removesuffix(" %"))


def test_only_w1_learns(tmp_path: Path) -> None:
    example = importlib.import_module("stop_gradient")
    runs = example.main(tmp_path)
    shown = rows(ONLY_W1, "framework | distance of w1 from w2 * w3 at first | after 150 steps | w2 and w3")
    assert len(shown) == len(runs) == 3
    assert example.STEPS == 150
    assert "for _ in range(150)" in ONLY_W1
    line = "error = x @ w1 - gx.stop_gradient(x @ (w2 * w3))"
    assert line in ONLY_W1
    assert line in Path(example.__file__).read_text(encoding="utf-8")
    for run, (name, first, last, still) in zip(runs, shown, strict=True):
        assert name == example.NAMES[run.framework]
        assert run.distances[0] == pytest.approx(float(first), abs=0.006)
        assert run.distances[-1] < 2e-6
        assert float(last) < 2e-6
        assert (still == "bit-identical") is run.still is True
        assert len({w.tobytes() for w in run.w1}) > 100
        assert all(w.shape == (5, 1) for kept in (run.w1, run.w2, run.w3) for w in kept)
    assert_drawn(tmp_path / "stop_gradient.png")


def test_the_reversal_reads_tilted_digits(tmp_path: Path) -> None:
    example = importlib.import_module("domain_adaptation")
    runs = example.main(tmp_path)
    shown = rows(REVERSE, "framework | target, without | target, with | largest difference of the weights from JAX")
    assert len(shown) == 3
    assert len(runs) == 6
    for name, without, reversed_, ulp in shown:
        plain, adapted = (run for run in runs if example.NAMES[run.framework] == name)
        assert (plain.reverse, adapted.reverse) == (False, True)
        assert_accuracies([plain, adapted], without, reversed_)
        assert percent(reversed_) - percent(without) > 10
        assert plain.accuracy["source"][-1] > 0.94
        assert adapted.accuracy["source"][-1] > 0.94
        assert not ulp or float(ulp.removesuffix(" ULP")) <= 2
        assert max(plain.accuracy["target"]) == pytest.approx(0.6, abs=0.03)
        assert max(plain.accuracy["target"]) + 0.03 < adapted.accuracy["target"][-1]
    assert all(w.dtype == np.float64 for run in runs for w in run.weights)
    assert 0 <= example.furthest(runs) <= 2
    moved = example.furthest([runs[0], example.Run("torch", False, [w + 1e-5 for w in runs[0].weights])])
    assert moved > 2  # the check detects a difference
    assert_drawn(tmp_path / "domain_adaptation.png")


def test_the_reversal_with_other_seeds() -> None:
    """Every other gain, to save time, including the least and the largest."""
    example = importlib.import_module("domain_adaptation")
    shown = rows(REVERSE, "seed | target, without | target, with")
    assert [int(seed) for seed, _, _ in shown] == list(range(1, 10))
    for seed, without, reversed_ in shown[1::2]:
        assert_accuracies(example.train_all(int(seed), ("torch",)), without, reversed_)
    shown += rows(REVERSE, "framework | target, without | target, with | largest difference of the weights from JAX")[
        :1
    ]
    gains = [percent(cells[2]) - percent(cells[1]) for cells in shown]
    assert [np.round(of(gains)) for of in (np.mean, min, max)] == [16, 3, 23]


def assert_accuracies(runs: list[Any], without: str, reversed_: str) -> None:
    for run, cell in zip(runs, (without, reversed_), strict=True):
        assert 100 * run.accuracy["target"][-1] == pytest.approx(percent(cell), abs=3)


def test_straight_through_has_the_value_that_the_formula_loses(tmp_path: Path) -> None:
    example = importlib.import_module("straight_through")
    result = example.main(tmp_path)
    np.testing.assert_array_equal(result.value, np.sign(result.x))
    np.testing.assert_array_equal(result.slope, np.abs(result.x) <= 1)
    shown = [(float(a), float(b)) for a, b in re.findall(r"^\[(0\.\d+), (0\.0)\]$", STRAIGHT, re.MULTILINE)]
    assert [(round(formula, 2), through) for formula, through in result.shares.values()] == shown
    assert [formula > 0.3 for formula, _ in shown] == [True, True, False]
    large, formula = np.asarray(result.large, np.float64), np.asarray(result.formula)
    np.testing.assert_array_equal(result.through, 1)
    kept, lost = number(r"is right up to\s([\d,]+)"), number(r"0 from ([\d,]+) on")
    assert (kept, lost) == (2**24, 2**25)
    np.testing.assert_array_equal(formula[large <= kept], 1)
    assert set(formula[(kept < large) & (large < lost)]) == {0.0, 2.0}
    np.testing.assert_array_equal(formula[large >= lost], 0)
    assert min(np.sum(large <= kept), np.sum(large >= lost)) > 100
    assert_drawn(tmp_path / "straight_through.png")


def number(pattern: str) -> int:
    """A number in the text of the straight-through page."""
    (found,) = re.findall(pattern, STRAIGHT)
    return int(found.replace(",", ""))


def test_the_libraries_differ_and_gradxform_does_not(tmp_path: Path) -> None:
    example = importlib.import_module("same_numbers")
    by_size, by_count = example.main(tmp_path)
    assert all(of.gradxform <= 1 and of.between == 0 for of in (*by_size, *by_count))
    found = {f"{of.size:.0e}": of for of in by_size}
    natives = ("`optax.clip_by_global_norm`", "`tf.clip_by_global_norm`", "`clip_grad_norm_`")
    shown = rows(SAME, " | ".join(("1,000 elements of size", *natives, "gradxform")))
    assert len(shown) == 5
    for size, *cells, ours in shown:
        of = found[size]
        assert of.count == 1000
        assert float(ours) == of.gradxform
        for name, cell in zip(example.NATIVE, cells, strict=True):
            assert of.given[name] == (cell if cell in ("zeros", "NaN") else "numbers")
            if of.given[name] == "numbers":
                assert of.native[name] == pytest.approx(float(cell.replace(",", "")), rel=0.5, abs=3)
    optax, tensorflow, torch = example.NATIVE
    for of in by_size:
        assert (of.given[optax], of.given[tensorflow]) == (("zeros", "NaN") if of.size >= 1e18 else ("numbers",) * 2)
        if of.size <= 1e-21:  # twice the correct numbers: not clipped
            assert max(abs(of.native[name] - 2**23) for name in (optax, tensorflow)) <= 1
    assert all(max(of.native[optax], of.native[tensorflow]) <= 4 for of in by_count)
    assert by_count[-1].native[torch] > 100 > 20 > by_count[0].native[torch]
    assert_drawn(tmp_path / "same_numbers.png")


def test_case_10s_figures() -> None:
    """The page shows the formula of the usual answers, and its doctest gives the same numbers."""
    plain = [[3.0, 7.0]] * 2
    at_the_ends, in_the_middle = [[0.278543, 0.6499337]] * 2, [[1.57841039, 3.43536377]] * 2
    tabs = dict(re.findall(r"^:::\{tab-item\} ([^\n]+)\n(.*?)^:::$", BETWEEN, re.MULTILINE | re.DOTALL))
    assert list(tabs) == ["TensorFlow", "TensorFlow 1", "Keras", "JAX", "PyTorch"]
    for framework, tab in tabs.items():
        wanted = [plain, at_the_ends, in_the_middle, *[at_the_ends, in_the_middle] * (framework == "TensorFlow")]
        found = np.array(re.findall(r"^ ?\[+([\d.]+) +([\d.]+)\]", tab, re.MULTILINE), float).reshape(-1, 2, 2)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-8)


@pytest.mark.parametrize("page", [ONLY_W1, REVERSE, STRAIGHT, SAME], ids=lambda page: page.partition("\n")[0])
def test_a_page_shows_the_script_that_draws_its_picture(page: str) -> None:
    (picture,) = re.findall(r"\{image\} \.\./pictures/(.+)\.png", page)
    scripts = set(re.findall(r"\{literalinclude\} \.\./examples/(.+)\.py", page))
    assert scripts == {picture}
    assert f'"{picture}.png"' in (ROOT / f"docs/examples/{picture}.py").read_text()


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_case_12_adversarial_examples_do_not_move_a_parameter(framework: str) -> None:
    """Computing the loss of perturbed embeddings at each step does not change the training by a bit."""
    plain, beside = (CASE_12[framework](adversarial) for adversarial in (False, True))
    assert plain[1] == []
    assert beside[1] == [True] * 3
    for a, b in zip(plain[0], beside[0], strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


PERTURB = gx.chain(gx.sign(), gx.scale(0.1))
TABLE, KERNEL = (np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in ((6, 4), (4, 2)))
WORDS, LABELS = np.array([1, 4, 2]), np.array([0, 1, 1])


def with_jax(adversarial: bool) -> tuple[Any, list[bool]]:
    import jax
    import optax

    def loss(embedded: Any, kernel: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(embedded @ kernel, LABELS).mean()

    weights, worse = (jax.numpy.array(TABLE), jax.numpy.array(KERNEL)), []
    optimizer = optax.adam(0.1)
    state = optimizer.init(weights)
    for _ in range(3):
        if adversarial:
            embedded = weights[0][WORDS]
            value, gradient = jax.value_and_grad(loss)(embedded, weights[1])
            worse.append(bool(loss(embedded + PERTURB(gradient), weights[1]) > value))
        gradients = jax.grad(lambda weights: loss(weights[0][WORDS], weights[1]))(weights)
        updates, state = optimizer.update(gradients, state)
        weights = optax.apply_updates(weights, updates)
    return weights, worse


def with_tensorflow(adversarial: bool) -> tuple[Any, list[bool]]:
    import keras
    import tensorflow as tf

    def loss(embedded: Any) -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, embedded @ kernel))

    table, kernel = weights = [tf.Variable(TABLE), tf.Variable(KERNEL)]
    optimizer, worse = keras.optimizers.Adam(0.1), []
    for _ in range(3):
        with tf.GradientTape(persistent=True) as tape:
            embedded = tf.gather(table, WORDS)
            value = loss(embedded)
        if adversarial:
            worse.append(bool(loss(embedded + PERTURB(tape.gradient(value, embedded))) > value))
        optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
    return [w.numpy() for w in weights], worse


def with_torch(adversarial: bool) -> tuple[Any, list[bool]]:
    import torch

    def loss(embedded: Any) -> Any:
        return torch.nn.functional.cross_entropy(embedded @ kernel, torch.tensor(LABELS))

    table, kernel = weights = [torch.tensor(w, requires_grad=True) for w in (TABLE, KERNEL)]
    optimizer, worse = torch.optim.Adam(weights, 0.1), []
    for _ in range(3):
        embedded = table[torch.tensor(WORDS)]
        value = loss(embedded)
        if adversarial:
            (gradient,) = torch.autograd.grad(value, embedded, retain_graph=True)
            assert table.grad is None
            worse.append(bool(loss(embedded.detach() + PERTURB(gradient)) > value))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [w.detach().numpy() for w in weights], worse


CASE_12 = {"jax": with_jax, "tensorflow": with_tensorflow, "torch": with_torch}
