"""The examples of README and of the pages run, and print what they say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import peers
import pytest

import gradxform as gx

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))


def executed(page: str) -> bool:
    """Whether a page shows what a prompt answers."""
    return bool(blocks(page, "pycon"))


@pytest.mark.parametrize("page", list(filter(executed, PAGES)))
def test_a_pages_examples_print_what_they_say(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in ("jax", "optax", "tensorflow", "torch"):
        pytest.importorskip(framework)
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    text = "\n".join(blocks(page, "pycon"))
    examples = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples)
    assert results.attempted
    assert results.failed == 0


def test_the_readmes_first_example_runs() -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    tf, torch, keras = (pytest.importorskip(name) for name in ("tensorflow", "torch", "keras"))
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2) * 9).sum().backward()
    variable = keras.Variable([1.0, 1.0])
    names = {
        "grads": {"w": jax.numpy.array([30.0, 40.0])},
        "optax": optax,
        "grads_and_vars": [(tf.constant([30.0, 40.0]), variable)],
        "model": model,
        "gx": gx,
        "x": jax.numpy.ones(2),
    }
    first, second = blocks("README.md", "python")
    code, optimizer = first.partition("optimizer.apply_gradients")[::2]
    exec(code, names)
    names["optimizer"] = keras.optimizers.SGD(1.0)
    exec("optimizer.apply_gradients" + optimizer, names)
    assert names["keras_optimizer"].gradient_transformation == names["tx"]
    assert names["y"].tolist() == [1.0, 1.0]
    assert variable.numpy() == pytest.approx([0.4, 0.2], abs=1e-6)
    assert float(torch.linalg.vector_norm(model.weight.grad)) <= 1.0
    exec(second, {"tx": gx.clip_norm(1.0), "np": np})


@pytest.mark.parametrize("like", ["gradxform", "tensorflow", "keras", "optax", "torch", "mlx", "paddle"])
def test_the_tables_of_hard_cases_are_what_the_libraries_do(like: str) -> None:
    if like != "gradxform":
        pytest.importorskip({"mlx": "mlx.core"}.get(like, like))
    tables = re.findall(r"^\| g \|.*?(?=^$)", (ROOT / "docs/migrating/like.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(tables) == 2
    for transform, table in zip(("clip_global_norm", "clip_norm"), tables, strict=True):
        header, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines())
        assert [row[0] for row in rows] == list(peers.HARD)
        clip = peers.ours(transform) if like == "gradxform" else peers.find(transform, like)
        for row in rows:
            assert row[header.index(like)] == peers.shown(clip, row[0]), (transform, row[0])


def test_every_transform_is_in_the_readmes_table() -> None:
    from gradxform._transformation import factories

    text = (ROOT / "README.md").read_text()
    for name in factories:
        assert f"`{name}(" in text or f"`{name}`" in text, name


def test_every_public_name_has_a_docstring_with_an_example() -> None:
    places = [gx, *(getattr(gx, name) for name in ("numpy", "jax", "tensorflow", "keras", "torch", "testing"))]
    for place in places:
        for name in place.__all__:
            value = getattr(place, name)
            if callable(value):
                assert "Example:" in (value.__doc__ or ""), f"{place.__name__}.{name}"
                assert ">>>" in (value.__doc__ or ""), f"{place.__name__}.{name}"
                assert re.search("References:|Source:", value.__doc__ or ""), f"{place.__name__}.{name}"
