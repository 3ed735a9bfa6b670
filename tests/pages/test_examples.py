"""Every script of docs/examples runs, draws its picture, and gives the figures that its page quotes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import approx
from support import ROOT, TRAINS, slow

Figures = dict[str, list[Any]]
"""Sentences or rows of a page, with {} for each number, and the numbers that the script gives."""


def quoted(page: str, sentence: str) -> list[float]:
    """The numbers of a sentence, which may span lines."""
    pattern = re.escape(sentence).replace(r"\{\}", r"(\d(?:[\d.,e-]*\d)?)").replace(r"\ ", r"\s+")
    found = re.search(pattern, page)
    assert found, sentence
    return [float(number.replace(",", "")) for number in found.groups()]


def stop_gradient(runs: Any) -> Figures:
    """w1 comes to w2 * w3, which stay."""
    for run in runs:
        assert run.distances[-1] < 2e-6
        assert run.still is True
        assert len({w.tobytes() for w in run.w1}) > 100
    row = "| {} | {{}} | {{}} | bit-identical |"
    names = ("JAX", "TensorFlow", "PyTorch")
    return {
        row.format(name): [approx(run.distances[0], abs=0.006), approx(run.distances[-1], abs=2e-6)]
        for name, run in zip(names, runs, strict=True)
    }


def domain_adaptation(runs: Any) -> Figures:
    example = importlib.import_module("domain_adaptation")
    assert 0 <= example.furthest(runs) <= 2
    for plain, adapted in zip(runs[::2], runs[1::2], strict=True):
        assert min(run.accuracy["source"][-1] for run in (plain, adapted)) > 0.94
        assert max(plain.accuracy["target"]) + 0.03 < adapted.accuracy["target"][-1]
    peak = approx(100 * max(runs[0].accuracy["target"]), abs=3)
    last = [approx(100 * run.accuracy["target"][-1], abs=3) for run in runs]
    return {
        "| JAX | {} % | {} % |": last[:2],
        "| TensorFlow | {} % | {} % | {} ULP |": [*last[2:4], approx(0, abs=2)],
        "| PyTorch | {} % | {} % | {} ULP |": [*last[4:], approx(0, abs=2)],
        "accuracy peaks at {} %": [peak],
    }


def straight_through(result: Any) -> Figures:
    np.testing.assert_array_equal(result.value, np.sign(result.x))
    np.testing.assert_array_equal(result.slope, np.abs(result.x) <= 1)
    np.testing.assert_array_equal(result.through, 1)
    large, formula = np.asarray(result.large, np.float64), np.asarray(result.formula)
    kept, lost = 2**24, 2**25
    assert np.all(formula[large <= kept] == 1) and np.all(formula[large >= lost] == 0)
    assert set(formula[(kept < large) & (large < lost)]) == {0.0, 2.0}
    shares = [f"[{round(float(by_formula), 2)}, {float(through)}]" for by_formula, through in result.shares.values()]
    return {"is right up to {}": [kept], "0 from {} on": [lost], **{key: [] for key in shares}}


def same_numbers(result: Any) -> Figures:
    """Cells of the other libraries are numbers, zeros or NaN."""
    by_size, by_count = result
    assert all(of.gradxform <= 1 and of.between == 0 for of in (*by_size, *by_count))
    found = {f"{of.size:.0e}": of for of in by_size}
    figures = {}
    for size in ("1e-30", "1e-18", "1e-06", "1e+00", "1e+18"):
        of = found[size]
        cells = ["{}" if of.given[name] == "numbers" else of.given[name] for name in of.native]
        numbers = [
            approx(of.native[name], rel=0.5, abs=3) for name, cell in zip(of.native, cells, strict=True) if cell == "{}"
        ]
        figures[f"| {size} | {' | '.join(cells)} | {{}} |"] = [*numbers, of.gradxform]
    return figures


def muon_transformer(runs: Any) -> Figures:
    figures = {}
    for optimizer, losses in runs.items():
        every = np.array(list(losses.values()))
        apart = np.ptp(every, axis=0)
        assert apart[:3].max() < 2e-5, "only rounding at first"
        assert apart.max() < 0.02, "rounding grows with the steps, as between two runs of one framework"
        figures[f"| {optimizer} | {{}} |"] = [approx(every[:, -10:].mean(), abs=0.02)]
        assert every[:, 0].min() > 2 * every[:, -10:].mean()
    return figures


def muon(result: Any) -> Figures:
    before, results = result

    def band(values: Any) -> Any:
        return np.sum((values > 0.6) & (values < 1.25))

    figures: Figures = {"| before | {} of 64 |": [band(before)]}
    for one in results:  # the order of summation is another on other machines
        figures[f'| `"{one.coefficients}"` | {{}} of 64 | {{}} to'] = [band(one.values), approx(one.distance, rel=2)]
    return figures


def exploding_gradients(result: Any) -> Figures:
    (plain, gradients, back), flowing = result
    assert plain.accuracy < 0.2 < 0.75 < min(gradients.accuracy, back.accuracy)
    clipped = max(flowing[back.way])
    assert clipped < min(0.02, 0.1 * max(flowing[plain.way]))
    assert plain.exploded == 9

    def accuracy(run: Any) -> list[Any]:
        return [approx(100 * run.accuracy, abs=5)]

    return {
        "| without a clip | {} %": accuracy(plain),
        "| `clip_global_norm(0.1)` before the optimizer | {} %": accuracy(gradients),
        "| `on_backward(clip_norm(0.002, axes=1))` after each pixel | {} %": accuracy(back),
        "At its tenth step the gradient's norm is {}, after {} at the first": [
            approx(plain.norms[step], rel=0.05) for step in (plain.exploded, 0)
        ],
        "grows from {} after the last pixel to {} after the first": [
            approx(flowing[plain.way][pixel], rel=0.05) for pixel in (-1, 0)
        ],
        "same weights and batch, it stays below {}": [approx(clipped, rel=1)],
    }


def spikes(runs: Any) -> Figures:
    plain, bad, tamed, whole = runs.values()
    assert bad.end > 4 * plain.end
    assert max(tamed.end, whole.end) < 1.5 * plain.end
    for run in (bad, tamed):  # compiled apart
        np.testing.assert_allclose(run.losses[:30], plain.losses[:30], rtol=1e-4)
    after = slice(50, 150)  # the update stays small without the transform, and recovers with it
    assert max(bad.sizes[after]) < 0.7 * min(plain.sizes[after])
    assert max(tamed.sizes[110:150]) > 0.9 * max(plain.sizes[110:150])
    return {
        f"| {name} | {{}} | {{}} %": [approx(run.end, rel=0.1), approx(100 * run.accuracy, abs=2)]
        for name, run in runs.items()
    }


def error_feedback(runs: Any) -> Figures:
    distances, plain = importlib.import_module("error_feedback").distances, runs["the gradient"]
    return {
        f"| {name} | {{}} | {{}} % | {{}} |": [
            approx(run.losses[-1], abs=0.02),
            approx(100 * run.accuracy, abs=2),
            approx(distances(run, plain)[-1], abs=0.02),
        ]
        for name, run in runs.items()
    }


def histogram(found: Any) -> Figures:
    flat = importlib.import_module("histogram").flat
    before = flat(found[0].before)
    assert not any(flat(one.after)[before == 0].any() for one in found)
    assert [one.norm for one in found] == approx([found[2].norm] * 3, abs=0.02)
    return {
        "All three clips reduce the global norm from {} to {}": [
            approx(np.linalg.norm(before), abs=0.05),
            approx(found[2].norm, abs=0.02),
        ],
        "Of the elements, {} % are zero": [approx(100 * np.mean(before == 0), abs=1)],
        **{
            f"| `{one.tx!r}` | {{}} % | {{}} |": [approx(100 * one.changed, abs=1), approx(one.cosine, abs=0.002)]
            for one in found
        },
    }


def port_hunt(result: Any) -> Figures:
    factor, constant, right = result
    assert [found.findings[0].kind for found in (factor, constant)] == ["factor", "constant"]
    assert factor.findings[0].numbers["factor"] == approx(64, rel=1e-3)  # the other fault is in it
    assert right.within and not right.findings
    constant_levels, right_levels = (list(found.judged["gradients"].levels.values()) for found in (constant, right))
    assert max(right_levels) < 1e-6
    assert max(constant_levels[:11]) < 1e-3 < 1e-2 < min(constant_levels[11:])
    said = constant.findings[0].text.replace(f"{constant.findings[0].numbers['relative']:.2g}", "{}")
    cause = factor.findings[0].text.partition(" It holds at")[0]
    return {cause: [], said: [approx(constant.findings[0].numbers["relative"], rel=0.05)]}


def conflicting_tasks(found: Any) -> Figures:
    tasks = importlib.import_module("conflicting_tasks").TASKS
    products = {name: tasks @ vector for name, vector in found.items()}
    assert min(products.pop("mean")) < -0.2
    assert all(min(both) > 0 for both in products.values())
    np.testing.assert_allclose(found["upgrad"], found["pcgrad / 2"], rtol=1e-14)
    return {str(row): [] for row in tasks.tolist()}


SCRIPTS: dict[str, tuple[str, Callable[[Any], Figures]]] = {
    "stop_gradient": ("how-to/only-w1-learns", stop_gradient),
    "domain_adaptation": ("how-to/reverse-a-gradient", domain_adaptation),
    "straight_through": ("how-to/straight-through", straight_through),
    "same_numbers": ("how-to/same-numbers-everywhere", same_numbers),
    "muon_transformer": ("how-to/train-with-muon", muon_transformer),
    "muon": ("how-to/train-with-muon", muon),
    "exploding_gradients": ("how-to/exploding-gradients", exploding_gradients),
    "spikes": ("how-to/tame-spikes", spikes),
    "error_feedback": ("how-to/error-feedback", error_feedback),
    "histogram": ("how-to/clip", histogram),
    "port_hunt": ("how-to/where-does-my-port-go-wrong", port_hunt),
    "conflicting_tasks": ("guides/catalogue", conflicting_tasks),
    "gallery.frame": ("how-to/index", lambda _: {}),
}


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "optax", "keras", "tensorflow", "torch", "sklearn", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))


def test_every_script_is_tested() -> None:
    scripts = [path for path in (ROOT / "docs/examples").glob("*.py") if "\ndef main(" in path.read_text()]
    assert {path.stem for path in scripts} == SCRIPTS.keys() - {"gallery.frame"}


@slow(TRAINS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_gives_the_figures_of_its_page(script: str, tmp_path: Path) -> None:
    page, figures = SCRIPTS[script]
    pictures = ROOT / "docs/pictures" / ("gallery" if "." in script else "")
    result = importlib.import_module(script).main(tmp_path)
    drawn = {picture.name for picture in tmp_path.iterdir()}
    assert drawn == ({path.name for path in pictures.iterdir()} if "." in script else {f"{script}.png"})
    assert all((pictures / name).exists() for name in drawn)
    text = (ROOT / f"docs/{page}.md").read_text().replace("\n> ", " ")
    for sentence, numbers in figures(result).items():
        assert quoted(text, sentence) == numbers, sentence
