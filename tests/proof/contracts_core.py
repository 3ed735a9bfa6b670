"""Contracts of the flat view, of the formulas, of what keeps a state, and of the functions; some seen compiled alone."""

from __future__ import annotations

from typing import Any

import gradxform as gx
from contracts import Contract, Tests, after, each, instead, own, rows
from gradxform import _backend
from gradxform import _formulas as formulas

FLAT = each("core/test_flat", "test_cases")
HARD = each("transforms/test_hard", "test_hard_cases", "eager")
SKIPPED = each("transforms/test_catalogue", "skipped_steps_leave_all", "eager")
EXAMPLES = each("transforms/test_catalogue", "per_example_clips", "eager")
SURGERY = each("transforms/test_catalogue", "gradient_surgery", "eager")
ANY_ORDER = each("transforms/test_measuring", "norms_of_any_order")
COMPILES = ("jax", "tensorflow", "torch")
FLOWS = ("jax", "tensorflow", "torch")


def _without_nan(norms: Any, backend: Any) -> Any:
    def wrong(self: Any, ord: float = 2) -> Any:
        found = norms(self, ord)
        return found._replace(value=self.backend.compute(_finite, found.value))

    return wrong


def _finite(xp: Any, x: Any) -> Any:
    return xp.where(xp.isfinite(x), x, 0.0)


def _whole_scope(global_norm: Any, backend: Any) -> Any:
    def wrong(self: Any, ord: float = 2) -> Any:
        return global_norm(self._replace(active=self.source.everything), ord)

    return wrong


def _up_to_it(limit: Any, backend: Any) -> Any:
    return lambda norm, c: norm.backend.compute(formulas.quotient, c, norm.value)


def _with_epsilon(limit: Any, backend: Any) -> Any:
    return lambda norm, c: limit(norm._replace(value=norm.backend.compute(_more, norm.value)), c)


def _more(xp: Any, x: Any) -> Any:
    return x + 1e-6


def _reads_a_value(limit: Any, backend: Any) -> Any:
    def wrong(norm: Any, c: Any) -> Any:
        factor = limit(norm, c)
        largest = norm.backend.compute(_largest, factor)
        return factor if bool(largest <= 1.0) else 1.0

    return wrong


def _largest(xp: Any, x: Any) -> Any:
    return xp.max(xp.reshape(x, (-1,))) if len(getattr(x, "shape", ())) else x


def _state_moves_on(applied_if: Any, backend: Any) -> Any:
    return lambda view, condition, update, state: (applied_if(view, condition, update, state)[0], update()[1])


def _by_place(matched: Any, backend: Any) -> Any:
    def wrong(what: str, state: Any, like: Any) -> Any:
        own, (leaves, _) = _backend.opened(state)
        other, (likes, structure) = _backend.opened(like)
        if own is None or other is None or len(leaves) != len(likes):
            return matched(what, state, like)
        both = zip(leaves, likes, strict=True)
        new = [None if a is None or b is None else other.placed(own.to_numpy(a), b) for a, b in both]
        return other.unflatten(structure, new)

    return wrong


def _each_by_itself(grads: Any, max_norm: Any) -> Any:
    sums, counts = gx.per_example_clip_norm(grads, max_norm)
    backend = _backend.lookup(counts)
    return sums, None if backend is None else backend.flatten(counts)[0][0]


def view(name: str, what: str, broken: Any, tests: Tests, frameworks: tuple[str, ...] = _backend.FRAMEWORKS) -> Contract:
    """A method of the flat view, broken."""
    return Contract(f"view.{name}", what, broken, tests, frameworks)


VIEW = (
    view("norms", "a NaN is dropped from the norm", _without_nan, HARD),
    view("norms", "the pending factor is forgotten",
         lambda norms, _: lambda self, ord=2: norms(self._replace(factor=None), ord), FLAT),
    view("global_norm", "stopped and masked-out gradients count in the norm", _whole_scope,
         rows("masked or freeze or partition")),
    view("scaled", "the factor is applied twice",
         lambda scaled, _: lambda self, factor: scaled(scaled(self, factor), factor), rows("scale and not clip")),
    view("results", "a None becomes a zero",
         after(lambda found: [0.0 if leaf is None else leaf for leaf in found]), FLAT),
    view("widen", "a mask holds for what follows", lambda widen, _: lambda self, outer: self, FLAT),
    view("stop", "a stopped gradient comes back", instead(lambda self: self), rows("stop or freeze")),
    view("skipped", "a stopped gradient is handed to the optimizer as zeros", instead(lambda self: set()),
         own("backends/test_{f}", "stopped_variables_are_left_out or frozen_parameters_stay"), ("tensorflow", "torch")),
)  # fmt: skip

FORMULAS = (
    Contract("limit", "a gradient within the limit is scaled up to it", _up_to_it, HARD),
    Contract("limit", "1e-6 is added to the norm", _with_epsilon, HARD),
    Contract("limit_single", "float32 norms are compared with the limit in float64",
             lambda _, backend: formulas.limit_double, each("numerics/test_primitives", "float32_is_compared")),
    Contract("is_nan", "a NaN is dropped from the largest norm", instead(lambda xp, x: x < x),
             own("numerics/test_primitives", "nan_under_tensorflows_xla"), ("tensorflow",)),
    Contract("sign of an element", "zero has the sign one",
             instead(lambda xp, x: xp.where(x < 0, -xp.ones_like(x), xp.ones_like(x))), rows("sign")),
    Contract("what is finite", "an infinity is let through",
             instead(lambda xp, x: xp.where(abs(x) >= 0, x, xp.zeros_like(x))), rows("zero_nonfinite")),
    Contract("within the limit", "a norm that is NaN is within the limit",
             lambda within, _: lambda xp, norm, factor: within(xp, xp.where(norm <= norm, norm, 0.0), xp.where(
                 factor <= factor, factor, 1.0)),
             each("transforms/test_catalogue", "large_steps_are_skipped")),
    Contract("mean of a sum", "the sum is not divided", instead(lambda xp, total, lost, every: total + lost),
             rows("accumulate")),
    Contract("what rounding took", "it is forgotten", instead(lambda xp, x, total, lost, rounded, unit: 0.0 * x),
             rows("accumulate")),
    Contract("words of a path", "every gradient has the same noise", instead(lambda path: (0.0, 0.0)),
             rows("add_noise")),
    Contract("weights of tasks", "gradients are projected in the wrong direction",
             lambda weights, _: lambda xp, *given, **static: 2.0 - weights(xp, *given, **static), SURGERY),
)  # fmt: skip

STATES = (
    Contract("applied_if", "a step that ought to be skipped is applied",
             instead(lambda view, condition, update, state: update()), SKIPPED),
    Contract("applied_if", "the state moves on in a step that is skipped", _state_moves_on, SKIPPED),
    Contract("advanced", "the counter is not advanced", instead(lambda view, count: count),
             each("transforms/test_catalogue", "any_number_may_be_a_schedule")),
    Contract("between", "values out of range are taken", instead(lambda view, number, low, high: number),
             own("transforms/test_catalogue", "values_out_of_range"), ("numpy",)),
    Contract("has_updated", "it says that every step was applied", instead(lambda state: True), SKIPPED),
    Contract("matched", "a restored state finds its place by number and not by path", _by_place,
             each("functions/test_portable", "goes_on_in_another"), ("torch",)),
)  # fmt: skip

FUNCTIONS = (
    Contract("global_norm", "the order of the norm is ignored",
             lambda norm, _: lambda tree, *, ord=None: norm(tree),
             each("proof/test_contracts", "norm_of_all_leaves")),
    Contract("norms", "each path has another one's norm",
             after(lambda found: dict(zip(found, list(found.values())[::-1], strict=True))), ANY_ORDER),
    Contract("nonfinite_paths", "the first of the paths is missing", after(lambda found: found[1:]),
             each("transforms/test_measuring", "nonfinite_paths and not traced")),
    Contract("metrics", "the first measure is missing", after(lambda found: dict(list(found.items())[1:])),
             each("transforms/test_measuring", "norms_and_factors_are_those", "eager")),
    Contract("per_example_clip_norm", "the sum is divided by two",
             after(lambda found: (gx.scale(0.5)(found[0]), found[1])), EXAMPLES),
    Contract("per_example_clip_global_norm", "each parameter is limited by itself", instead(_each_by_itself),
             EXAMPLES),
    Contract("mean", "the sum is not divided",
             lambda mean, _: lambda trees: gx.scale(float(len(trees)))(mean(trees)),
             each("transforms/test_catalogue", "mean_of_trees", "eager")),
    Contract("pcgrad", "gradients that conflict are added up",
             instead(lambda trees, seed: gx.scale(float(len(trees)))(gx.mean(trees))), SURGERY),
    Contract("reverse_gradient", "the gradient is not reversed",
             lambda reverse, _: lambda x, scale=1.0: reverse(x, -scale),
             each("functions/test_backward", "test_reversed", "not compiled"), FLOWS),
)  # fmt: skip


def _while_traced(backend: Any) -> bool:
    if backend.name == "tensorflow":
        import tensorflow as tf

        return not tf.executing_eagerly()
    if backend.name == "torch":
        import torch

        return torch.compiler.is_compiling()
    import jax

    return not jax.core.trace_ctx.is_top_level()


def _rounds_when_compiled(compute: Any, backend: Any) -> Any:
    def wrong(formula: Any, *operands: Any, **static: Any) -> Any:
        found = compute(formula, *operands, **static)
        return compute(_nearest, found) if _while_traced(backend) else found

    return wrong


def _nearest(xp: Any, x: Any) -> Any:
    return xp.rounded(x, "float32")


COMPILED = (
    Contract("kernel.compute", "compiled code rounds what it computes on its way to float32", _rounds_when_compiled,
             rows("chain and 1e25", "compiled"), COMPILES),
    Contract("limit", "a value is read while the code is traced", _reads_a_value, rows("clip_global_norm and 2.5",
             "compiled"), COMPILES),
    Contract("equality", "an equal transformation is traced anew", instead(lambda self, other: self is other),
             own("backends/test_{f}", "rebuilt_equal_chain_does_not_retrace"), ("jax", "tensorflow")),
    Contract("either", "compiled code takes the state of a step that is skipped",
             instead(lambda view, condition, yes, no: yes),
             each("transforms/test_catalogue", "skipped_steps_leave_all", "compiled"), COMPILES),
)  # fmt: skip
