"""Proof that the proof works: the library is broken in one place at a time, and the tests must notice.

    python tests/mutation.py [--only SUBSTRING] [--jobs N] [--out FILE]

A mutant is one replacement in one file. It is made in a copy of the repository, where the tests named with it run: it
is killed if one of them fails, and has survived if all pass. A mutant that breaks Python itself proves nothing, and
counts against the run as a survivor does. Each selection of tests is run in an unchanged copy first, and must pass.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mutants import Mutant, Tests, of, table
from mutants_adapters import ADAPTERS
from mutants_catalogue import CATALOGUE
from mutants_states import STATES

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("gradxform", "backends", "tests", "docs", "README.md", "pyproject.toml")
SECONDS = 400
"""A run of tests that takes longer is taken for a broken one."""
NOT_THE_COPY = 70
"""The exit code of a run that did not test the library of the copy."""
OPTIONS = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")

# --- which tests -----------------------------------------------------------------------------------------------------

_SHARED = ("tests/test_table.py", "tests/test_flat.py", "tests/test_primitives.py")
_NOT_NUMPY = "jax or tensorflow or torch or optax or attach or unknown_ranks or dense_rows"
NUMPY = (*_SHARED, "tests/test_numpy.py", "-k", f"not ({_NOT_NUMPY})")
TORCH = (*_SHARED, "tests/test_torch.py", "-k", "torch and not compil")
TENSORFLOW = (*_SHARED, "tests/test_tensorflow.py", "-k", "tensorflow and not (compiled or XLA or derivative or V1)")
ERRORS = ("tests/test_errors.py", "-k", "not framework")
CLIP_NORM, CLIP_INF, CLIP_3 = "clip_norm(1.0)", "clip_norm(float('inf'))", "clip_norm(1.0, ord=3)"
CLIP_1, AXIS, AXES = "clip_norm(1.0, ord=1)", "clip_norm(0.7, axes=-1)", "clip_norm(0.7, axes=(0, 1), ord=1)"
SCALED_AND_CLIPPED = "chain(scale(3.0), clip_value(0.5), clip_norm(0.7))"
JAX_NORM = table("jax-eager", CLIP_NORM)
JAX_VALUE = table("jax-eager", "clip_value(0.5)", SCALED_AND_CLIPPED)
JAX_SMALL = ("tests/test_hard.py", "tests/test_primitives.py", "-k", "jax-eager or test_cases and jax")
THREADED = ("tests/test_threads.py",)
JAX_EACH = ("tests/test_primitives.py", "-k", "jax and many_leaves")
JAX_LARGE = ("tests/test_accuracy.py", "tests/test_primitives.py", "-k", "jax and (large_leaves or million and eager)")
TF_GRAPH = (
    *table("tensorflow-compiled", CLIP_NORM), "tests/test_hard.py", "tests/test_primitives.py",
    "-k", "tensorflow and compiled",
)  # fmt: skip
TF_LARGE = ("tests/test_accuracy.py", "tests/test_primitives.py", "-k", "tensorflow-compiled and (million or large)")
TRACED = "test_a_traced_limit_is_clamped_at_zero_and_nan_gives_nan"


def large(framework: str) -> Tests:
    """Leaves of a million elements."""
    kinds = ("tail", "huge", "tiny", "plain", *(f"heavy {seed}" for seed in range(6)))
    return of("primitives", *(f"test_norms_of_large_leaves[{kind}-{framework}]" for kind in kinds))


# --- what is broken --------------------------------------------------------------------------------------------------

CLIPPING, SCALING, STOPPING = "gradxform/clipping.py", "gradxform/scaling.py", "gradxform/stopping.py"
COMBINING, FOREIGN, MATCHING = "gradxform/combining.py", "gradxform/_foreign.py", "gradxform/matching.py"
FLAT, SOURCE, FORMULAS, PAIRS = (f"gradxform/{name}.py" for name in ("_flat", "_source", "_formulas", "_pairs"))
HOST, HOST_NORMS, _THREADS = (f"gradxform/{name}.py" for name in ("_host", "_host_norms", "_threads"))

TRANSFORMS = (
    Mutant("clip_value", "the upper bound is ignored", CLIPPING, "g.clipped(low, high)", "g.clipped(low, None)", NUMPY),
    Mutant(
        "clip_value", "negative elements are not limited", FLAT,
        "return -max_abs, max_abs", "return None, max_abs", NUMPY,
    ),
    Mutant(
        "clip_value", "bounds that exclude zero are applied to the rows of a sparse gradient alone", FLAT,
        "view = self if _includes_zero(low, high) else self._densified()", "view = self",
        of("torch", "test_what_changes_zeros_makes_a_sparse_gradient_dense"),
    ),
    Mutant(
        "clip_value", "a complex gradient is let in", FLAT,
        "if self.source.kinds <= REAL:", "if self.source.kinds <= REAL | SINGLE | DOUBLE:",
        of("errors", "test_a_complex_gradient_has_no_order"),
    ),
    Mutant(
        "clip_norm", "the order is ignored", CLIPPING,
        "g.scaled(limit(g.norms(p), c))", "g.scaled(limit(g.norms(2), c))", NUMPY,
    ),
    Mutant(
        "clip_norm", "the norm is that of all gradients together", CLIPPING,
        "g.scaled(limit(g.norms(p), c))", "g.scaled(limit(g.global_norm(p), c))", NUMPY,
    ),
    Mutant(
        "clip_norm", "the order is ignored where axes are given", CLIPPING,
        "g.scaled_over(over, p, lambda", "g.scaled_over(over, 2, lambda", NUMPY,
    ),
    Mutant(
        "clip_norm", "only the first of the axes counts", CLIPPING,
        "g.scaled_over(over, p, lambda", "g.scaled_over(over[:1], p, lambda", NUMPY,
    ),
    Mutant(
        "clip_global_norm", "the norm is that of each gradient by itself", CLIPPING,
        "limit(g.global_norm(p), c)", "limit(g.norms(p), c)", NUMPY,
    ),
    Mutant(
        "clip_global_norm", "the order is ignored", CLIPPING,
        "limit(g.global_norm(p), c)", "limit(g.global_norm(2), c)", NUMPY,
    ),
    Mutant("scale", "the sign is lost", SCALING, "g.scaled(a)", "g.scaled(abs(a))", NUMPY),
    Mutant("scale", "the factor is applied twice", SCALING, "g.scaled(a)", "g.scaled(a).scaled(a)", NUMPY),
    Mutant(
        "stop", "zero times the gradient", STOPPING,
        "return stateless(lambda g: g.stop())", "return stateless(lambda g: g.scaled(0.0))", NUMPY,
    ),
    Mutant(
        "freeze", "zero times the gradient, which is not marked as stopped", STOPPING,
        'only("freeze", stop(), where)', 'only("freeze", stateless(lambda g: g.scaled(0.0)), where)',
        of("torch", "test_frozen_parameters_stay_bit_by_bit"),
    ),
    Mutant(
        "freeze", "zero times the gradient lets a NaN through", STOPPING,
        'only("freeze", stop(), where)', 'only("freeze", stateless(lambda g: g.scaled(0.0)), where)', NUMPY,
    ),
    Mutant(
        "identity", "an integer gradient is refused", COMBINING,
        "return stateless(lambda g: g)", "return stateless(lambda g: g.scaled(1.0))",
        of("primitives", "test_identity_and_scale_and_integers[numpy]"),
    ),
    Mutant(
        "identity", "the factors before it are forgotten", COMBINING,
        "return stateless(lambda g: g)", "return stateless(lambda g: _flat.replace(g, factor=None))", NUMPY,
    ),
    Mutant(
        "chain", "the last transform comes first", COMBINING,
        "_each(parts, [view.scope] * len(parts),", "_each(parts[::-1], [view.scope] * len(parts),", NUMPY,
    ),
    Mutant(
        "chain", "each transform is given the gradients as they came", COMBINING,
        "tx.rule(view.focus(mask),", "tx.rule(outer.focus(mask),", NUMPY,
    ),
    Mutant(
        "chain", "a state does not advance", COMBINING,
        "new.append(state)", "new.append(states[rank] if kept else state)", NUMPY,
    ),
    Mutant(
        "masked", "the mask is ignored", COMBINING,
        "inner.rule(view.focus(matching.chosen(name, where, view)), state, context)",
        "inner.rule(view, state, context)", NUMPY,
    ),
    Mutant(
        "masked", "what was chosen once stays chosen for the rest of the chain", COMBINING,
        "view = inside.widen(outer)", "view = inside", NUMPY,
    ),
    Mutant(
        "masked", "the state is made for all parameters", COMBINING,
        "return inner.init(_only(params, lambda view: matching.chosen(name, where, view)))",
        "return inner.init(params)", of("optax", "test_optax_in_masked"),
    ),
    Mutant(
        "partition", "the last rule that matches wins", COMBINING,
        "found.append(tuple(a and b for a, b in zip(mask, free, strict=True)))",
        "found = [*(tuple(a and not b for a, b in zip(m, mask, strict=True)) for m in found), mask]", NUMPY,
    ),
    Mutant(
        "partition", "a gradient gets every rule that matches", COMBINING,
        "found.append(tuple(a and b for a, b in zip(mask, free, strict=True)))", "found.append(mask)", NUMPY,
    ),
    Mutant(
        "partition", "the default is applied to all", COMBINING,
        "return [*found, free]", "return [*found, (True,) * len(view.leaves)]", NUMPY,
    ),
    Mutant(
        "partition", "the states are made for all parameters", COMBINING,
        "tx.init(params if mask is None else _only(params, mask))", "tx.init(params)",
        of("optax", "test_optax_after_stop_has_no_state_for_what_is_stopped"),
    ),
    Mutant(
        "partition", "a pattern is found at the start of the path only", MATCHING,
        "where.search, view)", "where.match, view)", ("tests/test_matching.py", *NUMPY[3:]),
    ),
    Mutant(
        "masked", "* goes over the ends of keys", MATCHING,
        '"*": "[^/]*"', '"*": ".*"', ("tests/test_matching.py", *NUMPY[3:]),
    ),
    Mutant(
        "chain", "a foreign transformation is given the parameters of other gradients", FOREIGN,
        "params = _like(view, params)", "params = context.params",
        of("primitives", "test_a_foreign_transformation_sees_the_parameters_of_its_gradients"),
    ),
    Mutant(
        "clip_norm", "a limit of zero is refused", "gradxform/_arguments.py",
        "if static(value) and checked < 0:", "if static(value) and checked <= 0:", of("reference", "test_by_hand"),
    ),
    Mutant(
        "clip_norm", "a negative limit is let in", "gradxform/_arguments.py",
        "if static(value) and checked < 0:", "if static(value) and checked < -1:", ERRORS,
    ),
)  # fmt: skip

THE_FLAT_VIEW = (
    Mutant(
        "flat", "the norm is taken without the pending factor", FLAT,
        "value = raw if self.factor is None else", "value = raw if True else", NUMPY,
    ),
    Mutant(
        "flat", "the global norm counts what was measured of stopped gradients", FLAT,
        "active = None if self.active is self.source.everything else self.active", "active = None", NUMPY,
    ),
    Mutant(
        "flat", "stopped gradients are active again for what follows", FLAT,
        "active = self.source.mask(map(operator.gt, scope, self.stopped))", "active = scope", NUMPY,
    ),
    Mutant(
        "flat", "a factor takes the place of the one before it", FLAT,
        "formulas.product, self.factor, factor)", "formulas.product, 1.0, factor)", NUMPY,
    ),
    Mutant(
        "flat", "a factor reaches gradients that were not chosen", FLAT,
        "formulas.where_active, factor, active=self.active)",
        "formulas.where_active, factor, active=(True,) * len(self.active))", NUMPY,
    ),
    Mutant(
        "flat", "a norm over axes is taken without the pending factor", FLAT,
        "norm = norm if pending is None else", "norm = norm if True else", NUMPY,
    ),
    Mutant(
        "flat", "a clip over axes forgets the pending factor", FLAT,
        "factor = factor if pending is None else", "factor = factor if True else", NUMPY,
    ),
    Mutant(
        "flat", "a clip over axes leaves its factors pending, to be applied again", FLAT,
        "return view._with(self.chosen, new, applied=True)", "return view._with(self.chosen, new)", NUMPY,
    ),
    Mutant(
        "flat", "a value clip forgets the pending factor", FLAT,
        "low, high, pairs.rounded(factors), view", "low, high, None, view", NUMPY,
    ),
    Mutant(
        "flat", "a value clip leaves its factors pending, to be applied again", FLAT,
        "return view._with(chosen, new, applied=True)", "return view._with(chosen, new)", NUMPY,
    ),
    Mutant(
        "flat", "a masked value clip takes the factors of other gradients", FLAT,
        "view._at(view.factor, chosen)", "view._at(view.factor, range(len(chosen)))", NUMPY,
    ),
    Mutant(
        "flat", "beside stopped gradients, the others are given their factors", FLAT,
        "self._at(self.factor, places)", "self._at(self.factor, range(len(places)))", NUMPY,
    ),
    Mutant(
        "flat", "a pure call multiplies the user's arrays in place", FLAT,
        "factors, self._is_owned(places))", "factors, True)", NUMPY,
    ),
    Mutant(
        "flat", "a pure call clips the user's arrays in place", FLAT,
        "pairs.rounded(factors), view._is_owned(chosen))", "pairs.rounded(factors), True)", NUMPY,
    ),
    Mutant(
        "flat", "a pure call over axes multiplies the user's arrays in place", FLAT,
        "pairs.rounded(factor), view.owned[i])", "pairs.rounded(factor), True)", NUMPY,
    ),
    Mutant(
        "flat", "what a foreign transformation gave is written in place", FLAT,
        "._replace(owned=view.owned)", "._replace(owned=view.source.everything)",
        of("primitives", "test_a_pure_call_writes_to_nothing"),
    ),
    Mutant(
        "flat", "factors that were applied stay pending", FLAT,
        "self._with(live, self._multiplied(live))._replace(factor=None)",
        "self._with(live, self._multiplied(live))", NUMPY,
    ),
    Mutant(
        "flat", "a stopped gradient comes back as it was", FLAT,
        "leaves[i] = zero\n", "leaves[i] = self.leaves[i]\n", NUMPY,
    ),
    Mutant(
        "flat", "a sparse gradient comes back as its values alone", FLAT,
        "[leaf if rebuild is None else rebuild(leaf) for", "[leaf for",
        of("torch", "test_sparse_gives_what_dense_gives_and_stays_sparse"),
    ),
    Mutant(
        "flat", "norms measured before a value clip are used after it", FLAT,
        "factor=factor, measured={})", "factor=factor, measured=self.measured)", NUMPY,
    ),
    Mutant(
        "flat", "norms measured before a value clip of some gradients are used after it", FLAT,
        "{key: norm for key, norm in self.measured.items() if key[1] >= 0 and keep[key[1]]}", "self.measured", NUMPY,
    ),
    Mutant(
        "flat", "norms measured in order 2 are used for every order", FLAT,
        "self.measured.get((ord, -1))", "self.measured.get((2, -1))", NUMPY,
    ),
    Mutant(
        "flat", "norms of chosen gradients are given to the wrong ones", FLAT,
        "new, index=position)", "new, index=len(missing) - 1 - position)", NUMPY,
    ),
    Mutant(
        "flat", "all float32 norms are compared as float64 ones", FLAT,
        "formula = formulas.limit_single if norm.single else formulas.limit_double", "formula = formulas.limit_double",
        (*of("torch", "test_the_derivative_at_the_limit_is_one"), *of("numpy", "test_limits_of_any_dtype")),
    ),
    Mutant(
        "flat", "all float64 norms are compared as float32 ones", FLAT,
        "formula = formulas.limit_single if norm.single else formulas.limit_double", "formula = formulas.limit_single",
        NUMPY,
    ),
    Mutant(
        "flat", "one float32 gradient makes the comparison of the global norm one in float32", FLAT,
        "or all(self.source.dtypes[i] in SINGLE for", "or any(self.source.dtypes[i] in SINGLE for", NUMPY,
    ),
    Mutant(
        "flat", "powers of norms are summed at any size", FLAT,
        "plain = single and self.factor is None and ord in (1, 2, math.inf)", "plain = True", NUMPY,
    ),
    Mutant(
        "flat", "a mask inside of a mask chooses what the outer one left out", FLAT,
        "self.source.mask(map(operator.and_, mask, self.scope))", "self.source.mask(mask)", NUMPY,
    ),
    Mutant(
        "flat", "paths after a None are those of the gradients before them", SOURCE,
        "return [paths[slot] for slot in self.kept]", "return paths[: len(self.kept)]", NUMPY,
    ),
    Mutant(
        "flat", "an adapter is told of no stopped gradient", FLAT,
        "{self.source.kept[i] for i in self._places(self.stopped)}",
        "{self.source.kept[i] for i in self._places(self.stopped) if i < 0}",
        of("torch", "test_frozen_parameters_stay_bit_by_bit"),
    ),
    Mutant(
        "flat", "gradients come out in a wider dtype than they came in", FLAT,
        "return leaf if leaf.dtype == given.dtype else self.backend.cast(leaf, given)", "return leaf", NUMPY,
    ),
    Mutant(
        "flat", "one array of a transform's own makes all be written in place", FLAT,
        "self.source.everything or all(self.owned[i] for i in places)",
        "self.source.everything or any(self.owned[i] for i in places)", NUMPY,
    ),
    Mutant(
        "flat", "what a transform gave back as it was is its own", FLAT,
        "made = map(operator.is_not, new, self.leaves)", "made = self.source.everything", NUMPY,
    ),
    Mutant(
        "flat", "what a transform of some gradients gave back as it was is its own", FLAT,
        "mine[i] or leaf is not leaves[i], leaf, False", "True, leaf, False", NUMPY,
    ),
    Mutant(
        "flat", "a mask of some gradients is one of none", SOURCE,
        "found if any(found) else self.nothing", "self.nothing", NUMPY,
    ),
    Mutant(
        "flat", "gradients after a None stand in its place", SOURCE,
        "kept = [i for i, slot in enumerate(slots) if slot is not None]\n        leaves = [slots[i] for i in kept]",
        "leaves = [slot for slot in slots if slot is not None]\n        kept = range(len(leaves))", NUMPY,
    ),
    Mutant(
        "flat", "float0 is taken for a gradient", SOURCE,
        "if _VOID in dtypes:", "if None in dtypes:", of("jax", "test_float0_passes_through"),
    ),
    Mutant(
        "flat", "gradients after a float0 stand in its place", SOURCE,
        "kept, leaves, dtypes = [kept[i] for i in held],", "kept, leaves, dtypes = kept[: len(held)],",
        of("jax", "test_float0_passes_through"),
    ),
    Mutant(
        "flat", "beside a float0, gradients after a None stand in its place", SOURCE,
        "kept, leaves, dtypes = [kept[i] for i in held],", "kept, leaves, dtypes = held,",
        ("tests/test_jax.py", "-k", "float0 or holes"),
    ),
    Mutant(
        "flat", "gradients of several dtypes are all of the first one's", SOURCE,
        "[names[kind] for kind in kinds]", "[names[kinds[0]] for kind in kinds]", NUMPY,
    ),
)  # fmt: skip

ARITHMETIC = (
    Mutant(
        "formulas", "at its limit a gradient is not within it", FORMULAS,
        "(rounded_norm <= ", "(rounded_norm < ", NUMPY,
    ),
    Mutant(
        "formulas", "infinity is a limit as any other", FORMULAS,
        " | (max_norm >= _INF)\n", "\n", NUMPY,
    ),
    Mutant(
        "formulas", "a negative limit turns the gradient round", FORMULAS,
        "factor = xp.where(max_norm < 0, 0.0, max_norm) / divisor", "factor = max_norm / divisor", NUMPY,
    ),
    Mutant(
        "formulas", "zeros are beyond a negative limit", FORMULAS,
        "xp.where(rounded_max < 0, 0.0, rounded_max)", "rounded_max", of("jax", TRACED),
    ),
    Mutant(
        "formulas", "an infinite norm is divided by", FORMULAS,
        'xp.where(xp.isfinite(divisor), factor, float("nan"))', "factor", NUMPY,
    ),
    Mutant(
        "formulas", "the limit is taken for one", FORMULAS,
        "xp.where(max_norm < 0, 0.0, max_norm) / divisor", "xp.where(max_norm < 0, 0.0, 1.0) / divisor", NUMPY,
    ),
    Mutant(
        "formulas", "gradients within the limit are scaled as well", FORMULAS,
        "return xp.where(within, 1.0, xp.where(", "return xp.where(max_norm == _INF, 1.0, xp.where(", NUMPY,
    ),
    Mutant(
        "formulas", "a limit that float32 cannot hold is rounded to it", FORMULAS,
        "xp.where(fits, limit, max_norm)", "limit", NUMPY,
    ),
    Mutant(
        "formulas", "a limit that is an array may be negative", FORMULAS,
        "return xp.where(bound < 0, 0.0, bound)", "return bound", NUMPY,
    ),
    Mutant(
        "formulas", "in a tree of two dtypes all is compared in float64", FORMULAS,
        "xp.where(xp.mask(single), limit_single(xp, norm, max_norm), limit_double(xp, norm, max_norm))",
        "limit_double(xp, norm, max_norm)", NUMPY,
    ),
    Mutant(
        "formulas", "the largest norm is found without the NaN", FORMULAS,
        'xp.where(xp.any(is_nan(xp, norms)), float("nan"), xp.max(norms))',
        "xp.max(xp.where(is_nan(xp, norms), 0.0, norms))", NUMPY,
    ),
    Mutant(
        "formulas", "the largest norm is left to the framework's max, which may lose a NaN", FORMULAS,
        'xp.where(xp.any(is_nan(xp, norms)), float("nan"), xp.max(norms))', "xp.max(norms)",
        of("primitives", *(f"test_a_nan_under_tensorflows_xla_is_never_lost[{ord}]" for ord in ("3", "inf"))),
    ),
    Mutant(
        "formulas", "every root is a square root", FORMULAS,
        "root = xp.sqrt(safe) if ord == 2 else safe ** (1.0 / ord)", "root = xp.sqrt(safe)", NUMPY,
    ),
    Mutant(
        "formulas", "the sum of squares is not brought back to its unit", FORMULAS,
        "return unit * _total(xp, norms / unit, ord)", "return _total(xp, norms / unit, ord)", NUMPY,
    ),
    Mutant(
        "formulas", "a negative pending factor makes a norm negative", FORMULAS,
        "return norms * xp.abs(factor)", "return norms * factor", NUMPY,
    ),
    Mutant(
        "pairs", "a quotient is one of float64 numbers", PAIRS,
        "return self._sum(quotient, rest.high / other.high)", "return Number(self.xp, quotient)",
        of("primitives", "test_float64_factors_are_rounded_once"),
    ),
    Mutant(
        "pairs", "a product has the low halves of neither factor", PAIRS,
        "cross = self.high * other.low + self.low * other.high", "cross = 0.0 * self.high",
        of("primitives", "test_float64_factors_are_rounded_once"),
    ),
    Mutant(
        "pairs", "a sum over an odd number of gradients leaves one out", PAIRS,
        "return total if odd is None else total + odd", "return total",
        table("jax-eager", "clip_global_norm(1.0)"),
    ),
    Mutant(
        "pairs", "a negative factor makes a norm negative", PAIRS,
        "return self.where(x.high < 0, Number(self.xp, -x.high, -x.low), x)", "return x",
        of("primitives", "test_cases[7-jax]"),
    ),
    Mutant(
        "pairs", "float64 numbers are added with the rounding of each addition", PAIRS,
        "upper = xp.stop_gradient((values + grid) - grid)", "upper = values",
        (*table("tensorflow-eager", CLIP_NORM, CLIP_1), *table("jax-eager", CLIP_NORM, CLIP_1)),
    ),
    Mutant(
        "pairs", "a sum that is not finite becomes NaN", PAIRS,
        "xp.where(sound, high, plain)", "high", table("tensorflow-eager", CLIP_NORM, CLIP_1),
    ),
    Mutant(
        "pairs", "the sum of squares leaves out the lower halves of the numbers", PAIRS,
        "add((part - head) * (part + head))", "0.0 * add(part)", table("tensorflow-eager", CLIP_NORM),
    ),
    Mutant(
        "pairs", "a square root is one of float64 numbers", PAIRS,
        "return x._sum(near, rest.high / (2.0 * near))", "return root",
        of("primitives", "test_float64_factors_are_rounded_once"),
    ),
    Mutant(
        "host", "limits and factors are rounded to float32", HOST,
        "is float:\n        return operand", "is float:\n        return float(np.float32(operand))", NUMPY,
    ),
    Mutant(
        "host", "limits that are arrays are rounded to float32", HOST,
        "return float(operand)", "return float(np.float32(operand))",
        of("numpy", "test_an_array_limit_keeps_its_digits"),
    ),
    Mutant(
        "host", "norms of more than float64's precision are rounded to it", HOST,
        "(isinstance(operand, np.ndarray) and operand.dtype == np.longdouble)", "False", NUMPY,
    ),
    Mutant(
        "host", "a norm that is one number is not rounded to float32 to be compared", HOST,
        "ctypes.c_float(x).value", "x", NUMPY,
    ),
)  # fmt: skip

_BACKEND, _NORMS = "backends/gradxform_numpy/backend.py", HOST_NORMS
ON_NUMPY = (
    Mutant(
        "numpy.flatten", "None is no leaf", _BACKEND,
        "optree.tree_flatten(tree, none_is_leaf=True)", "optree.tree_flatten(tree, none_is_leaf=False)", NUMPY,
    ),
    Mutant(
        "numpy.paths", "the field of a namedtuple is its number", _BACKEND,
        'str(entry.field if hasattr(entry, "field") else entry.entry)', "str(entry.entry)", NUMPY,
    ),
    Mutant(
        "numpy.adopt", "a number becomes float32", _BACKEND,
        "return np.asarray(leaf)\n\n\ndef dtype", "return np.asarray(leaf, np.float32)\n\n\ndef dtype", NUMPY,
    ),
    Mutant(
        "numpy.dtype", "the byte order is part of the name", _BACKEND,
        "else str(leaf.dtype.name)", "else str(leaf.dtype)", NUMPY,
    ),
    Mutant(
        "numpy.shape", "the axes are the other way round", _BACKEND,
        "return tuple(leaf.shape)", "return tuple(leaf.shape[::-1])",
        of("primitives", "test_bounds_broadcast_along_the_last_axes[numpy]"),
    ),
    Mutant(
        "numpy.norms", "threads give their results in the order of their shares", _THREADS,
        "out[i] = function(items[i])", "out[out.index(None)] = function(items[i])", THREADED,
    ),
    Mutant(
        "numpy.norms", "what the other threads were given is not waited for", _THREADS,
        "wait([other for other in others if other is not None])", "pass", THREADED,
    ),
    Mutant(
        "numpy.norms", "after a fork, the threads of the parent are waited for", _THREADS,
        "    _pool = None\n\n\nif", "    _pool = _pool\n\n\nif", THREADED,
    ),
    Mutant(
        "numpy.norms", "warnings of other threads get through", _THREADS,
        "contextvars.copy_context().run, work, share", "work, share", THREADED,
    ),
    Mutant(
        "numpy.multiply", "arrays that share memory are multiplied at once", _BACKEND,
        "own = all([leaf.base is None for leaf in leaves])", "own = True",
        of("threads", "test_views_of_one_memory_are_multiplied_one_after_the_other"),
    ),
    Mutant(
        "numpy.norms", "a complex number counts by its real part", _NORMS,
        "return flat.view(flat.real.dtype) if ord == 2 else", "return flat.real if ord == 2 else", NUMPY,
    ),
    Mutant(
        "numpy.norms", "a complex number counts by its real part in other orders", _NORMS,
        "np.abs(flat.astype(np.clongdouble))", "np.abs(flat.real.astype(np.longdouble))", NUMPY,
    ),
    Mutant(
        "numpy.norms", "squares are summed in the gradient's dtype", _NORMS,
        "yield flat[start : start + _BLOCK].astype(np.float64)", "yield flat[start : start + _BLOCK]", NUMPY,
    ),
    Mutant(
        "numpy.norms", "rows are added in float32", _NORMS,
        "np.add.reduce(sums, dtype=np.float64)", "np.add.reduce(sums)", large("numpy"),
    ),
    Mutant(
        "numpy.norms", "the elements after the last whole row are left out", _NORMS,
        "else total + _dot64(flat[cut:].astype(np.float64))", "else total", large("numpy"),
    ),
    Mutant(
        "numpy.norms", "heavy rows are not summed again", _NORMS,
        " and np.maximum.reduce(sums) < total * _HEAVY)", ")", large("numpy"),
    ),
    Mutant(
        "numpy.norms", "a float32 sum that left its range is not summed again", _NORMS,
        "if not rows.size * _ONLY_ROUNDING_LOST < total < math.inf:", "if total < 0:", large("numpy"),
    ),
    Mutant(
        "numpy.norms", "a float64 sum that left its range is not summed again", _NORMS,
        "flat.size * 2.0**-960 < total < math.inf or math.isnan(total):", "total >= 0 or math.isnan(total):", NUMPY,
    ),
    Mutant(
        "numpy.norms", "the squares of a small gradient are summed in its dtype", _NORMS,
        "math.sqrt(_dot64(flat.astype(np.float64)))", "math.sqrt(_dot64(flat))", NUMPY,
    ),
    Mutant(
        "numpy.norms", "the gradient at which a run of small ones is cut is left out", _NORMS,
        "yield places[first : end + 1]", "yield places[first:end]", NUMPY,
    ),
    Mutant(
        "numpy.norms", "the run of small gradients after the last cut is left out", _NORMS,
        "if first < len(places):", "if first == 0 and places:",
        of("primitives", "test_many_leaves_of_few_sizes_have_each_their_own_norm[14-numpy-eager]"),
    ),
    Mutant(
        "numpy.norms", "small gradients read together have one another's sizes", _NORMS,
        "[sizes[i] for i in run]", "[sizes[i - 1] for i in run]", NUMPY,
    ),
    Mutant(
        "numpy.norms", "an empty gradient among small ones has the norm of the next one", _NORMS,
        "np.zeros(len(lengths)), lengths > 0", "np.zeros(len(lengths)), lengths >= 0", NUMPY,
    ),
    Mutant(
        "numpy.norms", "beside many small gradients, a large one is left out", _NORMS,
        "if len(small) < len(leaves):", "if not small:", NUMPY,
    ),
    Mutant(
        "numpy.norms", "small gradients are read together in float32", _NORMS,
        'axis=None, dtype=np.float64, casting="unsafe")', 'axis=None, dtype=np.float32, casting="unsafe")', NUMPY,
    ),
    Mutant(
        "numpy.norms", "float64 squares are summed in one run", _NORMS,
        "return np.sum(np.vecdot(rows, rows), dtype=np.longdouble) + _dot64(flat[cut:])", "return _dot64(flat)",
        of("primitives", "test_a_float64_sum_does_not_drift[numpy]"),
    ),
    Mutant(
        "numpy.norms", "the norm of zeros of another order is NaN", _NORMS,
        "if ord == math.inf or not 0 < largest < math.inf:", "if ord == math.inf:", NUMPY,
    ),
    Mutant(
        "numpy.norms", "signs cancel in the 1-norm", _NORMS,
        "np.sum(np.abs(block).reshape(-1), dtype=np.longdouble)", "np.sum(block.reshape(-1), dtype=np.longdouble)",
        NUMPY,
    ),
    Mutant(
        "numpy.norms", "the largest element, not the largest size", _NORMS,
        "largest = np.max(np.abs(flat)).astype(np.float64)", "largest = np.max(flat).astype(np.float64)", NUMPY,
    ),
    Mutant(
        "numpy.norm_over", "sums are in the gradient's dtype", _NORMS,
        'if array.dtype.kind == "c" else array).astype(wide)', 'if array.dtype.kind == "c" else array)', NUMPY,
    ),
    Mutant(
        "numpy.norm_over", "a complex number counts by its real part", _NORMS,
        'np.abs(array.astype(np.clongdouble) if array.dtype.kind == "c" else array)', "np.abs(array.real)", NUMPY,
    ),
    Mutant(
        "numpy.norm_over", "the 2-norm is over the last of the axes only", _NORMS,
        "((size / unit) ** ord).sum(axis=axes, keepdims=True)",
        "((size / unit) ** ord).sum(axis=axes[-1:], keepdims=True)",
        NUMPY,
    ),
    Mutant(
        "numpy.norm_over", "a slice of zeros is divided by zero", _NORMS,
        "unit = np.where((largest > 0) & np.isfinite(largest), largest, wide(1))", "unit = largest", NUMPY,
    ),
    Mutant(
        "numpy.multiply", "extreme factors are rounded to float32", _BACKEND,
        "ordinary = _is_ordinary(factor)", "ordinary = True", NUMPY,
    ),
    Mutant(
        "numpy.multiply", "an extreme factor for all gradients is rounded to float32", _BACKEND,
        " or not _is_ordinary(factor):", ":", NUMPY,
    ),
    Mutant(
        "numpy.multiply", "one factor for all is written into the user's arrays", _BACKEND,
        "if inplace:\n", "if True:\n", NUMPY,
    ),
    Mutant(
        "numpy.multiply", "gradients within their limit are written", _BACKEND,
        "[leaf if f == 1 else _times(leaf, f, inplace) for", "[_times(leaf, f, inplace) for", NUMPY,
    ),
    Mutant(
        "numpy.multiply", "infinity times a real factor is taken for a complex product", _BACKEND,
        "_as_given(leaf, _by_parts(leaf, lambda part: _times(part, factor, False)), out)",
        "_as_given(leaf, leaf * leaf.dtype.type(factor), out)", NUMPY,
    ),
    Mutant(
        "numpy.multiply", "a pure call writes into the user's arrays", _BACKEND,
        "out = leaf if inplace and isinstance(leaf, np.ndarray) else None\n    kind = dtype(leaf)",
        "out = leaf if isinstance(leaf, np.ndarray) else None\n    kind = dtype(leaf)", NUMPY,
    ),
    Mutant(
        "numpy.multiply", "the factor is rounded to float16 and bfloat16", _BACKEND,
        'if kind == "float64" or (kind == "float32" and ordinary):', 'if kind == "float64" or ordinary:', NUMPY,
    ),
    Mutant(
        "numpy.multiply_over", "the factor is rounded to the gradient's dtype", _BACKEND,
        "(part.astype(np.float64) * factor).astype(part.dtype)", "part * factor.astype(part.dtype)", NUMPY,
    ),
    Mutant(
        "numpy.multiply_over", "a pure call writes into the user's arrays", _BACKEND,
        "return _as_given(leaf, result, leaf if inplace and", "return _as_given(leaf, result, leaf if", NUMPY,
    ),
    Mutant(
        "numpy.clip", "a NaN becomes the lower bound in bfloat16", _BACKEND,
        "zip(bounds, (np.maximum, np.minimum), strict=True)", "zip(bounds, (np.fmax, np.fmin), strict=True)", NUMPY,
    ),
    Mutant(
        "numpy.clip", "a NaN becomes zero", _BACKEND,
        "found = leaf.clip(*bounds, out)", "found = np.where(np.isnan(leaf), 0, leaf).clip(*bounds, out)", NUMPY,
    ),
    Mutant(
        "numpy.clip", "the factor is forgotten", _BACKEND,
        "for leaf in leaves], factors, inplace)", "for leaf in leaves], 1.0, inplace)", NUMPY,
    ),
    Mutant(
        "numpy.clip", "a pure call writes into the user's arrays", _BACKEND,
        "inplace or new is not old)", "True)", NUMPY,
    ),
    Mutant(
        "numpy.clip", "a pure call writes into those of the user's arrays whose factor was one", _BACKEND,
        "inplace or new is not old)", "inplace or factors is not None)", NUMPY,
    ),
    Mutant("numpy.cast", "nothing is rounded", _BACKEND, "return leaf.astype(like.dtype)", "return leaf", NUMPY),
    Mutant("numpy.zeros", "zero times the gradient", _BACKEND, "np.zeros_like(leaf) if", "leaf * 0 if", NUMPY),
    Mutant(
        "numpy.compute", "vectors are rounded to float32", _BACKEND,
        "return _host.compute(formula, *operands, **static)",
        "return _host.compute(formula, *(np.float32(operand) for operand in operands), **static)", NUMPY,
    ),
    Mutant(
        "numpy.from_numpy", "imaginary parts are lost", _BACKEND, "return array\n", "return array.real\n", NUMPY,
    ),
    Mutant(
        "numpy.to_numpy", "imaginary parts are lost", _BACKEND,
        'The array itself."""\n    return np.asarray(leaf)', 'The array itself."""\n    return np.asarray(leaf).real',
        NUMPY,
    ),
    Mutant(
        "numpy.apply_", "an array that is in the tree twice is scaled twice", "backends/gradxform_numpy/_inplace.py",
        "[leaf if once[id(leaf)] == i else None for i, leaf in enumerate(leaves)]", "list(leaves)", NUMPY,
    ),
    Mutant(
        "numpy.apply_", "new arrays are not written into the old ones", "backends/gradxform_numpy/_inplace.py",
        "if old is not None and new is not old:", "if old is None and new is not old:", NUMPY,
    ),
)  # fmt: skip

_BACKEND, _NORMS = "backends/gradxform_jax/backend.py", "backends/gradxform_jax/_norms.py"
_EACH = "backends/gradxform_jax/_each.py"
ON_JAX = (
    Mutant(
        "jax.flatten", "None is no leaf", _BACKEND,
        "tree_flatten(tree, is_leaf=_is_none)", "tree_flatten(tree)",
        of("jax", "test_holes_stay_where_they_are", "test_a_registered_dataclass")
        + of("matching", "test_one_pattern_serves_every_framework[jax]"),
    ),
    Mutant(
        "jax.paths", "keys are joined by dots", _BACKEND, 'separator="/"', 'separator="."',
        of("matching", "test_one_pattern_serves_every_framework[jax]"),
    ),
    Mutant(
        "jax.adopt", "everything becomes float32", _BACKEND,
        "jax.dtypes.float0 else jnp.asarray(leaf)", "jax.dtypes.float0 else jnp.asarray(leaf, jnp.float32)",
        of("primitives", "test_numpy_arrays_beside_tensors_keep_their_dtype[float16-jax]")
        + of("jax", "test_float0_passes_through"),
    ),
    Mutant(
        "jax.dtype", "float0 has no name of its own", _BACKEND,
        'return "float0" if leaf.dtype == jax.dtypes.float0 else str(leaf.dtype)', "return str(leaf.dtype)",
        of("jax", "test_float0_passes_through"),
    ),
    Mutant(
        "jax.dtype", "complex numbers are given out as real ones", _BACKEND,
        "jax.dtypes.float0 else str(leaf.dtype)",
        'jax.dtypes.float0 else str(leaf.dtype).replace("complex64", "float32").replace("complex128", "float64")',
        of("primitives", "test_a_complex_gradient_has_no_order[clip_value(1.0)-jax]"),
    ),
    Mutant(
        "jax.shape", "the axes are the other way round", _BACKEND,
        "return tuple(leaf.shape)", "return tuple(leaf.shape[::-1])",
        of("primitives", "test_bounds_broadcast_along_the_last_axes[jax]"),
    ),
    Mutant(
        "jax.norms", "a complex number counts by its real part", _NORMS,
        "jnp.square(wide.real) + jnp.square(wide.imag) if", "jnp.square(wide.real) if", JAX_NORM,
    ),
    Mutant(
        "jax.norms", "squares are summed in the gradient's dtype", _NORMS,
        "wide = _wide(leaf)\n    return jnp.square", "wide = leaf\n    return jnp.square", JAX_NORM,
    ),
    Mutant(
        "jax.norms", "small gradients of one size change places with others", _NORMS,
        "if order != sorted(order):", "if len(order) < 0:", JAX_SMALL,
    ),
    Mutant(
        "jax.norms", "small gradients of one size have a norm in common", _NORMS,
        ".reshape(len(group), -1), axis=1)", ".reshape(len(group), -1)) * jnp.ones(len(group))", JAX_SMALL,
    ),
    Mutant(
        "jax.norms", "large gradients with one heavy row are not summed again", _NORMS,
        "& (heaviest < totals * _HEAVY)", "& (heaviest < totals * 2.0)", JAX_LARGE,
    ),
    Mutant(
        "jax.norms", "large gradients that left float32's range are not summed again", _NORMS,
        "sound = jnp.isfinite(totals) &", "sound = (totals == 0.0) | jnp.isinf(totals) |", JAX_LARGE,
    ),
    Mutant(
        "jax.norms", "large gradients whose squares are lost are not summed again", _NORMS,
        "sound = jnp.isfinite(totals) & (totals > least)", "sound = jnp.isfinite(totals)", JAX_LARGE,
    ),
    Mutant(
        "jax.norms", "rows are added in float32", _NORMS,
        "jnp.sum(lax.convert_element_type(rows, np.float64)) for rows in sums",
        "lax.convert_element_type(jnp.cumsum(rows)[-1], np.float64) for rows in sums", JAX_LARGE,
    ),
    Mutant(
        "jax.norms", "where a large gradient is summed again, its first block is left out", _NORMS,
        "lax.fori_loop(0, ", "lax.fori_loop(1, ", JAX_LARGE,
    ),
    Mutant(
        "jax.norms", "the derivative of the 2-norm is not divided by it", _NORMS,
        " / jnp.where(norm > 0, norm, 1.0) * _along(", " * _along(",
        of("jax", "test_derivatives_without_64_bits_are_those_of_the_formula_with_them"),
    ),
    Mutant(
        "jax.norms", "large gradients among many have the norm of the first", _NORMS,
        "i: squares[place] for place, i", "i: squares[0] for place, i", JAX_EACH,
    ),
    Mutant(
        "jax.norms", "the derivatives of many norms are those of the first", _NORMS,
        "return values, tuple(map(_change, leaves, changes, values))",
        "return values, tuple(map(_change, leaves, changes, values[:1] * len(leaves)))",
        of("primitives", "test_derivatives_of_many_leaves"),
    ),
    Mutant(
        "jax.compute", "of many numbers, other places are taken", _EACH,
        "Each([numbers[i] for i in index])", "Each(numbers[: len(index)])", JAX_EACH,
    ),
    Mutant(
        "jax.compute", "gradients out of scope are given factors among many", _EACH,
        "Each([n if active else 1.0 for", "Each([n for",
        of("primitives", "test_many_leaves[jax-eager-chain(clip_norm(5.0), masked(clip_norm(1.0), '**/w'))-one]"),
    ),
    Mutant(
        "jax.compute", "a vector beside many numbers counts by its first", _EACH,
        "else [wide[i] for i in range(count)]", "else [wide[0] for i in range(count)]",
        of("primitives", "test_many_leaves[jax-eager-chain(clip_norm(5.0, ord=1), clip_norm(1.0))-one]"),
    ),
    Mutant(
        "jax.norms", "a float64 sum that left its range is not summed again", _NORMS,
        "return lax.cond(trusted, lambda", "return lax.cond(trusted | True, lambda", JAX_NORM,
    ),
    Mutant(
        "jax.norms", "the norm of zeros of another order is NaN", _NORMS,
        "unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)", "unit = largest",
        table("jax-eager", CLIP_3),
    ),
    Mutant(
        "jax.norms", "the largest is left to XLA's max, which may lose a NaN", _NORMS,
        "largest = jnp.where(lost, np.nan, jnp.max(size, axis=axes, keepdims=axes is not None))",
        "largest = jnp.max(size, axis=axes, keepdims=axes is not None)",

        of(
            "primitives",
            *(f"test_a_nan_in_a_large_leaf_is_never_lost[{case}-jax]" for case in ("None-inf", "0-inf", "0-3")),
        ),
    ),
    Mutant(
        "jax.norms", "the derivative of a norm of order 3 has the wrong power", _NORMS,
        "_power(share, ord - 1)", "_power(share, ord)",
        of("jax", "test_derivatives_against_finite_differences[beyond-clip_norm, ord 3]"),
    ),
    Mutant(
        "jax.norms", "the derivative takes the gradient for its conjugate", _NORMS,
        "jnp.conj(jnp.sign(_wide(leaf)))", "jnp.sign(_wide(leaf))",
        of("jax", "test_the_derivative_of_a_complex_gradient"),
    ),
    Mutant(
        "jax.norm_over", "the norm is over the first of the axes only", _BACKEND,
        "tuple(axis % leaf.ndim for axis in axes), ord)", "tuple(axis % leaf.ndim for axis in axes)[:1], ord)",
        table("jax-eager", AXES),
    ),
    Mutant(
        "jax.norm_over", "all slices are measured in the unit of the largest", _NORMS,
        "largest = jnp.max(_size(leaf), axis=axes, keepdims=True)",
        "largest = jnp.max(_size(leaf) * 0.0 + jnp.max(_size(leaf)), axis=axes, keepdims=True)",
        of("primitives", "test_slices_of_very_different_sizes[jax]"),
    ),
    Mutant(
        "jax.multiply", "extreme factors are rounded to float32", _BACKEND,
        "coarse = jnp.where(jnp.abs(factor) < below, power,", "coarse = jnp.where(jnp.abs(factor) < below, 1.0,",
        JAX_NORM,
    ),
    Mutant(
        "jax.multiply", "XLA makes one float32 constant of the two halves of a factor", _BACKEND,
        "lax.optimization_barrier(_halves(factors))", "_halves(factors)",
        of("primitives", "test_extreme_factors_compiled[1e-44-jax]"),
    ),
    Mutant(
        "jax.multiply", "only the real part is multiplied", _BACKEND,
        "lax.complex(scaled(leaf.real), scaled(leaf.imag))", "lax.complex(scaled(leaf.real), leaf.imag)",
        table("jax-eager", "scale(0.3)"),
    ),
    Mutant(
        "jax.multiply", "gradients within their limit are multiplied", _BACKEND,
        "jnp.where(untouched, leaf, product)", "product",
        of("primitives", "test_subnormal_gradients_within_the_limit_stay[clip_norm-jax]"),
    ),
    Mutant(
        "jax.multiply", "each gradient has the factor of the first", _BACKEND,
        "[numbers[i] for i in range(count)]", "[numbers[0] for i in range(count)]", JAX_NORM,
    ),
    Mutant(
        "jax.multiply_over", "the factor is rounded to float32", _BACKEND,
        "return jax.jit(_times_over)(leaf, factor)",
        "return jax.jit(_times_over)(leaf, factor.astype(np.float32).astype(np.float64))", table("jax-eager", AXIS),
    ),
    Mutant(
        "jax.clip", "a NaN becomes the lower bound", _BACKEND,
        "((low, jnp.less), (high, jnp.greater))", "((low, lambda x, b: ~(x >= b)), (high, jnp.greater))", JAX_VALUE,
    ),
    Mutant(
        "jax.clip", "a bound that is NaN is no bound", _BACKEND,
        "beyond(leaf, own) | (own != own)", "beyond(leaf, own)",
        of("primitives", "test_a_nan_bound_gives_nan[jax]"),
    ),
    Mutant(
        "jax.clip", "of two bounds that cross, the lower wins", _BACKEND,
        "((low, jnp.less), (high, jnp.greater))", "((high, jnp.greater), (low, jnp.less))",
        of("flat", "test_bounds_that_are_arrays_or_cross[jax]"),
    ),
    Mutant(
        "jax.clip", "the factor is forgotten", _BACKEND,
        "scaled = leaves if factors is None else", "scaled = leaves if True else", JAX_VALUE,
    ),
    Mutant(
        "jax.clip", "a weak type becomes a strong one", _BACKEND,
        "leaf = _weak_as(leaf, jnp.where(beyond(leaf, own) | (own != own), own, leaf))",
        "leaf = jnp.where(beyond(leaf, own) | (own != own), own, leaf)",
        of("jax", "test_weak_types_stay_weak[False-chain]"),
    ),
    Mutant(
        "jax.cast", "nothing is rounded", _BACKEND,
        "return _weak_as(like, lax.convert_element_type(leaf, like.dtype))", "return leaf", JAX_VALUE,
    ),
    Mutant(
        "jax.zeros", "zero times the gradient", _BACKEND, "jnp.zeros_like(leaf) for", "leaf * 0 for",
        table("jax-eager", "stop()"),
    ),
    Mutant(
        "jax.compute", "limits and factors are rounded to float32", _BACKEND,
        "else lax.convert_element_type(operand, np.float64)",
        "else lax.convert_element_type(lax.convert_element_type(operand, np.float32), np.float64)",
        table("jax-eager", "scale(0.3)"),
    ),
    Mutant(
        "jax.from_numpy", "64 bits are lost", _BACKEND,
        "with jax.enable_x64(True):\n        return jnp.asarray(array)",
        "with jax.enable_x64(False):\n        return jnp.asarray(array)", table("jax-eager", "identity()"),
    ),
    Mutant(
        "jax.to_numpy", "imaginary parts are lost", _BACKEND, "return np.asarray(leaf)\n",
        "return np.asarray(leaf).real\n",
        table("jax-eager", "identity()"),
    ),
    Mutant(
        "jax.freeze", "the update of a frozen parameter is a positive zero", "backends/gradxform_jax/_optax.py",
        "jax.numpy.full_like(g, -0.0)", "jax.numpy.full_like(g, 0.0)",
        of("jax", "test_freeze_leaves_a_negative_zero_as_it_is"),
    ),
    Mutant(
        "jax.freeze", "frozen updates are zero times the gradient", "backends/gradxform_jax/_optax.py",
        "jax.numpy.full_like(g, -0.0)", "-0.0 * g", of("jax", "test_freeze_shuts_out_a_nan"),
    ),
    Mutant(
        "jax.as_optax", "extra arguments are not handed on", FOREIGN,
        "extra = context.extra if _takes_extra(tx) else {}", "extra: dict[str, Any] = {}",
        of("jax", "test_as_optax_hands_on_extra_arguments"),
    ),
)  # fmt: skip

_BACKEND, _NORMS = "backends/gradxform_tensorflow/backend.py", "backends/gradxform_tensorflow/_norms.py"
_MULTIPLY, _CASTING = "backends/gradxform_tensorflow/_multiply.py", "backends/gradxform_tensorflow/_casting.py"
_PACKING, _EAGER = (f"backends/gradxform_tensorflow/{name}.py" for name in ("_packing", "_eager"))
ON_TENSORFLOW = (
    Mutant(
        "tensorflow.flatten", "None is no leaf", _BACKEND,
        "return tf.nest.flatten(tree), tree",
        "return [leaf for leaf in tf.nest.flatten(tree) if leaf is not None], tree",
        of("tensorflow", "test_a_tree_with_none_and_its_structure"),
    ),
    Mutant(
        "tensorflow.paths", "keys are joined by dots", _BACKEND, '"/".join(map(str, keys))', '".".join(map(str, keys))',
        of("matching", "test_one_pattern_serves_every_framework[tensorflow]"),
    ),
    Mutant(
        "tensorflow.adopt", "everything becomes float32", _BACKEND,
        "return tf.convert_to_tensor(leaf)\n\n\ndef dtype",
        "return tf.convert_to_tensor(leaf, tf.float32)\n\n\ndef dtype",
        of("primitives", "test_numpy_arrays_beside_tensors_keep_their_dtype[float16-tensorflow]"),
    ),
    Mutant(
        "tensorflow.dtype", "complex numbers are given out as real ones", _BACKEND,
        "return str(leaf.dtype.base_dtype.name)", "return str(leaf.dtype.real_dtype.name)",
        of("primitives", "test_a_complex_gradient_has_no_order[clip_value(1.0)-tensorflow]"),
    ),
    Mutant(
        "tensorflow.shape", "a shape that is not known is that of a number", _BACKEND,
        "return None if leaf.shape.rank is None else", "return () if leaf.shape.rank is None else",
        of("primitives", "test_unknown_ranks_with_axes_and_bounds"),
    ),
    Mutant(
        "tensorflow.shape", "the axes are the other way round", _BACKEND,
        "tuple(leaf.shape.as_list())", "tuple(leaf.shape.as_list()[::-1])",
        of("primitives", "test_bounds_broadcast_along_the_last_axes[tensorflow]"),
    ),
    Mutant(
        "tensorflow.dense", "rows that come twice are not summed", _BACKEND,
        "rows, place = tf.unique(leaf.indices)", "rows, place = leaf.indices, tf.range(tf.size(leaf.indices))",
        of("tensorflow", "test_duplicates_are_summed_before_the_norm_is_taken"),
    ),
    Mutant(
        "tensorflow.densify", "rows are put one after the other", _BACKEND,
        "(leaf.values, leaf.indices, leaf.dense_shape[0])",
        "(leaf.values, tf.range(tf.size(leaf.indices)), leaf.dense_shape[0])",
        of("primitives", "test_dense_rows_stand_in_their_places"),
    ),
    Mutant(
        "tensorflow.norms", "a complex number counts by its real part", _NORMS,
        "return [tf.math.real(leaf), tf.math.imag(leaf)] if", "return [tf.math.real(leaf)] if",
        table("tensorflow-eager", CLIP_NORM),
    ),
    Mutant(
        "tensorflow.norms", "squares are summed in the gradient's dtype", _NORMS,
        "tf.nn.l2_loss(tf.cast(part, tf.float64)) for", "tf.cast(tf.nn.l2_loss(part), tf.float64) for",
        table("tensorflow-compiled", CLIP_NORM),
    ),
    Mutant(
        "tensorflow.norms", "a float64 sum that left its range is not summed again", _NORMS,
        "_eager.cond(trusted, lambda", "_eager.cond(trusted | True, lambda", table("tensorflow-eager", CLIP_NORM),
    ),
    Mutant(
        "tensorflow.norms", "large gradients with one heavy row are not summed again", _NORMS,
        "& (heavy < total * _HEAVY)", "& (heavy < total * 2.0)", TF_LARGE,
    ),
    Mutant(
        "tensorflow.norms", "large gradients that left float32's range are not summed again", _NORMS,
        "_eager.cond(tf.reduce_all(sound | tf.math.is_nan(total)),", "_eager.cond(tf.constant(True),",
        TF_LARGE,
    ),
    Mutant(
        "tensorflow.norms", "the elements after the last whole row are left out", _NORMS,
        "totals.append(tf.reduce_sum(rows) + 2.0 * tf.nn.l2_loss(tf.cast(flat[cut:], tf.float64)))",
        "totals.append(tf.reduce_sum(rows))", TF_LARGE,
    ),
    Mutant(
        "tensorflow.norms", "rows are added in float32", _NORMS,
        "totals.append(tf.reduce_sum(rows) +",
        "totals.append(tf.cast(2.0 * tf.nn.l2_loss(tf.sqrt(tf.cast(rows, tf.float32))), tf.float64) +",
        TF_LARGE,
    ),
    Mutant(
        "tensorflow.norms", "small gradients of one size change places with others", _NORMS,
        "tf.gather(whole, np.argsort(order))", "whole", TF_GRAPH,
    ),
    Mutant(
        "tensorflow.norms", "small gradients of other sizes are put together", _NORMS,
        "sizes.setdefault(leaves[i].shape", "sizes.setdefault(leaves[places[0]].shape",
        table("tensorflow-compiled", CLIP_NORM),
    ),
    Mutant(
        "tensorflow.norms", "small gradients of one size have a norm in common", _NORMS,
        "tf.reduce_sum(tf.square(whole), axis=1)", "tf.reduce_sum(tf.square(whole)) * tf.ones(len(group), tf.float64)",
        TF_GRAPH,
    ),
    Mutant(
        "tensorflow.norms", "small gradients are put together in their dtype", _NORMS,
        "yield group, tf.reduce_sum(tf.square(whole), axis=1)",
        "yield group, tf.cast(tf.reduce_sum(tf.square(tf.cast(whole, leaves[group[0]].dtype)), axis=1), tf.float64)",
        TF_GRAPH,
    ),
    Mutant(
        "tensorflow.norms", "values are read where a derivative is recorded", _EAGER,
        "if not tf.executing_eagerly() or record.could_possibly_record():", "if not tf.executing_eagerly():",
        of("tensorflow", "test_derivatives_against_finite_differences"),
    ),
    Mutant(
        "tensorflow.norms", "the largest is left to TensorFlow's max, which may lose a NaN", _NORMS,
        "largest = tf.where(lost, nan, tf.reduce_max(size, axis=axes, keepdims=keep))",
        "largest = tf.reduce_max(size, axis=axes, keepdims=keep)",
        of("primitives", *(f"test_a_nan_under_tensorflows_xla_is_never_lost[{ord}]" for ord in ("3", "inf"))),
    ),
    Mutant(
        "tensorflow.norms", "the norm of zeros of another order is NaN", _NORMS,
        "unit = tf.where(tf.math.is_finite(fixed) & (fixed > 0.0), fixed, tf.ones_like(fixed))", "unit = fixed",
        table("tensorflow-eager", CLIP_3),
    ),
    Mutant(
        "tensorflow.norm_over", "the norm is over the first of the axes only", _BACKEND,
        "return _norms.reduced(leaf, axes, ord)", "return _norms.reduced(leaf, axes[:1], ord)",
        table("tensorflow-eager", AXES),
    ),
    Mutant(
        "tensorflow.norm_over", "the axes do not stay as ones", _NORMS,
        "keep = axes is not None\n", "keep = axes is not None and len(axes) < 2\n",
        of("primitives", "test_cases[15-tensorflow]"),
    ),
    Mutant(
        "tensorflow.multiply", "extreme factors are rounded to float32", _MULTIPLY,
        "((size < _LEAST) & (size > 0.0)) | (size > _MOST)", "tf.zeros_like(size, tf.bool)",
        table("tensorflow-compiled", CLIP_NORM),
    ),
    Mutant(
        "tensorflow.multiply", "gradients within their limit are multiplied", _MULTIPLY,
        "untouched, extreme = tf.equal(factors, 1.0),", "untouched, extreme = tf.zeros_like(factors, tf.bool),",
        TF_GRAPH,
    ),
    Mutant(
        "tensorflow.multiply", "on the host, gradients within their limit are multiplied", _MULTIPLY,
        "if factor != 1:\n            alike", "if factor != -1:\n            alike",
        of("primitives", "test_subnormal_gradients_within_the_limit_stay[clip_norm-tensorflow]"),
    ),
    Mutant(
        "tensorflow.multiply", "on the host, extreme factors are rounded to float32", _MULTIPLY,
        "return 0 < abs(factor) < _LEAST or abs(factor) > _MOST", "return False",
        table("tensorflow-eager", CLIP_NORM),
    ),
    Mutant(
        "tensorflow.multiply", "on the host, float16 is multiplied by a float16 number", _MULTIPLY,
        "plain = leaf.dtype == tf.float64 or (", "plain = leaf.dtype in (tf.float64, tf.float16) or (",
        of("primitives", "test_half_precision_is_rounded_once[tensorflow-float16]"),
    ),
    Mutant(
        "tensorflow.multiply", "small gradients that are put together come back in another order", _MULTIPLY,
        "zip(places, _packing.unpack(new, some), strict=True)",
        "zip(places, _packing.unpack(new, some)[::-1], strict=True)",
        table("tensorflow-compiled", CLIP_NORM),
    ),
    Mutant(
        "tensorflow.multiply", "vectors that are put together come back in another order", _PACKING,
        "zip(parts, leaves, strict=True)", "zip(parts[::-1], leaves, strict=True)",
        TF_GRAPH,
    ),
    Mutant(
        "tensorflow.multiply", "small gradients that are put together come back as vectors", _PACKING,
        "part if leaf.shape.rank == 1 else tf.reshape(part, leaf.shape)", "part",
        table("tensorflow-compiled", "scale(0.3)"),
    ),
    Mutant(
        "tensorflow.multiply", "small gradients that are put together have the factor of the first", _MULTIPLY,
        "return tf.gather(factors, np.repeat(places, [leaf.shape.num_elements() for leaf in leaves]))",
        "return tf.gather(factors, places[0])", table("tensorflow-compiled", CLIP_NORM),
    ),
    Mutant(
        "tensorflow.multiply", "large gradients beside small ones have the factors of the first", _MULTIPLY,
        "else tf.gather(factors, large)", "else factors[: len(large)]", TF_GRAPH,
    ),
    Mutant(
        "tensorflow.multiply", "put together, gradients within their limit are multiplied", _MULTIPLY,
        "tf.where(tf.equal(factors, 1.0), whole, _product(whole, factors, True))", "_product(whole, factors, True)",
        TF_GRAPH,
    ),
    Mutant(
        "tensorflow.multiply", "put together, the factors are rounded to float32", _MULTIPLY,
        "whole, _product(whole, factors, True))", "whole, _product(whole, factors, False))", TF_GRAPH,
    ),
    Mutant(
        "tensorflow.multiply", "beside others, gradients within their limit are multiplied", _MULTIPLY,
        "_eager.select(tf.equal(factor, 1.0), leaf,", "_eager.select(tf.constant(False), leaf,", TF_GRAPH,
    ),
    Mutant(
        "tensorflow.multiply", "the factor is rounded to float16 and bfloat16", _CASTING,
        "return tf.float32 if dtype_ in (tf.float16, tf.bfloat16) else dtype_", "return dtype_",
        of("primitives", "test_half_precision_is_rounded_once[tensorflow-float16]"),
    ),
    Mutant(
        "tensorflow.multiply", "only the real part is multiplied", _MULTIPLY,
        "tf.complex(*(_product(part, factor, wide) for part in (tf.math.real(leaf), tf.math.imag(leaf))))",
        "tf.complex(_product(tf.math.real(leaf), factor, wide), tf.math.imag(leaf))",
        table("tensorflow-eager", "scale(0.3)"),
    ),
    Mutant(
        "tensorflow.multiply_over", "extreme factors are rounded to float32", _MULTIPLY,
        "_product(leaf, factor, True))", "_product(leaf, factor, False))",
        of("primitives", "test_cases[10-tensorflow]"),
    ),
    Mutant(
        "tensorflow.clip", "a NaN becomes the lower bound", _BACKEND,
        "return tf.raw_ops.ClipByValue(t=leaf,", "return tf.raw_ops.ClipByValue(t=tf.where(leaf == leaf, leaf, low),",
        table("tensorflow-eager", "clip_value(0.5)"),
    ),
    Mutant(
        "tensorflow.clip", "the factor is forgotten", _BACKEND,
        "scaled = multiply(wide, factors, inplace)", "scaled = wide", table("tensorflow-eager", SCALED_AND_CLIPPED),
    ),
    Mutant(
        "tensorflow.clip", "of two bounds that cross, the lower wins", _BACKEND,
        "return leaf if high is None else tf.minimum(leaf, high)",
        "leaf = leaf if high is None else tf.minimum(leaf, high)\n    return tf.maximum(leaf, low)",
        of("flat", "test_bounds_that_are_arrays_or_cross[tensorflow]"),
    ),
    Mutant(
        "tensorflow.clip", "bounds are read as float32", _BACKEND,
        "tf.constant(bound, tf.float64), of), to)", "tf.constant(bound, tf.float32), of), to)",
        table("tensorflow-eager", "clip_value(low=0.1, high=0.7)"),
    ),
    Mutant(
        "tensorflow.cast", "nothing is rounded", _BACKEND, "return tf.cast(leaf, like.dtype)", "return leaf",
        table("tensorflow-eager", SCALED_AND_CLIPPED),
    ),
    Mutant(
        "tensorflow.zeros", "zero times the gradient", _BACKEND, "tf.zeros_like(leaf) for", "leaf * 0 for",
        table("tensorflow-eager", "stop()"),
    ),
    Mutant(
        "tensorflow.compute", "limits and factors are rounded to float32", _CASTING,
        "return tf.constant(operand, tf.float64)\n", "return tf.cast(tf.constant(operand, tf.float32), tf.float64)\n",
        table("tensorflow-compiled", "chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))"),
    ),
    Mutant(
        "tensorflow.from_numpy", "imaginary parts are lost", _BACKEND,
        '"""A tensor."""\n    return tf.constant(array)', "return tf.constant(array.real)",
        table("tensorflow-eager", "identity()"),
    ),
    Mutant(
        "tensorflow.to_numpy", "imaginary parts are lost", _BACKEND,
        "return tf.convert_to_tensor(leaf).numpy()", "return tf.convert_to_tensor(leaf).numpy().real",
        table("tensorflow-eager", "identity()"),
    ),
    Mutant(
        "tensorflow.to_numpy", "of a sparse gradient only the values come out", _BACKEND,
        "return tf.convert_to_tensor(leaf).numpy()",
        'return tf.convert_to_tensor(getattr(leaf, "values", leaf)).numpy()',
        of("primitives", "test_dense_rows_stand_in_their_places"),
    ),
    Mutant(
        "tensorflow.apply", "stopped variables are handed to the optimizer", "backends/gradxform_tensorflow/_apply.py",
        "for i, pair in both if i not in skipped]", "for _, pair in both]",
        of("tensorflow", "test_stopped_variables_are_left_out"),
    ),
    Mutant(
        "tensorflow.apply", "a path ends with the output's number", "gradxform/_variables.py",
        '.partition(":")[0]', '.partition("::")[0]',
        of("tensorflow", "test_the_path_of_a_tensorflow_variable_is_its_name"),
    ),
)  # fmt: skip

_BACKEND, _NORMS = "backends/gradxform_torch/backend.py", "backends/gradxform_torch/_norms.py"
_PARAMETERS = "backends/gradxform_torch/_parameters.py"
ON_TORCH = (
    Mutant(
        "torch.flatten", "None is no leaf", _BACKEND,
        "return pytree.tree_flatten(tree)",
        "leaves, spec = pytree.tree_flatten(tree)\n    return [leaf for leaf in leaves if leaf is not None], spec",
        of("torch", "test_the_order_of_a_dict_and_the_structure_are_kept"),
    ),
    Mutant(
        "torch.paths", "keys are joined by dots", _BACKEND, '["/".join(map(_key, path))', '[".".join(map(_key, path))',
        of("matching", "test_one_pattern_serves_every_framework[torch]"),
    ),
    Mutant(
        "torch.adopt", "everything becomes float32", _BACKEND,
        "return torch.as_tensor(leaf)\n", "return torch.as_tensor(leaf, dtype=torch.float32)\n",
        of("primitives", "test_numpy_arrays_beside_tensors_keep_their_dtype[float16-torch]"),
    ),
    Mutant(
        "torch.dtype", "complex numbers are given out as real ones", _BACKEND,
        "return str(leaf.dtype).removeprefix", "return str(leaf.dtype.to_real()).removeprefix",
        of("primitives", "test_a_complex_gradient_has_no_order[clip_value(1.0)-torch]"),
    ),
    Mutant(
        "torch.shape", "the axes are the other way round", _BACKEND,
        "return tuple(leaf.shape)", "return tuple(leaf.shape[::-1])",
        of("primitives", "test_bounds_broadcast_along_the_last_axes[torch]"),
    ),
    Mutant(
        "torch.dense", "rows that come twice are not summed", _BACKEND,
        "whole = leaf.coalesce()", "whole = leaf.clone()._coalesced_(True)",
        of("torch", "test_sparse_gives_what_dense_gives_and_stays_sparse"),
    ),
    Mutant(
        "torch.densify", "only the rows that are there come out", _BACKEND,
        "return leaf.to_dense()\n", "return leaf.coalesce().values()\n",
        of("torch", "test_what_changes_zeros_makes_a_sparse_gradient_dense"),
    ),
    Mutant(
        "torch.norms", "a complex number counts by its real part", _NORMS,
        "torch.view_as_real(leaf.resolve_conj()) if", "leaf.real if", table("torch-eager", CLIP_NORM),
    ),
    Mutant(
        "torch.norms", "squares are summed in float32", _NORMS,
        "return add(size * size),", "return add((size * size).float()).double(),",
        of("hard", "test_the_whole_range_under_torchs_vmap"),
    ),
    Mutant(
        "torch.norms", "sums of powers are in float32", _NORMS,
        "leaf.is_complex() else leaf.double()).abs()", "leaf.is_complex() else leaf.float()).abs()",
        table("torch-eager", CLIP_3),
    ),
    Mutant(
        "torch.norms", "a tensor that negates what it sees is read as it lies", _NORMS,
        "leaf.detach().resolve_neg().numpy()", "leaf.detach().numpy()",
        of("primitives", "test_a_tensor_that_negates_what_it_sees"),
    ),
    Mutant(
        "torch.multiply", "tensors of several devices are multiplied by one number", _BACKEND,
        "alike = right and len({leaf.device for leaf in leaves}) == 1", "alike = right",
        of("primitives", "test_tensors_of_two_devices"),
    ),
    Mutant(
        "tensorflow.multiply", "zeros of two signs are one factor", _MULTIPLY,
        "math.copysign(1.0, factor))", "1.0)",
        of("primitives", "test_zeros_of_two_signs_in_eager_tensorflow"),
    ),
    Mutant(
        "numpy.norms", "numbers in the other byte order are taken for others", HOST_NORMS,
        "if not all([kind.isnative for kind in kinds]):", "if False:",
        of("primitives", "test_numbers_in_the_other_byte_order"),
    ),
    Mutant(
        "numpy.norms", "where no thread can be started, its share is left out", _THREADS,
        "        if other is None:\n            work(share)", "        if other is None:\n            pass", THREADED,
    ),
    Mutant(
        "torch.norms", "float16 and bfloat16 are read as float16", _NORMS,
        "[leaf.float() if leaf.itemsize == 2 else leaf for", "[leaf.half() if leaf.itemsize == 2 else leaf for",
        table("torch-eager", CLIP_NORM),
    ),
    Mutant(
        "torch.norms", "a float64 sum that left its range is not summed again", _NORMS,
        "return *parts(size / unit), unit", "return *parts(size), one",
        ("tests/test_hard.py", "-k", "huge_and_tiny and torch"),
    ),
    Mutant(
        "torch.norms", "values are read where gradients flow", "backends/gradxform_torch/_readable.py",
        "return not (torch.is_grad_enabled() and any([t.requires_grad for t in given]))", "return True",
        of("hard", "test_the_derivative_is_one_at_zero_and_the_tangent_beyond[clip_norm-torch-eager]"),
    ),
    Mutant(
        "torch.norms", "the norm of zeros of another order is NaN", _NORMS,
        "unit = torch.where(torch.isfinite(largest) & (largest > 0), largest, torch.ones_like(largest))",
        "unit = largest", table("torch-eager", CLIP_3),
    ),
    Mutant(
        "torch.norm_over", "the norm is over the first of the axes only", _BACKEND,
        "return _norms.norm_over(leaf, axes, ord)", "return _norms.norm_over(leaf, axes[:1], ord)",
        table("torch-eager", AXES),
    ),
    Mutant(
        "torch.multiply", "extreme factors are rounded to float32", _BACKEND,
        "(leaf.dtype != torch.float64 and _extreme(factor))", "False", TORCH,
    ),
    Mutant(
        "torch.multiply", "gradients within their limit are written", _BACKEND,
        "if factor == 1:\n            continue", "if factor is None:\n            continue",
        of("torch", "test_nothing_is_written_when_no_clip_is_due"),
    ),
    Mutant(
        "torch.multiply", "gradients whose factors cancel are written", _BACKEND,
        "if factor == 1:\n        return", "if factor is None:\n        return",
        of("torch", "test_nothing_is_written_when_no_clip_is_due"),
    ),
    Mutant(
        "torch.multiply", "in a pure call, one factor for all is written into the user's tensors", _BACKEND,
        "if not inplace or (torch", "if (torch", of("torch", "test_a_pure_call_writes_to_nothing"),
    ),
    Mutant(
        "torch.multiply", "an extreme factor for all gradients is rounded to float32", _BACKEND,
        "(kinds == {torch.float32} and not _extreme(factor))", "kinds == {torch.float32}",
        of("primitives", "test_cases[17-torch]", "test_cases[18-torch]", "test_cases[19-torch]"),
    ),
    Mutant(
        "torch.multiply", "one factor for all is written into elements that share memory", _BACKEND,
        "return alike and all([leaf.is_contiguous() for leaf in leaves])", "return alike",
        of("torch", "test_an_expanded_gradient"),
    ),
    Mutant(
        "torch.multiply", "the factor is rounded to float16 and bfloat16", _BACKEND,
        "elif leaf.itemsize == 2:", "elif leaf.itemsize == 1:", TORCH,
    ),
    Mutant(
        "torch.multiply", "elements that share memory are written in place", _BACKEND,
        "fused[inplace and is_writable(leaf)]", "fused[inplace]", TORCH,
    ),
    Mutant(
        "torch.multiply", "a pure call writes into the user's tensors", _BACKEND,
        "fused[inplace and is_writable(leaf)]", "fused[is_writable(leaf)]", TORCH,
    ),
    Mutant(
        "torch.multiply", "only the real part is multiplied", _BACKEND,
        "torch.complex(_scaled(leaf.real, factor), _scaled(leaf.imag, factor))",
        "torch.complex(_scaled(leaf.real, factor), leaf.imag.clone())", table("torch-eager", "scale(0.3)"),
    ),
    Mutant(
        "torch.multiply", "traced, the factor is rounded to the gradient's dtype", _BACKEND,
        "return (leaf.double() * factor).to(leaf.dtype)", "return leaf * factor.to(leaf.dtype)", TORCH,
    ),
    Mutant(
        "torch.multiply_over", "a pure call writes into the user's tensors", _BACKEND,
        "return _put(leaf, _traced(leaf, factor), inplace)", "return _put(leaf, _traced(leaf, factor), True)", TORCH,
    ),
    Mutant(
        "torch.multiply_over", "the factor is rounded to float32", _BACKEND,
        "factor = torch.as_tensor(factor, dtype=torch.float64, device=leaf.device)\n    return _put",
        "factor = torch.as_tensor(factor, dtype=torch.float32, device=leaf.device)\n    return _put",
        table("torch-eager", AXIS),
    ),
    Mutant(
        "torch.clip", "a pure call writes into the user's tensors", _BACKEND,
        "(inplace or new is not old) and is_writable(new)", "is_writable(new)",
        of("torch", "test_a_pure_call_writes_to_nothing"),
    ),
    Mutant(
        "torch.clip", "a pure call writes into those of the user's tensors whose factor was one", _BACKEND,
        "(inplace or new is not old) and is_writable(new)", "(inplace or factors is not None) and is_writable(new)",
        of("primitives", "test_a_pure_call_writes_to_nothing"),
    ),
    Mutant(
        "torch.clip", "a NaN becomes zero", _BACKEND,
        "else torch.clamp(new, *between))", "else torch.clamp(new.nan_to_num(0.0), *between))",
        table("torch-eager", "clip_value(0.5)"),
    ),
    Mutant(
        "torch.clip", "the factor is forgotten", _BACKEND,
        "for leaf in leaves], factors, inplace)", "for leaf in leaves], 1.0, inplace)",
        table("torch-eager", SCALED_AND_CLIPPED),
    ),
    Mutant(
        "torch.cast", "nothing is rounded", _BACKEND,
        "return leaf.to(like.dtype)", "return leaf", table("torch-eager", SCALED_AND_CLIPPED),
    ),
    Mutant(
        "torch.zeros", "zero times the gradient", _BACKEND,
        "torch.zeros_like(leaf, requires_grad=False) for", "leaf * 0 for", table("torch-eager", "stop()"),
    ),
    Mutant(
        "torch.compute", "what is computed off the host is rounded to float32", _BACKEND,
        "return torch.as_tensor(_sharded.whole(operand), dtype=torch.float64, device=device)",
        "return torch.as_tensor(_sharded.whole(operand), dtype=torch.float32, device=device).double()", TORCH,
    ),
    Mutant(
        "torch.compute", "the host reads the high half of a pair alone", _BACKEND,
        "operand.high.numpy().astype(np.longdouble) + operand.low.numpy()",
        "operand.high.numpy().astype(np.longdouble)",
        of("primitives", "test_torch_reads_both_halves_of_a_pair"),
    ),
    Mutant(
        "torch.from_numpy", "the tensor shares the array's memory", _BACKEND,
        'array = np.array(array, order="C")', 'array = np.asarray(array, order="C")',
        of("primitives", "test_torch_arrays_are_copied_and_read_whole"),
    ),
    Mutant(
        "torch.to_numpy", "a conjugate is read as what it is the conjugate of", _BACKEND,
        "(leaf.detach()).cpu().resolve_conj()", "((leaf.conj() if leaf.is_conj() else leaf).detach()).cpu()",
        of("primitives", "test_torch_arrays_are_copied_and_read_whole"),
    ),
    Mutant(
        "torch.to_numpy", "of a sparse gradient only the values come out", _BACKEND,
        "leaf = leaf.to_dense() if leaf.layout != torch.strided else leaf",
        "leaf = leaf.coalesce().values() if leaf.layout != torch.strided else leaf",
        of("primitives", "test_torch_arrays_are_copied_and_read_whole"),
    ),
    Mutant(
        "torch.apply_", "the gradient of a stopped parameter becomes zeros", _PARAMETERS,
        "parameter.grad = None\n            elif", "parameter.grad = result\n            elif",
        of("torch", "test_frozen_parameters_stay_bit_by_bit"),
    ),
    Mutant(
        "torch.apply_", "a gradient of two parameters is scaled twice", _PARAMETERS,
        "gradients.append(None if sharing else gradient)", "gradients.append(gradient)",
        of("torch", "test_one_gradient_of_two_parameters_is_scaled_once"),
    ),
)  # fmt: skip

OTHERS = "gradxform/_peers.py"
FORMULAS_NUMPY = ("tests/test_peers.py", "-k", "roundings or numpy or formulas or chain or scope or vmap or dtypes")


def home(like: str) -> Tests:
    """The tests of a library's clips in its own framework."""
    return ("tests/test_peers.py", "-k", f"own_framework and {like} and eager or axes or orders")


LIKE = (
    Mutant("like", "PyTorch's epsilon is left out", OTHERS, "r(n + r.wide(_EPSILON))", "r(n)", FORMULAS_NUMPY),
    Mutant(
        "like", "PyTorch's factor is not limited to one", OTHERS,
        "return xp.where(factor > 1.0, 1.0, factor)", "return factor", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "PyTorch's division is one by the limit", OTHERS,
        "factor = r(r(1.0 / r(n + r.wide(_EPSILON))) * r.wide(c))",
        "factor = r(r.wide(c) / r(n + r.wide(_EPSILON)))", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "PyTorch's total is the root of all squares", OTHERS, "if peer.adds_norms:", "if False:",
        FORMULAS_NUMPY,
    ),
    Mutant("like", "MLX's epsilon is left out", OTHERS, "r(n + r(_EPSILON))", "r(n)", FORMULAS_NUMPY),
    Mutant(
        "like", "MLX's factor is not limited to one", OTHERS,
        "return _least(xp, r(r(c) / r(n + r(_EPSILON))), r(1.0))", "return r(r(c) / r(n + r(_EPSILON)))",
        FORMULAS_NUMPY,
    ),
    Mutant("like", "MLX's factor is rounded to float16", OTHERS, '_mlx, widens=("float16",), factor_in_dtype=False',
        '_mlx, widens=("float16",)', FORMULAS_NUMPY),
    Mutant(
        "like", "TensorFlow's infinite norm gives zeros", OTHERS,
        "return xp.where(xp.isfinite(n), r(c * _least(xp, r(_inverse(xp, n)), r(1.0 / c))), math.nan)",
        "return r(c * _least(xp, r(_inverse(xp, n)), r(1.0 / c)))", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "TensorFlow's factor is the quotient", OTHERS,
        "r(c * _least(xp, r(_inverse(xp, n)), r(1.0 / c)))", "r(_least(xp, r(c / n), r(1.0)))", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "Keras takes a limit of zero as one", OTHERS,
        "return xp.where(formulas.equal(r(c), 0.0), 1.0, factor)", "return factor", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "Keras takes a limit of zero as one for each gradient", OTHERS,
        "    return xp.where(formulas.equal(r(c), 0.0), 1.0, r(c))\n", "    return r(c)\n", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "optax is not told to leave gradients within the limit", OTHERS,
        "return xp.where(n < r(c), 1.0, n)", "return n", FORMULAS_NUMPY,
    ),
    Mutant("like", "optax multiplies first", OTHERS, ", divides_first=True", "", FORMULAS_NUMPY),
    Mutant(
        "like", "Paddle's divisor is the norm alone", OTHERS,
        "return r(r(c) / _most(xp, n, r(c)))", "return r(r(c) / n)", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "Paddle's clip of each gradient has no comparison", OTHERS,
        "return xp.where(n <= r(c), 1.0 + 0.0 * r(c), r(r(c) / r(n + epsilon)))",
        "return r(r(c) / r(n + epsilon))", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "the divisor of tf.clip_by_norm is the norm", OTHERS,
        "def _larger(xp: Any, n: Array, c: Array, r: Any) -> Array:\n    return _most(xp, n, r(c))",
        "def _larger(xp: Any, n: Array, c: Array, r: Any) -> Array:\n    return n", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "a norm that the library lost is used", OTHERS,
        "xp.where(xp.abs(own - right) <= right * _WRONG, own - right, 0.0)", "own - right",
        of("peers", "test_the_norm_is_right_where_the_librarys_is_not[optax-jax]"),
    ),
    Mutant(
        "like", "the library's own norm is never used", OTHERS,
        "xp.where(xp.abs(own - right) <= right * _WRONG, own - right, 0.0)", "0.0 * right", home("torch"),
    ),
    Mutant(
        "like", "the norm is not rounded", OTHERS,
        "return r(xp.where(sound, inner(xp.sqrt(xp.where(sound, squares, 1.0))), n))", "return n", FORMULAS_NUMPY,
    ),
    Mutant(
        "like", "a norm whose square is out of range is lost", OTHERS,
        "return r(xp.where(sound, inner(xp.sqrt(xp.where(sound, squares, 1.0))), n))", "return r(xp.sqrt(squares))",
        of("peers", "test_the_norm_is_right_where_the_librarys_is_not[optax-numpy]"),
    ),
    Mutant(
        "like", "a chain's gradients are not rounded before it", OTHERS,
        "    view = view.materialized()\n    if not view.chosen:\n        return view\n    kind = ",
        "    if not view.chosen:\n        return view\n    kind = ",
        of("peers", "test_in_a_chain_the_library_is_given_rounded_gradients"),
    ),
    Mutant(
        "like", "the norm is that of all leaves, chosen or not", OTHERS,
        "[view.leaves[i] for i in view.chosen], ord, None)", "list(view.leaves), ord, None)",
        of("peers", "test_the_librarys_own_norm_is_over_the_scope[torch]"),
    ),
    Mutant(
        "numpy.divide", "gradients are multiplied", "backends/gradxform_numpy/backend.py",
        "part / np.asarray(divisor)", "part * np.asarray(divisor)", FORMULAS_NUMPY,
    ),
    Mutant(
        "numpy.divide", "the divisor stays float64", "backends/gradxform_numpy/backend.py",
        "part / np.asarray(divisor).astype(part.dtype)", "(part * (1 / np.asarray(divisor))).astype(part.dtype)",
        FORMULAS_NUMPY,
    ),
    Mutant(
        "numpy.peer_norm", "NumPy has a norm of its own", "backends/gradxform_numpy/backend.py",
        '    """NumPy has no clipping of its own."""\n    return None', "    return np.float64(1)", FORMULAS_NUMPY,
    ),
    Mutant(
        "jax.divide", "XLA divides by multiplying with the inverse", "backends/gradxform_jax/backend.py",
        "    quotient = lax.convert_element_type(leaf, np.float64) / divisor",
        "    quotient = leaf * lax.convert_element_type(1 / divisor, leaf.dtype)",
        ("tests/test_peers.py", "-k", "own_framework and optax and compiled"),
    ),
    Mutant(
        "jax.divide", "optax in eager divides as everything else does", "backends/gradxform_jax/backend.py",
        "if function != _OPTAX or any(", "if True or any(", home("optax"),
    ),
    Mutant(
        "jax.peer_norm", "optax's norm is one of rounded gradients", "backends/gradxform_jax/backend.py",
        "optax.tree.norm(lax.optimization_barrier(list(leaves)))",
        "optax.tree.norm([leaf.astype(np.float16) for leaf in leaves])", home("optax"),
    ),
    Mutant(
        "tensorflow.divide", "the divisor is rounded to float16", "backends/gradxform_tensorflow/backend.py",
        "return leaf / casting.to(casting.wide(divisor), leaf.dtype)",
        "return leaf / casting.to(tf.cast(casting.wide(divisor), tf.float16), leaf.dtype)",
        home("tensorflow"),
    ),
    Mutant(
        "tensorflow.peer_norm", "Keras's norm is TensorFlow's", "backends/gradxform_tensorflow/_norms.py",
        'if function == "tf.clip_by_global_norm":', 'if "global" in function or True:', home("tensorflow"),
    ),
    Mutant(
        "tensorflow.peer_norm", "axes are ignored", "backends/gradxform_tensorflow/_norms.py",
        "tf.reduce_sum(leaves[0] * leaves[0], axes, keepdims=axes is not None)",
        "tf.reduce_sum(leaves[0] * leaves[0], keepdims=axes is not None)", home("tensorflow"),
    ),
    Mutant(
        "torch.divide", "gradients are multiplied", "backends/gradxform_torch/backend.py",
        "    return leaf / torch.as_tensor(divisor", "    return leaf * torch.as_tensor(divisor",
        ("tests/test_peers.py", "-k", "formula and torch-eager"),
    ),
    Mutant(
        "torch.peer_norm", "the order is ignored", "backends/gradxform_torch/backend.py",
        "get_total_norm(there, ord)", "get_total_norm(there)", home("torch"),
    ),
)  # fmt: skip

MUTANTS = TRANSFORMS + THE_FLAT_VIEW + ARITHMETIC + ON_NUMPY + ON_JAX + ON_TENSORFLOW + ON_TORCH + LIKE
MUTANTS += CATALOGUE + ADAPTERS + STATES


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of one run of tests."""

    code: int | None
    """The exit code of pytest; None if it took too long."""
    first: str = ""
    """The first test that failed."""
    why: str = ""
    tail: str = ""
    """The end of what was printed."""

    @property
    def verdict(self) -> str:
        """Whether a mutant was noticed."""
        if self.code == 0:
            return "survived"
        return "killed" if self.code == 1 and self.first else "broken"


class First:
    """A plugin of pytest that remembers the first failure."""

    test = why = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest after each phase of a test."""
        if report.failed and not self.test:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.test, self.why = report.nodeid, " ".join(str(getattr(crash, "message", "")).split())


def child(report: Path, arguments: Sequence[str]) -> int:
    """The tests of the copy that this file lies in; the first failure goes to a file."""
    import pytest

    first = First()
    code = int(pytest.main([*OPTIONS, *arguments], plugins=[first]))
    report.write_text(json.dumps({"first": first.test, "why": first.why}))
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0].startswith("gradxform")]
    inside = [Path(str(module.__file__)).resolve().is_relative_to(ROOT) for module in ours]
    return code if inside and all(inside) else NOT_THE_COPY


def run(tests: Tests, source: Path, mutant: Mutant | None = None) -> Outcome:
    """Some tests in a copy of the repository, in which a mutant may be made."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        root = Path(folder).resolve() / "repository"
        copy(source, root)
        if mutant is not None:
            file = root / mutant.file
            file.write_text(mutant.applied(file.read_text()))
        report = Path(folder) / "report.json"
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
        command: list[str | Path] = [sys.executable, root / "tests" / "mutation.py", "--child", report, *tests]
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome(None)
        found = json.loads(report.read_text()) if report.exists() else {}
        return Outcome(
            done.returncode, found.get("first", ""), found.get("why", ""), (done.stdout + done.stderr)[-3000:]
        )


def copy(source: Path, target: Path) -> None:
    """The parts of the repository that the tests need."""
    target.mkdir()
    for part in COPIED:
        if (source / part).is_dir():
            shutil.copytree(source / part, target / part, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        else:
            shutil.copy(source / part, target / part)


def passes(mutants: Sequence[Mutant], source: Path) -> bool:
    """Whether all tests that are named pass without a mutant; those without a filter run together."""
    selections = dict.fromkeys(mutant.tests for mutant in mutants)
    filtered = [tests for tests in selections if "-k" in tests]
    named = tuple(dict.fromkeys(test for tests in selections if "-k" not in tests for test in tests))
    for tests in (*filtered, named) if named else filtered:
        outcome = run(tests, source)
        print(f"unbroken {'passes' if outcome.code == 0 else 'fails '}  {' '.join(tests)[:100]}", flush=True)
        if outcome.code != 0:
            print(outcome.tail, flush=True)
            return False
    return bool(selections)


def attempt(mutant: Mutant, source: Path) -> Outcome:
    """One mutant tried, and a line printed."""
    started = time.perf_counter()
    outcome = run(mutant.tests, source, mutant)
    shown = outcome.first or f"exit code {outcome.code}"
    print(f"{outcome.verdict:8} {time.perf_counter() - started:5.1f} s  {mutant.title}  [{shown}]", flush=True)
    if outcome.verdict == "killed":
        print(f"{'':18}{outcome.why[:150]}", flush=True)
    if outcome.verdict == "broken":
        print(outcome.tail, flush=True)
    return outcome


def markdown(results: Sequence[tuple[Mutant, Outcome]], only: str) -> str:
    """The result as a page."""
    command = shlex.join(["python", "tests/mutation.py", *(["--only", only] if only else [])])
    killed = sum(outcome.verdict == "killed" for _, outcome in results)
    versions = ", ".join(f"{name} {_version(name)}" for name in ("numpy", "jax", "tensorflow", "torch"))
    lines = [
        "# Mutation",
        "",
        f"{datetime.date.today().isoformat()}, `{command}`, python {platform.python_version()}, {versions}.",
        "",
        f"{killed} of {len(results)} mutants were killed.",
        "",
        "| What was broken | Where | The first test that noticed |",
        "| --- | --- | --- |",
    ]
    for mutant, outcome in results:
        noticed = f"`{outcome.first}`" if outcome.verdict == "killed" else f"**{outcome.verdict}**"
        lines.append("| " + " | ".join(_cell(text) for text in (mutant.title, f"`{mutant.file}`", noticed)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def main(arguments: Sequence[str]) -> int:
    """Try the mutants; zero if all were killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="the mutants whose title or file has this")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as Markdown")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.title or options.only in mutant.file]
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        source = Path(folder) / "source"  # the repository as it is now, however long the run takes
        copy(ROOT, source)
        if not passes(chosen, source):
            return 1
        outcomes = list(pool.map(lambda mutant: attempt(mutant, source), chosen))
    results = list(zip(chosen, outcomes, strict=True))
    killed = sum(outcome.verdict == "killed" for outcome in outcomes)
    print(f"{len(results)} mutants, {killed} killed")
    if options.out is not None:
        options.out.write_text(markdown(results, options.only))
    return 0 if killed == len(results) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
