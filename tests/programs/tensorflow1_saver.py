"""TensorFlow 1: placeholders, an optimizer and a Saver."""

import numpy as np
import tensorflow.compat.v1 as tf

import gradxform as gx

tf.disable_v2_behavior()


def main() -> None:
    x = tf.placeholder(tf.float32, [None, 4], name="x")
    y = tf.placeholder(tf.float32, [None, 1], name="y")
    w = tf.get_variable("w", [4, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))

    optimizer = tf.train.MomentumOptimizer(learning_rate=0.05, momentum=0.9)
    process = gx.tensorflow.GradientProcessor(gx.chain(gx.clip_global_norm(1.0), gx.ema(0.9)), [w])
    train_op = optimizer.apply_gradients(process(optimizer.compute_gradients(loss)))
    saver = tf.train.Saver()
    rng = np.random.default_rng(0)
    batch = {x: rng.normal(size=(32, 4)), y: rng.normal(size=(32, 1)) * 10}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        first = session.run(loss, batch)
        for _ in range(20):
            session.run(train_op, batch)
        saver.save(session, "./model.ckpt")
        wanted = [session.run([train_op, loss, w], batch)[1:] for _ in range(5)]
    with tf.Session() as session:
        saver.restore(session, "./model.ckpt")
        for value, weights in wanted:
            _, again, restored = session.run([train_op, loss, w], batch)
            assert again == value < first
            assert np.array_equal(restored, weights)


if __name__ == "__main__":
    main()
