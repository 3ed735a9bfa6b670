"""Contracts of the transforms, of the flat view and its formulas, of states, and of functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from contracts import Contract, after, ignored, instead, ruled, still

import gradxform as gx
from gradxform.backend import lookup
from gradxform.numerics import formulas

COMPILES = FLOWS = ("jax", "tensorflow", "torch")


def given(change: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Call a function with other arguments: `change(original, *arguments)`."""
    return lambda make, backend: lambda *args, **kwargs: change(make, *args, **kwargs)


def _upper_only(make: Any, max_abs: Any = None, *, low: Any = None, high: Any = None) -> Any:
    return make(low=low, high=high) if max_abs is None else make(high=max_abs)


def _first_axis(make: Any, limit: Any, *, axes: Any = None, **rest: Any) -> Any:
    return make(limit, axes=axes[:1] if isinstance(axes, tuple) else axes, **rest)


def _other_axes(make: Any, *args: Any, axes: Any = None, **rest: Any) -> Any:
    return make(*args, axes={"keras": "torch", "torch": "keras", None: "keras"}.get(axes, axes), **rest)


def _fewer_steps(make: Any, steps: int = 5, *rest: Any, **more: Any) -> Any:
    return make(max(steps - 1, 1), *rest, **more)


def _a_little_more(make: Any, fraction: float, **rest: Any) -> Any:
    return make(min(1.0, fraction + 0.1), **rest)


def _with(**changed: Any) -> Any:
    return lambda make, *args, **rest: make(*args, **{**rest, **changed})


def _default_for_all(rules: Any, default: Any = None) -> Any:
    return gx.chain(*(gx.masked(tx, where) for where, tx in rules.items()), default or gx.identity())


def _before_is_after(rule: Any, view: Any, state: Any, context: Any) -> Any:
    view, new = rule(view, state, context)
    if not hasattr(new, "measures"):  # a chain; each part has its own measures
        return view, new
    found = {name: m._replace(norm_before=m.norm_after) for name, m in new.measures.items()}
    return view, new._replace(measures=found)


def _of_half(rule: Any, view: Any, state: Any, context: Any) -> Any:
    return rule(view.scaled(0.5), state, context)


def _a_step_later(rule: Any, view: Any, state: Any, context: Any) -> Any:
    return rule(view, state._replace(count=state.count + 1), context)


def _with_spikes(make: Any, threshold: Any = 5000.0, decay: Any = 0.999, **rest: Any) -> gx.GradientTransformation:
    tx, free = make(threshold, decay, **rest), make(0.0, decay)

    def rule(view: Any, state: Any, context: Any) -> Any:
        return tx.rule(view, state, context)[0], free.rule(view, state, context)[1]

    return gx.GradientTransformation(rule, tx.start)


UNCHANGING = "cautious clip_norm clip_value orthogonal_to_parameters sign top_k transform zero_nonfinite".split()
STILL = "clip_adagc clip_spikes ema grokfast mars measure normalize_neurons trace".split()
TRANSFORMS: Any = (
    *((name, "the gradients do not change", ruled(ignored)) for name in UNCHANGING),
    *((name, "the state is not advanced", ruled(still)) for name in STILL),
    ("clip_value", "negative elements are not limited", given(_upper_only)),
    ("clip_norm", "the norm is global", instead(lambda limit, *, ord=None, **_: gx.clip_global_norm(limit, ord=ord))),
    ("clip_norm", "the order of the norm is ignored",
     given(lambda make, limit, *, ord=None, **rest: make(limit, **rest))),
    ("clip_norm", "only the first of the axes counts", given(_first_axis)),
    ("clip_norm", "another library's formula is ignored",
     given(lambda make, limit, *, like=None, **rest: make(limit, **rest))),
    ("clip_global_norm", "the norm is per gradient",
     instead(lambda limit, *, ord=None, **_: gx.clip_norm(limit, ord=ord))),
    ("clip_global_norm", "the limit is twice as large", given(lambda make, c, **rest: make(2 * c, **rest))),
    ("clip_rms", "the root mean square is the norm", instead(lambda limit: gx.clip_norm(limit))),
    ("clip_average_norm", "the norm is divided by the root of the count", instead(lambda limit: gx.clip_rms(limit))),
    ("scale", "the sign is lost", given(lambda make, factor: make(factor if callable(factor) else abs(factor)))),
    ("scale_by_schedule", "the schedule sees step + 1", given(lambda make, f: make(lambda t: f(t + 1)))),
    ("stop", "it multiplies by zero", instead(lambda: gx.scale(0.0))),
    ("freeze", "it multiplies by zero", instead(lambda where: gx.masked(gx.scale(0.0), where))),
    ("identity", "an integer gradient is refused", instead(lambda: gx.scale(1.0))),
    ("chain", "the transforms are applied in the opposite order", given(lambda make, *txs: make(*txs[::-1]))),
    ("chain", "the last transform is left out", given(lambda make, *txs: make(*txs[:-1]))),
    ("masked", "the mask is ignored", given(lambda make, tx, where: make(tx, "**"))),
    ("partition", "the default takes every gradient", instead(_default_for_all)),
    ("partition", "the second rule takes the leaf of the first",
     given(lambda make, rules, default=None: make(dict(reversed(rules.items())), default)), ("numpy",)),
    ("elementwise", "the function is applied twice", given(lambda make, f: make(lambda x: f(f(x))))),
    ("measure", "the norm before equals the norm after", ruled(_before_is_after)),
    ("centralize", "the mean is over the outputs", given(_other_axes)),
    ("orthogonal_to_parameters", "the norm is halved", ruled(_of_half)),
    ("cautious", "the least share is ignored", given(lambda make, *, eps=0.0, negated=None: make(negated=negated))),
    ("cautious", "the minus sign is ignored", given(lambda make, *, eps=1e-3, negated=None: make(eps=eps))),
    ("normalize_norm", "the norm is global", instead(lambda: gx.normalize_global_norm())),
    ("normalize_global_norm", "the norm is per gradient", instead(lambda: gx.normalize_norm())),
    ("top_k", "an element more is kept", given(_a_little_more)),
    ("orthogonalize", "one step too few", given(_fewer_steps)),
    ("orthogonalize", "products are in bfloat16", given(_with(dtype="bfloat16"))),
    ("orthogonalize", "inputs are outputs", given(_other_axes)),
    ("orthogonalize", "the scale is left out", given(_with(scale=None))),
    ("normalize_neurons", "inputs are outputs", given(_other_axes)),
    ("skip_nonfinite", "one more step is skipped",
     given(lambda make, tx, max_consecutive=None: make(tx, max_consecutive and max_consecutive + 1))),
    ("skip_large", "a step above the limit is applied", instead(lambda tx, limit: gx.skip_nonfinite(tx))),
    ("skip_spikes", "every step is applied", given(lambda make, tx, z=6.0, window=128, **rest: make(tx, 1e9, window))),
    ("skip_spikes", "the window is one value too long",
     given(lambda make, tx, z=6.0, window=128, **rest: make(tx, z, window + 1, **rest))),
    ("accumulate", "the update comes one step late", given(lambda make, tx, k: make(tx, k + 1))),
    ("error_feedback", "the error is not added", ruled(still)),
    ("error_feedback", "nothing is left out", instead(lambda tx: gx.accumulate(tx, 1))),
    ("ema", "the first steps are not debiased", given(lambda make, d, debias=True: make(d, False))),
    ("grokfast", "the average starts at zero", ruled(_a_step_later)),
    ("mars", "the first gradient changes from zero", ruled(_a_step_later)),
    ("mars", "the norm has no limit", given(lambda make, *numbers, **_: make(*numbers, max_norm=float("inf")))),
    ("trace", "nesterov is ignored", given(lambda make, d, nesterov=False: make(d))),
    ("clip_adaptive", "the least norm of parameters is ignored",
     given(lambda make, c, *, eps=0.0, axes=None: make(c, eps=0.0, axes=axes))),
    ("clip_adaptive", "a unit is an input", given(_other_axes)),
    ("clip_percentile", "the window is one norm too long",
     given(lambda make, p, window=1000, **rest: make(p, window + 1, **rest))),
    ("clip_adagc", "the warm-up is one step too long",
     given(lambda make, r=1.05, d=0.98, *, warmup=100, **rest: make(r, d, warmup=warmup + 1, **rest))),
    ("clip_spikes", "the average has the spikes", given(_with_spikes)),
    ("clip_zscore", "the warm-up is one step too short",
     given(lambda make, z=2.5, d=0.97, warmup=25, **rest: make(z, d, max(warmup - 1, 1), **rest))),
    ("add_decayed_weights", "the parameters are subtracted",
     given(lambda make, decay, **rest: make(-decay, **rest))),
    ("add_decayed_weights", "every parameter decays", given(lambda make, decay, **rest: make(decay))),
    ("add_noise", "the deviation is the variance", given(lambda make, s, seed: make(s * s, seed))),
    ("add_noise", "every step has the noise of the first", ruled(still)),
)  # fmt: skip


def _without_nan(norms: Any, backend: Any) -> Any:
    def wrong(self: Any, ord: float = 2) -> Any:
        found = norms(self, ord)
        return found._replace(value=self.backend.compute(_finite, found.value))

    return wrong


def _finite(xp: Any, x: Any) -> Any:
    return xp.where(xp.isfinite(x), x, 0.0)


def _with_epsilon(coefficient: Any, backend: Any) -> Any:
    return lambda norm, c: coefficient(norm._replace(value=norm.backend.compute(_more, norm.value)), c)


def _more(xp: Any, x: Any) -> Any:
    return x + 1e-6


VIEW: Any = (
    ("view.norms", "a NaN is dropped from the norm", _without_nan),
    ("view.own_norms", "the pending factor is forgotten",
     given(lambda norms, self, ord: norms(self._replace(factor=None), ord))),
    ("view.global_norm", "stopped and masked-out gradients count in the norm",
     given(lambda norm, self, ord=2: norm(self._replace(chosen=range(len(self.leaves))), ord))),
    ("view.scaled", "the factor is applied twice",
     given(lambda scaled, self, factor: scaled(scaled(self, factor), factor))),
    ("view.results", "a None becomes a zero", after(lambda found: [0.0 if leaf is None else leaf for leaf in found])),
    ("view.widen", "a mask applies to later transforms", instead(lambda self, outer: self)),
    ("view.stop", "a stopped gradient comes back", instead(lambda self: self)),
    ("view.skipped", "a stopped gradient is passed to the optimizer as zeros", instead(lambda self: set()),
     ("tensorflow", "torch")),
    ("clip_coefficient", "a gradient within the limit is scaled up to it",
     instead(lambda norm, c: norm.backend.compute(formulas.quotient, c, norm.value))),
    ("clip_coefficient", "1e-6 is added to the norm", _with_epsilon),
    ("clip_coefficient", "float32 norms are compared with the limit in float64",
     given(lambda coefficient, norm, c: coefficient(norm._replace(single=False), c))),
    ("finiteness", "an infinity is let through",
     instead(lambda xp, x, shown: xp.where(abs(shown) >= 0, x, xp.zeros_like(x)))),
    ("words of a path", "every gradient has the same noise", instead(lambda path: (0.0, 0.0))),
    ("weights of tasks", "gradients are projected in the wrong direction", after(lambda found: 2.0 - found)),
)  # fmt: skip


def _state_moves_on(applied_if: Any, view: Any, condition: Any, inner: Any, given: Any, *rest: Any) -> Any:
    return applied_if(view, condition, inner, given, *rest)[0], inner.rule(given(), *rest)[1]


def _by_place(matched: Any, what: str, state: Any, like: Any) -> Any:
    own, (leaves, _) = lookup.opened(state)
    other, (likes, structure) = lookup.opened(like)
    if own is None or other is None or len(leaves) != len(likes):
        return matched(what, state, like)
    both = zip(leaves, likes, strict=True)
    new = [None if a is None or b is None else other.from_numpy(own.to_numpy(a), b) for a, b in both]
    return other.unflatten(structure, new)


def _each_by_itself(grads: Any, max_norm: Any) -> Any:
    sums, counts = gx.per_example_clip_norm(grads, max_norm)
    backend = lookup.opened(counts)[0]
    return sums, None if backend is None else backend.flatten(counts)[0][0]


FUNCTIONS: Any = (
    ("applied_if", "a step that should be skipped is applied",
     instead(lambda view, condition, inner, given, *rest: inner.rule(given(), *rest))),
    ("applied_if", "the state advances in a skipped step", given(_state_moves_on)),
    ("advanced", "the counter is not advanced", instead(lambda view, count: count)),
    ("between", "values out of range are accepted", instead(lambda view, number, low, high: number), ("numpy",)),
    ("has_updated", "it reports every step as applied", instead(lambda state: True)),
    ("matched", "a restored state is matched by number instead of path", given(_by_place), ("torch",)),
    ("global_norm", "the order of the norm is ignored", given(lambda norm, tree, *, ord=None: norm(tree))),
    ("norms", "each path has another one's norm",
     after(lambda found: dict(zip(found, list(found.values())[::-1], strict=True)))),
    ("nonfinite_paths", "the first of the paths is missing", after(lambda found: found[1:])),
    ("metrics", "the first measure is missing", after(lambda found: dict(list(found.items())[1:]))),
    ("per_example_clip_norm", "the sum is divided by two", after(lambda found: (gx.scale(0.5)(found[0]), found[1]))),
    ("per_example_clip_global_norm", "each parameter is clipped separately", instead(_each_by_itself)),
    ("mean", "the sum is not divided", given(lambda mean, trees: gx.scale(float(len(trees)))(mean(trees)))),
    ("pcgrad", "conflicting gradients are added",
     instead(lambda trees, seed: gx.scale(float(len(trees)))(gx.mean(trees)))),
    ("mgda", "the gradients are averaged", instead(gx.mean)),
    ("cagrad", "the radius is ignored", given(lambda cagrad, trees, c=0.5: cagrad(trees, 0.25))),
    ("upgrad", "the projections are added up", given(lambda upgrad, trees: gx.scale(float(len(trees)))(upgrad(trees)))),
    ("inner products", "tasks do not conflict", after(lambda found: [abs(number) for number in found])),
    ("reverse_gradient", "the gradient is not reversed", given(lambda reverse, x, scale=1.0: reverse(x, -scale)),
     FLOWS),
)  # fmt: skip


def _reads_a_value(coefficient: Any, norm: Any, c: Any) -> Any:
    factor = coefficient(norm, c)
    return factor if norm.backend.compute(_is_one, factor) else norm.backend.compute(_same, factor)


def _same(xp: Any, x: Any) -> Any:
    return x * 1.0


def _is_one(xp: Any, x: Any) -> Any:
    return xp.any(x >= 1.0) if len(getattr(x, "shape", ())) else x >= 1.0


def _rounds_when_compiled(compute: Any, backend: Any) -> Any:
    here = importlib.import_module(backend.name)

    def is_traced(found: Any) -> bool:
        if backend.name == "tensorflow":
            return not here.executing_eagerly()
        if backend.name == "torch":
            return bool(here.compiler.is_compiling())
        return isinstance(getattr(found, "high", found), here.core.Tracer)

    def wrong(formula: Any, *operands: Any, **static: Any) -> Any:
        found = compute(formula, *operands, **static)
        return compute(_nearest, found) if is_traced(found) else found

    return wrong


def _nearest(xp: Any, x: Any) -> Any:
    return xp.rounded(x, "float32")


COMPILED: Any = (
    ("kernel.compute", "compiled code rounds intermediate results to float32", _rounds_when_compiled, COMPILES),
    ("clip_coefficient", "a value is read while the code is traced", given(_reads_a_value), COMPILES),
    ("equality", "an equal transformation is traced again", instead(lambda self, other: self is other),
     ("jax", "tensorflow")),
    ("either", "compiled code uses the state of a skipped step", instead(lambda view, condition, yes, no: yes),
     COMPILES),
)  # fmt: skip

LIBRARY = [Contract(*row) for row in (*TRANSFORMS, *VIEW, *FUNCTIONS, *COMPILED)]
