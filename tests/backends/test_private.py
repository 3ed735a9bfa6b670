"""Other libraries' undocumented names exist and work; a failure says what breaks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def tape(p: Any, tf: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(1.0))
        inside = p.may_record(), p.is_recorded([x]), p.is_recorded([tf.constant(2.0)])
    return inside == (True, True, False) and not p.may_record()


def branch(p: Any, tf: Any) -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        due, done = tf.compat.v1.placeholder(tf.bool, []), []

        def update() -> Any:
            return [tf.py_function(lambda: done.append(1) or True, [], tf.bool)]

        (found,) = p.cond(due, update, lambda: [tf.constant(False)])
        return [session.run(found, {due: x}) for x in (True, False, True)] == [True, False, True] and len(done) == 2


def override(p: Any, tf: Any) -> Any:
    with tf.Graph().as_default() as made, made.gradient_override_map({"Identity": "Other"}):
        return tf.identity(1.0).op.node_def.attr[p.GRADIENT_OVERRIDE].s == b"Other"


def foreach(p: Any, torch: Any) -> Any:
    two = [torch.tensor(7.0), torch.tensor(8.0)]
    table: Any = {"add_": (([1.5, 2.5],), [2.5, 5.5]), "clamp_max": ((2.0,), [1, 2]), "clamp_min": ((2.0,), [2, 3])}
    table |= {"copy_": ((two,), [7, 8]), "div_": (([2.0, 4.0],), [0.5, 0.75]), "mul": ((3.0,), [3, 9])}
    table |= {"zero_": ((), [0, 0]), **{f"{name}_": table[name] for name in ("clamp_max", "clamp_min", "mul")}}
    for name, (arguments, wanted) in table.items():
        given = [torch.tensor(1.0), torch.tensor(3.0)]
        found = getattr(p, f"foreach_{name}")(given, *arguments)
        assert [x.item() for x in (given if name.endswith("_") else found)] == wanted, name
    return p.foreach_norm([torch.full((3,), 3e19)], 2, torch.float64)[0].item() > 5e19  # in float32 it would overflow


def traced(p: Any, torch: Any) -> Any:
    seen = [p.is_in_mode(), p.is_in_transform()]
    torch.func.vmap(lambda x: seen.append(p.is_in_transform()) or x)(torch.ones(2))
    with torch._subclasses.fake_tensor.FakeTensorMode():
        seen += [p.is_in_mode(), isinstance(fake := torch.ones(2), p.FakeTensor)]
        seen += [p.storage_of(fake[1:]) == p.storage_of(fake)]
    return seen == [False, False, True, True, True, True]


def donated(p: Any, jax: Any) -> Any:
    (array := jax.numpy.ones(2)).delete()
    with pytest.raises(ValueError, match=r"with shape=float32\[2\]. A function that donates"), p.Scope(), p.Scope():
        jax.numpy.sin(array)
    with p.Scope():
        return jax.numpy.ones(1, "float64").dtype == "float64"


def memory(p: Any, torch: Any) -> Any:
    x = torch.zeros(4)
    return p.storage_of(x[1:]) == p.storage_of(x) != p.storage_of(x.clone())


def strided(p: Any, torch: Any) -> Any:
    if not torch.distributed.is_available():
        return True
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    return [p.split_factor(made) for made in (_StridedShard(0, split_factor=2), Shard(0))] == [2, None]


def trees(p: Any, torch: Any) -> Any:
    leaves, structure = p.pytree.tree_flatten(tree := {"a": [torch.zeros(1), None], "b": (torch.ones(1),)})
    keys = [path for path, _ in p.pytree.tree_flatten_with_path(tree)[0]]
    paths = [[getattr(key, "key", getattr(key, "idx", None)) for key in path] for path in keys]
    return p.pytree.tree_unflatten(leaves, structure) == tree and paths == [["a", 0], ["a", 1], ["b", 0]]


def optimizer(p: Any, keras: Any) -> Any:
    made, w, rate = keras.optimizers.SGD(lambda: 0.1, use_ema=True), keras.Variable(np.float32([1, 2])), lambda: 0.1
    made.build([w])
    p.track(made, limit := keras.Variable(1.0, trainable=False))
    options = p.options_of(other := keras.optimizers.SGD(rate))
    assert options["learning_rate"] is other._learning_rate is rate and options["momentum"] == 0.0
    assert (p.variables_of(made)[0] is w, made._get_variable_index(w), int(made._iterations)) == (True, 0, 0)
    assert any(limit is v for v in made.variables) and p.layout_of(w) is None
    assert made._model_variables_moving_average[0].shape == w.shape
    assert all(name in vars(made) and p.is_bookkeeping(name) for name in ("built", "_tracker", "_variables"))
    plain = keras.optimizers.SGD(0.1)
    return type(p.unpickled(type(plain), *plain.__reduce__()[1])) is type(plain) and not p.is_bookkeeping("momentum")


def steps(p: Any, keras: Any) -> Any:
    kinds = [kind for kind in vars(keras.optimizers).values() if isinstance(kind, type)]
    optimizers = [kind for kind in kinds if issubclass(kind, keras.optimizers.Optimizer)]
    missing = p.missing_steps(object)
    assert ("_all_reduce_sum_gradients" in missing) is (keras.backend.backend() == "tensorflow")
    return not any(map(p.missing_steps, optimizers)) and {"apply", "_clip_gradients", "_backend_update_step"} < {
        *missing
    }


def muon(p: Any, module: Any) -> Any:
    try:
        return callable(p.muon_iteration())
    except ImportError:
        return True  # older versions have none


def varies(p: Any, jax: Any) -> bool:
    found: list[Any] = []

    def noted(leaf: Any) -> Any:
        found.append(p.varying(leaf))
        return leaf

    mesh, axis = jax.make_mesh((1,), ("x",), (jax.sharding.AxisType.Auto,)), jax.sharding.PartitionSpec("x")
    jax.shard_map(noted, mesh=mesh, in_specs=axis, out_specs=axis)(jax.numpy.ones(2))
    return found == [frozenset({"x"})]


BENCH, READ = "`gradxform bench` or parity would measure something else", "values that are watched would be read"
CHECKS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {  # the names, what breaks, and a check
    "jax current_trace": (
        "norms measured in a branch would be used outside of it",
        lambda p, jax: (
            p.current_trace() == (outside := p.current_trace())
            and jax.jit(lambda x: x + (p.current_trace() == p.current_trace() != outside))(1) == 2
        ),
    ),
    "jax Scope": ("an error about a donated array is JAX's own", donated),
    "jax sharded_alike": (
        "states of sharded parameters",
        lambda p, jax: jax.jit(lambda leaf: p.sharded_alike(leaf, leaf + 1))(jax.numpy.ones(2)).tolist() == [2, 2],
    ),
    "jax with_weak_type": (
        "a weak gradient would come back strong",
        lambda p, jax: p.with_weak_type(jax.numpy.float32(1), True).weak_type,
    ),
    "jax varying": ("replicated leaves would count as different in shard_map", varies),
    "jax muon_iteration": (BENCH, muon),
    "tensorflow may_record is_recorded": (READ, tape),
    "tensorflow has_op": ("override_gradients", lambda p, tf: p.has_op("Identity") and not p.has_op("Identitty")),
    "tensorflow is_xla control_flow_of": (
        "formulas would use ops that XLA lacks, and tensors would leave the branch that computes them",
        lambda p, tf: not (p.is_xla(graph := tf.Graph()) or p.control_flow_of(graph)),
    ),
    "tensorflow cond": ("steps of reference variables would not be skipped", branch),
    "tensorflow keys_of": (
        "paths of gradients change",
        lambda p, tf: p.keys_of({"b": [1, (2, None)], "a": 3}) == [("a",), ("b", 0), ("b", 1, 0), ("b", 1, 1)],
    ),
    "tensorflow GRADIENT_OVERRIDE": ("override_gradients would refuse correct functions", override),
    "tensorflow value_of": ("Keras's variables", lambda p, tf: p.value_of(x := tf.Variable(1.0)) is x),
    "tensorflow maybe_merge_call": (
        "updates under a strategy would move no variable",
        lambda p, tf: p.maybe_merge_call(lambda *given: given[1], tf.distribute.get_strategy(), 1) == 1,
    ),
    "torch is_in_mode is_in_transform FakeTensor": (READ, traced),
    "torch storage_of": ("states would be written over each other", memory),
    "torch pytree": ("gradient trees cannot be rebuilt, and paths change", trees),
    "torch split_factor": ("noise of FSDP2 over tensor parallelism depends on the mesh", strided),
    "torch device_types": (
        "across would gather on a device without backend",
        lambda p, torch: hasattr(torch.distributed.ProcessGroup, "_device_types"),
    ),
    "torch is_inner_call": (
        "attach would transform twice",
        lambda p, torch: not p.is_inner_call(torch.optim.SGD([torch.ones(1)])),
    ),
    "torch muon_iteration": (BENCH, muon),
    "keras missing_steps Steps": ("keras.wrap refuses an optimizer", steps),
    "keras variables_of track layout_of options_of is_bookkeeping unpickled": ("keras.wrap", optimizer),
}


def private_of(framework: str) -> Any:
    package = f"gradxform_{framework}"
    return importlib.import_module(f"{package}.private")


@pytest.mark.parametrize("names", CHECKS)
def test_a_private_name_works(names: str) -> None:
    framework, (breaks, check) = names.split()[0], CHECKS[names]
    module = pytest.importorskip(framework)
    assert check(private_of(framework), module), breaks


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch", "keras"])
def test_every_private_name_has_a_check(framework: str) -> None:
    pytest.importorskip(framework)
    private = private_of(framework)
    own = {name for name, value in vars(private).items() if getattr(value, "__module__", "") == private.__name__}
    own |= {*getattr(private, "__all__", ())}
    assert {name for name in own if not name.startswith("_")} <= {*" ".join(CHECKS).split()}
