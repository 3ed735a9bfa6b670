"""A run that starts in PyTorch continues in Flax and Keras as it would in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import TRAINS, XLA, slow

import gradxform as gx

torch = pytest.importorskip("torch")

TX = gx.chain(gx.clip_global_norm(1.0), gx.ema(0.9))
RATE, STEPS, WORDS, SIZE, HEADS = 0.5, 3, 11, 6, 2
TOKENS = np.arange(40, dtype=np.int32).reshape(8, 5) ** 2 % WORDS
TARGETS = np.sin(np.arange(8, dtype=np.float32)).reshape(8, 1)
TOLERANCE = 4 * 2.0**-23
"""Four float32 ULP between 1 and 2, where the largest weights are. Each of three steps rounds a weight once, and its
update, at most 0.5, is accurate to a few ULP of its own. Measured: 0.25 ULP. A kernel in a wrong layout is off by
0.05, a hundred thousand times as much."""


class Net(torch.nn.Module):
    """Equal widths, so that shapes do not distinguish a kernel from its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, SIZE)
        self.conv = torch.nn.Conv1d(SIZE, SIZE, 3, padding="same")
        self.norm = torch.nn.LayerNorm(SIZE)
        self.attention = torch.nn.MultiheadAttention(SIZE, HEADS, batch_first=True)
        self.hidden = torch.nn.Linear(SIZE, SIZE)
        self.head = torch.nn.Linear(SIZE, 1)

    def forward(self, tokens: Any) -> Any:
        x = self.norm(torch.tanh(self.conv(self.embed(tokens).mT).mT))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(torch.tanh(self.hidden(x.mean(1))))


class Torch:
    """The run in PyTorch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.named_parameters(), lr=RATE)
        self.handle = gx.torch.attach(self.optimizer, TX)

    def train(self) -> None:
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.net(torch.tensor(TOKENS)), torch.tensor(TARGETS)).backward()
            self.optimizer.step()

    def weights(self) -> Any:
        return gx.to_numpy(self.net.state_dict())


class Flax:
    """The same network in Flax NNX."""

    def __init__(self) -> None:
        nnx = pytest.importorskip("flax.nnx")
        optax = pytest.importorskip("optax")

        class Net(nnx.Module):
            def __init__(self, rngs: Any) -> None:
                self.embed = nnx.Embed(WORDS, SIZE, rngs=rngs)
                self.conv = nnx.Conv(SIZE, SIZE, 3, rngs=rngs)
                self.norm = nnx.LayerNorm(SIZE, epsilon=1e-5, rngs=rngs)
                self.attention = nnx.MultiHeadAttention(HEADS, SIZE, decode=False, rngs=rngs)
                self.hidden, self.head = nnx.Linear(SIZE, SIZE, rngs=rngs), nnx.Linear(SIZE, 1, rngs=rngs)

            def __call__(self, tokens: Any) -> Any:
                x = self.norm(nnx.tanh(self.conv(self.embed(tokens))))
                return self.head(nnx.tanh(self.hidden((x + self.attention(x)).mean(1))))

        self.nnx, self.net = nnx, Net(nnx.Rngs(1))
        self.optimizer = nnx.Optimizer(self.net, optax.chain(TX, optax.sgd(RATE)), wrt=nnx.Param)

        @nnx.jit
        def step(net: Any, optimizer: Any) -> None:
            optimizer.update(net, nnx.grad(lambda net: ((net(TOKENS) - TARGETS) ** 2).mean())(net))

        self.step = step

    def train(self) -> None:
        for _ in range(STEPS):
            self.step(self.net, self.optimizer)

    @property
    def weights(self) -> Any:
        return self.nnx.state(self.net, self.nnx.Param)

    @weights.setter
    def weights(self, weights: Any) -> None:
        self.nnx.update(self.net, weights)

    @property
    def state(self) -> Any:
        return self.optimizer.opt_state[0]

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.opt_state = self.nnx.data((state, *self.optimizer.opt_state[1:]))


class Keras:
    """The same network in Keras, on the current backend."""

    def __init__(self) -> None:
        keras = pytest.importorskip("keras")
        layers = keras.layers
        tokens = keras.Input((5,), dtype="int32")
        x = layers.Conv1D(SIZE, 3, padding="same", name="conv")(layers.Embedding(WORDS, SIZE, name="embed")(tokens))
        x = layers.LayerNormalization(epsilon=1e-5, name="norm")(keras.ops.tanh(x))
        x = x + layers.MultiHeadAttention(HEADS, SIZE // HEADS, name="attention")(x, x)
        x = layers.Dense(SIZE, "tanh", name="hidden")(keras.ops.mean(x, 1))
        self.net = keras.Model(tokens, layers.Dense(1, name="head")(x))
        self.optimizer = gx.keras.wrap(keras.optimizers.SGD(RATE), TX)
        self.optimizer.build(self.net.trainable_variables)
        self.net.compile(self.optimizer, loss="mse", run_eagerly=True)

    def train(self) -> None:
        for _ in range(STEPS):
            self.net.train_on_batch(TOKENS, TARGETS)

    @property
    def weights(self) -> Any:
        return {variable.path: variable.value for variable in self.net.trainable_variables}

    @weights.setter
    def weights(self, weights: Any) -> None:
        for variable in self.net.trainable_variables:
            variable.assign(weights[variable.path])

    @property
    def state(self) -> Any:
        return self.optimizer.gradient_transformation_state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.gradient_transformation_state = state


def moved(given: Any, like: Any, rename: Any) -> Any:
    return gx.from_numpy(given, like=like, rename=rename)


def distance(one: Any, other: Any) -> float:
    one, other = gx.to_numpy(one, by_path=True), gx.to_numpy(other, by_path=True)
    assert one.keys() == other.keys()
    return max(float(np.abs(leaf - other[path]).max()) for path, leaf in one.items())


def in_a_wrong_layout(rename: Any, part: str) -> Any:
    """Another network with the same shapes."""
    return lambda path, array: {
        new: leaf.T.reshape(leaf.shape) if part in new else leaf for new, leaf in rename(path, array).items()
    }


@slow(TRAINS)
@pytest.mark.parametrize("framework", [Flax, Keras])
def test_a_run_of_torch_goes_on(framework: Any) -> None:
    old, new = Torch(), framework()
    rename = gx.rename_from_torch(new.weights)
    old.train()
    weights, state = old.weights(), gx.to_numpy(old.handle.state)
    old.train()

    new.weights, new.state = moved(weights, new.weights, rename), moved(state, new.state, rename)
    new.train()
    assert int(new.state[1].count) == 2 * STEPS
    assert distance(new.weights, moved(old.weights(), new.weights, rename)) < TOLERANCE
    assert distance(new.state, moved(gx.to_numpy(old.handle.state), new.state, rename)) < TOLERANCE

    for part in ("conv", "hidden", "attention"):
        wrong = in_a_wrong_layout(rename, part)
        new.weights, new.state = moved(weights, new.weights, wrong), moved(state, new.state, wrong)
        new.train()
        assert distance(new.weights, moved(old.weights(), new.weights, wrong)) > 1000 * TOLERANCE


IMAGES = np.sin(np.arange(2 * 6 * 6 * 4, dtype=np.float32)).reshape(2, 6, 6, 4)
LAYERS = {
    "Conv2d": (lambda: torch.nn.Conv2d(4, 4, 3, padding="same"), lambda nnx, rngs: nnx.Conv(4, 4, (3, 3), rngs=rngs)),
    "Conv2d, in groups": (
        lambda: torch.nn.Conv2d(4, 4, 3, padding="same", groups=2),
        lambda nnx, rngs: nnx.Conv(4, 4, (3, 3), feature_group_count=2, rngs=rngs),
    ),
    "ConvTranspose2d": (
        lambda: torch.nn.ConvTranspose2d(4, 4, 2, stride=2),
        lambda nnx, rngs: nnx.ConvTranspose(4, 4, (2, 2), strides=(2, 2), transpose_kernel=True, rngs=rngs),
    ),
    "BatchNorm2d": (
        lambda: torch.nn.BatchNorm2d(4),
        lambda nnx, rngs: nnx.BatchNorm(4, use_running_average=True, epsilon=1e-5, rngs=rngs),
    ),
    "GroupNorm": (lambda: torch.nn.GroupNorm(2, 4), lambda nnx, rngs: nnx.GroupNorm(4, 2, epsilon=1e-5, rngs=rngs)),
}


@slow(XLA, lambda layer: list(LAYERS).index(layer) % 2 == 1)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_flax_give_what_torchs_gave(layer: str, nnx: Any) -> None:
    make, make_new = LAYERS[layer]
    torch.manual_seed(0)
    old, new = make(), make_new(nnx, nnx.Rngs(0))
    for parameter in old.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.tensor(IMAGES).movedim(3, 1)
    old(x)  # BatchNorm's statistics
    wanted = old.eval()(x).movedim(1, 3).detach().numpy()
    params = nnx.state(new, nnx.Any(nnx.Param, nnx.BatchStat))
    nnx.update(new, moved(gx.to_numpy(old.state_dict()), params, gx.rename_from_torch(params)))
    np.testing.assert_allclose(new(IMAGES), wanted, rtol=0.0, atol=8 * 2.0**-23)  # sums of 36 numbers near 1
