"""Recording from the places where each framework has its gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_record import kept

import gradxform as gx
from gradxform.recording.reading import Recording

W = np.float32([[1.0, 2.0], [3.0, 4.0]])


def test_from_a_jitted_step(tmp_path: Path, jax: Any) -> None:
    recorder = gx.record(tmp_path, every=2)

    @jax.jit
    def step(params: Any, i: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: (p["dense"]["kernel"] ** 2).sum())(params)
        jax.debug.callback(recorder, i, gradients=gradients, loss=loss, ordered=True)
        return jax.tree.map(lambda p, g: p - 0.25 * g, params, gradients)

    params = {"dense": {"kernel": jax.numpy.asarray(W)}}
    for i in range(4):
        params = step(params, i)
    jax.effects_barrier()
    assert recorder.steps == [0, 2]
    np.testing.assert_array_equal(kept(tmp_path, 2, "gradients")["dense/kernel"], W / 2)
    assert kept(tmp_path, 0, "loss")[""] == 30.0


def test_a_traced_step_says_what_to_write(tmp_path: Path, jax: Any) -> None:
    recorder = gx.record(tmp_path)
    with pytest.raises(TypeError, match=r"jax\.debug\.callback\(recorder, step"):
        jax.jit(lambda i: recorder(i, loss=i))(0)
    with pytest.raises(TypeError, match="has no values for NumPy"):
        jax.jit(lambda x: recorder(0, loss=x))(0.0)


def test_states_of_flax(tmp_path: Path, nnx: Any) -> None:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    gradients = nnx.grad(lambda model: model(W).sum())(model)
    gx.record(tmp_path)(0, gradients=gradients, parameters=nnx.state(model, nnx.Param))
    assert Recording(tmp_path).shapes(0, "gradients") == {"bias": (3,), "kernel": (2, 3)}
    np.testing.assert_array_equal(kept(tmp_path, 0, "gradients")["bias"], [2, 2, 2])


@pytest.mark.parametrize("on", ["gradients", "updates"])
def test_a_gradient_of_torch_that_negates_when_it_is_read(on: str, tmp_path: Path, torch: Any) -> None:
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([w], lr=0.5)
    gx.torch.attach(optimizer, gx.scale(0.5), on=on).record(gx.record(tmp_path))
    w.grad = torch.tensor([3.0 + 4.0j, 1.0 - 2.0j]).conj().imag
    assert w.grad.is_neg()
    optimizer.step()
    assert w.tolist() == [2.0, 0.5]
    assert kept(tmp_path, 0, "gradients")["0"].tolist() == [-4.0, 2.0]


def test_a_model_of_torch_and_its_gradients(tmp_path: Path, torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)).to(torch.bfloat16)
    model[1].bias.requires_grad_(False)
    model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    gx.record(tmp_path)(torch.tensor(5), gradients=model, parameters=model)
    assert list(Recording(tmp_path).shapes(5, "parameters")) == ["0/weight", "0/bias", "1/weight", "1/bias"]
    assert "1/bias" not in Recording(tmp_path).shapes(5, "gradients")
    assert kept(tmp_path, 5, "gradients")["0/weight"].dtype.name == "bfloat16"


@pytest.mark.parametrize("norms_only", [False, True])
def test_parameters_of_torch_are_recorded_by_their_gradients(norms_only: bool, tmp_path: Path, torch: Any) -> None:
    model = torch.nn.Linear(2, 1)
    model(torch.tensor([[3.0, 4.0]])).sum().backward()
    named = dict(model.named_parameters())
    for i, given in enumerate([model, model.parameters(), list(model.parameters()), named, [*named.items()]]):
        gx.record(tmp_path / str(i), norms_only=norms_only)(0, gradients=given, parameters=model)
        found = [array.ravel().tolist() for array in kept(tmp_path / str(i), 0, "gradients").values()]
        assert found == ([[5.0, 4.0], [1.0, 1.0]] if norms_only else [[3.0, 4.0], [1.0]])
        own = [array.tolist() for array in kept(tmp_path / str(i), 0, "parameters").values()]
        assert norms_only or own == [parameter.tolist() for parameter in named.values()]


def test_variables_of_keras_are_no_gradients(tmp_path: Path, keras: Any) -> None:
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    if keras.backend.backend() == "torch":
        with pytest.raises(ValueError, match="gradients holds none"):
            gx.record(tmp_path)(0, gradients=layer)
    else:
        for given in (layer, layer.trainable_variables):
            with pytest.raises(TypeError, match="is a variable, not a gradient"):
                gx.record(tmp_path)(0, gradients=given)


@pytest.mark.parametrize(("on", "update"), [("gradients", [[0.6, 0.8]]), ("updates", [[-0.6, -0.8]])])
def test_the_handle_of_attach(on: str, update: Any, tmp_path: Path, torch: Any) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=1.0)
    optimizer.add_param_group({"params": [("weight", torch.nn.Parameter(torch.zeros(3)))]})  # as of another model
    handle = gx.torch.attach(optimizer, gx.clip_global_norm(1.0), on=on)
    recorder = gx.record(tmp_path, every=2)
    handle.record(recorder)
    before = model.weight.detach().numpy().copy()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([[3.0, 4.0]])).sum().backward()
        optimizer.step()
    assert recorder.steps == [0, 2]
    np.testing.assert_array_equal(kept(tmp_path, 0, "gradients")["weight"], [[3, 4]])
    np.testing.assert_allclose(kept(tmp_path, 0, "updates")["weight"], update, rtol=1e-6)
    np.testing.assert_array_equal(kept(tmp_path, 0, "parameters")["weight"], before)
    assert kept(tmp_path, 0, "parameters")["weight_1"].shape == (3,)


def test_handles_and_callbacks_keep_the_order_of_the_network(tmp_path: Path, torch: Any, keras: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=1.0)
    gx.torch.attach(optimizer, gx.identity()).record(gx.record(tmp_path / "torch"))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    for name in ("gradients", "updates", "parameters"):
        paths = ["0/weight", "0/bias", "1/weight", "1/bias"]
        assert list(Recording(tmp_path / "torch").shapes(0, name)) == paths
    layers = [keras.layers.Dense(3, name="z"), keras.layers.Dense(1, name="a")]
    other = keras.Sequential([keras.Input((2,)), *layers])
    other.compile(keras.optimizers.SGD(), loss="mse")
    callbacks = [gx.keras.RecordSteps(gx.record(tmp_path / "keras"))]
    other.fit(np.ones((1, 2)), np.ones((1, 1)), verbose=0, callbacks=callbacks)
    paths = [path.rsplit("/", 2)[-2:] for path in Recording(tmp_path / "keras").shapes(0, "parameters")]
    assert paths == [["z", "kernel"], ["z", "bias"], ["a", "kernel"], ["a", "bias"]]


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_callback_of_keras(wrapped: bool, tmp_path: Path, keras: Any) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.5)
    if wrapped:
        optimizer = gx.keras.wrap(optimizer, gx.chain(gx.trace(0.0), gx.clip_global_norm(1.0)))
    model.compile(optimizer, loss=lambda y, found: found, run_eagerly=True)
    recorder = gx.record(tmp_path)
    x, steps = np.float32([[3, 4], [6, 8]]), [gx.keras.RecordSteps(recorder)]
    model.fit(x, np.zeros((2, 1)), batch_size=1, shuffle=False, verbose=0, callbacks=steps)
    assert recorder.steps == [0, 1]
    (path,) = kept(tmp_path, 1, "parameters")
    assert path.endswith("kernel")
    np.testing.assert_allclose(kept(tmp_path, 0, "parameters")[path], [[0], [0]])
    if wrapped:
        np.testing.assert_allclose(kept(tmp_path, 1, "parameters")[path], [[-0.3], [-0.4]], rtol=1e-5)
        np.testing.assert_allclose(kept(tmp_path, 1, "gradients")[path], [[6], [8]])
    else:
        assert kept(tmp_path, 1, "gradients") == {}


def test_pairs_and_variables_of_tensorflow_and_values_of_a_session(tmp_path: Path, tf: Any) -> None:
    w = tf.Variable(W, name="w")
    recorder = gx.record(tmp_path)
    slices = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([0, 0]), tf.constant([2, 2]))
    recorder(tf.constant(0), gradients=[(slices, w)], parameters=[w])
    np.testing.assert_array_equal(kept(tmp_path, 0, "gradients")["w"], [[2, 2], [0, 0]])
    np.testing.assert_array_equal(kept(tmp_path, 0, "parameters")["w"], W)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.get_variable("v", initializer=W)
        (gradient,) = tf.compat.v1.gradients(tf.reduce_sum(v * v), [v])
        session.run(tf.compat.v1.global_variables_initializer())
        recorder(1, gradients=session.run({"v": gradient}))
    np.testing.assert_array_equal(kept(tmp_path, 1, "gradients")["v"], 2 * W)
    with pytest.raises(TypeError, match="has no values for NumPy"):
        tf.function(lambda x: recorder(2, gradients={"w": x}))(w)


def test_of_several_jax_processes_the_first_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jax: Any) -> None:
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    for rank, written in ((1, []), (0, [0])):
        monkeypatch.setattr(jax, "process_index", lambda rank=rank: rank)
        recorder = gx.record(tmp_path / str(rank))
        recorder(0, gradients={"w": jax.numpy.asarray(W)})
        assert recorder.steps == written
