"""Properties of every tree: nested dicts, lists, tuples, None, any shapes and special values, in every framework."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import optree
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import assert_bits, tensors

import gradxform as gx
from gradxform.proof.parity import named_leaves
from gradxform.proof.reference import norm
from gradxform.testing import assert_parity, max_ulp


class Pair(NamedTuple):
    first: Any
    second: Any


SPECIAL = st.sampled_from([0.0, -0.0, 1.0, 1e30, -1e30, 1e-30, np.inf, -np.inf, np.nan])
FINITE = st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 1e30, -1e30, 1e-15])).map(
    lambda x: x if abs(x) > 1e-20 or x == 0 else 0.0
)


def leaves(elements: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return hnp.arrays(np.float32, shapes, elements=elements.map(lambda x: float(np.float32(x))))


def trees(elements: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | leaves(elements),
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.builds(Pair, inner, inner),
        ),
        max_leaves=6,
    )


QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CHAIN = gx.chain(gx.clip_norm(3.0), gx.clip_global_norm(1.0), gx.scale(-0.5))


@pytest.mark.parametrize(
    "tx", [gx.clip_norm(1.0), gx.clip_global_norm(1.0), gx.clip_value(0.5), CHAIN, gx.stop()], ids=repr
)
@QUICK
@given(tree=trees(st.one_of(FINITE, SPECIAL)).filter(optree.tree_leaves))
def test_numpy_is_right_for_any_tree(tx: gx.GradientTransformation, tree: Any) -> None:
    assert_parity(tx, tree, frameworks=["numpy"])


@QUICK
@given(tree=trees(FINITE))
def test_structure_and_none_come_back(framework: str, tree: Any) -> None:
    same = tensors(framework, tree)
    assert_bits(gx.identity()(same), same)


@QUICK
@given(tree=trees(FINITE), limit=st.floats(1e-3, 1e3))
def test_the_norm_is_at_most_the_limit(tree: Any, limit: float) -> None:
    clipped = list(named_leaves(gx.clip_global_norm(limit)(tree)).values())
    assert norm(clipped) <= limit * (1 + 4 * 2.0**-24)


@QUICK
@given(tree=trees(FINITE))
def test_clipping_twice_changes_a_unit_at_most(tree: Any) -> None:
    once = gx.clip_global_norm(1.0)(tree)
    twice = gx.clip_global_norm(1.0)(once)
    for path, leaf in named_leaves(once).items():
        assert max_ulp(leaf, named_leaves(twice)[path]) <= 1


@QUICK
@given(tree=trees(st.one_of(FINITE, SPECIAL)), limit=st.floats(0, 10))
def test_the_sign_of_an_element_stays(tree: Any, limit: float) -> None:
    for tx in (gx.clip_value(limit), gx.clip_norm(limit)):
        for path, leaf in named_leaves(tx(tree)).items():
            before = named_leaves(tree)[path]
            known = ~np.isnan(leaf) & ~np.isnan(before)
            assert np.all((leaf * np.sign(before))[known] >= 0)


@QUICK
@given(tree=trees(st.one_of(FINITE, SPECIAL)).filter(lambda tree: optree.tree_leaves(tree, none_is_leaf=True)))
def test_in_place_gives_the_same(tree: Any) -> None:
    wanted = named_leaves(CHAIN(tree))
    copies = optree.tree_map(np.array, tree)
    gx.numpy.apply_(CHAIN, copies)
    for path, leaf in named_leaves(copies).items():
        assert max_ulp(leaf, wanted[path]) == 0
