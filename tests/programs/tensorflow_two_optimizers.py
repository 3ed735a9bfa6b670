"""TensorFlow: GradientTape with one optimizer for the embedding, another for the rest, in a tf.function."""

import keras
import tensorflow as tf

import gradxform as gx


def main() -> None:
    keras.utils.set_random_seed(0)
    embedding = keras.layers.Embedding(20, 4, name="embedding")
    head = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1, name="out")], name="head")
    model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding, head])
    slow, fast = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)
    words = tf.random.stateless_uniform((32, 3), seed=(0, 1), maxval=20, dtype=tf.int32)
    target = tf.cast(tf.reduce_sum(words, axis=1, keepdims=True), tf.float32)
    tx = gx.chain(gx.clip_norm(1.0), gx.clip_global_norm(1.0))

    @tf.function
    def train_step() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(words) - target))
        variables = embedding.trainable_variables + head.trainable_variables
        grads = tx(tape.gradient(loss, variables))  # one norm for both
        count = len(embedding.trainable_variables)
        slow.apply_gradients(zip(grads[:count], variables[:count], strict=True))
        fast.apply_gradients(zip(grads[count:], variables[count:], strict=True))
        return loss, gx.global_norm(grads)

    losses, norms = zip(*(train_step() for _ in range(40)), strict=True)
    assert losses[-1] < losses[0]
    assert max(map(float, norms)) <= 1.0 + 1e-6
    assert train_step.experimental_get_tracing_count() == 2  # the first creates the optimizers' variables
