"""Every transform of the table in a TF1 graph, fed through placeholders in a Session, against the reference."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import optree
import pytest
from support import PROCESSES, SESSION, assert_right, assert_ulp, each_transform_once, f32, python, shared_group, slow

import gradxform as gx
from gradxform.proof import parity
from gradxform.proof.cases import Group, Run
from gradxform.proof.registry import ROWS, Row
from gradxform.testing import max_ulp

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1


def runner(tx: Any, like: Any, unknown: bool = False) -> parity.Runner:
    """Run steps in one graph, fed with gradients, parameters and the previous state."""

    def place(leaf: Any) -> Any:
        return v1.placeholder(leaf.dtype, None if unknown else leaf.shape)

    with tf.Graph().as_default() as graph:
        params, updates = (optree.tree_map(place, like) for _ in range(2))
        start = tx.init(optree.tree_map(tf.zeros_like, params))
        state = optree.tree_map(lambda leaf: place(tf.convert_to_tensor(leaf)), start)
        after = tx.update(updates, state, params, **parity.beside(tx, params))
    session = v1.Session(graph=graph)

    def fetch(tree: Any, given: Any, values: Any) -> Any:
        leaves, structure = optree.tree_flatten(tree)
        feed = dict(zip(optree.tree_leaves(given), optree.tree_leaves(values), strict=True))
        return optree.tree_unflatten(structure, session.run(leaves, feed))

    def run(steps: Any, given: Any) -> Any:
        held, results = fetch(start, params, given), []
        for tree in steps:
            found, held = fetch(after, (params, updates, state), (given, tree, held))
            results.append(parity.Result("tensorflow", "session", parity.named_leaves(found)))
        return results, held

    return run


def check(row: Row, dtype: str, large: bool = False, unknown: bool = False) -> None:
    group = shared_group(row, dtype, large=large)
    like = next(iter(group.runs.values())).params
    assert_right(row, group, "tensorflow", "session", runner(row.tx, like, unknown))


WORDS = (
    "accumulate|adaptive|centralize|chain|measure|percentile|skip|zscore|^(add_decayed|clip_(rms|average)|normalize)|"
    "^(add_noise|orthogonal|mars|grokfast|partition|top_k)"
)


@slow(SESSION, lambda row: re.search(WORDS, str(row)) is not None)
@pytest.mark.parametrize(
    "row", each_transform_once(ROWS, "builds a TF1 graph; each transform of a small one stays quick once")
)
def test_right_numbers(row: Row) -> None:
    for dtype in ("float32", "float64") if row.tx.stateful else ("float32", "bfloat16", "float64", "complex64"):
        if dtype in row.dtypes:
            check(row, dtype, large=dtype == "float32" and not row.tx.stateful)


@slow(SESSION, lambda expression: expression.startswith("chain"))
@pytest.mark.parametrize(
    "expression", ["clip_global_norm(1.0)", "chain(clip_norm(5.0), scale(-0.1))", "clip_value(0.5)"]
)
def test_unknown_shapes(expression: str) -> None:
    check(Row(expression), "float32", unknown=True)


@pytest.mark.parametrize(
    ("expression", "tree", "steps"),
    [
        ("partition({'a': scale(0.5)}, default=skip_large(identity(), 1.0))", {"a": f32(1.0), "b": f32(100.0)}, 2),
        ("partition({'a': clip_norm(1.0)}, default=accumulate(identity(), 4))", {"a": f32(30, 40), "b": f32(4)}, 4),
    ],
    ids=["a part beside a skip", "a part beside a sum"],
)
def test_what_is_pending(expression: str, tree: Any, steps: int) -> None:
    row, group = Row(expression), Group("all", "one", {"one": Run([tree] * steps, tree)})
    assert_right(row, group, "tensorflow", "session", runner(row.tx, tree))


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
    np.testing.assert_allclose(found[0][0], wanted[0][0], rtol=0, atol=1e-6)  # the largest terms are between 2 and 4
    assert max_ulp(found[1][0], wanted[1][0][0]) <= 8
    assert int(found[2]) == int(wanted[1][1]) == 1
    assert np.isnan(found[3][0]).all()


@pytest.mark.parametrize("v2", [True, False], ids=["functions", "contexts"])
def test_norms_measured_in_a_branch_are_measured_again_outside(v2: bool) -> None:
    @gx.transform
    def by_norm(g: Any) -> Any:
        def inverse() -> Any:
            return tf.identity(g.compute(lambda xp, norm: 1.0 / norm, g.global_norm()))

        factor = tf.cond(g.leaves[0][0] > 0, inverse, lambda: 2.0 * inverse())
        return gx.clip_norm(1.0).rule(g.scaled(factor).scaled(g.norms().value), None, None)[0]

    leaves = [np.float32([3.0, 4.0]), np.float32([0.0, 12.0])]
    wanted = [np.float32([0.6, 0.8]), np.float32([0.0, 1.0])]
    if v2:
        assert_ulp(tf.function(lambda g: by_norm(g))(list(map(tf.constant, leaves))), wanted)
    else:
        v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            assert_ulp(session.run(by_norm(list(map(tf.constant, leaves)))), wanted)
    finally:
        v1.enable_control_flow_v2()


UNTOUCHED = """
import gradxform as gx
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
w = tf.get_variable("w", [512, 512])
pairs = [(tf.ones([512, 512]), w)]
for tx in (gx.clip_value(1.0), gx.clip_global_norm(1.0), gx.clip_norm(1.0, axes=0), gx.top_k(0.5), gx.centralize()):
    gx.tensorflow.apply(tx, pairs)
process = gx.tensorflow.GradientProcessor(gx.skip_nonfinite(gx.chain(gx.trace(0.9), gx.add_noise(0.1, 3))), [w])
process.apply_gradients(tf.train.AdamOptimizer(0.1), pairs)
tf.config.threading.set_intra_op_parallelism_threads(2)
"""


@slow(PROCESSES)
@pytest.mark.parametrize(
    "code",
    [
        UNTOUCHED,  # with control flow of TensorFlow 2, a loop starts it
        UNTOUCHED.replace("disable_v2_behavior", "disable_eager_execution").replace("gx.top_k(0.5), ", ""),
    ],
    ids=["TensorFlow 1", "control flow of TensorFlow 2"],
)
def test_a_graph_does_not_start_the_eager_runtime(code: str) -> None:
    """Which takes the memory of GPUs, and after which these settings are refused."""
    python("-c", code)
