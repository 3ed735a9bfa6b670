"""Every transform of the table in a TF1 graph, fed through placeholders in a Session, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table import OVER_STEPS, TABLE, Row, few, gradients, hard

import gradxform as gx
from gradxform import _parity
from gradxform.testing import max_ulp

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1


def in_a_session(tx: Any, steps: list[Any], params: Any, unknown: bool) -> list[dict[str, Any]]:
    """The updates of some steps, by paths, from one run of one graph."""
    with tf.Graph().as_default(), v1.Session() as session:
        feed: dict[Any, Any] = {}

        def place(leaf: Any) -> Any:
            if leaf is None:
                return None
            made = v1.placeholder(leaf.dtype, None if unknown else leaf.shape)
            feed[made] = leaf
            return made

        given = [tf.nest.map_structure(place, tree) for tree in (params, *steps)]
        state, results = tx.init(tf.nest.map_structure(_constant, params)), []
        for tree in given[1:]:
            updates, state = tx.update(tree, state, given[0])
            results.append(updates)
        values = iter(session.run([leaf for leaf in tf.nest.flatten(results) if leaf is not None], feed))
        found = tf.nest.map_structure(lambda leaf: None if leaf is None else next(values), results)
    return [_parity.named_leaves(tree) for tree in found]


def _constant(leaf: Any) -> Any:
    return None if leaf is None else tf.zeros(leaf.shape, leaf.dtype)


def check(row: Row, steps: list[Any], params: Any, wanted: list[dict[str, Any]], unknown: bool = False) -> None:
    for step, found in enumerate(in_a_session(row.tx, steps, params, unknown)):
        assert found.keys() == wanted[step].keys()
        for path, right in wanted[step].items():
            assert max_ulp(found[path], right) <= row.budget(right.dtype), (step, path, found[path], right)


DTYPES = ("float32", "bfloat16", "float64", "complex64")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.expression)
def test_right_numbers(row: Row) -> None:
    for dtype in DTYPES[: 3 if row.real else 4]:
        tree = gradients(dtype, matrix=row.matrix)
        check(row, [tree], tree, [_parity.expected(row.tx, tree)])
    if not row.matrix:
        for tree in hard("float32").values():
            check(row, [tree], tree, [_parity.expected(row.tx, tree)])


@pytest.mark.parametrize("row", OVER_STEPS, ids=lambda row: row.expression)
def test_right_numbers_over_steps(row: Row) -> None:
    for dtype in ("float32",) if row.single else ("float32", "float64"):
        steps, params = [few(dtype, seed) for seed in range(row.steps)], few(dtype, 99)
        check(row, steps, params, _parity.expected_steps(row.tx, steps, params))


@pytest.mark.parametrize(
    "expression", ["clip_global_norm(1.0)", "chain(clip_norm(5.0), scale(-0.1))", "clip_value(0.5)"]
)
def test_unknown_shapes(expression: str) -> None:
    row, tree = Row(expression), few("float32")
    check(row, [tree], tree, [_parity.expected(row.tx, tree)], unknown=True)


@pytest.mark.parametrize("make", [gx.clip_norm, gx.clip_global_norm])
def test_an_infinite_limit_from_a_placeholder_leaves_nan_as_it_is(make: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        limit = v1.placeholder(tf.float32)
        found = session.run(make(limit)([tf.constant([np.nan, 3.0])]), {limit: np.inf})
    assert found[0][1] == 3.0


def test_functions_of_many_gradients() -> None:
    trees = [[np.float32([1.0, -2.0])], [np.float32([-3.0, 1.0])], [np.float32([1.0, 1.0])]]
    examples = [np.float32([[3.0, 4.0], [np.nan, 1.0], [0.3, 0.4]])]
    wanted = gx.pcgrad(trees, 3), gx.per_example_clip_global_norm([examples[0][::2]], 1.0)
    with tf.Graph().as_default(), v1.Session() as session:
        constants = tf.nest.map_structure(tf.constant, trees)
        sums, counts = gx.per_example_clip_global_norm([tf.constant(examples[0][::2])], 1.0)
        spoilt, _ = gx.per_example_clip_global_norm([tf.constant(examples[0])], 1.0)
        found = session.run([gx.pcgrad(constants, 3), sums, counts, spoilt])
    assert max_ulp(found[0][0], wanted[0][0]) <= 2
    assert max_ulp(found[1][0], wanted[1][0][0]) <= 2
    assert int(found[2]) == int(wanted[1][1]) == 1
    assert np.isnan(found[3][0]).all()


def test_peers_formulas() -> None:
    gradients = [np.float32([3.0, 4.0]), np.float32([0.0])]
    for like in ("tensorflow", "keras", "optax", "torch"):
        for limit in (0.0, 1.0, 5.0):
            tx = gx.clip_global_norm(limit, like=like)
            with tf.Graph().as_default(), v1.Session() as session:
                found = session.run(tx(list(map(tf.constant, gradients))))
            for a, b in zip(found, tx(gradients), strict=True):
                assert max_ulp(a, b) <= 2, (like, limit)
