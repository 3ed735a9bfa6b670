"""Statements of the clipping pages about their scripts and native functions hold."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT, assert_drawn, rows

import gradxform as gx

EXPLODING, BY_VALUE, MUON, SPIKES, FEEDBACK = (
    (ROOT / f"docs/how-to/{name}.md").read_text()
    for name in ("exploding-gradients", "clip-by-value", "train-with-muon", "tame-spikes", "error-feedback")
)


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "optax", "torch", "sklearn", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))


def figures(page: str, pattern: str) -> list[float]:
    """The numbers in a sentence, which may span lines."""
    found = re.search(pattern.replace(" ", r"\s+"), page)
    assert found, pattern
    return [float(number) for number in found.groups()]


# --- exploding gradients ---------------------------------------------------------------------------------------------


def test_the_gradients_explode_and_clipped_the_network_learns(tmp_path: Path) -> None:
    example = importlib.import_module("exploding_gradients")
    runs, flowing = example.main(tmp_path)
    assert_drawn(tmp_path / "exploding_gradients.png")
    plain, gradients, back = runs
    shown = rows(EXPLODING, "| | accuracy on 397 held-out images |")
    assert [name for name, _ in shown] == [
        "without a clip",
        f"`clip_global_norm({example.WAYS[gradients.way][0]:g})` before the optimizer",
        f"`on_backward(clip_norm({example.WAYS[back.way][1]:g}, axes=1))` after each pixel",
    ]
    for run, (_, percent) in zip(runs, shown, strict=True):
        assert 100 * run.accuracy == pytest.approx(float(percent.removesuffix(" %")), abs=5)
        assert len(run.losses) == len(run.norms) == example.STEPS
    assert plain.accuracy < 0.2 < 0.75 < min(gradients.accuracy, back.accuracy)
    # at chance, if not worse
    assert np.mean(plain.losses[-20:]) > 0.95 * np.log(10) > 2 * max(np.mean(run.losses[-20:]) for run in runs[1:])

    at = plain.exploded
    assert at + 1 == 10
    assert "At its tenth step" in EXPLODING
    then, first = figures(EXPLODING, r"the gradient's norm is (\d+), after (\d\.\d) at the first")
    assert plain.norms[at] == pytest.approx(then, rel=0.05)
    assert plain.norms[0] == pytest.approx(first, rel=0.05)
    after_last, after_first = figures(EXPLODING, r"grows from (\d\.\d+) after the last pixel to (\d+) after the first")
    assert flowing[plain.way][-1] == pytest.approx(after_last, rel=0.05)
    assert flowing[plain.way][0] == pytest.approx(after_first, rel=0.05)
    (below,) = figures(EXPLODING, r"same weights and batch, it stays below (\d\.\d+)")
    assert max(flowing[back.way]) < below < 0.1 * max(flowing[plain.way])


def test_other_seeds_explode_and_learn_as_well() -> None:
    example = importlib.import_module("exploding_gradients")
    for seed in (0, 1, 3):
        (plain, *clipped), _ = example.train_all(seed)
        assert plain.accuracy < 0.2
        assert plain.exploded < 40
        assert min(run.accuracy for run in clipped) > 0.75


def test_the_last_digit_of_the_first_weights_makes_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise for a clipped run."""
    example = importlib.import_module("exploding_gradients")
    assert "a change of 1e-15 in the first weights gives another run within some twenty steps" in EXPLODING
    monkeypatch.setattr(example, "STEPS", 40)
    runs, _ = example.train_all()
    first = example.first_weights
    monkeypatch.setattr(example, "first_weights", lambda rng: {name: w * (1 + 1e-15) for name, w in first(rng).items()})
    others, _ = example.train_all()
    apart = [np.abs(np.log(np.array(a.norms) / b.norms)) for a, b in zip(runs, others, strict=True)]
    assert max(apart[0][:10]) < 1e-3  # the drawn part is the same on other machines
    assert max(apart[0][:25]) > 0.01
    assert max(apart[1]) < 1e-6
    assert max(apart[2]) < 1e-6


def test_the_lstm_learns_without_a_clip_too() -> None:
    """The picture shows another network, as the page says."""
    torch = pytest.importorskip("torch")
    from sklearn.datasets import load_digits
    from sklearn.utils import shuffle

    assert "the same LSTM without the clip learns as well" in EXPLODING
    images, labels = shuffle(*load_digits(return_X_y=True), random_state=0)
    images, labels = torch.tensor(np.float32(images).reshape(-1, 8, 8) / 16), torch.tensor(labels)
    last = []
    for tx in (gx.clip_global_norm(0.5), gx.identity()):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            lstm, dense = torch.nn.LSTM(8, 128, batch_first=True), torch.nn.Linear(128, 10)
        lstm.bias_ih_l0.data[128:256], lstm.bias_hh_l0.data[128:256] = 1.0, 0.0
        model, losses = torch.nn.ModuleList([lstm, dense]), []
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for i in 2 * list(range(0, 1600, 100)):
            loss = torch.nn.functional.cross_entropy(dense(lstm(images[i : i + 100])[0][:, -1]), labels[i : i + 100])
            optimizer.zero_grad()
            loss.backward()
            gx.torch.apply_(tx, model)
            optimizer.step()
            losses.append(loss.item())
        last.append(np.mean(losses[-5:]))
    assert max(last) < 0.6 * np.log(10)
    assert last[1] < 1.25 * last[0]


# --- what orthogonalize does to a gradient ---------------------------------------------------------------------------


def test_muon(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    example = importlib.import_module("muon")
    before, results = example.main(tmp_path)
    assert_drawn(tmp_path / "muon.png")
    header = "coefficients, 5 steps | singular values between 0.6 and 1.25 | distance from float64, in float32"
    shown = rows(MUON, f"| {header} |")
    assert [cells[0] for cells in shown] == ["before", *(f'`"{name}"`' for name in example.KINDS)]
    bands = {cells[0]: figures(cells[1], r"(\d+) of 64")[0] for cells in shown}
    assert np.sum((before > 0.6) & (before < 1.25)) == bands["before"]
    for name, _, distance in shown[1:]:
        least, most = figures(distance, r"([\d.e-]+) to ([\d.e-]+)")
        own = [one for one in results if f'`"{one.coefficients}"`' == name]
        assert [one.framework for one in own] == ["numpy", "jax", "tensorflow", "torch"]
        for one in own:
            assert np.sum((one.values > 0.6) & (one.values < 1.25)) == bands[name]
            assert least / 3 < one.distance < 3 * most  # the order of summation is another on other machines


# --- a bad batch, and signs ------------------------------------------------------------------------------------------


def percent(cell: str) -> float:
    return float(cell.removesuffix(" %"))


def test_a_bad_batch_stalls_adam_without_clip_spikes(tmp_path: Path) -> None:
    example = importlib.import_module("spikes")
    runs = example.main(tmp_path)
    assert_drawn(tmp_path / "spikes.png")
    shown = rows(SPIKES, "| before Adam | mean loss of the last 20 steps | accuracy on 397 held-out images |")
    assert [name for name, _, _ in shown] == list(runs)
    for run, (_, loss, accuracy) in zip(runs.values(), shown, strict=True):
        assert run.end == pytest.approx(float(loss), rel=0.1)
        assert 100 * run.accuracy == pytest.approx(percent(accuracy), abs=2)
    assert_tamed(runs)
    plain, bad, tamed, _ = runs.values()
    assert example.SPIKE == 30 and "The pixels of the 31st" in SPIKES
    for run in (bad, tamed):  # compiled apart
        np.testing.assert_allclose(run.losses[:30], plain.losses[:30], rtol=1e-4)
    after = slice(50, 150)  # the update stays small without the transform, and recovers with it
    assert max(bad.sizes[after]) < 0.7 * min(plain.sizes[after])
    assert max(tamed.sizes[110:150]) > 0.9 * max(plain.sizes[110:150])


def test_other_seeds_are_tamed_as_well() -> None:
    example = importlib.import_module("spikes")
    for seed in (1, 2):
        assert_tamed(example.train_all(seed))


def assert_tamed(runs: dict[str, Any]) -> None:
    plain, bad, tamed, whole = runs.values()
    assert bad.end > 4 * plain.end
    assert max(tamed.end, whole.end) < 1.5 * plain.end
    assert bad.accuracy < 0.8 < 0.9 < min(plain.accuracy, tamed.accuracy, whole.accuracy)


def test_signs_train_with_error_feedback(tmp_path: Path) -> None:
    example = importlib.import_module("error_feedback")
    runs = example.main(tmp_path)
    assert_drawn(tmp_path / "error_feedback.png")
    header = "loss of the training images | accuracy on 397 held-out images | distance of the weights"
    shown = rows(FEEDBACK, f"| SGD with | {header} |")
    assert [name for name, *_ in shown] == list(runs)
    plain = runs["the gradient"]
    for run, (_, loss, accuracy, distance) in zip(runs.values(), shown, strict=True):
        assert run.losses[-1] == pytest.approx(float(loss), abs=0.02)
        assert 100 * run.accuracy == pytest.approx(percent(accuracy), abs=2)
        assert example.distances(run, plain)[-1] == pytest.approx(float(distance), abs=0.02)
    assert f"`{example.SIGNS!r}`" in FEEDBACK
    for seed in (1, 2):
        by_gradient, by_sign, fed_back = example.train_all(seed).values()
        assert by_sign.losses[-1] > 1.5 > 1.3 * fed_back.losses[-1]
        assert fed_back.losses[-1] < by_gradient.losses[-1] + 0.1
        assert example.distances(fed_back, by_gradient)[-1] < 0.2 < 1.5 < example.distances(by_sign, by_gradient)[-1]


# --- what a clip does to a gradient ----------------------------------------------------------------------------------


def test_the_histogram(tmp_path: Path) -> None:
    example = importlib.import_module("histogram")
    found = example.main(tmp_path)
    assert_drawn(tmp_path / "histogram.png")
    shown = rows(BY_VALUE, "| transform | elements changed | cosine to the gradient before |")
    assert [name for name, _, _ in shown] == [f"`{one.tx!r}`" for one in found]
    for one, (_, changed, cosine) in zip(found, shown, strict=True):
        assert 100 * one.changed == pytest.approx(float(changed.removesuffix(" %")), abs=1)
        assert one.cosine == pytest.approx(float(cosine), abs=0.002)
    before, after = figures(BY_VALUE, r"All three clips reduce the global norm from (\d\.\d) to (\d\.\d)")
    assert np.linalg.norm(example.flat(found[0].before)) == pytest.approx(before, abs=0.05)
    assert [one.norm for one in found] == pytest.approx([after] * 3, abs=0.02)
    (zeros,) = figures(BY_VALUE, r"Of the elements, (\d+) % are zero")
    for one in found:
        nothing = example.flat(one.before) == 0
        assert 100 * np.mean(nothing) == pytest.approx(zeros, abs=1)
        assert not example.flat(one.after)[nothing].any()
    by_value, by_norm, whole = (
        [np.linalg.norm(one.after[name]) / np.linalg.norm(one.before[name]) for name in example.WEIGHTS]
        for one in found
    )
    assert np.ptp(whole) < 1e-6  # keeps the proportions
    assert min(np.ptp(by_value), np.ptp(by_norm)) > 0.05
    assert found[0].cosine < found[1].cosine < 0.99 < found[2].cosine


def tensorflow() -> Any:
    tf = pytest.importorskip("tensorflow")
    return lambda g: tf.clip_by_value(g, -1.0, 1.0).numpy()


def jax() -> Any:
    jnp = pytest.importorskip("jax").numpy
    return lambda g: np.asarray(jnp.clip(g, -1.0, 1.0))


def torch() -> Any:
    torch = pytest.importorskip("torch")

    def clip(g: Any) -> Any:
        parameter = torch.zeros(len(g), requires_grad=True)
        parameter.grad = torch.tensor(g)
        torch.nn.utils.clip_grad_value_([parameter], 1.0)
        return parameter.grad.numpy()

    return clip


@pytest.mark.parametrize("native", [tensorflow, jax, torch])
def test_the_libraries_clip_values_alike(native: Any) -> None:
    """Bit-identical; NaN stays NaN, and infinity becomes the bound."""
    rng = np.random.default_rng(0)
    g = np.float32([*(2 * rng.normal(size=1000)), np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30])
    result, expected = gx.clip_value(1.0)([g])[0], native()(g)
    assert result[-6:-4].tolist() == [1.0, -1.0]
    assert np.isnan(result[-4])
    there = ~np.isnan(result)
    assert (np.isnan(expected) == ~there).all()
    assert result[there].tobytes() == expected[there].tobytes()
    assert result.tobytes() != g.tobytes()


def test_torch_refuses_to_clip_values_of_sparse_gradients() -> None:
    torch = pytest.importorskip("torch")
    table = torch.nn.Embedding(3, 2, sparse=True)
    (table(torch.tensor([0, 0])) * 3.0).sum().backward()
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.nn.utils.clip_grad_value_(table.parameters(), 5.0)
    gx.torch.apply_(gx.clip_value(5.0), table)
    assert table.weight.grad.to_dense().tolist() == [[5.0, 5.0], [0.0, 0.0], [0.0, 0.0]]


# --- what the other pages say --------------------------------------------------------------------------------------


def test_keras_refuses_variables_that_it_has_not_been_built_with() -> None:
    tf, keras = pytest.importorskip("tensorflow"), pytest.importorskip("keras")
    w, b = tf.Variable([1.0], name="w"), tf.Variable([1.0], name="b")
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.apply_gradients([(tf.constant([0.25]), w)])
    with pytest.raises((KeyError, ValueError)):
        optimizer.apply_gradients([(tf.constant([0.25]), b)])


def test_a_lambda_has_no_name_to_be_found_by() -> None:
    keras = pytest.importorskip("keras")
    capper = gx.elementwise(lambda g: g / (1.0 + abs(g)))
    with pytest.raises((ValueError, SyntaxError)):
        gx.parse(repr(capper))
    with pytest.warns(UserWarning, match="cannot be saved with the model, since it holds <function"):
        optimizer = gx.keras.wrap(keras.optimizers.SGD(1.0), capper)
    with pytest.raises(ValueError, match="cannot be saved with the model, since it holds <function"):
        keras.saving.serialize_keras_object(optimizer)


# --- a port ----------------------------------------------------------------------------------------------------------


def test_the_hunt_finds_what_the_page_says(tmp_path: Path) -> None:
    page = " ".join((ROOT / "docs/how-to/where-does-my-port-go-wrong.md").read_text().replace("\n> ", " ").split())
    factor, constant, right = importlib.import_module("port_hunt").main(tmp_path)
    assert_drawn(tmp_path / "port_hunt.png")
    assert [found.findings[0].kind for found in (factor, constant)] == ["factor", "constant"]
    assert factor.findings[0].text in page
    assert factor.findings[0].numbers["factor"] == pytest.approx(64, rel=1e-3)  # the other fault is in it
    begin, _, end = constant.findings[0].text.partition(f"{constant.findings[0].numbers['relative']:.2g}")
    assert begin in page and end in page
    assert constant.findings[0].numbers["relative"] == pytest.approx(9.8e-5, rel=0.05)
    assert right.within and not right.findings
    levels = {name: list(found.judged["gradients"].levels.values()) for name, found in (("c", constant), ("r", right))}
    assert max(levels["r"]) < 1e-6
    assert max(levels["c"][:11]) < 1e-3 < 1e-2 < min(levels["c"][11:])
    assert constant.judged["gradients"].levels[0] > 150 * max(levels["r"])


# --- conflicting tasks -----------------------------------------------------------------------------------------------


def test_conflicting_tasks(tmp_path: Path) -> None:
    example = importlib.import_module("conflicting_tasks")
    found = example.main(tmp_path)
    assert_drawn(tmp_path / "conflicting_tasks.png")
    products = {name: example.TASKS @ vector for name, vector in found.items()}
    assert min(products.pop("mean")) < -0.2
    assert all(min(both) > 0 for both in products.values())
    np.testing.assert_allclose(found["upgrad"], found["pcgrad / 2"], rtol=1e-14)
    page = (ROOT / "docs/guides/catalogue.md").read_text()
    assert all(str(row) in page for row in example.TASKS.tolist())
