"""The mutants of the catalogue: of transforms that keep a state or need parameters, of schedules and of noise."""

from __future__ import annotations

from mutants import Mutant, of, steps, table

ADAPTIVE, ADDING, AVERAGING = (f"gradxform/{name}.py" for name in ("adaptive", "adding", "averaging"))
ACCUMULATING, SKIPPING = "gradxform/accumulating.py", "gradxform/skipping.py"
CLIPPING, NORMALIZING, SCALING = (f"gradxform/{name}.py" for name in ("clipping", "normalizing", "scaling"))
CUSTOM, PER_EXAMPLE, TASKS = (f"gradxform/{name}.py" for name in ("custom", "per_example", "tasks"))
SCHEDULE, STATEFUL, UNITS = (f"gradxform/{name}.py" for name in ("_schedule", "_stateful", "_units"))
ELEMENTS, HOST_ELEMENTS = "gradxform/_elements.py", "gradxform/_host_elements.py"
FORMULAS, THREEFRY, FLAT = (f"gradxform/{name}.py" for name in ("_formulas", "_threefry", "_flat"))

NUMPY = "numpy-eager"
PAIRS = "gradxform/_pairs.py"
ADAPTIVE_KERAS = steps(NUMPY, "clip_adaptive(0.1, axes='keras')")
ADAPTIVE_TORCH = steps(NUMPY, "clip_adaptive(0.1, axes='torch', eps=0.5)")
PERCENTILE = steps(NUMPY, "clip_percentile(40.0, 3)")
PERCENTILES = steps(NUMPY, "clip_percentile(75.0, 4, per_leaf=True)")
ZSCORE = steps(NUMPY, "clip_zscore(1.0, 0.9, 2)")
ZSCORES = steps(NUMPY, "clip_zscore(0.5, 0.5, 1, per_leaf=True)")
DECAYED, SCALED_DECAYED = "add_decayed_weights(0.01)", "chain(scale(0.5), add_decayed_weights(0.3))"
NOISE = steps(NUMPY, "add_noise(0.1, 7)")
EMA, EMA_BIASED, TRACE, NESTEROV = "ema(0.9)", "ema(0.75, debias=False)", "trace(0.9)", "trace(0.9, nesterov=True)"
EMA_NEAR_ONE = "ema(0.999999, debias=False)"
ACCUMULATE, ACCUMULATE_TRACE = "accumulate(clip_global_norm(1.0), 2)", "accumulate(trace(0.5), 3)"
SKIP, SKIP_LARGE = "skip_nonfinite(trace(0.5))", "skip_large(trace(0.5), 73.5)"
CENTRALIZE = "centralize()"
AFTER_ZEROING = "chain(scale(0.3), zero_nonfinite(), clip_rms(0.2), normalize_global_norm())"


def catalogue(*names: str) -> tuple[str, ...]:
    """Tests of the catalogue by their names."""
    return of("catalogue", *names)


LIMITS = (
    Mutant(
        "clip_rms", "the norm is divided by the number of elements", CLIPPING,
        "g.rms()", "g.average_norms()", table(NUMPY, "clip_rms(0.5)"),
    ),
    Mutant(
        "clip_rms", "the norm is that of all gradients together", FLAT,
        "        norms = self.norms()\n        return norms._replace(",
        "        norms = self.global_norm()\n        return norms._replace(",
        table(NUMPY, "clip_rms(0.5)"),
    ),
    Mutant(
        "clip_rms", "the root mean square of no elements is NaN", FLAT,
        "counts = tuple(1.0 if isinstance(count, float) and count == 0 else count for count in found)",
        "counts = tuple(found)", table(NUMPY, AFTER_ZEROING),
    ),
    Mutant(
        "clip_average_norm", "the norm is divided by the root of the number of elements", CLIPPING,
        "g.average_norms()", "g.rms()", table(NUMPY, "clip_average_norm(0.01)"),
    ),
    Mutant(
        "clip_average_norm", "the norm is multiplied by the number of elements", FORMULAS,
        "return norms / xp.stack(counts)", "return norms * xp.stack(counts)", table(NUMPY, "clip_average_norm(0.01)"),
    ),
    Mutant(
        "clip_adaptive", "the multiple is forgotten", ADAPTIVE,
        "limit = clipping * xp.where(norm < eps, eps, norm)", "limit = xp.where(norm < eps, eps, norm)", ADAPTIVE_KERAS,
    ),
    Mutant(
        "clip_adaptive", "parameters that are zero cannot learn", ADAPTIVE,
        "xp.where(norm < eps, eps, norm)", "norm", ADAPTIVE_TORCH,
    ),
    Mutant(
        "clip_adaptive", "the norm is that of the whole parameter", ADAPTIVE,
        "norm_over(params[place], each[place], 2.0)", "norm_over(params[place], tuple(range(params[place].ndim)), 2.0)",
        ADAPTIVE_KERAS,
    ),
    Mutant(
        "clip_adaptive", "the parameters are those of the gradient before", ADAPTIVE,
        "norm_over(params[place],", "norm_over(params[place - 1],", ADAPTIVE_KERAS,
    ),
    Mutant(
        "clip_adaptive", "the inputs of a kernel of Keras lie as PyTorch's do", UNITS,
        "return tuple(range(rank - 1))", "return tuple(range(1, rank))", ADAPTIVE_KERAS,
    ),
    Mutant(
        "clip_adaptive", "the inputs of a kernel of PyTorch lie as Keras's do", UNITS,
        "return tuple(range(1, rank))", "return tuple(range(rank - 1))", ADAPTIVE_TORCH,
    ),
    Mutant(
        "clip_adaptive", "each element of a vector is a unit", UNITS,
        "found[i] = tuple(range(len(shape)))", "found[i] = ()", ADAPTIVE_KERAS,
    ),
    Mutant(
        "clip_adaptive", "axes counted from the end are lost", UNITS,
        "{axis % rank for axis in given if -rank <= axis < rank}", "{axis for axis in given if 0 <= axis < rank}",
        catalogue("test_which_axes_must_be_said"),
    ),
    Mutant(
        "clip_percentile", "the percentile is that of the norms before this one", ADAPTIVE,
        "compute(_percentile, history, count, new,", "compute(_percentile, state.history, state.count, new,",
        PERCENTILE,
    ),
    Mutant(
        "clip_percentile", "the place goes on beyond the window", ADAPTIVE,
        "place = count - window * xp.floor(count / window)", "place = count", PERCENTILE,
    ),
    Mutant(
        "clip_percentile", "the norms are not put in order", ADAPTIVE,
        "ordered = xp.sort(", "ordered = (", PERCENTILE,
    ),
    Mutant(
        "clip_percentile", "places that are not filled count as zeros", ADAPTIVE,
        "numbers < filled[:, None], history, math.inf", "numbers < filled[:, None], history, 0.0", PERCENTILE,
    ),
    Mutant(
        "clip_percentile", "the place is one too far", ADAPTIVE,
        "percentile / 100.0 * (filled - 1.0)", "percentile / 100.0 * filled", PERCENTILE,
    ),
    Mutant(
        "clip_percentile", "the lower of two norms is taken", ADAPTIVE,
        "low + (high - low) * (place - below)", "low", PERCENTILE,
    ),
    Mutant(
        "clip_percentile", "all gradients are limited as the first", ADAPTIVE,
        "index=stateful.rows_of(g) if per_leaf else 0", "index=0", PERCENTILES,
    ),
    Mutant(
        "clip_percentile", "the rows of None are taken for those of gradients", ADAPTIVE,
        "index=stateful.rows_of(g) if per_leaf else 0", "index=tuple(range(len(g.source.kept))) if per_leaf else 0",
        PERCENTILES,
    ),
    Mutant(
        "clip_percentile", "a norm that is not finite is counted", ADAPTIVE,
        "_held(xp, norm, dtype) & (count < 2.0**31 - 1), count + 1.0", "count < 2.0**31 - 1, count + 1.0", PERCENTILE,
    ),
    Mutant(
        "clip_percentile", "a gradient that is None counts as the first one", STATEFUL,
        "there=tuple(row in places for row in range(rows))", "there=(True,) * rows",
        catalogue("test_a_gradient_that_is_none_leaves_its_state_as_it_is"),
    ),
    Mutant(
        "clip_zscore", "a spike is limited to the threshold", ADAPTIVE,
        "mean + threshold * deviation * part", "mean + threshold * deviation", ZSCORE,
    ),
    Mutant(
        "clip_zscore", "norms are limited from the first one on", ADAPTIVE,
        "spike = (count >= warmup) & (above >", "spike = (count >= 0) & (above >", ZSCORE,
    ),
    Mutant(
        "clip_zscore", "the deviation is taken for the variance", ADAPTIVE,
        "variance = deviation * deviation", "variance = deviation", ZSCORES,
    ),
    Mutant(
        "clip_zscore", "the first mean counts one norm too many", ADAPTIVE,
        "mean + (norm - mean) / (count + 1.0)", "mean + (norm - mean) / (count + 2.0)", ZSCORE,
    ),
    Mutant(
        "clip_zscore", "the moving mean follows spikes", ADAPTIVE,
        "decay * mean + (1.0 - decay) * xp.where(norm < limits, norm, limits)",
        "decay * mean + (1.0 - decay) * norm", ZSCORES,
    ),
    Mutant(
        "clip_zscore", "the first variance is taken about the new mean alone", ADAPTIVE,
        "(norm - mean) * (norm - new_mean)", "(norm - new_mean) * (norm - new_mean)", ZSCORE,
    ),
    Mutant(
        "clip_zscore", "the moving variance is one of deviations", ADAPTIVE,
        "(1.0 - decay) * off * off", "(1.0 - decay) * off", ZSCORES,
    ),
    Mutant(
        "clip_zscore", "a norm that is not finite goes into the mean", ADAPTIVE,
        "xp.where(_held(xp, norm, dtype), xp.where(count < warmup, first, later), mean)",
        "xp.where(count < warmup, first, later)", ZSCORE,
    ),
    Mutant(
        "clip_zscore", "a norm that is NaN is within its limit", ADAPTIVE,
        "xp.where(xp.isfinite(norm), xp.where(spike, mean + threshold * deviation * part, math.inf), 0.0)",
        "xp.where(spike, mean + threshold * deviation * part, math.inf)", ZSCORE,
    ),
    Mutant(
        "clip_zscore", "numbers of float64 gradients are kept in float32", ELEMENTS,
        '"float64" if view.source.kinds & DOUBLE else "float32"', '"float32"', ZSCORE,
    ),
)  # fmt: skip

SIZES_AND_SIGNS = (
    Mutant(
        "normalize_norm", "all gradients are divided by one norm", NORMALIZING,
        "g.norms().value", "g.global_norm().value", table(NUMPY, "normalize_norm()"),
    ),
    Mutant(
        "normalize_norm", "zeros become NaN", FORMULAS,
        "1.0 / xp.where(norm > 0.0, norm, 1.0)", "1.0 / norm", table(NUMPY, "normalize_norm()"),
    ),
    Mutant(
        "normalize_norm", "an infinite gradient is divided by infinity", FORMULAS,
        'xp.where(xp.isfinite(norm), 1.0 / xp.where(norm > 0.0, norm, 1.0), float("nan"))',
        "1.0 / xp.where(norm > 0.0, norm, 1.0)", table(NUMPY, "normalize_norm()"),
    ),
    Mutant(
        "normalize_global_norm", "each gradient is divided by its own norm", NORMALIZING,
        "g.global_norm().value", "g.norms().value", table(NUMPY, "normalize_global_norm()"),
    ),
    Mutant(
        "normalize_global_norm", "the norm is another one", NORMALIZING,
        "g.global_norm().value", "g.global_norm(1).value", table(NUMPY, "normalize_global_norm()"),
    ),
    Mutant(
        "centralize", "the difference is turned round", NORMALIZING, "x - mean", "mean - x", steps(NUMPY, CENTRALIZE),
    ),
    Mutant(
        "centralize", "vectors are centred", NORMALIZING,
        "len(shape) > 1", "len(shape) > 0", steps(NUMPY, CENTRALIZE),
    ),
    Mutant(
        "centralize", "without axes, the last one is left out", NORMALIZING,
        '"torch" if axes is None else axes', '"keras" if axes is None else axes', steps(NUMPY, CENTRALIZE),
    ),
    Mutant(
        "centralize", "the factor before it is forgotten", NORMALIZING,
        "some.given(new, applied=False)", "some.given(new)", of("primitives", "test_cases[23-numpy]"),
    ),
    Mutant(
        "centralize", "an infinite mean of float64 numbers is NaN", NORMALIZING,
        "xp.where(xp.isfinite(total), total / count, total)", "total / count",
        of("catalogue", "test_an_infinity_stays_one_where_nothing_makes_nan_of_it[centralize()-jax-eager]"),
    ),
    Mutant(
        "clip_adaptive", "an infinite norm of float64 numbers is NaN", PAIRS,
        "positive = (x.high > 0.0) & self.xp.isfinite(x.high)", "positive = x.high > 0.0",
        of(
            "catalogue",
            "test_an_infinity_stays_one_where_nothing_makes_nan_of_it[clip_adaptive(0.1, axes='keras')-jax-eager]",
        ),
    ),
    Mutant(
        "sign", "the sign is lost", NORMALIZING,
        "one, xp.where(x < 0, -one, x)", "one, xp.where(x < 0, one, x)", table(NUMPY, "sign()"),
    ),
    Mutant(
        "sign", "zero and NaN have one", NORMALIZING,
        "one, xp.where(x < 0, -one, x)", "one, -one", table(NUMPY, "sign()"),
    ),
    Mutant(
        "sign", "the factor before it is applied after it", NORMALIZING,
        "settled = g.settled()", "settled = g", of("primitives", "test_cases[20-numpy]"),
    ),
    Mutant(
        "zero_nonfinite", "infinities stay", SKIPPING,
        "return xp.where(xp.isfinite(x), x, xp.zeros_like(x))", "return xp.where(x == x, x, xp.zeros_like(x))",
        table(NUMPY, "zero_nonfinite()"),
    ),
    Mutant(
        "zero_nonfinite", "the factor before it is applied after it", SKIPPING,
        "settled = g.materialized()", "settled = g", of("primitives", "test_cases[21-numpy]"),
    ),
    Mutant(
        "zero_nonfinite", "TensorFlow looks at real parts alone", "backends/gradxform_tensorflow/_scalars.py",
        "tf.math.is_finite(tf.math.real(x)) & tf.math.is_finite(tf.math.imag(x))", "tf.math.is_finite(tf.math.real(x))",
        of("primitives", "test_cases[22-tensorflow]"),
    ),
)  # fmt: skip

SUMS = (
    Mutant(
        "add_decayed_weights", "the decay is taken away", ADDING,
        "x, weight_decay, param)", "x, -weight_decay, param)", steps(NUMPY, DECAYED),
    ),
    Mutant(
        "add_decayed_weights", "the factor before it is applied to the decay as well", ADDING,
        "numbers=[a])), state", "numbers=[a]), applied=False), state", steps(NUMPY, SCALED_DECAYED),
    ),
    Mutant(
        "add_decayed_weights", "the parameters are those of other gradients", ELEMENTS,
        "found = [leaves[view.source.kept[i]] for i in view.chosen]", "found = [leaves[i] for i in view.chosen]",
        steps(NUMPY, DECAYED),
    ),
    Mutant(
        "add_decayed_weights", "parameters of NumPy count as zeros", ELEMENTS,
        'adopt(getattr(leaf, "value", leaf))', "adopt(0.0)",
        of("primitives", "test_parameters_may_be_arrays_of_numpy[jax]"),
    ),
    Mutant(
        "add_noise", "each step has the same noise", ADDING,
        "compute(_keys, state.count, seed=key", "compute(_keys, 0.0, seed=key", NOISE,
    ),
    Mutant("add_noise", "each gradient has the same noise", ADDING, "_words(paths[i])", '_words("")', NOISE),
    Mutant(
        "add_noise", "the words of a path are exchanged", ADDING,
        "return float(found >> 32), float(found & 0xFFFFFFFF)", "return float(found & 0xFFFFFFFF), float(found >> 32)",
        NOISE,
    ),
    Mutant(
        "add_noise", "the deviation is forgotten", ADDING,
        "x + stddev * (", "x + 1.0 * (", NOISE,
    ),
    Mutant(
        "add_noise", "the step does not advance", ADDING,
        "NoiseState(stateful.advanced(g, state.count))", "NoiseState(state.count)", NOISE,
    ),
    Mutant(
        "add_noise", "the upper word of the seed is lost", ADDING,
        "threefry.block(xp, *seed, step * 0, step)", "threefry.block(xp, 0, seed[1], step * 0, step)",
        catalogue("test_noise_is_the_same_everywhere[numpy-eager-float32]"),
    ),
    Mutant(
        "add_noise", "elements beyond one block have the first one's noise", HOST_ELEMENTS,
        "formula(Block(start), *some)", "formula(Block(0), *some)",
        catalogue("test_noise_is_the_same_everywhere[numpy-eager-float32]"),
    ),
    Mutant("threefry", "one rotation is another one", THREEFRY, "(17, 29, 16, 24)", "(17, 29, 16, 23)", NOISE),
    Mutant("threefry", "the sign is shifted in", THREEFRY, " & ((1 << places) - 1)", "", NOISE),
    Mutant(
        "threefry", "the number of the group is not added", THREEFRY,
        "y + keys[(group + 2) % 3] + (group + 1)", "y + keys[(group + 2) % 3] + group", NOISE,
    ),
    Mutant(
        "threefry", "the two words of a key are exchanged", THREEFRY,
        "(key0, key1, key0 ^ key1 ^ _PARITY)", "(key1, key0, key0 ^ key1 ^ _PARITY)", NOISE,
    ),
    Mutant("threefry", "the parity is another one", THREEFRY, "0x1BD11BDA", "0x1BD11BDB", NOISE),
    Mutant(
        "threefry", "the upper half of an element's number is forgotten", THREEFRY,
        "xp.int32(xp.floor(xp.float64(numbers) / 2.0**32))", "xp.int32(numbers * 0)",
        of("primitives", "test_numbers_beyond_32_bits_have_random_words_of_their_own"),
    ),
    Mutant(
        "threefry", "a uniform number may be zero", THREEFRY,
        "_unsigned(xp, first) + 0.5", "_unsigned(xp, first)", NOISE,
    ),
    Mutant(
        "threefry", "a word with a sign is a negative number", THREEFRY,
        "xp.where(number < 0.0, number + 2.0**32, number)", "xp.where(number < 0.0, -number, number)", NOISE,
    ),
    Mutant(
        "threefry", "a cosine in one quarter has the other sign", THREEFRY,
        "xp.where(quarters > 0.0, -sine, sine)", "sine", NOISE,
    ),
    Mutant(
        "threefry", "normal numbers have half of their variance", THREEFRY,
        "xp.sqrt(-2.0 * xp.log", "xp.sqrt(-1.0 * xp.log", NOISE,
    ),
)  # fmt: skip

AVERAGES = (
    Mutant(
        "ema", "the shares are exchanged", AVERAGING,
        "decay, old, 1.0 - decay, x)", "decay, x, 1.0 - decay, old)", steps(NUMPY, EMA),
    ),
    Mutant(
        "ema", "the bias is divided out always", AVERAGING, "if debias:", "if count is not None:",
        steps(NUMPY, EMA_BIASED),
    ),
    Mutant(
        "ema", "the steps are counted from zero", AVERAGING,
        "compute(_weight_at, count,", "compute(_weight_at, state.count,", steps(NUMPY, EMA),
    ),
    Mutant(
        "ema", "the weights of a scheduled decay are those of a fixed one", AVERAGING,
        "return decay * xp.sum(weight) + (1.0 - decay)", "return 1.0 - decay",
        catalogue("test_a_scheduled_average_of_a_constant_is_the_constant"),
    ),
    Mutant(
        "pairs", "the lower half of a decay is forgotten", PAIRS,
        "high + xp.fixed(low + (rest + (second - head) * y))", "high + xp.fixed(low + rest)",
        steps(NUMPY, "trace(0.9)"),
    ),
    Mutant(
        "pairs", "what rounding takes from a sum is forgotten", PAIRS,
        "high + xp.fixed(low + (rest", "high + xp.fixed((rest", catalogue("test_a_blend_is_rounded_once"),
    ),
    Mutant(
        "pcgrad", "an array for a seed has no upper word", TASKS,
        "return xp.floor(seed / 2.0**32)", "return seed * 0.0",
        catalogue("test_the_order_of_surgery_follows_the_seed"),
    ),
    Mutant(
        "ema", "the step does not advance", AVERAGING,
        "EmaState(count, ", "EmaState(state.count, ", steps(NUMPY, EMA),
    ),
    Mutant(
        "ema", "the average is not kept", AVERAGING,
        "elements.replaced_in(dense, state.ema, new)", "state.ema", steps(NUMPY, EMA),
    ),
    Mutant(
        "ema", "the sum of the weights has the rounding of a power", AVERAGING,
        "return -xp.expm1(count * xp.log(decay))", "return xp.rounded(1.0 - decay**count, \"float32\")",
        steps(NUMPY, "ema(0.9999)"),
    ),
    Mutant(
        "ema", "averages of other gradients are replaced", ELEMENTS,
        "slot = view.source.kept[i]\n", "slot = i\n", steps(NUMPY, EMA),
    ),
    Mutant(
        "ema", "the average is handed out times the factor of before it once more", AVERAGING,
        "dense.given(g.backend.copied(new))", "dense.given(g.backend.copied(new), applied=False)",
        of("primitives", "test_a_factor_before_an_average_is_applied_once"),
    ),
    Mutant(
        "ema", "a counter at its end goes round", STATEFUL,
        "return xp.where(count < _MOST, count + 1.0, count)", "return count + 1.0",
        of("primitives", "test_a_counter_stays_at_its_end"),
    ),
    Mutant(
        "trace", "the gradient decays too", AVERAGING,
        "pairs.increased(xp, x, decay, old)", "pairs.increased(xp, decay * x, decay, old)", steps(NUMPY, TRACE),
    ),
    Mutant(
        "trace", "the trace is not kept", AVERAGING,
        "elements.replaced_in(dense, state.trace, new)", "state.trace", steps(NUMPY, TRACE),
    ),
    Mutant("trace", "no step is looked ahead", AVERAGING, "if nesterov else", "if None else", steps(NUMPY, NESTEROV)),
    Mutant(
        "trace", "looking ahead, the gradient is forgotten", AVERAGING,
        "x + decay * _traced(xp, x, old, decay)", "decay * _traced(xp, x, old, decay)", steps(NUMPY, NESTEROV),
    ),
    Mutant(
        "trace", "what is looked ahead is kept", AVERAGING,
        "elements.replaced_in(dense, state.trace, new)", "elements.replaced_in(dense, state.trace, out)",
        steps(NUMPY, NESTEROV),
    ),
    Mutant(
        "accumulate", "the sum, not the mean", ACCUMULATING,
        "return (total + lost) / every", "return total + lost", steps(NUMPY, ACCUMULATE_TRACE),
    ),
    Mutant(
        "accumulate", "the sums are not begun anew", ACCUMULATING,
        "stateful.either(dense, due, none, kept)", "stateful.either(dense, due, kept, kept)",
        steps(NUMPY, ACCUMULATE),
    ),
    Mutant(
        "accumulate", "what rounding takes is lost", ACCUMULATING,
        "xp.isfinite(new), new - rounded, 0.0)", "xp.isfinite(new), 0.0, 0.0)",
        catalogue("test_sums_hold_what_rounding_takes"),
    ),
    Mutant(
        "accumulate", "the last gradient is left out", ACCUMULATING,
        "elementwise(_mean, [total, rest],", "elementwise(_mean, old,", steps(NUMPY, ACCUMULATE),
    ),
    Mutant(
        "accumulate", "an update comes one step late", ACCUMULATING,
        "return count + 1.0 >= every", "return count >= every", steps(NUMPY, ACCUMULATE),
    ),
    Mutant(
        "accumulate", "steps are counted on beyond an update", ACCUMULATING,
        "return xp.where(count + 1.0 >= every, 0.0, count + 1.0)", "return count + 1.0", steps(NUMPY, ACCUMULATE_TRACE),
    ),
    Mutant(
        "accumulate", "gradients are handed on between updates", STATEFUL,
        "return update() if condition else (zeros(view), state)", "return update() if condition else (view, state)",
        steps(NUMPY, ACCUMULATE),
    ),
    Mutant(
        "accumulate", "traced, gradients are handed on between updates", STATEFUL,
        "xp.where(condition > 0.0, x, xp.zeros_like(x))", "x", steps("jax-eager", ACCUMULATE),
    ),
    Mutant(
        "accumulate", "traced, the inner state changes at each step", STATEFUL,
        "either(view, condition, inner, state)", "inner", steps("jax-eager", ACCUMULATE_TRACE),
    ),
    Mutant(
        "accumulate", "none of its steps is said to be due", ACCUMULATING,
        "stateful.stored(g, due, state.due)", "state.due", ("gradxform/skipping.py",),
    ),
)  # fmt: skip

SKIPPED = (
    Mutant(
        "skip_nonfinite", "no step is skipped", SKIPPING,
        "due = finite if most is None else", "due = True if most is None else", steps(NUMPY, SKIP),
    ),
    Mutant(
        "skip_nonfinite", "a step is skipped one time less than may be", SKIPPING,
        "consecutive > most", "consecutive >= most", catalogue("test_skipped_steps_leave_all_as_it_was[numpy-eager]"),
    ),
    Mutant(
        "skip_nonfinite", "the steps that are skipped are no row", SKIPPING,
        "return xp.where(finite > 0.0, 0.0, _in_all(xp, count, finite))", "return _in_all(xp, count, finite)",
        catalogue("test_skipped_steps_leave_all_as_it_was[numpy-eager]"),
    ),
    Mutant(
        "skip_nonfinite", "finite steps are counted", SKIPPING,
        "xp.where((finite > 0.0) | (count", "xp.where((finite <= 0.0) | (count", ("gradxform/skipping.py",),
    ),
    Mutant(
        "skip_nonfinite", "the inner state changes in a step that is skipped", STATEFUL,
        "return update() if condition else (zeros(view), state)",
        "return update() if condition else (zeros(view), update()[1])", steps(NUMPY, SKIP),
    ),
    Mutant(
        "skip_nonfinite", "traced, the inner state changes in a step that is skipped", STATEFUL,
        "either(view, condition, inner, state)", "inner", steps("jax-eager", SKIP),
    ),
    Mutant(
        "skip_nonfinite", "float64 gradients are skipped whose norm alone is not finite", SKIPPING,
        'g.global_norm(float("inf") if g.source.kinds & DOUBLE else 2)', "g.global_norm(2)",
        of("primitives", "test_finite_gradients_of_an_infinite_norm_are_not_skipped"),
    ),
    Mutant(
        "skip_large", "the norm is another one", SKIPPING,
        "norm = g.global_norm()\n        due", "norm = g.global_norm(1)\n        due",
        steps(NUMPY, SKIP_LARGE),
    ),
    Mutant(
        "skip_large", "what is within the limit is skipped", SKIPPING,
        "& (factor >= 1.0)", "& (factor < 1.0)", steps(NUMPY, SKIP_LARGE),
    ),
    Mutant(
        "skip_large", "NaN is within the limit", SKIPPING,
        "xp.isfinite(norm) & (factor >= 1.0)", "(factor >= 1.0) | (factor != factor)",
        catalogue("test_large_steps_are_skipped_and_nan_is_large[numpy]"),
    ),
    Mutant(
        "skip_large", "steps are not counted", SKIPPING,
        "SkipLargeState(total,", "SkipLargeState(state.total,", ("gradxform/skipping.py",),
    ),
    Mutant(
        "has_updated", "one state that says yes is enough", SKIPPING,
        "found & inside", "found | inside", catalogue("test_has_updated_asks_all_states"),
    ),
    Mutant(
        "has_updated", "states in states are not asked", SKIPPING,
        'part if name == "due" else has_updated(part)', 'part if name == "due" else True',
        catalogue("test_has_updated_asks_all_states"),
    ),
    Mutant(
        "has_updated", "dicts are not looked into", SKIPPING,
        "return has_updated(list(state.values()))", "return True", catalogue("test_has_updated_asks_all_states"),
    ),
)  # fmt: skip

ONES_OWN = (
    Mutant(
        "elementwise", "the factor before it is forgotten", CUSTOM,
        "g.dense().materialized()", "g.dense()", catalogue("test_a_function_of_ones_own_runs_everywhere[numpy-eager]"),
    ),
    Mutant(
        "elementwise", "the function may write into the gradients", CUSTOM,
        "in g.backend.copied(own)]", "in own]",
        catalogue("test_a_function_that_writes_does_not_write_into_the_gradients[numpy]"),
    ),
    Mutant(
        "elementwise", "a result of another dtype stays so", CUSTOM,
        "return backend.cast(new, old)", "return new", catalogue("test_functions_that_are_refused"),
    ),
    Mutant(
        "elementwise", "a result of another shape is let through", CUSTOM,
        "not may_agree(*shapes)", "may_agree(*shapes)", catalogue("test_functions_that_are_refused"),
    ),
    Mutant(
        "transform", "the view comes back as it was", CUSTOM,
        "        return found\n\n    return stateless(applied)", "        return g\n\n    return stateless(applied)",
        (CUSTOM,),
    ),
    Mutant(
        "transform", "norms are handed to formulas as they are", FLAT,
        "x.value if isinstance(x, Norm) else x for x in operands", "x for x in operands", (CUSTOM,),
    ),
    Mutant(
        "scale_by_schedule", "the factor is that of the first step", SCALING,
        "return scale(fn)", "return scale(fn(0))", (SCALING,),
    ),
    Mutant(
        "scale_by_schedule", "the step does not advance", SCHEDULE,
        "ScheduleState(stateful.advanced(view, state.count), inner)", "ScheduleState(state.count, inner)", (SCALING,),
    ),
    Mutant(
        "schedule", "the steps are counted from one", SCHEDULE,
        "compute(formula, state.count)", "compute(formula, stateful.advanced(view, state.count))", (SCALING,),
    ),
    Mutant(
        "schedule", "the state the transform has else is forgotten", SCHEDULE,
        "ScheduleState(stateful.advanced(view, state.count), inner)",
        "ScheduleState(stateful.advanced(view, state.count), state.inner)",
        catalogue("test_any_number_may_be_a_schedule[trace-numpy]"),
    ),
    Mutant(
        "schedule", "values are looked into as numbers are", SCHEDULE,
        "np.asarray(value) if isinstance(value, float) else value", "value",
        catalogue("test_a_schedule_below_zero_is_clamped_and_nan_gives_nan"),
    ),
    Mutant(
        "schedule", "other arguments are forgotten", SCHEDULE,
        "make(**{**given, **values})", "make(**values)",
        catalogue("test_any_number_may_be_a_schedule[add_noise-numpy]"),
    ),
)  # fmt: skip

SEVERAL = (
    Mutant(
        "per_example_clip_norm", "the factors of examples are forgotten", HOST_ELEMENTS,
        "np.sum(leaf.astype(wide) * weights, axis=axes", "np.sum(leaf.astype(wide), axis=axes", (PER_EXAMPLE,),
    ),
    Mutant(
        "per_example_clip_norm", "the norm is that of the whole batch", PER_EXAMPLE,
        'axes = tuple(range(1, len(view.backend.shape(leaf) or ())))',
        'axes = tuple(range(len(view.backend.shape(leaf) or ())))', (PER_EXAMPLE,),
    ),
    Mutant(
        "per_example_clip_norm", "a negative number is its own norm", PER_EXAMPLE,
        "return xp.abs(x)", "return x", of("primitives", "test_examples_that_are_negative_numbers[numpy]"),
    ),
    Mutant(
        "per_example_clip_norm", "examples that are not clipped are counted", PER_EXAMPLE,
        "xp.where(factor < 1.0, 1.0, 0.0)", "xp.where(factor < 1.0, 0.0, 1.0)",
        catalogue("test_per_example_clips[numpy-eager-float32]"),
    ),
    Mutant(
        "per_example_clip_norm", "no example is named that is NaN", PER_EXAMPLE,
        "if lost.size:", "if lost.size > 99:", catalogue("test_an_example_that_is_nan_is_reported[numpy]"),
    ),
    Mutant(
        "per_example_clip_global_norm", "the norms of all but the first gradient are left out", PER_EXAMPLE,
        "        total = total + (norm / unit) * (norm / unit)", "        total = total + 0.0 * (norm / unit)",
        (PER_EXAMPLE,),
    ),
    Mutant(
        "per_example_clip_global_norm", "the unit is not multiplied back", PER_EXAMPLE,
        "xp.where(positive, unit * root, ", "xp.where(positive, root, ", (PER_EXAMPLE,),
    ),
    Mutant(
        "per_example_clip_global_norm", "large norms are squared as they are", PER_EXAMPLE,
        "unit = xp.stop_gradient(xp.where(sound, unit, 1.0))", "unit = xp.where(sound, 1.0, 1.0)",
        of("primitives", "test_examples_of_any_size_are_clipped"),
    ),
    Mutant("mean", "the sum, not the mean", TASKS, "return total / given[count]", "return total", (TASKS,)),
    Mutant(
        "mean", "a gradient that is None is not counted", TASKS,
        "lambda _: [float(len(trees))]", "lambda owners: [float(len(owners))]",
        catalogue("test_none_in_one_tree_counts_as_zero"),
    ),
    Mutant(
        "mean", "the last tree is left out", TASKS,
        "for other in given[1:count]:", "for other in given[1 : count - 1]:", (TASKS,),
    ),
    Mutant(
        "pcgrad", "what works against another task stays", TASKS,
        "against = (dot < 0.0) & (size > 0.0)", "against = (dot < 0.0) & (size < 0.0)", (TASKS,),
    ),
    Mutant(
        "pcgrad", "what works for another task is taken as well", TASKS,
        "against = (dot < 0.0) & (size > 0.0)", "against = size > 0.0",
        catalogue("test_gradient_surgery[numpy-eager-float32]"),
    ),
    Mutant(
        "pcgrad", "what works against another task is doubled", TASKS,
        "shares[k] - xp.where(chosen[k], part, 0.0)", "shares[k] + xp.where(chosen[k], part, 0.0)", (TASKS,),
    ),
    Mutant(
        "pcgrad", "the product is not that of what is left of a gradient", TASKS,
        "dot = dot + xp.where(chosen[j], own, 0.0)", "dot = dot + xp.where(chosen[j], rows[i][j], 0.0)",
        catalogue("test_gradient_surgery[numpy-eager-float32]"),
    ),
    Mutant(
        "pcgrad", "the sizes are those of a gradient's own", TASKS,
        "xp.where(chosen[j], rows[j][j], 0.0)", "xp.where(chosen[j], rows[i][i], 0.0)", (TASKS,),
    ),
    Mutant(
        "pcgrad", "the other tasks come in their own order", TASKS,
        "draws[k] <= draws[j] if k < j else draws[k] < draws[j]",
        "draws[k] <= draws[k] if k < j else draws[k] < draws[k]",
        catalogue("test_the_order_of_surgery_follows_the_seed"),
    ),
    Mutant(
        "pcgrad", "the weights are those of other trees where one has None", TASKS,
        "[numbers[rank] for rank in owners]", "numbers[: len(owners)]",
        of("primitives", "test_gradients_that_are_none_keep_the_others_weights"),
    ),
)  # fmt: skip

FRAMEWORKS = {
    "numpy": "backends/gradxform_numpy/backend.py", "jax": "backends/gradxform_jax/backend.py",
    "tensorflow": "backends/gradxform_tensorflow/backend.py", "torch": "backends/gradxform_torch/backend.py",
}  # fmt: skip
JAX, TENSORFLOW, TORCH = (f"backends/gradxform_{name}/_elements.py" for name in ("jax", "tensorflow", "torch"))
FACTORS = "each_factor = [None] * len(columns[0]) if factors is None else factors"
COUNTED = "np.prod([leaf.shape[axis] for axis in axes])"


def stored(framework: str) -> tuple[str, ...]:
    """Tests of the dtypes of states."""
    return catalogue(f"test_states_keep_their_structure_shapes_and_dtypes[zscore-{framework}]")


def own(framework: str) -> tuple[str, ...]:
    """A function of one's own that asks for the namespace."""
    return catalogue(f"test_a_function_of_ones_own_runs_everywhere[{framework}-eager]")


PRIMITIVES = (
    Mutant(
        "numpy.elementwise", "factors are forgotten", FRAMEWORKS["numpy"],
        FACTORS, "each_factor = [None] * len(columns[0])", steps(NUMPY, SCALED_DECAYED),
    ),
    Mutant(
        "numpy.elementwise", "numbers are rounded to float32", HOST_ELEMENTS,
        "numbers, factor = list(map(pairs.pair, numbers))", "numbers, factor = [float(np.float32(x)) for x in numbers]",
        steps(NUMPY, EMA_NEAR_ONE),
    ),
    Mutant(
        "numpy.elementwise", "the result has the gradient's dtype", HOST_ELEMENTS,
        'dtype = column[0], "float64" if column[0].dtype == np.float64 else "float32"',
        "dtype = column[0], column[0].dtype.name", steps(NUMPY, EMA, TRACE),
    ),
    Mutant(
        "numpy.elementwise", "imaginary parts are those of real ones", HOST_ELEMENTS,
        "real([part.imag for part in column])", "real([part.real for part in column])", steps(NUMPY, TRACE),
    ),
    Mutant(
        "numpy.elementwise", "float64 elements are not computed in pairs", HOST_ELEMENTS,
        "pairs.elementwise(formula, xp, some, numbers, factor, double, static)",
        "pairs.elementwise(formula, xp, some, numbers, factor, False, static)", steps(NUMPY, CENTRALIZE, DECAYED),
    ),
    Mutant(
        "numpy.each", "the result is float32", FRAMEWORKS["numpy"],
        "np.asarray(formula(_host.Vectors, *column, *numbers))",
        "np.asarray(formula(_host.Vectors, *column, *numbers), np.float32)", table(NUMPY, "zero_nonfinite()"),
    ),
    Mutant(
        "numpy.sum_over", "weights are forgotten", FRAMEWORKS["numpy"],
        "return _host_elements.sum_over(leaf, axes, weights)", "return _host_elements.sum_over(leaf, axes, None)",
        (PER_EXAMPLE,),
    ),
    Mutant(
        "numpy.sum_over", "sums are kept in the gradient's dtype", HOST_ELEMENTS,
        "np.sum(leaf, axis=axes, keepdims=True, dtype=wide)", "np.sum(leaf, axis=axes, keepdims=True)",
        steps(NUMPY, CENTRALIZE),
    ),
    Mutant(
        "numpy.count", "all elements are counted", FRAMEWORKS["numpy"], COUNTED, "leaf.size", steps(NUMPY, CENTRALIZE),
    ),
    Mutant(
        "numpy.copied", "the leaves are given back", FRAMEWORKS["numpy"],
        "[leaf.copy() for leaf in leaves]", "list(leaves)", steps(NUMPY, EMA),
    ),
    Mutant(
        "numpy.stored", "the dtype is lost", FRAMEWORKS["numpy"],
        "return np.asarray(value).astype(dtype)", "return np.asarray(value)", stored("numpy"),
    ),
    Mutant(
        "numpy.namespace", "it is another one", FRAMEWORKS["numpy"], "return np\n", "return np.linalg\n", own("numpy"),
    ),
    Mutant(
        "jax.elementwise", "factors are forgotten", FRAMEWORKS["jax"],
        "if factors is None else list(map(_as_operand, factors))", "if True else []",
        steps("jax-eager", SCALED_DECAYED),
    ),
    Mutant(
        "jax.elementwise", "numbers are rounded to float32", JAX,
        "wide, numbers, factor", "wide, [Vectors.rounded(x, 'float32') for x in numbers], factor",
        steps("jax-eager", EMA_NEAR_ONE),
    ),
    Mutant(
        "jax.elementwise", "float64 elements are not computed in pairs", JAX,
        "wide, numbers, factor, double,", "wide, numbers, factor, False,", steps("jax-eager", CENTRALIZE),
    ),
    Mutant(
        "jax.each", "the columns are exchanged", FRAMEWORKS["jax"],
        "([list(column) for column in columns], list(map(_as_operand, numbers)))",
        "([list(column) for column in columns[::-1]], list(map(_as_operand, numbers)))",
        steps("jax-eager", ACCUMULATE),
    ),
    Mutant(
        "jax.sum_over", "float64 sums have the rounding of each addition", JAX,
        "return pairs.total_signed(Vectors, wide, add) if leaf.dtype == np.float64 else add(wide)", "return add(wide)",
        steps("jax-eager", CENTRALIZE),
    ),
    Mutant(
        "jax.sum_over", "weights are forgotten", FRAMEWORKS["jax"],
        "return _elements.sum_over(leaf, axes, weights)", "return _elements.sum_over(leaf, axes, None)",
        catalogue("test_per_example_clips[jax-eager-float32]"),
    ),
    Mutant(
        "jax.count", "all elements are counted", FRAMEWORKS["jax"],
        COUNTED, "leaf.size", steps("jax-eager", CENTRALIZE),
    ),
    Mutant(
        "jax.stored", "the dtype is lost", FRAMEWORKS["jax"],
        "lax.convert_element_type(jnp.asarray(value), np.dtype(dtype))", "jnp.asarray(value)", stored("jax"),
    ),
    Mutant("jax.namespace", "it is another one", FRAMEWORKS["jax"], "return jnp\n", "return jnp.linalg\n", own("jax")),
    Mutant(
        "tensorflow.elementwise", "factors are forgotten", FRAMEWORKS["tensorflow"],
        FACTORS, "each_factor = [None] * len(columns[0])", steps("tensorflow-eager", SCALED_DECAYED),
    ),
    Mutant(
        "tensorflow.elementwise", "in graphs, numbers are rounded to float32", TENSORFLOW,
        "given = list(map(casting.wide, numbers))", "given = [Vectors.rounded(x, 'float32') for x in numbers]",
        steps("tensorflow-compiled", EMA_NEAR_ONE),
    ),
    Mutant(
        "tensorflow.elementwise", "in graphs, float64 elements are not computed in pairs", TENSORFLOW,
        "wide, given, factor, double, static)", "wide, given, factor, False, static)",
        steps("tensorflow-compiled", CENTRALIZE),
    ),
    Mutant(
        "tensorflow.each", "the columns are exchanged", FRAMEWORKS["tensorflow"],
        "formula(Vectors, *column, *given)", "formula(Vectors, *column[::-1], *given)",
        steps("tensorflow-compiled", ACCUMULATE),
    ),
    Mutant(
        "tensorflow.sum_over", "in graphs, float64 sums have the rounding of each addition", TENSORFLOW,
        "return pairs.total_signed(Vectors, wide, add) if leaf.dtype == tf.float64 else add(wide)", "return add(wide)",
        steps("tensorflow-compiled", CENTRALIZE),
    ),
    Mutant(
        "tensorflow.sum_over", "weights are forgotten", FRAMEWORKS["tensorflow"],
        "return _elements.sum_over(leaf, axes, weights)", "return _elements.sum_over(leaf, axes, None)",
        catalogue("test_per_example_clips[tensorflow-eager-float32]"),
    ),
    Mutant(
        "tensorflow.count", "all elements are counted", FRAMEWORKS["tensorflow"],
        "known if axes is None else tuple(known[axis] for axis in axes)", "known",
        steps("tensorflow-eager", CENTRALIZE),
    ),
    Mutant(
        "tensorflow.count", "where shapes are unknown, all elements are counted", FRAMEWORKS["tensorflow"],
        "tf.reduce_prod(sizes if axes is None else tf.gather(sizes, axes))", "tf.reduce_prod(sizes)",
        of("tensorflow", "test_lengths_that_are_unknown_are_counted"),
    ),
    Mutant(
        "tensorflow.stored", "the dtype is lost", FRAMEWORKS["tensorflow"],
        "tf.convert_to_tensor(np.asarray(value)), tf.as_dtype(dtype))",
        "tf.convert_to_tensor(np.asarray(value)), tf.float64)", stored("tensorflow"),
    ),
    Mutant(
        "tensorflow.namespace", "it is another one", FRAMEWORKS["tensorflow"],
        "return tf.experimental.numpy", "return tf.experimental", own("tensorflow"),
    ),
    Mutant(
        "torch.elementwise", "factors are forgotten", FRAMEWORKS["torch"],
        FACTORS, "each_factor = [None] * len(columns[0])", steps("torch-eager", SCALED_DECAYED),
    ),
    Mutant(
        "torch.elementwise", "compiled, numbers are rounded to float32", TORCH,
        "given = [_wide(number, leaf.device) for number in numbers]",
        "given = [space.rounded(number, 'float32') for number in numbers]", steps("torch-compiled", EMA_NEAR_ONE),
    ),
    Mutant(
        "torch.elementwise", "of a tensor that is conjugated later, the parts are those of before", TORCH,
        "operand.detach().resolve_conj().resolve_neg()", "operand.detach()",
        of("primitives", "test_tensors_that_are_conjugated_when_they_are_read"),
    ),
    Mutant(
        "torch.each", "the result is float32", FRAMEWORKS["torch"],
        "(_on_device(number, column[0].device) for number in numbers))\n",
        "(_on_device(number, column[0].device) for number in numbers)).float()\n",
        table("torch-eager", "sign()"),
    ),
    Mutant(
        "torch.each", "the columns are exchanged", FRAMEWORKS["torch"],
        "formula(Vectors(column[0].device), *column,", "formula(Vectors(column[0].device), *column[::-1],",
        steps("torch-compiled", ACCUMULATE),
    ),
    Mutant(
        "torch.sum_over", "compiled, sums are kept in the gradient's dtype", TORCH,
        "space, wide = Vectors(leaf.device), leaf.double()", "space, wide = Vectors(leaf.device), leaf",
        steps("torch-compiled", CENTRALIZE),
    ),
    Mutant(
        "torch.sum_over", "weights are forgotten", FRAMEWORKS["torch"],
        "return _elements.sum_over(leaf, axes, weights)", "return _elements.sum_over(leaf, axes, None)",
        catalogue("test_per_example_clips[torch-eager-float32]"),
    ),
    Mutant(
        "torch.count", "all elements are counted", FRAMEWORKS["torch"],
        "math.prod([leaf.shape[axis] for axis in axes])", "leaf.numel()", steps("torch-eager", CENTRALIZE),
    ),
    Mutant(
        "torch.copied", "the leaves are given back", FRAMEWORKS["torch"],
        "[leaf.clone() for leaf in leaves]", "list(leaves)", steps("torch-eager", EMA),
    ),
    Mutant(
        "torch.stored", "the dtype is lost", FRAMEWORKS["torch"],
        "torch.as_tensor(value, dtype=getattr(torch, dtype), device", "torch.as_tensor(value, device", stored("torch"),
    ),
    Mutant(
        "torch.namespace", "it is another one", FRAMEWORKS["torch"],
        "return torch\n", "return torch.linalg\n", own("torch"),
    ),
)  # fmt: skip

CATALOGUE = LIMITS + SIZES_AND_SIGNS + SUMS + AVERAGES + SKIPPED + ONES_OWN + SEVERAL + PRIMITIVES
