"""States saved before their fields were renamed can still be read."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import FRAMEWORKS, array, tensors

import gradxform as gx
from gradxform.core import deprecated
from gradxform.functions.former import former
from gradxform.transforms.averaging import EmaState

TX = gx.chain(gx.clip_zscore(2.5, 0.9, 1), gx.ema(lambda t: 0.5 + 0.0 * t))
GRADIENTS = {"w": np.float32([3, 4]), "weight": np.float32([1])}
SAVED = {
    "0/count": np.int32([2]),
    "0/mean": np.float32([5.0990195]),
    "0/deviation": np.float32([0.25]),
    "1/count": np.int32(2),
    "1/inner/count": np.int32(2),
    "1/inner/ema/w": np.float32([2.25, 3.0]),
    "1/inner/ema/weight": np.float32([0.75]),
    "1/inner/weight": np.float32([0.5, 0.25]),
}
"""A state by path, as these files held it: of parameters one of which is called weight too."""
PARAMETERS = {"weight", "bias", "kernel", "embedding", "embeddings", "scale", "gamma", "beta", "offset", "w", "b"}
STATISTICS = {"mean", "var", "variance", "running_mean", "running_var", "moving_mean", "moving_variance"}


def check(state: Any) -> None:
    zscore, scheduled = state
    assert array(zscore.average).tolist() == SAVED["0/mean"].tolist() and array(zscore.deviation).tolist() == [0.25]
    assert array(scheduled.inner.divisor).tolist() == [0.5, 0.25]
    assert array(scheduled.inner.ema["weight"]).tolist() == [0.75] and int(array(scheduled.inner.count)) == 2


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_field_of_a_state_has_a_name_that_parameters_have(framework: str) -> None:
    """So a string that is replaced in all paths, or a rule for all names that hold a word, meets no field."""
    inner = gx.chain(
        gx.measure(gx.clip_percentile(60.0, 3)),
        gx.clip_zscore(1.0, 0.9, 2),
        gx.clip_global_norm(lambda t: 5.0 / (1.0 + t)),
        gx.ema(0.9),
        gx.trace(0.5),
        gx.grokfast(),
        gx.clip_spikes(),
        gx.clip_adagc(),
        gx.add_noise(0.01, seed=3),
    )
    tx = gx.skip_nonfinite(gx.skip_large(gx.accumulate(gx.error_feedback(inner), 2), 1e6))
    state = tx.init(tensors(framework, {"parameter": np.float32([1])}))
    names = {key for path in gx.to_numpy(state, by_path=True) for key in path.split("/")}
    assert {"count", "ema", "trace", "history", "deviation", "sum", "due", "norm_before"} < names
    assert not names & (PARAMETERS | STATISTICS)
    assert not [name for name in names for word in ("weight", "bias", "kernel", "scale") if word in name]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_from_numpy(framework: str) -> None:
    like = TX.init(tensors(framework, GRADIENTS))
    check(gx.from_numpy(SAVED, like))
    check(gx.from_numpy(SAVED, like, rename=lambda path, array: {path: array}))
    renamed = gx.from_numpy(
        SAVED,
        like=TX.init(tensors(framework, {"v": GRADIENTS["w"], "kernel": GRADIENTS["weight"]})),
        rename=lambda path, array: {{"w": "v", "weight": "kernel"}[path]: array},
    )
    assert array(renamed[1].inner.ema["kernel"]).tolist() == [0.75]
    assert array(renamed[1].inner.divisor).tolist() == [0.5, 0.25]
    assert set(SAVED) == {key.replace("divisor", "weight").replace("average", "mean") for key in new_paths()}


def new_paths() -> list[str]:
    return list(gx.to_numpy(TX.init(GRADIENTS), by_path=True))


def test_fields_are_known_by_what_stands_beside_them() -> None:
    assert former(["count", "divisor", "ema/divisor"]) == {"divisor": "weight"}
    assert former(["0/count", "0/ema/count", "0/ema/divisor", "0/ema/weight"]) == {}
    with pytest.raises(ValueError, match=r"the state lacks '0/divisor'; like has no '0/mean'"):
        gx.from_numpy(
            {"0/count": np.int32(0), "0/ema": np.zeros(2), "0/mean": np.zeros(2)},
            like=gx.chain(gx.ema(0.5)).init(np.zeros(2)),
        )


def test_a_pickle() -> None:
    """Named tuples are pickled by position; this one had a field called weight."""
    written = (
        b"\x80\x02cgradxform.transforms.averaging\nEmaState\n"
        b"q\x00K\x01}q\x01G?\xe0\x00\x00\x00\x00\x00\x00\x87q\x02\x81q\x03."
    )
    assert pickle.loads(written) == EmaState(count=1, ema={}, divisor=0.5)


@pytest.mark.parametrize("early", [True, False])
def test_a_state_dict_of_torch(early: bool) -> None:
    torch = pytest.importorskip("torch")

    def named() -> Any:
        return [("w", torch.nn.Parameter(torch.zeros(2))), ("weight", torch.nn.Parameter(torch.zeros(1)))]

    optimizer = torch.optim.SGD(named(), lr=0.1)
    saved = optimizer.state_dict()
    saved["gradient_transformation"] = {path: torch.tensor(leaf) for path, leaf in SAVED.items()}
    saved["param_groups"][0]["gradient_transformation"] = saved["gradient_transformation"]
    optimizer = torch.optim.SGD(named(), lr=0.1)
    if early:
        optimizer.load_state_dict(saved)
    handle = gx.torch.attach(optimizer, TX)
    if not early:
        optimizer.load_state_dict(saved)
    check(handle.state)
    handle.state = SAVED
    check(handle.state)


def test_a_checkpoint_of_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    before = tf.Module()  # a processor's variables are in a dict by path
    before._state = {path: tf.Variable(leaf) for path, leaf in SAVED.items()}
    file = tf.train.Checkpoint(processor=before).write(str(tmp_path / "before"))
    variables = [tf.Variable(np.zeros_like(leaf), name=name) for name, leaf in GRADIENTS.items()]
    processor = gx.tensorflow.GradientProcessor(TX, variables)
    tf.train.Checkpoint(processor=processor).read(file).assert_consumed()
    check(processor.state)
    after = tf.train.Checkpoint(processor=processor).write(str(tmp_path / "after"))
    keys = [[name for name, _ in tf.train.list_variables(each)] for each in (file, after)]
    assert keys[0] == keys[1]
    names = {variable.name.rpartition("/")[2] for variable in processor.variables}
    assert "1_inner_weight:0" in names  # by which a Saver of TensorFlow 1 finds it


def test_the_state_of_a_processor() -> None:
    tf = pytest.importorskip("tensorflow")
    variables = [tf.Variable(np.zeros_like(leaf), name=name) for name, leaf in GRADIENTS.items()]
    processor = gx.tensorflow.GradientProcessor(TX, variables)
    processor.state = SAVED
    check(processor.state)


class _ZScore(NamedTuple):
    count: Any
    mean: Any
    deviation: Any


class _Scheduled(NamedTuple):
    count: Any
    inner: Any


class _Ema(NamedTuple):
    count: Any
    ema: Any
    weight: Any


def state_before() -> Any:
    """What these libraries were handed: they keep the names of the fields."""
    zscore = _ZScore(*(SAVED[f"0/{name}"] for name in _ZScore._fields))
    averages = {name: SAVED[f"1/inner/ema/{name}"] for name in GRADIENTS}
    ema = _Ema(SAVED["1/inner/count"], averages, SAVED["1/inner/weight"])
    return zscore, _Scheduled(SAVED["1/count"], ema)


def test_a_file_of_flax() -> None:
    """It reads named tuples by their fields, and asks nobody: so its raw dict goes through from_numpy."""
    serialization = pytest.importorskip("flax.serialization")
    like = TX.init(tensors("jax", GRADIENTS))
    file = serialization.to_bytes(state_before())
    with pytest.raises(ValueError, match="field names of the state dict and the named tuple do not match"):
        serialization.from_bytes(like, file)
    check(gx.from_numpy(serialization.msgpack_restore(file), like=like))


def test_a_folder_of_orbax(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own making
        ocp = pytest.importorskip("orbax.checkpoint")
        like = TX.init(tensors("jax", GRADIENTS))
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "state", state_before())
            checkpointer.wait_until_finished()
            with pytest.raises(ValueError, match="tree structures do not match"):
                checkpointer.restore(tmp_path / "state", like)
            check(gx.from_numpy(checkpointer.restore(tmp_path / "state"), like=like))


def test_former_names_of_fields_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecated, "_told", set())
    zscore, scheduled = gx.from_numpy(SAVED, like=TX.init(GRADIENTS))
    with pytest.warns(
        DeprecationWarning, match=r"^ZScoreState\.mean is deprecated .*; write ZScoreState\.average"
    ) as told:
        assert zscore.mean is zscore.average
    assert told[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="write EmaState.divisor"):
        assert scheduled.inner.weight is scheduled.inner.divisor
    assert zscore.mean is zscore.average  # a second warning would be an error here
    assert zscore._fields == ("count", "average", "deviation")
