"""The migration pages: both columns run, and agree or differ as the page says."""

from __future__ import annotations

import contextlib
import functools
import json
import linecache
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import MIGRATED_FROM, ROOT, assert_ulp, python

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pytest.importorskip("sklearn")

FOLDER = ROOT / "docs/migrating"
SIDE = r":::\{grid-item\}\n\n```\{code-block\} python\n:caption: (%s)\n\n(.+?)^```\n:::\n"
TABLE = re.compile(
    rf"^::::\{{grid\}} 1 1 2 2\n:gutter: 1\n:margin: 0\n:padding: 0\n\n{SIDE % '.+?'}\n{SIDE % 'gradxform'}::::$",
    re.DOTALL | re.MULTILINE,
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ONE, TWO, KERAS, TORCH, OPTAX = "TensorFlow 1", "TensorFlow 2", "Keras 3", "PyTorch", "optax"

EXPLODE = "Exploding gradients in an RNN: where does clipping go?"
VALUE = "Clip by value"
GLOBAL_NORM = "Clip by global norm and log the norm"
NORM = "Clip each gradient by its norm; some are None"
HARD = "Small, NaN and infinite gradients in clip_by_norm"
SPARSE = "IndexedSlices: gradients of embeddings"
OWN = "Use your own function"
MINIMIZE = "Split minimize: global_step and var_list"
GRADIENTS = "tf.gradients, clip and zip"
OP = "Change the gradient of one op"
OVERRIDE = "RegisterGradient and gradient_override_map"
IGNORED = "gradient_override_map does nothing in TensorFlow 2"
LAYERS = "Clip between layers"
STOP = "Train w1 but not w2 and w3: tf.stop_gradient"
ADVERSARIAL = "Gradient without an update: adversarial examples"
SOME = "Train only some variables: var_list"
AVERAGE = "Moving average of gradients"
SCHEDULE = "Change the limit without retracing"
COMPILE = "Compile and fit: clipnorm, global_clipnorm, clipvalue"
DEVICES = "Several devices with tf.distribute"
KERAS_STEP = "Custom train_step"
KERAS_SCALE = "Loss scaling"
KERAS_ACCUMULATE = "Gradient accumulation"
TORCH_CLIP = "Clip by global norm: clip_grad_norm_"
TORCH_LOG = "Log the norm that clip_grad_norm_ returns"
TORCH_EACH = "Clip by value or per gradient"
TORCH_HOOK = "Clip in a hook"
TORCH_SCALER = "GradScaler"
TORCH_FREEZE = "Freeze layers"
OPTAX_CLIP = "Clip by global norm"
OPTAX_LOG = "Log the norm"
OPTAX_HARD = "Where do the numbers differ?"
OPTAX_UNITS = "Adaptive gradient clipping"
OPTAX_LIMIT = "Schedule the limit"
OPTAX_SKIP = "Skip nonfinite steps"
OPTAX_MASK = "Masks"
OPTAX_FREEZE = "set_to_zero does not freeze"

# The headings of each page in order, with the number of the case (None: no case) and the tables.
TENSORFLOW = {
    EXPLODE: (1, [TWO, ONE]),
    VALUE: (2, [TWO, ONE]),
    GLOBAL_NORM: (3, [TWO, ONE]),
    NORM: (4, [TWO, ONE]),
    HARD: (None, [TWO]),
    SPARSE: (None, [TWO]),
    OWN: (5, [TWO, ONE]),
    MINIMIZE: (6, [ONE, TWO]),
    GRADIENTS: (6, [ONE]),
    OP: (7, [TWO, ONE]),
    OVERRIDE: (8, [ONE, ONE]),
    IGNORED: (8, [TWO]),
    LAYERS: (10, [TWO, ONE]),
    STOP: (11, [TWO, ONE]),
    ADVERSARIAL: (12, [TWO, ONE]),
    SOME: (13, [ONE, TWO]),
    AVERAGE: (None, [TWO, ONE]),
    SCHEDULE: (None, [TWO]),
    DEVICES: (None, [TWO]),
}
QUESTIONS: dict[str, dict[str, tuple[int | None, list[str]]]] = {
    "tensorflow": TENSORFLOW,
    "keras": {
        COMPILE: (None, [KERAS]),
        "clipnorm, global_clipnorm or clipvalue?": (None, []),
        "gradient_transformers": (None, []),
        KERAS_STEP: (None, [KERAS]),
        KERAS_SCALE: (None, [KERAS]),
        KERAS_ACCUMULATE: (None, [KERAS]),
        "Load a saved model": (None, []),
        "Supported backends": (None, []),
    },
    "torch": {
        TORCH_CLIP: (None, [TORCH]),
        TORCH_LOG: (None, [TORCH]),
        "Find the nonfinite gradient: error_if_nonfinite": (None, []),
        TORCH_EACH: (None, [TORCH]),
        TORCH_HOOK: (None, [TORCH]),
        TORCH_SCALER: (None, [TORCH]),
        TORCH_FREEZE: (None, [TORCH]),
        "Is the norm of a large gradient accurate?": (None, []),
        "How much do the numbers change in JAX?": (None, []),
        "Keep the numbers of a run": (None, []),
    },
    "optax": {
        OPTAX_CLIP: (None, [OPTAX]),
        OPTAX_LOG: (None, [OPTAX]),
        OPTAX_HARD: (None, [OPTAX]),
        OPTAX_UNITS: (None, [OPTAX]),
        OPTAX_LIMIT: (None, [OPTAX]),
        OPTAX_SKIP: (None, [OPTAX]),
        OPTAX_MASK: (None, [OPTAX]),
        OPTAX_FREEZE: (None, [OPTAX]),
        "What can I keep?": (None, []),
        "Keep the numbers of a run": (None, []),
    },
}


class Table(NamedTuple):
    """Two columns of a page, with the code before them."""

    page: str
    question: str
    version: str
    setup: str
    left: str
    right: str


def text(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text()


def sections(page: str) -> dict[str, str]:
    _, *found = re.split(r"^## (.+)$", text(page), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


@functools.cache
def tables() -> dict[tuple[str, int], Table]:
    """The tables by question and number. A table without setup code uses the setup of the table before it."""
    found = {}
    for page in QUESTIONS:
        for question, section in sections(page).items():
            setup, end = "", 0
            for number, match in enumerate(TABLE.finditer(section)):
                setup = "".join(BLOCK.findall(section[end : match.start()])) or setup
                end = match.end()
                version, left, _, right = match.groups()
                found[question, number] = Table(page, question, version, setup, left, right)
            assert not BLOCK.findall(section[end:]), f"{question}: code that nothing runs"
    return found


def run(table: Table, side: str, change: tuple[str, str] | None = None) -> dict[str, Any]:
    """Run one side of a table after the page's preamble and its setup; return the namespace."""
    preamble = text(table.page).partition("\n## ")[0]
    snippet = getattr(table, side)
    if change is not None:
        assert snippet.count(change[0]) == 1
        snippet = snippet.replace(*change)
    code = "".join([*BLOCK.findall(preamble), table.setup, snippet])
    file = f"{table.question}, {table.version}, {side}"
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # AutoGraph reads the source
    names: dict[str, Any] = {"__name__": "migration"}
    with contextlib.ExitStack() as stack:
        if table.version == ONE:
            stack.enter_context(tf.Graph().as_default())
            names["session"] = stack.enter_context(tf.compat.v1.Session())
        exec(compile(code, file, "exec"), names)
    return names


@functools.cache  # a gradient's name is registered once in a process
def both(question: str, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    table = tables()[question, number]
    return run(table, "left"), run(table, "right")


def arrays(result: Any) -> list[Any]:
    """The leaves of a result, including None."""
    found = [None if leaf is None else np.asarray(leaf) for leaf in tf.nest.flatten(result)]
    assert found
    return found


def assert_close(result: Any, expected: Any, ulp: float) -> None:
    """Assert equal dtypes and shapes, and values within `ulp`; 0 means bit-identical."""
    assert_ulp(arrays(result), arrays(expected), ulp)


# --- the pages themselves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", QUESTIONS)
def test_every_heading_is_there_and_every_table_has_two_sides(page: str) -> None:
    assert list(sections(page)) == list(QUESTIONS[page])
    own = [table for table in tables().values() if table.page == page]
    found = {question: [table.version for table in own if table.question == question] for question in QUESTIONS[page]}
    assert found == {question: versions for question, (_, versions) in QUESTIONS[page].items()}
    assert text(page).count("{grid}") == len(own)
    prefix = {"tensorflow": "tf.", "keras": "keras.", "optax": "optax.", "torch": "torch."}[page]
    for table in own:
        assert "gx." in table.right and "gx." not in table.left + table.setup, table
        assert prefix in table.left + table.setup, table
        assert re.search(r"^ *result\b", table.left, re.MULTILINE), table
        assert re.search(r"^ *result\b", table.right, re.MULTILINE), table


def test_a_line_of_code_fits_into_a_column() -> None:
    for table in tables().values():
        widths = [max(map(len, side.splitlines())) for side in (table.left, table.right)]
        assert max(widths) <= 43, (table.question, widths)  # what half of the site's column holds


@pytest.mark.parametrize("page", QUESTIONS)
def test_the_headings_are_listed_at_the_top(page: str) -> None:
    top = text(page).partition("\n## ")[0]
    for question in sections(page):
        anchor = re.sub(r"[^\w\- ]", "", question.lower()).replace(" ", "-")
        assert f"](#{anchor})" in top, question


def test_every_case_is_there() -> None:
    assert tuple(QUESTIONS) == MIGRATED_FROM
    assert {case for case, _ in TENSORFLOW.values() if case} == {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13}


def test_every_table_is_tested() -> None:
    assert {*AGREE, *DIFFER, (DEVICES, 0)} == set(tables())
    assert not AGREE.keys() & DIFFER.keys()


# --- tables whose sides agree ----------------------------------------------------------------------------------------

F = np.float32
CLIPPED = [F([30, 40]) * F(5 / 130), F(120 * 5 / 130), F(130)]
STEPPED = [np.ones((3, 2), F) - F([2, 3]), np.zeros(2, F), np.int64(1)]
NORM_BY_BATCH = np.sqrt(3 * (0.5**2 + 0.75**2) + 2 * 0.75**2)
BY_BATCH = [F(1 - np.tile([0.5, 0.75], (3, 1)) / NORM_BY_BATCH), F([-0.75, -0.75] / NORM_BY_BATCH), np.int64(1)]
BETWEEN = [F([[3, 7]] * 2), F([[0.278543, 0.6499337]] * 2), F([[1.57841039, 3.43536377]] * 2)]
NORMS = [F([[-2], [-3]]), F([-1]), 1 - F([[30], [40]]) * 5 / F(np.sqrt(2501)), -F([5]) / F(np.sqrt(2501))]
AVERAGES = [F([3, 4]), F(np.array([0.77, 0.56]) / 0.19), F(np.array([0.703, 0.524]) / 0.271)]

# The largest distance in ULP between the sides and from the expected result (None: a separate test checks it).
AGREE: dict[tuple[str, int], tuple[float, Any]] = {
    (EXPLODE, 0): (1000, None),  # differences of 1 ULP grow from step to step
    (EXPLODE, 1): (1000, None),
    (VALUE, 0): (0, [F([-1, 0.3, 1])]),
    (VALUE, 1): (0, [F([-1, 0.3, 1])]),
    (GLOBAL_NORM, 0): (2, CLIPPED),
    (GLOBAL_NORM, 1): (2, [F(130), 1 - CLIPPED[0], 1 - CLIPPED[1]]),
    (NORM, 0): (2, [F([3, 4]), None, F([3, 4])]),
    (NORM, 1): (2, [F([-2, -3]), F(1), F([-2, -3])]),
    (OWN, 0): (1, [F([0.75, -0.2]), None]),
    (OWN, 1): (1, [F([0.25, 1.2])]),
    (MINIMIZE, 0): (0, STEPPED),
    (MINIMIZE, 1): (0, STEPPED),
    (GRADIENTS, 0): (4, BY_BATCH),
    (OP, 0): (0, [F([3]), F([5]), F([3]), F([0.1])]),
    (OP, 1): (0, [F([3]), F([0.1])]),
    (OVERRIDE, 0): (0, [F([3]), F([0.1])]),
    (OVERRIDE, 1): (0, [F([3]), F([5])]),
    (LAYERS, 0): (2, [BETWEEN, BETWEEN]),
    (LAYERS, 1): (2, BETWEEN),
    (STOP, 0): (100, None),  # w1; w2 and w3 are unchanged
    (STOP, 1): (100, None),
    (ADVERSARIAL, 0): (2, None),
    (ADVERSARIAL, 1): (2, None),
    (SOME, 0): (100, None),  # in the variable that is trained
    (AVERAGE, 0): (2, AVERAGES),
    (AVERAGE, 1): (2, [1 - sum(AVERAGES)]),
    (KERAS_STEP, 0): (4, NORMS[2:]),
    (KERAS_SCALE, 0): (2, F([-1.2, -1.6])),
    (KERAS_ACCUMULATE, 0): (2, [F([-1.2, -1.6])] * 2),
    (TORCH_CLIP, 0): (1000, None),  # differences of 1 ULP and of the 1e-6 grow from step to step
    (TORCH_LOG, 0): (2, None),
    (TORCH_EACH, 0): (20, None),  # 1e-6 of norms of 0.6
    (TORCH_HOOK, 0): (0, None),
    (TORCH_SCALER, 0): (20, None),
    (OPTAX_CLIP, 0): (20, None),  # of the parameters, which are sums
    (OPTAX_LOG, 0): (2, None),
    (OPTAX_UNITS, 0): (20, None),
    (OPTAX_LIMIT, 0): (20, None),
    (OPTAX_MASK, 0): (20, None),
    (COMPILE, 0): (4, [*NORMS, F([[-4], [-4]]), F([-1])]),
}


@pytest.mark.parametrize(("question", "number"), AGREE)
def test_both_sides_agree(question: str, number: int) -> None:
    ulp, expected = AGREE[question, number]
    left, right = both(question, number)
    assert_close(left["result"], right["result"], ulp)
    if expected is not None:
        for names in (left, right):
            assert_close(names["result"], expected, ulp)


@pytest.mark.parametrize("number", [0, 1])
def test_the_loss_falls_and_gradients_stay_within_the_limit(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    applied = []
    kind = (keras.optimizers.Adam, tf.compat.v1.train.AdamOptimizer)[number]
    original = kind.apply_gradients

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        norm = tf.linalg.global_norm([g for g, _ in pairs])
        applied.append(norm)
        with tf.control_dependencies([tf.debugging.assert_less_equal(norm, 0.5 * (1 + 1e-6))]):
            return original(self, [(tf.identity(g), v) for g, v in pairs], *args, **kwargs)

    monkeypatch.setattr(kind, "apply_gradients", apply_gradients)
    table = tables()[EXPLODE, number]
    for side in ("left", "right"):
        losses = arrays(run(table, side)["result"])
        assert len(losses) == 8
        assert losses[-1] < losses[0] - 0.3
        assert applied
        applied.clear()
    with pytest.raises(tf.errors.InvalidArgumentError, match="did not hold"):  # the norm without the clip is larger
        run(table, "right", ("gx.clip_global_norm(0.5)", "gx.identity()"))


@pytest.mark.parametrize("number", [0, 1])
def test_the_lstm_has_128_units_and_a_forget_bias_of_one(number: int) -> None:
    names = run(tables()[EXPLODE, number]._replace(right="result = []"), "right")
    if number == 0:
        assert names["layers"][0].units == 128
        assert names["layers"][0].cell.bias.numpy().reshape(4, 128).tolist()[1] == [1.0] * 128
    else:
        assert names["kernel"].shape == (8 + 128, 4 * 128)
        assert "sigmoid(forget + 1.0)" in tables()[EXPLODE, number].setup


@pytest.mark.parametrize("number", [0, 1])
def test_only_w1_learns_and_converges_to_the_product(number: int) -> None:
    for names in both(STOP, number):
        w1, w2, w3 = arrays(names["result"])
        assert_close([w2, w3], list(names["start"][1:]), 0)
        np.testing.assert_allclose(w1, w2 * w3, atol=1e-5)
        assert np.abs(w1 - names["start"][0]).max() > 0.1


@pytest.mark.parametrize("number", [0, 1])
def test_a_gradient_moves_no_parameter(number: int) -> None:
    for names in both(ADVERSARIAL, number):
        found, table, w = arrays(names["result"])
        assert_close([table, w], [names["start"], F([[1], [-2]])], 0)
        step = found - names["start"][[0, 2, 2]]
        assert np.linalg.norm(step) == pytest.approx(0.1, rel=1e-5)
        assert (step[:, 0] > 0).all() and (step[:, 1] < 0).all()  # as w


def test_var_list_and_freeze_leave_the_others_alone() -> None:
    for names in both(SOME, 0):
        words, w = arrays(names["result"])
        assert_close(words, F([1, 2]), 0)
        assert np.abs(w - F([3, 4])).min() > 0.1


# --- tables whose sides differ ---------------------------------------------------------------------------------------

NAN = np.nan
BF16 = tf.bfloat16.as_numpy_dtype
WITHIN = F(0.01 * np.random.default_rng(0).standard_normal(1000))
ROOT = np.sqrt(F(6**2 + 4**2))
LIMITED = [F([3, 4]), F([1.5, 2]), F([3, 4]) / 3]

# The expected results of both sides (None: a separate test checks it).
DIFFER: dict[tuple[str, int], tuple[Any, Any]] = {
    (HARD, 0): (None, [WITHIN, F([NAN, NAN]), F([NAN, NAN]), F([3, 3e-30])]),
    (SPARSE, 0): ([F([6, 4]) / np.sqrt(F(34)), F([6, 4])], [F([6, 4]) / ROOT, F([5, 4])]),
    (IGNORED, 0): ([F([1])] * 2, [F([0.1])] * 2),
    (SOME, 1): (None, [np.zeros(2, F)] * 3),
    (SCHEDULE, 0): (LIMITED, LIMITED),
    (OPTAX_HARD, 0): (
        [F([0]), F([0]), F([NAN, 0]), np.float16([0]), F([NAN]), BF16(64)],
        [F([1]), F([3e-30]), F([NAN, NAN]), np.float16([1]), F([0]), F(np.sqrt(50000))],
    ),
    (OPTAX_SKIP, 0): ([np.full(shape, NAN, F) for shape in ((4,), (8, 4), (4, 2))], None),
    (OPTAX_FREEZE, 0): (None, [np.zeros(4, F), np.zeros((8, 4), F)]),
    (TORCH_FREEZE, 0): (None, [np.zeros((8, 4), F), np.zeros(8, F)]),
}


@pytest.mark.parametrize(("question", "number"), DIFFER)
def test_both_sides_differ_as_expected(question: str, number: int) -> None:
    for names, expected in zip(both(question, number), DIFFER[question, number], strict=True):
        if expected is not None:
            assert_close(names["result"], expected, 2)


def test_tensorflow_changes_small_gradients_and_zeroes_nonfinite_ones() -> None:
    left, right = both(HARD, 0)
    within, infinite, nan, large = arrays(left["result"])
    assert 1 / 7 < np.mean(within != WITHIN) < 1 / 6
    assert_close([infinite, nan, large], [F([NAN, 0]), F([NAN, NAN]), F([0, 0])], 0)
    assert_close(arrays(right["result"])[0], WITHIN, 0)
    assert np.isnan(tf.clip_by_global_norm([tf.constant([1e30])], 1.0)[0][0]).all()
    assert gx.clip_global_norm(1.0)([tf.constant([1e30])])[0].numpy().tolist() == [1.0]


@pytest.mark.parametrize("clip", [lambda: tf.clip_by_value(None, -1.0, 1.0), lambda: tf.clip_by_norm(None, 5.0)])
def test_tensorflows_clips_refuse_none(clip: Any) -> None:
    with pytest.raises(ValueError, match="None"):
        clip()


def test_the_norm_of_a_sparse_gradient_is_taken_over_its_duplicates() -> None:
    left, right = both(SPARSE, 0)
    assert isinstance(left["gradient"], tf.IndexedSlices)
    assert isinstance(right["by_norm"], tf.IndexedSlices)
    assert tf.linalg.global_norm([left["gradient"]]).numpy() == pytest.approx(5.83, abs=0.005)
    assert np.linalg.norm(arrays(left["result"])[0]) == pytest.approx(1.24, abs=0.005)
    assert ROOT == pytest.approx(7.21, abs=0.005)


@pytest.mark.parametrize(
    ("question", "number", "count", "least"),
    [(SOME, 1, 3, 0.01), (TORCH_FREEZE, 0, 2, 0.01), (OPTAX_FREEZE, 0, 2, 1e-3)],
)
def test_zero_gradients_do_not_freeze(question: str, number: int, count: int, least: float) -> None:
    moved = arrays(both(question, number)[0]["result"])
    assert len(moved) == count
    for change in moved:
        assert np.abs(change).min() > least
    assert_close(both(SOME, 1)[1]["result"], [np.zeros(2, F)] * 3, 0)


def test_training_continues_after_nonfinite_steps() -> None:
    for leaf in arrays(both(OPTAX_SKIP, 0)[1]["result"]):
        assert np.isfinite(leaf).all()


def test_a_python_number_traces_again_and_a_schedule_does_not() -> None:
    left, right = both(SCHEDULE, 0)
    assert (len(left["traces"]), len(right["traces"])) == (3, 1)


def test_keras_ignores_a_limit_of_zero_and_takes_one_of_three() -> None:
    w = tf.Variable([0.0, 0.0])
    keras.optimizers.SGD(1.0, clipnorm=0.0).apply_gradients([(tf.constant([3.0, 4.0]), w)])
    assert w.numpy().tolist() == [-3.0, -4.0]
    gx.keras.wrap(keras.optimizers.SGD(1.0), gx.clip_norm(0.0)).apply_gradients([(tf.constant([3.0, 4.0]), w)])
    assert w.numpy().tolist() == [-3.0, -4.0]
    with pytest.raises(ValueError, match="Only one"):
        keras.optimizers.SGD(1.0, clipnorm=1.0, clipvalue=1.0)
    assert not hasattr(keras.optimizers.Adam, "minimize")


def test_a_zero_gradient_gives_nan_in_tensorflow_and_zeros_in_gradxform() -> None:
    zero = tf.zeros([2])
    assert np.isnan(0.1 * zero / tf.norm(zero)).all()
    assert gx.chain(gx.normalize_norm(), gx.scale(0.1))(zero).numpy().tolist() == [0.0, 0.0]


def test_the_sum_over_the_replicas_is_within_the_limit() -> None:
    """Run in a subprocess: logical devices must be set before TensorFlow starts."""
    code = """
import test_migration as page
for side in ("left", "right"):
    names = page.run(page.tables()[page.DEVICES, 0], side)
    assert names["strategy"].num_replicas_in_sync == 2
    print(names["result"].tolist())
"""
    done = python("-c", code, cwd=Path(__file__).parent)
    left, right = (F(json.loads(line)) for line in done.stdout.splitlines()[-2:])
    assert_close([left, right], [F([1.2, 1.6]), F([0.6, 0.8])], 2)
