"""gradxform in Keras 3: optimizers with a transformation inside, on the TensorFlow, JAX and PyTorch backends."""

from gradxform_keras._wrap import wrap

__all__ = ["wrap"]
