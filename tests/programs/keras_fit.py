"""Keras: fit with mixed precision, EarlyStopping, a checkpoint, and schedules for the rate and the limit."""

import keras
import numpy as np

import gradxform as gx


def main() -> None:
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    hidden, out = keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1, dtype="float32")
    model = keras.Sequential([keras.Input((8,)), hidden, out])

    rate = keras.optimizers.schedules.CosineDecay(0.05, decay_steps=400)
    limit = keras.optimizers.schedules.ExponentialDecay(1.0, decay_steps=50, decay_rate=0.9)
    optimizer = gx.keras.wrap(keras.optimizers.Adam(rate), gx.measure(gx.clip_global_norm(limit)))
    model.compile(optimizer, loss="mse")
    callbacks = [
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    ]
    history = model.fit(x, y, batch_size=32, epochs=15, validation_split=0.25, verbose=0, callbacks=callbacks)
    assert history.history["loss"][-1] < 0.2 * history.history["loss"][0]
    after = float(gx.metrics(model.optimizer)["clip_global_norm/norm_after"])
    assert 0.0 < after <= 1.0 + 1e-6

    best = keras.saving.load_model("best.keras")
    assert isinstance(best.optimizer, keras.optimizers.LossScaleOptimizer)
    assert best.optimizer.gradient_transformation_state is not None
    assert np.isclose(best.evaluate(x[192:], y[192:], verbose=0), min(history.history["val_loss"]), rtol=1e-3)
    best.fit(x, y, batch_size=32, epochs=1, verbose=0)


if __name__ == "__main__":
    main()
