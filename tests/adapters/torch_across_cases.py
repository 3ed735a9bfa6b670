"""`across` on two and four processes of a gloo group; test_torch_across.py starts them.

Each case compares this process's result with its part of the result of a single process that has everything.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import across_cases as table
import numpy as np
import process_groups as groups
import torch
from process_groups import agree, collectives, fails, meshes, rank, told, world
from support import array, assert_ulp, tensors

import gradxform as gx
from gradxform.backend import lookup

case = groups.Cases()


def everyone() -> Any:
    return torch.distributed.group.WORLD


def calls(function: Callable[[], Any]) -> int:
    """Return the collectives of a call."""
    return sum(collectives(function).values())


def same_on_all(state: Any) -> None:
    """Assert that numbers in a state are bit-identical everywhere; arrays of the gradients' shapes may differ."""
    backend = lookup.backend("torch")
    for path, leaf in zip(backend.paths(state), backend.flatten(state)[0], strict=True):
        if path.rpartition("/")[2] not in table.SHAPES:
            agree(leaf)


# --- the table -------------------------------------------------------------------------------------------------------


def right_on_all(expression: str, split: str, dtype: str, axis: Any = None, watched: bool = False) -> None:
    """`axis`: a mesh of two dimensions, with a collective for each; values of `watched` gradients are not read."""
    tx = gx.across(gx.parse(expression), axis or everyone(), split=split, replicated="**r")
    given = [tensors("torch", trees[rank()]) for trees in table.steps(expression, world(), dtype)]
    given = [{name: leaf.requires_grad_(watched) for name, leaf in tree.items()} for tree in given]
    wanted, metrics = table.expected(expression, world(), dtype, split)
    state = tx.init(given[0])
    asked = []
    for tree, right in zip(given, wanted, strict=True):
        asked.append(calls(functools.partial(tx.update, tree, state, tree)))
        updates, state = tx.update(tree, state, tree)
        distance = table.off({name: array(leaf) for name, leaf in updates.items()}, right[rank()], expression)
        assert distance <= table.budget(expression, dtype), (expression, split, dtype, distance)
    more = int(split == "leaves" and "global_norm(1.0, like='torch')" in expression)  # for rounded norms of slices
    most = table.TRANSFORMS[expression][split == "leaves"] * (2 if axis else 1) + more
    assert watched or max(asked) == most, (expression, split, asked)
    if not table.is_by_leaf(expression) or split == "leaves":
        same_on_all(state)
    for name, value in metrics.items():
        assert_ulp([gx.metrics(state)[name]], [value], what=name)


for _split in ("tree", "leaves"):
    for _dtype in table.DTYPES:

        @case(f"every transform, {_dtype}, split={_split!r}", 2, *([4] if _dtype == "float32" else []))
        def _(split: str = _split, dtype: str = _dtype) -> None:
            for expression in table.TRANSFORMS if dtype == "float32" and world() == 2 else table.FEW:
                right_on_all(expression, split, dtype)


@case("what is computed without a look at values is as right")
def _() -> None:
    for expression in (table.CLIP, "clip_norm(1.0)", "clip_rms(0.1)", "clip_global_norm(1.0, ord=2.5)"):
        for split in ("tree", "leaves"):
            for dtype in ("float32", "float64"):
                right_on_all(expression, split, dtype, watched=True)


# --- trees that differ -----------------------------------------------------------------------------------------------


def of_rank(*trees: Any) -> Any:
    return trees[rank()] if rank() < len(trees) else {}


@case("trees of other structure, and a process without gradients", 2, 4)
def _() -> None:
    """The other processes wait for its collective."""
    three, four, none = torch.tensor([3.0, 0.0]), torch.tensor([[4.0]]), torch.tensor([0.5])
    for tx in (gx.clip_global_norm(1.0), gx.chain(gx.clip_global_norm(1.0), gx.clip_global_norm(1.0))):
        tx = gx.across(tx, everyone())
        for other in ({"b": {"c": four}}, {"a": four, "z": None}):
            wanted = {key: {"c": four / 5} if key == "b" else four / 5 if key == "a" else None for key in other}
            assert_ulp(tx(of_rank({"a": three}, other)), of_rank({"a": three / 5}, wanted), 1)
        assert_ulp(tx(of_rank({"a": three}, {"b": None, "c": []})), of_rank({"a": three / 3}, {"b": None, "c": []}))
        assert_ulp(tx(of_rank({"a": none}, {}, {"x": None})), of_rank({"a": none}, {}, {"x": None}))
    state = gx.across(gx.skip_large(gx.trace(0.5), 4.0), everyone())
    kept = state.init(of_rank({"a": three}, {"b": four}))
    updates, kept = state.update(of_rank({"a": three}, {"b": None}), kept)
    assert int(agree(kept.total)) == 0
    updates, kept = state.update(of_rank({"a": three}, {"b": four}), kept)
    assert int(agree(kept.total)) == 1
    assert not any(leaf.any() for leaf in updates.values())


@case("replicated leaves of an axis around another, which one process alone has")
def _() -> None:
    alone = [torch.distributed.new_group([i]) for i in range(world())][rank()]
    for split in ("tree", "leaves"):
        inner = gx.across(gx.clip_global_norm(1.0), alone, split=split)
        tx = gx.across(inner, everyone(), replicated="tied")
        found = tx(of_rank({"a": torch.tensor([3.0])}, {"tied": torch.tensor([4.0])}))
        assert_ulp(found, of_rank({"a": torch.tensor([0.6])}, {"tied": torch.tensor([0.8])}), 1)


@case("a condition that one process can read and another cannot")
def _() -> None:
    """A process that can skip a step must still run its collectives."""
    tx = gx.across(gx.skip_nonfinite(gx.clip_global_norm(1.0)), everyone())
    bad = torch.tensor([3.0, float("nan")])
    given = of_rank({"a": bad.requires_grad_()}, {"b": torch.tensor([1.0])})
    state = tx.init(of_rank({"a": bad.detach()}, {"b": torch.tensor([1.0])}))
    with torch.enable_grad():
        updates, state = tx.update({name: leaf.detach() if rank() else leaf for name, leaf in given.items()}, state)
    assert not any(leaf.detach().any() for leaf in updates.values()) and int(state.total) == 1
    counted = gx.across(gx.accumulate(gx.clip_global_norm(1.0), 2), everyone())
    state = counted.init(of_rank({"a": torch.tensor([3.0])}, {}))
    for _ in range(3):
        updates, state = counted.update(of_rank({"a": torch.tensor([3.0], requires_grad=True)}, {}), state)


@case("every transform with a process that has no gradient")
def _() -> None:
    for expression in table.TRANSFORMS:
        tx = gx.across(gx.parse(expression), everyone(), replicated="**r")
        given = table.device(0, 0, "float32")
        mine = tensors("torch", given) if rank() == 0 else dict.fromkeys(given)
        state = tx.init(tensors("torch", given))
        for _ in range(2):
            updates, state = tx.update(mine, state, mine)
        if rank() == 0:
            alone = gx.parse(expression)
            right = alone.init(given)
            for _ in range(2):
                wanted, right = alone.update(given, right, given)
            distance = table.off({name: array(leaf) for name, leaf in updates.items()}, wanted, expression)
            assert distance <= table.budget(expression, "float32"), (expression, distance)
        else:
            assert updates == mine
        torch.distributed.barrier()


@case("patterns that match on another process alone")
def _() -> None:
    three, four = torch.tensor([3.0]), torch.tensor([4.0])
    tx = gx.across(gx.masked(gx.clip_global_norm(1.0), "only/**"), everyone(), replicated="tied/*")
    found = tx(of_rank({"only": {"a": three}, "tied": {"r": four}}, {"b": four}))
    assert_ulp(found, of_rank({"only": {"a": three / 3}, "tied": {"r": four}}, {"b": four}))
    assert tx.init(of_rank({"only": {"a": three}, "tied": {"r": four}}, {"b": four})) is not None
    fails(ValueError, "matches no path", lambda: gx.masked(gx.clip_global_norm(1.0), "only/**")({"b": four}))
    leaves = gx.across(gx.clip_norm(1.0), everyone(), split="leaves", replicated="only/**")
    fails(ValueError, "across: the pattern 'only/**' matches no path", lambda: leaves({"b": four}))


@case("float64 gradients on one process count for all")
def _() -> None:
    """A norm of 1 + 2^-40 exceeds the limit 1 in float64, and equals it in float32."""
    one, rest = torch.tensor([1.0]), torch.tensor([2.0**-19.5], dtype=torch.float64)
    for given, unchanged in ((rest.double(), False), (rest.float(), True)):
        tree = of_rank({"a": one}, {"b": given})
        found = gx.across(gx.clip_global_norm(1.0), everyone())(tree)
        flags = told(all(found[key] is tree[key] for key in tree))
        assert flags == ([unchanged] * 2), (flags, given.dtype)
    for size in (1e300, 1e-300):  # beyond float32, and squares beyond float64
        tree = of_rank(
            {"a": torch.tensor([3.0 * size], dtype=torch.float64)},
            {"b": torch.tensor([4.0 * size], dtype=torch.float64)},
        )
        found = gx.across(gx.clip_global_norm(size), everyone())(tree)
        assert_ulp(found, of_rank({"a": np.array([0.6 * size])}, {"b": np.array([0.8 * size])}))


@case("a leaf that one process alone has a slice of")
def _() -> None:
    """A process with None must know the global results too."""
    large, small = torch.tensor([30.0, 40.0]), torch.tensor([[3.0], [4.0]])
    for expression in (
        "measure(clip_norm(10.0))",
        "measure(clip_value(5.0))",
        "measure(chain(clip_norm(10.0), clip_global_norm(1.0)), 'both')",
        "clip_percentile(50.0, 3, per_leaf=True)",
        "clip_zscore(0.5, 0.5, 1, per_leaf=True)",
        "clip_global_norm(1.0, like='torch')",
    ):
        tx, alone = gx.across(gx.parse(expression), everyone(), split="leaves"), gx.parse(expression)
        both = {"a": large, "b": small}
        state, right = tx.init(both), alone.init(both)
        for step in range(3):
            given = {"a": large / 1.7**step, "b": small * 1.7**step}
            wanted, right = alone.update(given, right)
            if step == 1:  # a process without any slice
                updates, state = tx.update(of_rank(given, dict.fromkeys(given)), state)
            else:
                updates, state = tx.update(of_rank(given | {"b": None}, given | {"a": None}), state)
            assert_ulp(updates, {name: leaf if updates[name] is not None else None for name, leaf in wanted.items()})
        same_on_all(state)
        if "measure" in expression:
            for name, value in gx.metrics(right).items():
                assert_ulp([gx.metrics(state)[name]], [value], what=(expression, name))


@case("a leaf that one column of a square alone has a slice of", 4)
def _() -> None:
    """Stages report which leaves they have; for tied leaves, the first stage that has one counts."""
    mesh = meshes["square"]
    stage, place = mesh.get_coordinate()
    four, three = torch.tensor([4.0]), torch.tensor([3.0])
    tree = [{"own": three, "tied": None}, {"own": None, "tied": four}][stage]
    for has in range(2):
        given = tree if place == has else dict.fromkeys(tree)
        inner = gx.across(gx.measure(gx.clip_global_norm(1.0), "c"), mesh.get_group("a"), replicated="tied")
        tx = gx.across(inner, mesh.get_group("b"), split="leaves")
        updates, state = tx.update(given, tx.init({"own": three, "tied": four}))
        found = gx.metrics(state)
        assert_ulp([agree(found["c/norm_before"]), agree(found["c/norm_after"])], [np.float32(5), np.float32(1)])
        assert_ulp(updates, {name: None if leaf is None else leaf / 5 for name, leaf in given.items()})


@case("processes whose gradients have other dtypes decide alike", 2, 4)
def _() -> None:
    """Some sums of squares exceed float64; a process with float32 gradients must not take them for infinite."""
    most = torch.tensor([1.5e308], dtype=torch.float64)
    trees = {"a": torch.ones(2)}, {"b": most}, {"c": most}, {"d": most}
    tx = gx.across(gx.skip_nonfinite(gx.identity()), everyone())
    mine = of_rank(*trees)
    updates, state = tx.update(mine, tx.init(mine))
    assert int(agree(state.total)) == 0 and updates.keys() == mine.keys()
    assert all(torch.equal(updates[name], leaf) for name, leaf in mine.items())


@case("leaves that are the same count as the first process that has any knows them", 4)
def _() -> None:
    """Like embeddings shared by the second and the last stage."""
    three, four = torch.tensor([3.0]), torch.tensor([4.0])
    trees = {"a": three}, {"tied": four}, {"b": torch.zeros(2)}, {"head": four}
    found = gx.across(gx.clip_global_norm(1.0), everyone(), replicated=lambda path, _: path in ("tied", "head"))(
        of_rank(*trees)
    )
    assert_ulp(found, {key: leaf / 5 for key, leaf in of_rank(*trees).items()})
    agree(gx.across(gx.measure(gx.identity()), everyone()).init({}).measures["identity"].norm_before)


@case("noise is drawn on each process for itself, and alike where leaves are")
def _() -> None:
    zeros = {"a": torch.zeros(64), "r": torch.zeros(64)}
    for split in ("tree", "leaves"):
        tx = gx.across(gx.add_noise(1.0, 3), everyone(), split=split, replicated="r")
        updates, _ = tx.update(zeros, tx.init(zeros))
        agree(updates["r"])
        assert len(set(told(array(updates["a"]).tobytes()))) == world()
        alone = gx.add_noise(1.0, 3)
        assert_ulp(updates["r"], alone.update(zeros, alone.init(zeros))[0]["r"], 0)


# --- adapters --------------------------------------------------------------------------------------------------------


def stages() -> list[Any]:
    """Two stages of a language model with tied embeddings."""
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 8), torch.nn.Tanh())
    last = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 11, bias=False))
    last[2].weight.data.copy_(first[0].weight.data)
    return [first, last]


def tied(path: str, _: Any) -> bool:
    return path in ("0/weight", "2/weight")


def named(module: Any, stage: int) -> list[tuple[str, Any]]:
    """The parameters; only embedding and head are tied."""
    rename = {
        ("1.weight", 0): "body.weight",
        ("1.bias", 0): "body.bias",
        ("0.weight", 1): "body.weight",
        ("0.bias", 1): "body.bias",
    }
    return [(rename.get((name, stage), name), parameter) for name, parameter in module.named_parameters()]


def loss(output: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


@case("torch.distributed.pipelining with tied embeddings trains as one process does")
def _() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    for attached, expression in (
        (False, table.CLIP),
        (True, table.CLIP),
        (True, "skip_large(clip_global_norm(0.1), 1.5)"),
    ):
        whole, mine = stages(), copy.deepcopy(stages()[rank()])
        tx = gx.parse(expression.replace("1.0", "0.1"))
        spread = gx.across(tx, everyone(), replicated=tied)
        stage = PipelineStage(mine, rank(), 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=loss)
        # In a single process, the tied gradients are summed and count once.
        joint = [(f"{i}.{name}", p) for i, part in enumerate(whole) for name, p in part.named_parameters()]
        parameters = [(name, p) for name, p in joint if name != "1.2.weight"]
        ones, own = (torch.optim.SGD(each, lr=0.5, momentum=0.9) for each in (parameters, named(mine, rank())))
        if attached:
            gx.torch.attach(ones, tx)
            handle = gx.torch.attach(own, spread)
        for step in range(4):
            rows = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(step))
            target = rows.roll(1, 1)
            for module in (*whole, mine):
                module.zero_grad()
            sum(
                loss(whole[1](whole[0](x)), y) / 2 for x, y in zip(rows.chunk(2), target.chunk(2), strict=True)
            ).backward()
            total = whole[0][0].weight.grad + whole[1][2].weight.grad
            whole[0][0].weight.grad = total
            if rank() == 0:
                schedule.step(rows)
            else:
                schedule.step(target=target)
            shared = mine[0].weight if rank() == 0 else mine[2].weight
            torch.distributed.all_reduce(shared.grad)
            if not attached:
                gx.torch.apply_(tx, parameters)
                gx.torch.apply_(spread, named(mine, rank()))
            ones.step()
            own.step()
            whole[1][2].weight.data.copy_(whole[0][0].weight.data)
            for (name, p), q in zip(whole[rank()].named_parameters(), mine.parameters(), strict=True):
                np.testing.assert_allclose(q.detach(), p.detach(), rtol=2e-5, atol=2e-6, err_msg=name)
        if attached:
            same_on_all(handle.state)
        if "skip" in expression:
            assert 0 < int(agree(handle.state.total)) < 4, int(handle.state.total)


@case("apply_ and attach of parameters some of which have no gradient", 2, 4)
def _() -> None:
    for where in range(world()):
        layer = torch.nn.Linear(2, 2, bias=False)
        if rank() == where:
            layer.weight.grad = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        tx = gx.across(gx.chain(gx.measure(gx.clip_global_norm(1.0)), gx.skip_nonfinite(gx.trace(0.5))), everyone())
        state = gx.torch.init(tx, layer)
        asked = calls(lambda layer=layer, tx=tx, state=state: gx.torch.apply_(tx, layer, state))
        assert asked == 3, asked  # measure, clip, skip
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        with gx.torch.attach(optimizer, tx) as handle:
            optimizer.step()
            assert float(agree(gx.metrics(handle.state)["clip_global_norm/norm_before"])) == np.float32(1.0)
            saved = optimizer.state_dict()
            optimizer.load_state_dict(saved)
            assert float(gx.metrics(handle.state)["clip_global_norm/norm_before"]) == np.float32(1.0)
        if rank() == where:
            assert_ulp(layer.weight.grad, np.float32([[0.6, 0], [0, 0.8]]))
    assert gx.torch.apply_(gx.across(gx.clip_norm(1.0), everyone()), []) is None


@case("the norm before the transformation is that of all processes", 2, 4)
def _() -> None:
    layer = torch.nn.Linear(2, 1, bias=False)
    tx, own = gx.across(gx.clip_global_norm(1.0), everyone()), np.float32([[3.0 + rank(), 0.0]])
    wanted = np.float32(np.sqrt(sum((3.0 + place) ** 2 for place in range(world()))))
    layer.weight.grad = torch.tensor(own)
    assert_ulp(gx.torch.apply_(tx, layer, return_norm=True), wanted, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    handles = [gx.torch.attach(optimizer, each) for each in (tx, gx.across(gx.clip_norm(2.0), everyone()))]
    layer.weight.grad = torch.tensor(own)
    optimizer.step()
    assert_ulp(handles[0].norm, wanted, 1)
    assert handles[1].norm is None  # would need communication


@case("the norm of each gradient costs no collective beside the clip's", 2, 4)
def _() -> None:
    given = {"w": torch.tensor([3.0 + rank(), 0.0])}
    whole = np.float32(np.sqrt(sum((3.0 + place) ** 2 for place in range(world()))))
    for split, wanted in (("tree", np.float32(3.0 + rank())), ("leaves", whole)):
        counts = []
        for per_leaf in (False, True):
            tx = gx.across(gx.measure(gx.clip_global_norm(1.0), per_leaf=per_leaf), everyone(), split=split)
            counts.append(calls(lambda tx=tx: tx.update(given, tx.init(given))))
        assert counts[0] == counts[1], counts
        assert_ulp(gx.metrics(tx.update(given, tx.init(given))[1])["clip_global_norm/norm_before/w"], wanted, 1)


# --- beside DTensors -------------------------------------------------------------------------------------------------


@case("FSDP2 beside a pipeline", 4)
def _() -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = meshes["square"]
    stage, place = mesh.get_coordinate()
    whole, mine = stages(), stages()[stage]
    for module in (*mine, mine):
        if list(module.parameters()):
            fully_shard(module, mesh=mesh["b"])
    parameters = dict(mine.named_parameters())
    for axis in (mesh["a"], mesh.get_group("a")):
        for expression in (table.CLIP, "clip_norm(0.01)", "chain(clip_norm(0.1), clip_global_norm(0.1), scale(-0.1))"):
            hidden = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
            given = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(1)) if stage == 0 else hidden
            for p in (*mine.parameters(), *whole[stage].parameters()):
                p.grad = None
            mine(given).square().sum().backward()
            both = parameters["2.weight" if stage else "0.weight"].grad  # as pipelines do with tied embeddings
            torch.distributed.all_reduce(both.to_local(), group=mesh.get_group("a"))
            alone = {name: p.grad.full_tensor() for name, p in parameters.items()}
            before = told((stage, place, {name: leaf.numpy() for name, leaf in alone.items()}))
            tx = gx.parse(expression)
            large = {str(s): tree for s, where, tree in before if where == 0}
            flat = {s: {n.replace(".", "_"): leaf for n, leaf in tree.items()} for s, tree in large.items()}
            flat["1"].pop("2_weight", None)
            wanted = tx(flat)
            spread = gx.across(tx, axis, replicated=tied)
            # The stages exchange one number, and the shards of each stage their norms.
            asked = calls(lambda spread=spread: gx.torch.apply_(spread, named(mine, stage)))
            assert asked == (1 if expression == "clip_norm(0.01)" else 2), (expression, asked)
            for name, p in parameters.items():
                key = name.replace(".", "_")
                if key in wanted[str(stage)]:
                    assert_ulp(p.grad.full_tensor(), wanted[str(stage)][key], what=(expression, name))


@case("tensor parallelism written by hand, within a pipeline", 4)
def _() -> None:
    mesh = meshes["square"]
    stage, place = mesh.get_coordinate()
    for dtype in ("float32", "float64"):
        trees = {str(s): [table.device(2 * s + p, 0, dtype) for p in range(2)] for s in range(2)}
        for s in trees:
            trees[s][1]["r"] = trees[s][0]["r"]
        for expression in (
            table.CLIP,
            "clip_norm(1.0)",
            "clip_rms(0.1)",
            "chain(clip_norm(2.0), clip_global_norm(1.0))",
        ):
            tx = gx.parse(expression)
            spread = gx.across(gx.across(tx, mesh.get_group("a")), mesh.get_group("b"), split="leaves", replicated="r")
            wanted = tx({s: table.merged(pair, "leaves") for s, pair in trees.items()})
            right = table.parts(wanted[str(stage)], 2, "leaves")[place]
            found = spread(tensors("torch", trees[str(stage)][place]))
            distance = table.off({name: array(leaf) for name, leaf in found.items()}, right, expression)
            assert distance <= table.budget(expression, dtype), (expression, dtype, distance)
        clip = gx.measure(gx.clip_global_norm(1.0), "c")
        both = gx.across(gx.across(clip, mesh.get_group("a")), mesh.get_group("b"), split="leaves", replicated="r")
        given = tensors("torch", trees[str(stage)][place])
        agree(gx.metrics(both.update(given, both.init(given))[1])["c/norm_before"])


@case("a mesh of two dimensions as one axis", 4)
def _() -> None:
    for split in ("tree", "leaves"):
        right_on_all(table.CLIP, split, "float32", meshes["square"])
    noise = gx.across(gx.add_noise(1.0, 3), meshes["square"])
    zeros = {"a": torch.zeros(64)}
    assert len(set(told(array(noise.update(zeros, noise.init(zeros))[0]["a"]).tobytes()))) == 4


# --- what is refused -------------------------------------------------------------------------------------------------


@case("axes that are not there")
def _() -> None:
    tree = {"a": torch.ones(2)}
    clip = gx.clip_global_norm(1.0)
    fails(TypeError, "in PyTorch, axis is a torch.distributed.ProcessGroup", lambda: gx.across(clip, "pp")(tree))
    group = everyone()
    fails(ValueError, "two nested across use the same axis", lambda: gx.across(gx.across(clip, group), group)(tree))
    fails(ValueError, "a ProcessGroup or DeviceMesh", lambda: gx.parse(repr(gx.across(clip, group))))
    alone = torch.distributed.new_group([0])
    if rank() == 1:
        fails(TypeError, "do not use across in this process", lambda: gx.across(clip, alone))
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", [0])
    fails(ValueError, "a ProcessGroup or DeviceMesh", lambda: gx.parse(repr(gx.across(clip, mesh))))
    if rank() == 1:
        fails(ValueError, "is not in the mesh", lambda: gx.across(clip, mesh)(tree))
    else:
        assert_ulp(gx.across(clip, mesh)(tree), clip(tree))
    tx = gx.across(clip, group)
    assert tx == gx.across(clip, group) and hash(tx) == hash(gx.across(clip, group)) and tx != gx.across(clip, mesh)
    from torch.distributed.tensor import distribute_tensor

    mesh = torch.distributed.init_device_mesh("cpu", (world(),))
    spread = {"a": distribute_tensor(torch.ones(4), mesh, [torch.distributed.tensor.Shard(0)])}
    for same in (mesh, mesh.get_group(), group, torch.distributed.new_group(list(range(world())))):
        fails(ValueError, "not the whole mesh or WORLD", lambda same=same: gx.across(clip, same)(spread))
    x = torch.ones(3, requires_grad=True)
    fails(NotImplementedError, "no derivative flows", lambda: tx([x])[0].sum().backward())


@case("under torch.compile")
def _() -> None:
    tx = gx.across(gx.chain(gx.clip_global_norm(1.0), gx.scale(-0.1)), everyone(), replicated="**r")
    given = table.device(rank(), 0, "float32")
    found = torch.compile(tx, fullgraph=True, backend="aot_eager")(tensors("torch", given))
    assert_ulp(found, tx(tensors("torch", given)))


if __name__ == "__main__":
    groups.main(case)
