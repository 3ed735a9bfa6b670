"""Contracts of the transforms, broken in their factories and rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradxform as gx
from contracts import Contract, each, ignored, instead, own, rows, ruled, still

FLAT = each("core/test_flat", "test_cases")
PEERS = each("transforms/test_peers", "published_formula", "eager")
SCHEDULES = each("transforms/test_catalogue", "any_number_may_be_a_schedule")
SKIPPED = each("transforms/test_catalogue", "skipped_steps_leave_all", "eager")
INTEGERS = each("numerics/test_primitives", "identity_and_scale_and_integers")
MEASURES = each("transforms/test_measuring", "norms_and_factors_are_those", "eager")
SEEN = each("transforms/test_measuring", "one_small_gradient", "eager")


def with_arguments(change: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """A factory that is given other arguments: `change(make, *arguments)`."""
    return lambda make, backend: lambda *args, **kwargs: change(make, *args, **kwargs)


def _not_negative(make: Any, max_abs: Any = None, *, low: Any = None, high: Any = None) -> Any:
    return make(low=low, high=high) if max_abs is None else make(high=max_abs)


def _first_axis(make: Any, limit: Any, *, axes: Any = None, **rest: Any) -> Any:
    return make(limit, axes=axes[:1] if isinstance(axes, tuple) else axes, **rest)


def _default_for_all(rules: Any, default: Any = None) -> Any:
    return gx.chain(*(gx.masked(tx, where) for where, tx in rules.items()), default or gx.identity())


def _measured(rule: Any, view: Any, state: Any, context: Any, **of: str) -> Any:
    view, new = rule(view, state, context)
    if not hasattr(new, "measures"):  # a chain, each part of which has its own
        return view, new
    found = {
        name: m._replace(**{field: getattr(m, other) for field, other in of.items()})
        for name, m in new.measures.items()
    }
    return view, new._replace(measures=found)


def _before_is_after(*given: Any) -> Any:
    return _measured(*given, norm_before="norm_after")


def _other_axes(make: Any, *args: Any, axes: Any = None, **rest: Any) -> Any:
    return make(*args, axes={"keras": "torch", "torch": "keras", None: "keras"}.get(axes, axes), **rest)


TRANSFORMS = (
    Contract(
        "clip_value", "the limit is ignored", ruled(ignored),
        rows("clip_value"),
    ),
    Contract(
        "clip_value", "negative elements are not limited", with_arguments(_not_negative),
        rows("clip_value"),
    ),
    Contract(
        "clip_norm", "the limit is ignored", ruled(ignored),
        rows("clip_norm"),
    ),
    Contract(
        "clip_norm", "the norm is that of all gradients together",
        instead(lambda limit, *, axes=None, ord=None, like=None: gx.clip_global_norm(limit, ord=ord)),
        rows("clip_norm and not axes"),
    ),
    Contract(
        "clip_norm", "the order of the norm is ignored",
        with_arguments(lambda make, limit, *, ord=None, **rest: make(limit, **rest)),
        rows("clip_norm and ord"),
    ),
    Contract(
        "clip_norm", "only the first of the axes counts", with_arguments(_first_axis),
        rows("clip_norm and axes"),
    ),
    Contract(
        "clip_norm", "another library's formula is ignored",
        with_arguments(lambda make, limit, *, like=None, **rest: make(limit, **rest)),
        PEERS,
    ),
    Contract(
        "clip_global_norm", "the norm is that of each gradient by itself",
        instead(lambda limit, *, ord=None, like=None: gx.clip_norm(limit, ord=ord)),
        rows("clip_global_norm"),
    ),
    Contract(
        "clip_global_norm", "the limit is twice as large", with_arguments(lambda make, c, **rest: make(2 * c, **rest)),
        rows("clip_global_norm"),
    ),
    Contract(
        "clip_rms", "the root mean square is the norm", instead(lambda limit: gx.clip_norm(limit)),
        rows("clip_rms"),
    ),
    Contract(
        "clip_average_norm", "the norm is divided by the root of the count", instead(lambda limit: gx.clip_rms(limit)),
        rows("clip_average_norm"),
    ),
    Contract(
        "scale", "the sign is lost", with_arguments(lambda make, factor: make(abs(factor))),
        rows("scale"),
    ),
    Contract(
        "scale_by_schedule", "the schedule sees step + 1", with_arguments(lambda make, f: make(lambda t: f(t + 1))),
        SCHEDULES,
    ),
    Contract(
        "stop", "it multiplies by zero", instead(lambda: gx.scale(0.0)),
        rows("stop or freeze"),
    ),
    Contract(
        "freeze", "it multiplies by zero", instead(lambda where: gx.masked(gx.scale(0.0), where)),
        rows("freeze"),
    ),
    Contract(
        "identity", "an integer gradient is refused", instead(lambda: gx.scale(1.0)),
        INTEGERS,
    ),
    Contract(
        "chain", "the transforms are applied in the opposite order", with_arguments(lambda make, *txs: make(*txs[::-1])),
        rows("chain and clip_value"),
    ),
    Contract(
        "chain", "the last transform is left out", with_arguments(lambda make, *txs: make(*txs[:-1])),
        rows("chain and clip_value"),
    ),
    Contract(
        "masked", "the mask is ignored", with_arguments(lambda make, tx, where: make(tx, "**")),
        rows("masked"),
    ),
    Contract(
        "partition", "the default takes every gradient", instead(_default_for_all),
        FLAT,
    ),
    Contract(
        "partition", "the second rule takes the leaf of the first",
        with_arguments(lambda make, rules, default=None: make(dict(reversed(rules.items())), default)),
        own("backends/test_numpy", "first_rule_that_matches"), ("numpy",),
    ),
    Contract(
        "elementwise", "the function is applied twice", with_arguments(lambda make, f: make(lambda x: f(f(x)))),
        each("transforms/test_catalogue", "a_function_of_ones_own", "eager"),
    ),
    Contract(
        "transform", "what the function returns is thrown away", ruled(ignored),
        each("transforms/test_catalogue", "a_transform_of_ones_own", "eager"),
    ),
    Contract(
        "measure", "the norm before is the one after", ruled(_before_is_after),
        MEASURES,
    ),
    Contract(
        "measure", "the state is not advanced", ruled(still),
        SEEN,
    ),
    Contract(
        "centralize", "the mean is over the outputs", with_arguments(_other_axes),
        rows("centralize"),
    ),
    Contract(
        "normalize_norm", "the norm is that of all gradients together", instead(lambda: gx.normalize_global_norm()),
        rows("normalize_norm"),
    ),
    Contract(
        "normalize_global_norm", "the norm is that of each gradient", instead(lambda: gx.normalize_norm()),
        rows("normalize_global_norm"),
    ),
    Contract(
        "sign", "the gradients come back as they are", ruled(ignored),
        rows("sign"),
    ),
    Contract(
        "zero_nonfinite", "the gradients come back as they are", ruled(ignored),
        rows("zero_nonfinite"),
    ),
    Contract(
        "skip_nonfinite", "one step more is skipped before one is handed on",
        with_arguments(lambda make, tx, max_consecutive=None: make(tx, max_consecutive and max_consecutive + 1)),
        SKIPPED,
    ),
    Contract(
        "skip_large", "a step beyond the limit is applied", instead(lambda tx, limit: gx.skip_nonfinite(tx)),
        each("transforms/test_catalogue", "large_steps_are_skipped"),
    ),
    Contract(
        "accumulate", "the update comes one step late", with_arguments(lambda make, tx, k: make(tx, k + 1)),
        rows("accumulate"),
    ),
    Contract(
        "ema", "the first steps are not debiased", with_arguments(lambda make, d, debias=True: make(d, False)),
        rows("ema"),
    ),
    Contract(
        "ema", "the old average has the weight of the new gradient",
        with_arguments(lambda make, d, *rest, **more: make(1 - d, *rest, **more)),
        rows("ema"),
    ),
    Contract(
        "ema", "the state is not advanced", ruled(still),
        rows("ema"),
    ),
    Contract(
        "trace", "nesterov is ignored", with_arguments(lambda make, d, nesterov=False: make(d)),
        rows("trace and nesterov"),
    ),
    Contract(
        "trace", "the state is not advanced", ruled(still),
        rows("trace and not measure"),
    ),
    Contract(
        "clip_adaptive", "the least norm of parameters is ignored",
        with_arguments(lambda make, c, *, eps=0.0, axes=None: make(c, eps=0.0, axes=axes)),
        rows("clip_adaptive and eps"),
    ),
    Contract(
        "clip_adaptive", "a unit is an input", with_arguments(_other_axes),
        rows("clip_adaptive and keras"),
    ),
    Contract(
        "clip_percentile", "the window is one norm too long",
        with_arguments(lambda make, p, window=1000, **rest: make(p, window + 1, **rest)),
        rows("clip_percentile"),
    ),
    Contract(
        "clip_percentile", "the state is not advanced", ruled(still),
        rows("clip_percentile"),
    ),
    Contract(
        "clip_zscore", "the warm-up is one step too short",
        with_arguments(lambda make, z=2.5, d=0.97, warmup=25, **rest: make(z, d, max(warmup - 1, 1), **rest)),
        rows("clip_zscore"),
    ),
    Contract(
        "clip_zscore", "the state is not advanced", ruled(still),
        rows("clip_zscore"),
    ),
    Contract(
        "add_decayed_weights", "the parameters are subtracted", with_arguments(lambda make, decay: make(-decay)),
        rows("add_decayed_weights"),
    ),
    Contract(
        "add_noise", "the deviation is the variance", with_arguments(lambda make, s, seed: make(s * s, seed)),
        rows("add_noise"),
    ),
    Contract(
        "add_noise", "every step has the noise of the first", ruled(still),
        rows("add_noise"),
    ),
)  # fmt: skip
