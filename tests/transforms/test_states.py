"""States: counter saturation, array conditions and hyperparameters, masks, parameters of another shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest
from trees import Same

import gradxform as gx


def test_a_chain_names_its_parts_where_a_state_is_not_its_own() -> None:
    with pytest.raises(ValueError, match=r"2 transforms \(trace, a transform of another library\)"):
        gx.chain(gx.trace(0.5), Same()).update([np.ones(1)], 3)


def test_counters_reach_the_largest_int32_and_stay_there() -> None:
    most, grads = 2**31 - 1, [np.float32([1.0])]
    for tx, name in (
        (gx.clip_norm(lambda t: 1.0), "count"),
        (gx.ema(0.5), "count"),
        (gx.clip_percentile(50.0, 3), "count"),
        (gx.clip_zscore(), "count"),
        (gx.skip_nonfinite(gx.identity()), "total"),
        (gx.skip_large(gx.identity(), 0.5), "total"),
    ):
        given = [np.float32([np.nan])] if "nonfinite" in repr(tx) else grads
        state = tx.init(grads)
        state = state._replace(**{name: np.full_like(getattr(state, name), most - 1)})
        for _ in range(2):
            _, state = tx.update(given, state)
            assert np.ravel(getattr(state, name)).tolist() == [most], tx


def test_arrays_out_of_range_are_brought_back() -> None:
    params, steps = [np.full((2, 2), 0.1)], [np.full((2, 2), value) for value in (1.0, 3.0, 2.5, 9.0)]

    def last(tx: gx.GradientTransformation) -> Any:
        state = tx.init(params)
        for step in steps:
            updates, state = tx.update([step], state, params)
        return updates[0].tolist(), [np.asarray(leaf).tolist() for leaf in optree.tree_leaves(state)]

    makes: tuple[tuple[Callable[[Any], gx.GradientTransformation], float, float], ...] = (
        (lambda eps: gx.clip_adaptive(0.1, eps=eps, axes="torch"), 0.0, np.inf),
        (lambda p: gx.clip_percentile(p, 3), 0.0, 100.0),
        (lambda z: gx.clip_zscore(z, warmup=2), 0.0, np.inf),
        (lambda d: gx.clip_zscore(0.1, d, warmup=2), 0.0, 1.0),
        (lambda r: gx.clip_adagc(r, 0.5, warmup=0), 0.0, np.inf),
        (lambda d: gx.clip_adagc(1.5, d, warmup=0), 0.0, 1.0),
        (lambda c: gx.clip_adagc(max_norm=c), 0.0, np.inf),
        (lambda t: gx.clip_spikes(t, 0.5, warmup=1), 0.0, np.inf),
        (lambda d: gx.clip_spikes(1.5, d, warmup=1), 0.0, 1.0),
        (lambda d: gx.ema(d, debias=False), 0.0, 1.0),
        (gx.trace, 0.0, 1.0),
        (gx.grokfast, 0.0, 1.0),
        (lambda a: gx.grokfast(0.5, a), 0.0, np.inf),
        (lambda a: gx.mars(a, 0.5), 0.0, np.inf),
        (lambda c: gx.mars(max_norm=c), 0.0, np.inf),
        (lambda s: gx.add_noise(s, 1), 0.0, np.inf),
    )
    for make, low, high in makes:
        for given, bound in ((low - 0.5, low), (high + 0.5, high)):
            if np.isfinite(given):
                assert last(make(np.array(given))) == last(make(np.array(bound))), make(bound)
                assert last(make(np.array(bound)))[0] == last(make(bound))[0], make(bound)


def test_a_mask_keeps_a_state_for_what_it_chooses_alone() -> None:
    params, trace = {"w": np.ones(2), "b": np.ones(3)}, gx.trace(0.5)
    for tx in (gx.masked(trace, "w"), gx.partition({"w": trace}), gx.masked(trace, lambda path, leaf: False)):
        wanted = [(2,)] * ("lambda" not in repr(tx))
        assert [leaf.shape for leaf in optree.tree_leaves(tx.init(params))] == wanted


def test_parameters_of_one_other_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the parameters have shape \(2, 4\) at '0', where the gradient has \(2, 3\)"):
        gx.add_decayed_weights(0.1)([np.ones((2, 3))], params=[np.ones((2, 4))])
