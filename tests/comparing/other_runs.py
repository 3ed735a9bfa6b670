"""Three networks of torch_runs.py in Flax NNX and Keras, from the weights that PyTorch begins with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_runs import BATCH, HEADS, LENGTH, NETWORKS, WIDTH, WORDS, batches

import gradxform as gx

RATE = 0.1


def weights_of_torch(network: str, seed: int = 0) -> dict[str, Any]:
    """Return the parameters that PyTorch's network begins with."""
    torch.manual_seed(seed)
    return gx.to_numpy(dict(NETWORKS[network]().named_parameters()))


def batch_of(network: str, step: int) -> tuple[Any, Any]:
    """Return a batch as NumPy arrays, images with their channels last."""
    x, y = (part.numpy() for part in batches(network, 0)(step))
    return (x.transpose(0, 2, 3, 1) if network == "conv" else x), y


def _flax_network(network: str) -> Any:
    from flax import nnx
    from jax import numpy as jnp

    class Conv(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.conv1, self.conv2 = nnx.Conv(1, 8, (3, 3), rngs=rngs), nnx.Conv(8, 12, (3, 3), rngs=rngs)
            self.norm = nnx.GroupNorm(12, 4, epsilon=1e-5, rngs=rngs)
            self.hidden, self.head = nnx.Linear(12 * 16, 32, rngs=rngs), nnx.Linear(32, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = nnx.max_pool(nnx.relu(self.conv1(x)), (2, 2), (2, 2))
            x = nnx.relu(self.norm(self.conv2(x))).transpose(0, 3, 1, 2).reshape(len(x), -1)
            return self.head(nnx.relu(self.hidden(x)))

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm1 = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
            self.norm2 = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            mask = nnx.make_causal_mask(x[..., 0])
            x = x + self.attention(self.norm1(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=False))

    class Transformer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])
            self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
            self.head = nnx.Linear(WIDTH, WORDS, use_bias=False, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    class Recurrent(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.lstm = nnx.RNN(nnx.OptimizedLSTMCell(WIDTH, WIDTH, rngs=rngs))
            self.head = nnx.Linear(WIDTH, WORDS, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(self.lstm(self.embed(jnp.asarray(x))))

    return {"conv": Conv, "transformer": Transformer, "lstm": Recurrent}[network](nnx.Rngs(0))


def flax(folder: Path, network: str, steps: int = 4) -> None:
    """Train the network in Flax, from within a jitted step."""
    import jax
    import optax
    from flax import nnx

    model = _flax_network(network)
    params = nnx.state(model, nnx.Param)
    weights = weights_of_torch(network)
    if network == "lstm":
        cell = {
            "kernel": weights["lstm.weight_ih_l0"].T,
            "bias": weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"],
        }
        params["embed"]["embedding"][...] = weights["embed.weight"]
        params["lstm"]["cell"]["dense_i"]["kernel"][...] = cell["kernel"]
        params["lstm"]["cell"]["dense_h"]["kernel"][...] = weights["lstm.weight_hh_l0"].T
        params["lstm"]["cell"]["dense_h"]["bias"][...] = cell["bias"]
        params["head"]["kernel"][...], params["head"]["bias"][...] = weights["head.weight"].T, weights["head.bias"]
        nnx.update(model, params)
    else:
        nnx.update(model, gx.from_numpy(weights, params, rename=gx.rename_from_torch(params)))
    recorder = gx.record(folder)

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    @nnx.jit
    def step_of(model: Any, step: Any, x: Any, y: Any) -> None:
        loss, gradients = nnx.value_and_grad(loss_of)(model, x, y)
        params = nnx.state(model, nnx.Param)
        given = {name: nnx.to_pure_dict(tree) for name, tree in (("gradients", gradients), ("parameters", params))}
        jax.debug.callback(recorder, step, **given, loss=loss, batch_size=BATCH, ordered=True)
        nnx.update(model, jax.tree.map(lambda p, g: p - RATE * g, params, gradients))

    for step in range(steps):
        step_of(model, step, *batch_of(network, step))
    jax.effects_barrier()


def _keras_network(network: str) -> Any:
    import keras

    layers, ops = keras.layers, keras.ops
    if network == "conv":
        images = keras.Input((8, 8, 1))
        x = layers.MaxPooling2D()(layers.Conv2D(8, 3, padding="same", activation="relu")(images))
        x = ops.relu(layers.GroupNormalization(4, epsilon=1e-5)(layers.Conv2D(12, 3, padding="same")(x)))
        x = layers.Flatten()(ops.transpose(x, (0, 3, 1, 2)))
        return keras.Model(images, layers.Dense(10)(layers.Dense(32, "relu")(x)))
    letters = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(letters)
    if network == "lstm":
        return keras.Model(letters, layers.Dense(WORDS)(layers.LSTM(WIDTH, return_sequences=True)(x)))
    for _ in range(2):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
        y = layers.Dense(2 * WIDTH)(layers.LayerNormalization(epsilon=1e-5)(x))
        x = x + layers.Dense(WIDTH)(ops.gelu(y, approximate=False))
    return keras.Model(letters, layers.Dense(WORDS, use_bias=False)(layers.LayerNormalization(epsilon=1e-5)(x)))


def _in_order(network: str, weights: dict[str, Any]) -> list[Any]:
    """PyTorch's weights in the order and the layouts of Keras's layers."""
    found = []
    for name, array in weights.items():
        if "in_proj" in name:
            found.append((name, array))
        elif array.ndim > 1 and "embed" not in name:
            found.append((name, array.transpose((*range(2, array.ndim), 1, 0))))
        else:
            found.append((name, array))
    if network == "lstm":
        arrays = dict(found)
        bias = arrays.pop("lstm.bias_ih_l0") + arrays["lstm.bias_hh_l0"]
        return list({**arrays, "lstm.bias_hh_l0": bias}.values())
    if network == "conv":
        return [array for _, array in found]
    arrays, size = dict(found), WIDTH // HEADS
    ordered = [arrays["embed.weight"]]
    for block in ("blocks.0", "blocks.1"):
        joint, bias = arrays[f"{block}.attention.in_proj_weight"], arrays[f"{block}.attention.in_proj_bias"]
        ordered += [arrays[f"{block}.norm1.weight"], arrays[f"{block}.norm1.bias"]]
        for part, shift in zip(np.split(joint, 3), np.split(bias, 3), strict=True):
            ordered += [part.T.reshape(WIDTH, HEADS, size), shift.reshape(HEADS, size)]
        out = arrays[f"{block}.attention.out_proj.weight"].reshape(HEADS, size, WIDTH)
        ordered += [out, arrays[f"{block}.attention.out_proj.bias"]]
        for layer in ("norm2", "up", "down"):
            ordered += [arrays[f"{block}.{layer}.weight"], arrays[f"{block}.{layer}.bias"]]
    return [*ordered, arrays["norm.weight"], arrays["norm.bias"], arrays["head.weight"]]


def keras(folder: Path, network: str, steps: int = 4) -> None:
    """Train the network in Keras, on whichever framework it runs, by `fit` with a callback."""
    import keras

    keras.utils.set_random_seed(0)
    model = _keras_network(network)
    for variable, array in zip(model.trainable_variables, _in_order(network, weights_of_torch(network)), strict=True):
        assert tuple(variable.shape) == array.shape, (variable.path, array.shape)
        variable.assign(array)
    optimizer = gx.keras.wrap(keras.optimizers.SGD(RATE), gx.trace(0.0))
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = [batch_of(network, step) for step in range(steps)]
    x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    callbacks = [gx.keras.RecordSteps(gx.record(folder))]
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks)


if __name__ == "__main__":  # in a process of its own, where KERAS_BACKEND says what Keras runs on
    for each in ("conv", "transformer", "lstm"):
        keras(Path(sys.argv[1]) / each, each)
