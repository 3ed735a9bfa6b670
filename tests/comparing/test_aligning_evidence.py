"""What proves that two leaves belong together, and what does not; layouts of recurrent cells and fused projections."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import LARGE, slow

import gradxform as gx
from gradxform.comparing.align.alignment import align
from gradxform.comparing.mapping import Map, named
from gradxform.recording.reading import Recording

E, H, D = 12, 4, 3


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def recorded(folder: Path, gradients: dict[str, Any], parameters: dict[str, Any] | None = None) -> Path:
    """Record a step; lists of pairs keep their order."""
    trees = {"gradients": list(gradients.items())}
    gx.record(folder)(0, **trees, **({"parameters": list(parameters.items())} if parameters else {}))
    return folder


def aligned(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], **both: Any) -> gx.Comparison:
    """Compare gradients, or with `parameters=True` the same leaves as parameters whose gradients are their squares."""
    sides = []
    for name, leaves in (("a", a), ("b", b)):
        gradients = {path: leaf**2 for path, leaf in leaves.items()} if both.get("parameters") else leaves
        sides.append(recorded(tmp_path / name, gradients, leaves if both.get("parameters") else None))
    return gx.compare(*sides)


def assert_equal_pairs(found: gx.Comparison, count: int) -> None:
    """Assert that so many pairs are equal in every element, and no leaf is left."""
    assert found.within and len(found.pairs) == count, f"{found.alignment.words}\n{found}"
    assert not found.alignment.alone_a and not found.alignment.alone_b
    assert all(d.relative == 0 for d in found.worst() if d is not None)


def led(found: gx.Comparison) -> dict[str, str]:
    return {named(pair.a): named(pair.b) for pair in found.pairs}


LAYERS = 6


def torch_like(seed: int) -> dict[str, Any]:
    """Dense layers of one size, each behind a norm, under numbers."""
    leaves: dict[str, Any] = {}
    for i in range(LAYERS):
        leaves |= {f"{2 * i}.weight": np.ones(E, np.float32), f"{2 * i}.bias": np.zeros(E, np.float32)}
        weight = random(E, E, seed=seed + i)
        leaves |= {f"{2 * i + 1}.weight": weight, f"{2 * i + 1}.bias": np.zeros(E, np.float32)}
    return leaves


def flax_like(torch: dict[str, Any]) -> dict[str, Any]:
    """The same leaves in nested modules with names of their own, sorted as JAX sorts them."""
    leaves = {}
    for path, leaf in torch.items():
        number, last = path.split(".")
        kind = "mix" if int(number) % 2 else "tune"
        name = {"weight": "kernel" if kind == "mix" else "scale", "bias": "bias"}[last]
        leaves[f"stage_{int(number) // 2}/{kind}/{name}"] = leaf.T
    return dict(sorted(leaves.items()))


def pairs_wanted() -> dict[str, str]:
    wanted = {}
    for i in range(LAYERS):
        wanted |= {f"{2 * i}/weight": f"stage_{i}/tune/scale", f"{2 * i}/bias": f"stage_{i}/tune/bias"}
        wanted |= {f"{2 * i + 1}/weight": f"stage_{i}/mix/kernel", f"{2 * i + 1}/bias": f"stage_{i}/mix/bias"}
    return wanted


def test_constants_prove_nothing_and_other_gradients_do_not_mislead(tmp_path: Path) -> None:
    """All gradients are unrelated, as under a fault: weights lead their modules, and the rest is said to be unsure."""
    weights = torch_like(0)
    ported = flax_like(weights)
    noise = (
        {p: random(*x.shape, seed=seed + k) for k, (p, x) in enumerate(s.items())}
        for seed, s in ((99, weights), (7777, ported))
    )
    one, other = noise
    found = gx.compare(recorded(tmp_path / "a", one, weights), recorded(tmp_path / "b", other, ported))
    assert led(found) == pairs_wanted()
    sure = {pair.a.path: pair.sure for pair in found.pairs}
    for i in range(LAYERS):
        assert sure[f"{2 * i + 1}/weight"] > 0.9
        assert sure[f"{2 * i + 1}/bias"] > 0.9
        assert sure[f"{2 * i}/weight"] < 0.5
    assert "least sure" in found.alignment.words


def test_other_seeds_leave_numbers_and_order(tmp_path: Path) -> None:
    """No value is equal: roles, shapes and order lead, and no pair is said to be sure."""
    found = aligned(tmp_path, torch_like(0), flax_like(torch_like(50)), parameters=True)
    assert led(found) == pairs_wanted()
    assert max(pair.sure for pair in found.pairs) < 0.5


@pytest.mark.parametrize("symmetric", [0.0, 0.98])
def test_equal_gradients_lead_where_nothing_else_does(symmetric: float, tmp_path: Path) -> None:
    shuffled = list(range(8))
    np.random.default_rng(0).shuffle(shuffled)
    a = {f"x{i}": g + np.float32(symmetric) * g.T for i, g in enumerate(random(E, E, seed=i) for i in range(8))}
    b = {f"y{k}": 3 * a[f"x{i}"].T for k, i in enumerate(shuffled)}
    found = aligned(tmp_path, a, b)
    assert led(found) == {f"x{i}": f"y{k}" for k, i in enumerate(shuffled)}
    assert {(pair.how, pair.a.layout.axes) for pair in found.pairs} == {("equal gradients", (1, 0))}


@slow(LARGE, parameters=False)
@slow(LARGE, count=4000)
@pytest.mark.parametrize("parameters", [True, False])
@pytest.mark.parametrize(
    ("count", "size", "noise"), [(1500, 3, 0.0), (1500, 4, 1e-6), (1500, 5, 1e-3), (4000, 4, 1e-6)]
)
def test_short_leaves_that_are_alike_by_chance(
    count: int, size: int, noise: float, parameters: bool, tmp_path: Path
) -> None:
    order, leaves = np.random.default_rng(0).permutation(count), random(count, size)
    noisy = np.float32(leaves * (1 + noise * random(count, size, seed=1)))
    a = {f"x{i}/weight": leaf for i, leaf in enumerate(leaves)}
    b = {f"y{k}/kernel": noisy[i] for k, i in enumerate(order)}
    given = (a, {path: leaves[i] for path, i in zip(b, order, strict=True)}) if parameters else (None, None)
    found = gx.compare(recorded(tmp_path / "a", a, given[0]), recorded(tmp_path / "b", b, given[1]))
    assert led(found) == {f"x{i}/weight": f"y{k}/kernel" for k, i in enumerate(order)}


def test_copies_of_one_weight_are_told_apart_by_names_and_order(tmp_path: Path) -> None:
    """Layers copied from one another begin equal, as in torch.nn.TransformerEncoder."""
    weight = random(E, E)
    a = {f"encoder.layers.{i}.linear1.weight": weight for i in range(12)}
    b = dict(sorted({f"stack_{i}/kernel": weight.T for i in range(12)}.items()))
    noise = [{path: random(E, E, seed=k + s) for k, path in enumerate(side)} for s, side in ((5, a), (500, b))]
    found = gx.compare(recorded(tmp_path / "a", noise[0], a), recorded(tmp_path / "b", noise[1], b))
    assert led(found) == {f"encoder/layers/{i}/linear1/weight": f"stack_{i}/kernel" for i in range(12)}
    assert {pair.how for pair in found.pairs} == {"equal parameters and order"}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["fc1", "fc2", "fc3"], ["dense", "dense_1", "dense_2"]),
        (["fc1", "fc2", "fc3"], ["dense_7", "dense_8", "dense_9"]),
        (["layers.0", "layers.2", "layers.4"], ["layers_0", "layers_1", "layers_2"]),
        (["h.1.mlp", "h.2.mlp", "h.10.mlp"], ["h_0/mlp", "h_1/mlp", "h_2/mlp"]),
        (["h.1.mlp", "h.2.mlp", "h.3.mlp"], ["h_9/mlp", "h_10/mlp", "h_11/mlp"]),
    ],
)
def test_numbers_are_counted_where_they_begin(a: list[str], b: list[str], tmp_path: Path) -> None:
    """Names alone: nothing in the values tells the three apart."""
    one = {f"{module}.weight": random(E, E, seed=k) for k, module in enumerate(a)}
    other = dict(sorted((f"{module}/kernel", random(E, E, seed=k + 40)) for k, module in enumerate(b)))
    found = aligned(tmp_path, one, other)
    assert [pair.b.path for pair in found.pairs] == [f"{module}/kernel" for module in b]
    assert {pair.how for pair in found.pairs} == {"names"}


@pytest.mark.parametrize("parameters", [True, False])
def test_paths_that_are_counted_on_are_not_believed_against_the_values(parameters: bool, tmp_path: Path) -> None:
    """Keras's second model of a process: dense_1 of the one is dense_3 of the other."""
    one = {f"{name}/kernel": random(E, E, seed=k) for k, name in enumerate(["dense", "dense_1", "dense_2", "dense_3"])}
    other = {f"dense_{k + 2}/kernel": leaf for k, leaf in enumerate(one.values())}
    found = aligned(tmp_path, one, other, parameters=parameters)
    assert led(found) == dict(zip(one, other, strict=True))
    assert found.within


def test_weights_that_were_swapped_under_equal_paths_are_a_fault(tmp_path: Path) -> None:
    one = {"x/kernel": random(E, E), "y/kernel": random(E, E, seed=1), "z/kernel": random(E, seed=2)}
    other = {"x/kernel": one["y/kernel"], "y/kernel": one["x/kernel"], "z/kernel": one["z/kernel"]}
    for name, leaves in (("all", other), ("more", {**other, "more/bias": random(H)})):
        found = aligned(tmp_path / name, one, leaves, parameters=True)
        assert led(found) == {path: path for path in one}
        assert not found.within


def test_roles_that_differ_are_not_paired(tmp_path: Path) -> None:
    a = {"conv.weight": random(E, E), "conv.bias": random(E)}
    b = {"conv/kernel": random(E, E).T, "norm/scale": random(E, seed=3)}
    found = aligned(tmp_path, a, b, parameters=True)
    assert led(found) == {"conv/weight": "conv/kernel"}
    assert not found.alignment.not_aligned


Q, KV = H * D, 2 * D


def fused(parts: list[Any], heads: int = 1) -> Any:
    """Query, key and value in one, behind one another in each group of heads."""
    sections = [part.reshape(heads, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(sections, 1).reshape(-1, *parts[0].shape[1:])


def thirds(sizes: tuple[int, int, int], bias: bool = False) -> list[Any]:
    return [random(size, *(() if bias else (E,)), seed=k) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("parameters", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize(
    ("name", "sizes", "heads"),
    [
        ("qkv_proj", (Q, KV, KV), 1),
        ("query_key_value", (Q, Q, Q), H),
        ("query_key_value", (Q, KV, KV), 2),
        ("Wqkv", (Q, Q, Q), 1),
    ],
)
def test_fused_projections(name: str, sizes: Any, heads: int, swapped: bool, parameters: bool, tmp_path: Path) -> None:
    """Of Llama with fewer keys than queries, of GPT-NeoX and Falcon, whose heads have each their three parts."""
    weights, biases = thirds(sizes), thirds(sizes, bias=True)
    joint = {f"h.0.attn.{name}.weight": fused(weights, heads), f"h.0.attn.{name}.bias": fused(biases, heads)}
    apart = {f"h_0/attn/{part}_proj/kernel": weight.T for part, weight in zip("qkv", weights, strict=True)}
    apart |= {f"h_0/attn/{part}_proj/bias": bias for part, bias in zip("qkv", biases, strict=True)}
    found = aligned(tmp_path, *((apart, joint) if swapped else (joint, apart)), parameters=parameters)
    assert_equal_pairs(found, 6)


def test_other_fused_projections(tmp_path: Path) -> None:
    gate, up, key, value = (random(E, E, seed=k) for k in range(4))
    a = {"mlp.gate_up_proj.weight": np.concatenate([gate, up]), "attn.kv_proj.weight": np.concatenate([key, value])}
    b = {
        "mlp/gate_proj/kernel": gate.T,
        "mlp/up_proj/kernel": up.T,
        "attn/k_proj/kernel": key.T,
        "attn/v_proj/kernel": value.T,
    }
    assert_equal_pairs(aligned(tmp_path, a, b), 4)


def test_a_layout_that_is_not_known_is_not_aligned_rather_than_missing(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).permutation(3 * Q)
    a = {"attn.strange.weight": np.concatenate(thirds((Q, Q, Q)))[rows], "fc.weight": random(E, E)}
    b = {
        f"attn/{part}/kernel": weight.T
        for part, weight in zip(("query", "key", "value"), thirds((Q, Q, Q)), strict=True)
    }
    found = aligned(tmp_path, a, {**b, "fc/kernel": random(E, E).T})
    assert found.alignment.not_aligned == {"attn/strange/weight", *b}
    assert "write a map" in found.alignment.words
    assert [finding.kind for finding in found.findings] == ["unaligned"]
    assert not found.within


def moved(weight: Any, order: tuple[int, ...], axis: int = 0) -> Any:
    parts = np.split(weight, len(order), axis)
    return np.concatenate([parts[i] for i in order], axis)


RZN_TO_ZRN = (1, 0, 2)


@pytest.mark.parametrize(("parameters", "factor"), [(True, 1), (False, 1), (False, 8)])
@pytest.mark.parametrize("swapped", [True, False])
def test_a_gru_of_torch_and_of_keras(parameters: bool, swapped: bool, factor: int, tmp_path: Path) -> None:
    """Keras keeps both biases in one leaf, and its update gate comes first; gradients alone are enough."""
    w, u, b, c = random(3 * H, E), random(3 * H, H), random(3 * H), random(3 * H, seed=1)
    torch = {"rnn.weight_ih_l0": w, "rnn.weight_hh_l0": u, "rnn.bias_ih_l0": b, "rnn.bias_hh_l0": c}
    keras = {"gru/gru_cell/kernel": moved(w, RZN_TO_ZRN).T, "gru/gru_cell/recurrent_kernel": moved(u, RZN_TO_ZRN).T}
    keras["gru/gru_cell/bias"] = np.stack([moved(b, RZN_TO_ZRN), moved(c, RZN_TO_ZRN)])
    if not parameters:
        keras = {path: factor * leaf for path, leaf in keras.items()}
    found = aligned(tmp_path, *((keras, torch) if swapped else (torch, keras)), parameters=parameters)
    assert len(found.pairs) == 4 and not found.alignment.alone_a and not found.alignment.alone_b, found.alignment.words
    assert [finding.kind for finding in found.findings][:1] == (["factor"] if factor > 1 else []), str(found)
    gates = {layout.gates for pair in found.pairs for layout in (pair.a.layout, pair.b.layout)} - {None}
    assert {each[1:] for each in gates} == {RZN_TO_ZRN}


@pytest.mark.parametrize("parameters", [True, False])
def test_gates_of_a_gru_in_the_order_of_another_framework_are_a_fault(parameters: bool, tmp_path: Path) -> None:
    """The gradients of a port that kept PyTorch's order in Keras's layer."""
    w, u = random(3 * H, E), random(3 * H, H)
    a = {"rnn.weight_ih_l0": w, "rnn.weight_hh_l0": u, "head.weight": random(E, H)}
    b = {"gru/kernel": w.T, "gru/recurrent_kernel": moved(u, RZN_TO_ZRN).T, "head/kernel": random(E, H).T}
    weights = b | {"gru/kernel": moved(w, RZN_TO_ZRN).T}
    given = (a, weights) if parameters else (None, None)
    found = gx.compare(recorded(tmp_path / "a", a, given[0]), recorded(tmp_path / "b", b, given[1]))
    assert {pair.a.path: pair.b.path for pair in found.pairs}["rnn/weight_ih_l0"] == "gru/kernel"
    assert not found.within


def test_the_joint_kernel_of_tensorflow_1_is_not_aligned(tmp_path: Path) -> None:
    """Inputs and states in one kernel: a map tells its parts."""
    w, u, head = random(4 * H, E), random(4 * H, H), random(E, H)
    a = {"lstm.weight_ih_l0": w, "lstm.weight_hh_l0": u, "head.weight": head}
    b = {"rnn/basic_lstm_cell/kernel": np.concatenate([w.T, u.T]), "head/kernel": head.T}
    found = aligned(tmp_path, a, b)
    assert len(found.pairs) == 1 and not found.within
    assert not [finding for finding in found.findings if finding.is_fault and finding.is_certain], str(found)


def test_gates_of_flax_linen(tmp_path: Path) -> None:
    w, u, b, c = random(3 * H, E), random(3 * H, H), random(3 * H), random(3 * H, seed=1)
    torch = {"gru.weight_ih_l0": w, "gru.weight_hh_l0": u, "gru.bias_ih_l0": b, "gru.bias_hh_l0": c}
    linen = {f"gru/0/i{gate}/kernel": part.T for gate, part in zip("rzn", np.split(w, 3), strict=True)}
    linen |= {f"gru/0/h{gate}/kernel": part.T for gate, part in zip("rzn", np.split(u, 3), strict=True)}
    linen |= {f"gru/0/i{gate}/bias": part for gate, part in zip("rzn", np.split(b, 3), strict=True)}
    linen["gru/0/hn/bias"] = np.split(c, 3)[2]
    found = aligned(tmp_path, torch, dict(sorted(linen.items())), parameters=True)
    assert found.within and len(found.pairs) == 10, f"{found.alignment.words}\n{found}"
    assert not found.alignment.alone_b


def test_gates_of_an_unknown_cell_are_found_in_the_gradients(tmp_path: Path) -> None:
    u = random(4 * H, H)
    a, b = {"lstm.weight_hh_l0": u}, {"my/cell/wh": moved(u, (0, 3, 1, 2)).T}
    found = aligned(tmp_path, a, b)
    assert found.within, f"{found.alignment.words}\n{found}"
    assert found.pairs[0].b.layout.gates


def test_many_leaves_are_matched_in_seconds(tmp_path: Path) -> None:
    """64 layers of 12 leaves each, under other names, by values and without them."""
    shapes = ((16, 16),) * 4 + ((32, 16), (16, 32)) + ((16,),) * 6
    a, b = {}, {}
    for i in range(64):
        for k, shape in enumerate(shapes):
            leaf = random(*shape, seed=100 * i + k)
            last = ("bias", "bias") if len(shape) == 1 else ("weight", "kernel")
            a[f"model.layers.{i}.part{k}.{last[0]}"], b[f"stack/{i}/other{k}/{last[1]}"] = leaf, leaf.T
    others = {path: leaf[::-1] for path, leaf in a.items()}
    folders = [recorded(tmp_path / name, leaves) for name, leaves in (("a", a), ("b", b), ("others", others))]
    sides = [Recording(folder) for folder in folders]
    start = time.process_time()
    found, unsure = (align(side, sides[1], [0], ["gradients"], Map({}, [])) for side in (sides[0], sides[2]))
    took = time.process_time() - start
    for pair in found.pairs:
        path = pair.a.path.replace("weight", "kernel").replace("part", "other")
        assert pair.b.path == path.replace("model/layers", "stack")
        assert pair.sure > 0.9
    assert len(found.pairs) == len(unsure.pairs) == 768
    assert max(pair.sure for pair in unsure.pairs) < 0.5
    assert took < 5  # before the matrices, five seconds each


@pytest.mark.parametrize("parameters", [True, False])
def test_two_directions_and_layers_of_torch_and_keras(parameters: bool, tmp_path: Path) -> None:
    torch, keras = {}, {}
    for k, (layer, way) in enumerate((layer, way) for layer in (0, 1) for way in ("", "_reverse")):
        w, u, b = (random(4 * H, *shape, seed=k) for shape in ((2 * H,), (H,), ()))
        torch |= {f"rnn.weight_ih_l{layer}{way}": w, f"rnn.weight_hh_l{layer}{way}": u, f"rnn.bias_hh_l{layer}{way}": b}
        path = f"bidirectional{'_1' * layer}/{'backward' if way else 'forward'}_lstm{'_1' * layer}/lstm_cell"
        keras |= {f"{path}/kernel": w.T, f"{path}/recurrent_kernel": u.T, f"{path}/bias": b}
    found = aligned(tmp_path, torch, keras, parameters=parameters)
    assert found.within and len(found.pairs) == 12, f"{found.alignment.words}\n{found}"
    assert min(pair.sure for pair in found.pairs) > 0.9


@pytest.mark.parametrize("layer", ["gru", "lstm"])
def test_gradients_of_real_recurrent_layers_are_enough(layer: str, tmp_path: Path) -> None:
    """One layer of PyTorch and of Keras, from the same weights, without the weights."""
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("the tape is TensorFlow's")
    torch.manual_seed(0)
    x = random(2, 5, E)
    mine = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[layer](E, H, batch_first=True)
    (mine(torch.tensor(x))[0] ** 2).sum().backward()
    given = {path: p.detach().numpy() for path, p in mine.named_parameters()}
    order = RZN_TO_ZRN if layer == "gru" else (0, 1, 2, 3)
    w, u, b, c = (moved(given[f"{n}_l0"], order) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    other = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}[layer](H, return_sequences=True)
    other.build(x.shape)
    other.set_weights([w.T, u.T, np.stack([b, c]) if layer == "gru" else b + c])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(other(x) ** 2)
    gradients = tape.gradient(loss, [v.value for v in other.trainable_variables])
    gx.record(tmp_path / "torch")(0, gradients={path: p.grad for path, p in mine.named_parameters()})
    gx.record(tmp_path / "keras")(0, gradients=list(zip(gradients, other.trainable_variables, strict=True)))
    found = gx.compare(tmp_path / "torch", tmp_path / "keras")
    assert len(found.pairs) == (4 if layer == "gru" else 3), found.alignment.words
    assert found.judged["gradients"].first is None, str(found)
    assert found.alignment.alone_a == ([] if layer == "gru" else ["bias_ih_l0"])


@pytest.mark.parametrize("norms_only", [False, True])
@pytest.mark.parametrize("parameters", [True, False])
def test_strange_leaves_under_other_names(parameters: bool, norms_only: bool, tmp_path: Path) -> None:
    """Empty, scalar, complex, boolean, NaN, infinite and of many axes."""
    a = {
        "one/empty": np.zeros((0, 3), np.float32),
        "one/scalar": np.float32(3.0),
        "one/turn": random(4, 5) + 1j * random(4, 5, seed=1),
        "one/mask": np.array([True, False, True, True]),
        "one/counts": np.arange(7),
        "one/lost": np.full((3, 3), np.nan, np.float32),
        "one/huge": np.full(6, np.inf, np.float32),
        "one/many": random(2, 1, 2, 1, 2, 1, 2),
        "one/half": random(9, 2).astype(np.float16),
    }
    b = {f"two/{k}": leaf.T if leaf.ndim == 2 else leaf for k, leaf in enumerate(a.values())}
    for name, leaves in (("a", a), ("b", b)):
        trees = {"parameters": list(leaves.items())} if parameters else {}
        gx.record(tmp_path / name, norms_only=norms_only)(0, gradients=list(leaves.items()), **trees)
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    pairs = {pair.a.path: pair.b.path for pair in found.pairs}
    if not norms_only:
        assert pairs["one/turn"] == "two/2" and pairs["one/many"] == "two/7" and pairs["one/half"] == "two/8"
        assert next(pair.sure for pair in found.pairs if pair.a.path == "one/turn") > 0.9
    assert len(pairs) == (7 if norms_only else 9)  # booleans and integers have no norms


def test_complex_and_real_leaves_of_one_shape_are_not_equal(tmp_path: Path) -> None:
    a, b = {"x/u": random(4, 4) + 0j, "x/v": random(4, 4)}, {"y/s": random(4, 4).T, "y/t": random(4, 4).T + 0j}
    sides = (Recording(recorded(tmp_path / name, leaves)) for name, leaves in (("a", a), ("b", b)))
    found = align(*sides, [0], ["gradients"], Map({}, []))
    assert {pair.a.path: pair.b.path for pair in found.pairs} == {"x/u": "y/t", "x/v": "y/s"}
