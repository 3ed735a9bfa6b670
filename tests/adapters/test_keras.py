"""gradxform in Keras 3: keras_cases.py in one process per backend, with the same numbers in all."""

from __future__ import annotations

import functools
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import PROCESSES, python, slow

from gradxform.testing import max_ulp

pytest.importorskip("keras")
pytestmark = slow(PROCESSES)

CASES, STRATEGY = "tests/adapters/keras_cases.py", "tests/adapters/keras_strategy.py"
WRITING = "test_write_what_other_backends_are_compared_with"
BACKENDS = ("tensorflow", "jax", "torch")


def run(backend: str, *arguments: str, **more: Any) -> Any:
    return python(*arguments, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", **more)


@pytest.mark.timeout(900)
def test_every_case_passes_on_every_backend_with_the_same_numbers(tmp_path: Path) -> None:
    """A single test, so that no two workers run the same processes; this process runs the cases on TensorFlow.

    The numbers are weights after a step of plain gradient descent from zero.
    """
    for backend in BACKENDS:
        pytest.importorskip(backend)
    command = ("-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=short")
    cases = {backend: f"{CASES}::{WRITING}" if backend == "tensorflow" else CASES for backend in BACKENDS}
    with ThreadPoolExecutor() as pool:
        done = {b: pool.submit(run, b, *command, cases[b], GRADXFORM_KERAS_OUT=str(tmp_path)) for b in BACKENDS}
    for backend, running in done.items():
        output = running.result().stdout
        passed = re.search(r"(\d+) passed", output)
        assert passed is not None
        assert int(passed[1]) > (100 if cases[backend] == CASES else 0), backend + output[-2000:]
    weights = {}
    for backend in BACKENDS:
        with np.load(tmp_path / f"{backend}.npz") as arrays:
            weights[backend] = dict(arrays)
    for one, other in itertools.combinations(BACKENDS, 2):
        assert weights[one].keys() == weights[other].keys()
        assert np.mean([np.any(array) for array in weights[one].values()]) > 0.8
        for name, array in weights[one].items():
            assert max_ulp(array, weights[other][name]) <= 8, (name, one, other)  # two sums


@pytest.fixture(scope="module")
def under_a_strategy() -> Any:
    pytest.importorskip("tensorflow")
    return json.loads(run("tensorflow", STRATEGY).stdout.splitlines()[-1])


near = functools.partial(pytest.approx, rel=1e-5)
TRACED = [-3 * (1 + 1.5 + 1.75), -4 * (1 + 1.5 + 1.75)]
IN_REPLICAS: dict[str, Any] = {
    "replicas": 2,
    "native": near(0.5),  # Keras clips in each replica and then sums: twice the limit
    "gradxform": near(0.25),
    "gradxform, loss scaled": near(0.25),
    "sum": [-9.0, -12.0],
    "clipped": near([-9.0, -12.0]),
    "state": TRACED,
    "updates": near([-9.0, -12.0]),  # of the summed gradients, the same in each replica
    "updates, cautious": [-6.0, -9.0],
    "updates, accumulated": [-3.0, -4.0],
    "scaled": TRACED,
    "scaled, skipped": [0.0, 0.0],  # with an infinite gradient
    "compiled": [[[1.5, 2.0], [0.25, 0.125]]] * 6,  # by XLA; on CPUs, and if a GPU is visible
    "in two runs": [-5.0, -10.0, 2],  # two steps, with momentum
    "processor, eager": [-2.0, -4.0, 1],  # the sum of two replicas, once
    "processor, compiled": [-5.0, -10.0, 2],  # twice, with momentum
}


@pytest.mark.parametrize("name", IN_REPLICAS)
def test_two_replicas(under_a_strategy: Any, name: str) -> None:
    assert under_a_strategy[name] == IN_REPLICAS[name]


def test_steps_that_replicas_cannot_leave_out_are_refused(under_a_strategy: Any) -> None:
    """What the errors say to write is "in two runs" and "scaled, skipped"."""
    wrapped, processor = under_a_strategy["refused"], under_a_strategy["processor, refused"]
    assert "skips steps, which an optimizer under a tf.distribute strategy" in wrapped
    assert "LossScaleOptimizer" in wrapped
    assert "an optimizer in a graph under a tf.distribute strategy with several replicas cannot skip steps" in processor
    for error in (wrapped, processor):
        assert "in one strategy.run" in error and "gx.has_updated(processor)" in error


def test_a_state_in_model_parallel_is_sharded_as_keras_shards_momentum() -> None:
    pytest.importorskip("jax")
    found = json.loads(run("jax", "tests/adapters/keras_model_parallel.py").stdout.splitlines()[-1])
    kept = {"chain": 6, "ema": 6, "accumulate": 6, "masked": 3}
    assert found.keys() == kept.keys()
    for name, report in found.items():
        assert max(report["weights"], report["state"]) <= 2.0**-20, name  # devices sum in another order
        momentum = {path.removesuffix("_momentum"): parts for path, parts in report["momentum"].items()}
        assert momentum["net_first_kernel"] == [[8, 8], [[8, 2]]]
        assert momentum["net_third_kernel"] == [[8, 8], [[4, 2]]]
        leaves = 0
        for path, (shape, parts) in report["own"].items():
            variable = next((own for own in momentum if path.endswith(f"_{own}")), None)
            if variable is None:
                assert parts == [shape], path
            else:
                assert [shape, parts] == momentum[variable], path
                leaves += 1
        assert leaves == kept[name], name


def test_a_fresh_process_needs_one_import_to_load_a_model(tmp_path: Path) -> None:
    """Of `gradxform_keras`, directly or as `gx.keras`; without it, Keras's error ends with the package's name."""
    saved = str(tmp_path / "m.keras")
    make = (
        "import keras, gradxform as gx, gradxform_keras; scaled = keras.optimizers.LossScaleOptimizer; "
        "assert not any('gradient' in name for name in vars(scaled)), 'the import changed it'; "
        "m = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]); "
        "limit = keras.optimizers.schedules.ExponentialDecay(1.0, 2, 0.5); "
        f"m.compile(gx.keras.wrap('sgd', gx.clip_norm(limit)), loss='mse'); m.save({saved!r})"
    )
    run("jax", "-c", make)
    load = (
        f"import keras; tx = keras.saving.load_model({saved!r}).optimizer.gradient_transformation; "
        "print(tx.arguments[0][1].decay_rate)"
    )
    for start in ("import gradxform_keras; ", "import gradxform as gx; gx.keras; "):
        done = run("jax", "-c", start + load)
        assert done.stdout.strip() == "0.5", done.stderr[-2000:]
    for start in ("", "import gradxform; "):
        done = run("jax", "-c", start + load, check=False)
        assert "Could not locate class 'TransformingSGD'" in done.stderr
        assert done.stderr.strip().endswith("'registered_name': 'gradxform_keras>Transforming'}")


def test_a_backend_that_does_not_train() -> None:
    code = "import keras, gradxform as gx; gx.keras.wrap(keras.optimizers.SGD(), gx.clip_norm(1.0))"
    done = run("numpy", "-c", code, check=False)
    assert "keras.wrap: Keras's backend is 'numpy', which does not train" in done.stderr
