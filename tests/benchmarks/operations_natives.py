"""What people write without gradxform, for operations.py to count: PyTorch's functions, and formulas of papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# --- PyTorch's own functions -----------------------------------------------------------------------------------------


def _clip_value(parameters: Sequence[Any]) -> None:
    import torch

    gradients = [parameter.grad for parameter in parameters]
    torch._foreach_clamp_min_(gradients, -0.5)
    torch._foreach_clamp_max_(gradients, 0.5)


def _clip_global_norm(parameters: Sequence[Any]) -> None:
    """The operations of `torch.nn.utils.clip_grad_norm_` with `foreach`, which FakeTensorMode disables."""
    import torch

    gradients = [parameter.grad for parameter in parameters]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)))
    torch._foreach_mul_(gradients, torch.clamp(1.0 / (norm + 1e-6), max=1.0))


def _clip_norm(parameters: Sequence[Any]) -> None:
    for parameter in parameters:
        _clip_global_norm([parameter])


def _clip_norm_axes(parameters: Sequence[Any]) -> None:
    import torch

    for parameter in parameters:
        norm = torch.linalg.vector_norm(parameter.grad, 2.0, 0, keepdim=True)
        parameter.grad.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))


def _clip_adaptive(parameters: Sequence[Any]) -> None:
    import torch

    for parameter in parameters:
        size = torch.linalg.vector_norm(parameter.detach(), 2.0, 0, keepdim=True).clamp_(min=1e-3).mul_(0.01)
        norm = torch.linalg.vector_norm(parameter.grad, 2.0, 0, keepdim=True)
        clipped = parameter.grad * (size / norm.clamp(min=1e-6))
        torch._foreach_copy_([parameter.grad], [torch.where(norm < size, parameter.grad, clipped)])  # for copy_


def _centralize(parameters: Sequence[Any]) -> None:
    for parameter in parameters:
        parameter.grad.sub_(parameter.grad.mean(0, keepdim=True))


def _scale(parameters: Sequence[Any]) -> None:
    import torch

    torch._foreach_mul_([parameter.grad for parameter in parameters], 0.3)


def _chain(parameters: Sequence[Any]) -> None:
    _clip_value(parameters)
    _clip_global_norm(parameters)
    _scale(parameters)


def _trace(parameters: Sequence[Any]) -> None:
    """`torch.optim.SGD`'s momentum."""
    import torch

    gradients = [parameter.grad for parameter in parameters]
    state = [parameter.detach() for parameter in parameters]
    torch._foreach_mul_(state, 0.9)
    torch._foreach_add_(state, gradients)


def _ema(parameters: Sequence[Any]) -> None:
    """`torch.optim.Adam`'s first moment."""
    import torch

    state = [parameter.detach() for parameter in parameters]
    torch._foreach_lerp_(state, [parameter.grad for parameter in parameters], 0.1)


def _decay(parameters: Sequence[Any]) -> None:
    import torch

    gradients = [parameter.grad for parameter in parameters]
    torch._foreach_add_(gradients, [parameter.detach() for parameter in parameters], alpha=0.1)


def _noise(parameters: Sequence[Any]) -> None:
    import torch

    for parameter in parameters:
        parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.1)


TORCH: dict[str, Callable[[Sequence[Any]], None]] = {
    "clip_value(0.5)": _clip_value,
    "clip_global_norm(1.0)": _clip_global_norm,
    "clip_norm(1.0)": _clip_norm,
    "clip_norm(1.0, axes=0)": _clip_norm_axes,
    "clip_adaptive(0.01, axes=0)": _clip_adaptive,
    "centralize(axes=0)": _centralize,
    "scale(0.3)": _scale,
    "chain(clip_value(0.5), clip_global_norm(1.0), scale(0.3))": _chain,
    "add_decayed_weights(0.1)": _decay,
    "trace(0.9)": _trace,
    "ema(0.9)": _ema,
    "add_noise(0.1, 0)": _noise,
}


# --- formulas that run in every framework ----------------------------------------------------------------------------


class Ops(NamedTuple):
    """The names that frameworks do not share; `xp` has where, sign and sqrt."""

    xp: Any
    norm: Callable[[Any], Any]
    mean: Callable[[Any], Any]
    cast: Callable[[Any, Any], Any]
    muon: Callable[[Any], Any]
    """The iteration of the framework's Muon."""


def _adagc(o: Ops, g: Any, average: Any) -> tuple[Any, ...]:
    norm, most = o.norm(g), 1.05 * average
    factor = o.xp.where(norm > most, most / norm, 1.0)
    return g * factor, 0.98 * average + 0.02 * (factor * norm)


def _spikes(o: Ops, g: Any, v: Any) -> tuple[Any, ...]:
    most = 5000.0 * v
    out = o.xp.where(g * g > most, o.xp.sign(g) * o.xp.sqrt(most), g)
    return out, 0.999 * v + 0.001 * (out * out)


def _grokfast(o: Ops, g: Any, m: Any) -> tuple[Any, ...]:
    m = 0.98 * m + 0.02 * g
    return g + 2.0 * m, m


def _error_feedback(o: Ops, g: Any, error: Any) -> tuple[Any, ...]:
    whole = g + error
    out = o.xp.sign(whole)
    return out, whole - out


def _cautious(o: Ops, update: Any, gradient: Any) -> tuple[Any, ...]:
    mask = o.cast(update * gradient > 0, update.dtype)
    share = o.mean(mask)
    return (update * (mask / o.xp.where(share >= 1e-3, share, 1e-3)),)


def _orthogonalize(o: Ops, g: Any, _: Any) -> tuple[Any, ...]:
    return (o.muon(g),)


FORMULAS: dict[str, Callable[[Ops, Any, Any], tuple[Any, ...]]] = {
    "orthogonalize(scale=None)": _orthogonalize,
    "clip_adagc()": _adagc,
    "clip_spikes()": _spikes,
    "grokfast()": _grokfast,
    "error_feedback(sign())": _error_feedback,
    "cautious()": _cautious,
}
"""New gradient, or update, and new state of one leaf; the second argument is the state, or the gradient beside it."""
CONFLICTS = ("mgda", "cagrad", "upgrad")
"""Functions of two trees, without a counterpart: TorchJD solves its quadratic programs on the host."""


def is_scalar(name: str) -> bool:
    """Whether the state of a formula is one number per leaf."""
    return "adagc" in name
