"""Contracts of the adapters: where a framework's own optimizers are handed gradients."""

from __future__ import annotations

from typing import Any

from contracts import Contract, after, instead, own

NUMPY, JAX, TENSORFLOW, TORCH = ("numpy",), ("jax",), ("tensorflow",), ("torch",)
KERAS = ("jax", "tensorflow", "torch")


def _frozen_before(freeze: Any, backend: Any) -> Any:
    """Zeros for the optimizer, and not in the place of its updates."""

    def wrong(optimizer: Any, where: Any) -> Any:
        import optax

        import gradxform as gx

        return optax.chain(gx.freeze(where), optimizer)

    return wrong


def _without_extra(as_optax: Any, backend: Any) -> Any:
    def wrong(tx: Any) -> Any:
        given = as_optax(tx)
        return type(given)(given.init, lambda updates, state, params=None, **_: given.update(updates, state, params))

    return wrong


ADAPTERS = (
    Contract("numpy.apply_", "nothing is written", instead(lambda tx, tree, state=None, params=None: state),
             own("backends/test_numpy", "in_place_gives_what"), NUMPY),
    Contract("torch.apply_", "nothing is written", instead(lambda tx, named, state, scale=None, found_inf=None: state),
             own("backends/test_torch", "what_parameters_may_be"), TORCH),
    Contract("torch.apply_", "the factor of a loss scaler is ignored",
             lambda transformed, _: lambda tx, named, state, scale=None, found_inf=None: transformed(
                 tx, named, state, None, found_inf),
             own("adapters/test_torch_attach", "the_chain_sees_unscaled"), TORCH),
    Contract("torch.attach, hook", "the gradients are not transformed", instead(lambda self, optimizer, args, kw: None),
             own("adapters/test_torch_attach", "any_optimizer_steps_as_after_apply"), TORCH),
    Contract("torch.attach, saving", "a state_dict has no state of the transformation",
             instead(lambda self, optimizer, state_dict: None),
             own("adapters/test_torch_attach", "saved_and_restored_goes_on"), TORCH),
    Contract("is_due", "a step that is left out moves the parameters", instead(lambda tx, state: True),
             own("adapters/test_torch_attach", "left_out_leaves_the_optimizer_alone"), TORCH),
    Contract("tensorflow.apply", "the gradients are not transformed",
             instead(lambda tx, grads_and_vars, params=None: list(grads_and_vars)),
             own("backends/test_tensorflow", "case_2"), TENSORFLOW),
    Contract("tensorflow.GradientProcessor", "the state is not kept", instead(lambda self, new: []),
             own("adapters/test_tensorflow_processor", "pairs_in_another_order"), TENSORFLOW),
    Contract("jax.freeze", "the optimizer is given zeros", _frozen_before,
             own("backends/test_jax", "freeze_leaves_the_chosen"), JAX),
    Contract("jax.as_optax", "extra arguments are lost", _without_extra,
             own("backends/test_jax", "hands_on_extra_arguments"), JAX),
    Contract("takes_extra", "no transformation takes extra arguments", after(lambda found: False),
             own("backends/test_jax", "hands_on_extra_arguments"), JAX),
    Contract("keras.wrap", "the gradients are not transformed", instead(lambda self, grads: list(grads)),
             own("adapters/keras_cases", "what_is_applied_is_the_transformed"), KERAS),
    Contract("keras.wrap, weight decay", "it moves what is frozen", instead(lambda self, variables: list(variables)),
             own("adapters/keras_cases", "averages_of_frozen_weights or (frozen_variables and decay)"), KERAS),
    Contract("is_due", "a step that is left out moves the weights", instead(lambda tx, state: True),
             own("adapters/keras_cases", "skipped_leaves_the_optimizer_alone"), KERAS),
)  # fmt: skip
