"""Which leaf is which: by path, name, map, shape and value; in which layout; what has no partner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradxform as gx
from gradxform.comparing import mapping
from gradxform.comparing.layouts import Layout, blocks, candidates
from gradxform.comparing.mapping import Pair, View

E, H, D = 8, 2, 4


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def record(folder: Path, leaves: dict[str, Any], parameters: bool = True) -> Path:
    """Record a step whose gradients have the same layouts as its parameters."""
    trees = {"gradients": [(path, leaf * 2 + leaf**2) for path, leaf in leaves.items()]}
    gx.record(folder)(0, **trees, **({"parameters": list(leaves.items())} if parameters else {}))
    return folder


def compared(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], **options: Any) -> gx.Comparison:
    parameters = options.pop("parameters", True)
    return gx.compare(record(tmp_path / "a", a, parameters), record(tmp_path / "b", b, parameters), **options)


W, IMAGE, VECTOR, SQUARE = random(6, E), random(5, 3, 2, 2), random(E), random(E, E, seed=3)
JOINT, SHIFT = random(3 * E, E), random(3 * E)


def parts(joint: Any) -> list[Any]:
    return list(np.split(joint, 3))


CONVENTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": ({"fc.weight": W, "fc.bias": VECTOR}, {"fc/kernel": W.T, "fc/bias": VECTOR}),
    "a square kernel": ({"fc.weight": SQUARE}, {"fc/kernel": SQUARE.T}),
    "convolution": ({"conv.weight": IMAGE}, {"conv/kernel": IMAGE.transpose(2, 3, 1, 0)}),
    "norms": ({"ln.weight": VECTOR, "ln.bias": -VECTOR}, {"layer_norm/gamma": VECTOR, "layer_norm/beta": -VECTOR}),
    "embedding": ({"embed.weight": SQUARE}, {"embed/embedding": SQUARE}),
    "heads": (
        {"attn.q_proj.weight": SQUARE, "attn.out_proj.weight": SQUARE + 1},
        {"attn/query/kernel": SQUARE.T.reshape(E, H, D), "attn/out/kernel": (SQUARE + 1).T.reshape(H, D, E)},
    ),
    "a joint projection": (
        {"attn.in_proj_weight": JOINT, "attn.in_proj_bias": SHIFT},
        {f"attn/{n}/kernel": p.T.reshape(E, H, D) for n, p in zip(("query", "key", "value"), parts(JOINT), strict=True)}
        | {f"attn/{n}/bias": p.reshape(H, D) for n, p in zip(("query", "key", "value"), parts(SHIFT), strict=True)},
    ),
    "a joint kernel": (
        {f"attn/{n}/kernel": p.T for n, p in zip(("query", "key", "value"), parts(JOINT), strict=True)},
        {"attn/qkv/kernel": JOINT.T},
    ),
    "gates as modules": (
        {"lstm.weight_ih_l0": random(4 * E, 3), "lstm.weight_hh_l0": random(4 * E, E)},
        {
            f"lstm/0/{side}{gate}/kernel": part.T
            for side, whole in (("i", random(4 * E, 3)), ("h", random(4 * E, E)))
            for gate, part in zip("ifgo", np.split(whole, 4), strict=True)
        },
    ),
    "modules under other names": (
        {"0.weight": W, "0.bias": VECTOR[:6], "2.weight": random(3, 6), "2.bias": VECTOR[:3]},
        {"net/dense/kernel": W.T, "net/dense/bias": VECTOR[:6]}
        | {"net/dense_1/kernel": random(3, 6).T, "net/dense_1/bias": VECTOR[:3]},
    ),
}


@pytest.mark.parametrize("parameters", [True, False])
@pytest.mark.parametrize("case", CONVENTIONS)
def test_conventions_of_the_frameworks(case: str, parameters: bool, tmp_path: Path) -> None:
    a, b = CONVENTIONS[case]
    for swapped, (one, other) in enumerate(((a, b), (b, a))):
        found = compared(tmp_path / str(swapped), one, other, parameters=parameters)
        assert found.within, f"{found.alignment.words}\n{found}"
        assert not found.alignment.alone_a and not found.alignment.alone_b
        assert all(d.relative == 0 for d in found.worst() if d is not None)


def test_gates_in_another_order_are_seen_in_the_parameters(tmp_path: Path) -> None:
    kernel = random(3, 4 * E)
    other = np.concatenate([np.split(kernel, 4, 1)[i] for i in (1, 0, 2, 3)], 1)
    found = compared(tmp_path, {"gru/input": kernel}, {"cell/wx": other})
    assert found.within, str(found)
    assert found.pairs[0].b.layout.gates == (1, 1, 0, 2, 3)


def test_equal_paths_are_never_moved(tmp_path: Path) -> None:
    """A transposed gradient under an equal path is a fault, and no convention."""
    a = record(tmp_path / "a", {"w/kernel": SQUARE, "v": W})
    b = record(tmp_path / "b", {"w/kernel": SQUARE.T, "v": W})
    found = gx.compare(a, b)
    assert found.findings[0].kind == "initial"
    assert "transposed" in str(found)


def test_what_has_no_partner_is_listed(tmp_path: Path) -> None:
    found = compared(tmp_path, {"fc.weight": W, "extra.bias": VECTOR}, {"fc/kernel": W.T})
    assert found.alignment.alone_a == ["extra/bias"]
    assert "without a partner: 1 of A, 0 of B" in found.alignment.words
    assert [finding.kind for finding in found.findings] == ["missing"]


def test_one_is_not_matched_twice_and_doubt_is_told(tmp_path: Path) -> None:
    """Two leaves of one shape and other values: matched by order, and not surely."""
    a = {"first": random(4, 4, seed=1), "second": random(4, 4, seed=2)}
    b = {"one": random(4, 4, seed=3), "two": random(4, 4, seed=4)}
    found = compared(tmp_path, a, b)
    assert len({pair.b.path for pair in found.pairs}) == 2
    assert max(pair.sure for pair in found.pairs) < 0.9
    assert "least sure" in found.alignment.words


def test_a_map_of_names_and_modules(tmp_path: Path) -> None:
    a = {"0.weight": SQUARE, "0.bias": VECTOR, "1.weight": SQUARE + 1, "2.u": W, "3.v": -W}
    b = {"net/x/kernel": SQUARE.T, "net/x/bias": VECTOR, "net/y/kernel": SQUARE.T + 1, "net/u": W, "net/v": -W}
    given = {"0": "net/x", "1.weight": "net/y/kernel", "2": "net", "3": "net"}
    found = compared(tmp_path, a, b, map=given, parameters=False)
    assert {pair.how for pair in found.pairs} == {"the map"}
    assert found.within


def test_a_map_that_was_written_is_read(tmp_path: Path) -> None:
    layout = Layout((0, 2, 4), (1, 1, 0), (1, 0), (2, 4))
    pairs = [Pair(View('a "b"', layout), View("c", Layout()), "names", 0.95)]
    (tmp_path / "map.toml").write_text(mapping.written(pairs, ["alone"], []))
    found = mapping.read(tmp_path / "map.toml")
    assert found.pairs == [pairs[0]._replace(how="the map", sure=1.0)]
    (tmp_path / "names.toml").write_text('[names]\n"0" = "net/dense"\n')
    assert mapping.read(tmp_path / "names.toml").names == {"0": "net/dense"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no toml", "TOML"),
        ("[other]", "'other'"),
        ('[[leaf]]\na = "x"', "a and b"),
        ('[[leaf]]\na = "x"\nb = "y"\nc_axes = [0]', "c_axes"),
        ('[[leaf]]\na = "nowhere"\nb = "w"', "no such leaf; it has w"),
        ("[names]\nw = 3", "got 3"),
        ("names = 3", r"may have \[names\]"),
        ('[names]\nv = "w"', r"'v'.*it has w"),
        ('[names]\nw = "x/y"', "'x/y'"),
        ('[names]\n"a.b" = "w"\n"a/b" = "w"', "'a/b' twice"),
        ('[leaf]\na = "w"\nb = "w"', r"may have .*\[\[leaf\]\]"),
        ('[[leaf]]\na = "W"\nb = "w"', r"'W'.*it has w"),
        ('[[leaf]]\na = "w"\nb = "w"\n[[leaf]]\na = "w"\nb = "w"', "'w' of A twice"),
        ('[[leaf]]\na = "w"\nb = "w"\na_axes = "10"', r"a_axes .*'10'"),
        ('[[leaf]]\na = "w"\nb = "w"\na_axes = [1.5, 0]', "a_axes"),
        ('[[leaf]]\na = "w"\nb = "w"\na_axes = [0, 2]', r"'axes \(0, 2\)' does not fit the shape \(6, 8\) of 'w'"),
        ('[[leaf]]\na = "w"\nb = "w"\nb_gates = [0, 1, 0, 2, 3]', r"'blocks \(1, 0, 2, 3\) of axis 0' does not fit"),
        ('[[leaf]]\na = "w"\nb = "w"\na_part = [0]', "a_part must be"),
        ('[[leaf]]\na = "w"\nb = "w"\na_part = [0, 4, 9]', r"'part \[4:9\]' does not fit"),
        ('[[leaf]]\na = "w"\nb = "w"\na_shape = [7, 7]', r"'reshaped to \(7, 7\)' does not fit"),
        ('[[leaf]]\na = "w"\nb = "w"\na_axes = [1, 0]', r"shapes \(8, 6\) and \(6, 8\) were paired; correct the map"),
        ("[alone]\nc = []", r"\[alone\], with lists of paths a and b"),
        ('[alone]\na = "w"', "lists of paths"),
        ('[alone]\na = ["v"]', "has 'v', and A has no such leaf"),
        ('[alone]\na = ["w"]\n[[leaf]]\na = "w"\nb = "w"', "'w' of A twice"),
        ('[alone]\na = ["w"]', "no leaf of A is one of B"),
        (None, "cannot be read"),
    ],
)
def test_maps_that_are_none(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        compared(tmp_path, {"w": W}, {"w": W}, map=path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "wrong", "message"),
    [
        ("v", {"v": "x", "w": "x"}, "'v' and 'w' of A both to 'x'"),
        ("v", {"w": "y"}, r"'w' \(6, 8\) to 'y' \(8,\)"),
        ("encoder/layers/v", {"encoder/layer": "encoder"}, "like it: encoder/layers"),
        ("v", 3, "got 3"),
    ],
)
def test_a_dict_that_is_no_map(path: str, wrong: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        compared(tmp_path, {path: W, "w": W}, {"x": W, "y": VECTOR}, map=wrong)


def test_leaves_that_a_map_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text('[alone]\na = ["w"]\nb = []')
    found = compared(tmp_path, {"v": VECTOR, "w": W}, {"v": VECTOR, "w": W}, map=tmp_path / "map.toml")
    assert [pair.a.path for pair in found.pairs] == ["v"]
    assert (found.alignment.alone_a, found.alignment.alone_b) == (["w"], ["w"])


@pytest.mark.parametrize("case", CONVENTIONS)
def test_a_map_that_was_written_aligns_the_same(case: str, tmp_path: Path) -> None:
    a, b = CONVENTIONS[case]
    found = compared(tmp_path, a, b)
    text = mapping.written(found.pairs, found.alignment.alone_a, found.alignment.alone_b)
    (tmp_path / "map.toml").write_text(text)
    again = gx.compare(tmp_path / "a", tmp_path / "b", map=tmp_path / "map.toml")
    assert [pair[:2] for pair in again.pairs] == [pair[:2] for pair in found.pairs]
    assert again.within


def test_layouts_between_two_shapes() -> None:
    assert list(candidates((2, 3), (3, 2))) == [Layout(axes=(1, 0)), Layout(shape=(3, 2))][:1]
    assert Layout(axes=(1, 0), shape=(3, 1, 2)) in list(candidates((2, 3), (3, 1, 2)))
    assert list(candidates((2, 3), (7,))) == []
    x = random(8, 3)
    order = (2, 0, 3, 1)
    assert blocks(x, np.concatenate([np.split(x, 4)[i] for i in order])) == (0, *order)
    assert blocks(x, x) is None
