"""Keras on TensorFlow: a custom train_step, and a limit that a callback lowers."""

import keras
import numpy as np
import tensorflow as tf

import gradxform as gx


class Autoencoder(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.layers.Dense(2, activation="tanh", name="encoder")
        self.decoder = keras.layers.Dense(6, name="decoder")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.decoder(self.encoder(x))

    def train_step(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - x))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        return {"loss": loss, **gx.metrics(self.optimizer)}


def main() -> None:
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    limit = keras.Variable(1.0, trainable=False, name="limit")
    lower = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: limit.assign(1.0 / 2**epoch))
    tx = gx.chain(gx.freeze("**/decoder/bias"), gx.measure(gx.clip_global_norm(limit)))
    model = Autoencoder()
    model.compile(gx.keras.wrap(keras.optimizers.SGD(0.5), tx))
    history = model.fit(x, batch_size=64, epochs=6, verbose=0, callbacks=[lower]).history
    assert history["loss"][-1] < history["loss"][0]
    assert history["clip_global_norm/norm_after"][-1] <= (1.0 + 1e-6) / 2**5
    assert not model.decoder.bias.numpy().any()
