"""Layers that pass their input through and transform the gradient."""

from __future__ import annotations

from typing import Any

import keras

from gradxform import GradientTransformation, on_backward, parse, reverse_gradient
from gradxform.core import arguments
from gradxform_keras.expression import registered, restored, warn_if_unsaved, written


class _Identity(keras.layers.Layer):
    """A layer that returns its inputs, with a gradient of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        self.supports_masking = True

    def compute_output_spec(self, inputs: Any, **kwargs: Any) -> Any:
        """Return the shapes and dtypes of the inputs."""
        return keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype), inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the inputs."""
        return input_shape


@registered("GradientTransform")
class GradientTransform(_Identity):
    """Pass the input through and transform the gradient: `gradxform.on_backward` as a layer.

    Args:
        tx: A stateless transform, or its expression as a string. Keras saves registered functions only; the layer warns
            of others.
        **kwargs: Arguments of every Keras layer, such as ``name``.

    Raises:
        TypeError: `tx` is stateful.
        ValueError: The expression does not build a transform.

    Example:
        >>> import keras
        >>> import gradxform as gx
        >>> model = keras.Sequential([keras.Input((3,)), gx.keras.GradientTransform(gx.clip_norm(1.0))])
        >>> tuple(model(keras.ops.ones((1, 3))).shape), model.layers[-1].tx
        ((1, 3), clip_norm(1.0))

    References:
        `gradxform.on_backward`.
    """

    def __init__(self, tx: GradientTransformation | str, **kwargs: Any) -> None:
        """Store the transform."""
        super().__init__(**kwargs)
        self.tx = parse(tx) if isinstance(tx, str) else tx
        self._identity = on_backward(self.tx)
        warn_if_unsaved(f"the layer {self.name!r}", self.tx)

    def call(self, inputs: Any) -> Any:
        """Return the inputs, a tensor or a structure of tensors, unchanged."""
        return self._identity(inputs)

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration, with the expression that builds the transform."""
        return {**super().get_config(), "tx": written(f"the layer {self.name!r}", self.tx)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> GradientTransform:
        """Build the layer from a configuration."""
        return super().from_config({**config, "tx": restored(config["tx"])})


@registered("GradientReversal")
class GradientReversal(_Identity):
    """Pass the input through and reverse the gradient: `gradxform.reverse_gradient` as a layer.

    Args:
        scale: Factor of the reversed gradient. It is a non-trainable weight: ``layer.scale.assign(0.5)`` changes it
            between steps without recompiling.
        **kwargs: Arguments of every Keras layer, such as ``name``.

    Raises:
        TypeError: `scale` is not a number.
        ValueError: `scale` is NaN.

    Example:
        >>> import keras
        >>> import gradxform as gx
        >>> layer = gx.keras.GradientReversal(0.5)
        >>> tuple(layer(keras.ops.ones((1, 3))).shape), float(layer.scale)
        ((1, 3), 0.5)

    References:
        Ganin and Lempitsky, Unsupervised domain adaptation by backpropagation, 2015.
    """

    def __init__(self, scale: float = 1.0, **kwargs: Any) -> None:
        """Store the factor."""
        super().__init__(**kwargs)
        scale = arguments.number("GradientReversal", "scale", scale)
        if not isinstance(scale, float):
            raise TypeError(f"GradientReversal: scale must be a number, got {scale!r} of type {type(scale).__name__}")
        self.scale = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(scale),
            trainable=False,
            dtype="float32",
            autocast=False,
            name="scale",
        )

    def call(self, inputs: Any) -> Any:
        """Return the inputs, a tensor or a structure of tensors, unchanged."""
        return reverse_gradient(inputs, keras.ops.convert_to_tensor(self.scale))

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration, with the current factor."""
        return {**super().get_config(), "scale": float(self.scale)}
