"""The examples of the README and the pages run and print the shown output."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import bench_page
import peers
import pytest
import what_goes_wrong
from support import LARGE, MIGRATED_FROM, ROOT, slow
from support import PAGES as LONG

import gradxform as gx


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


README = (ROOT / "README.md").read_text()
LONG_PAGES = "docs/(extending|guides/(backward|jax|keras|states)|how-to/(exploding|change|same|train))"
PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))


def executed(page: str) -> bool:
    """Whether a page has examples with a prompt."""
    return bool(blocks(page, "pycon"))


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::UserWarning:torch", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@slow(LONG, lambda page: re.match(LONG_PAGES, page) is not None)
@pytest.mark.parametrize("page", list(filter(executed, PAGES)))
def test_a_pages_examples_print_what_they_say(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for framework in ("jax", "optax", "tensorflow", "torch", "lightning", "accelerate", "mlx.core"):
        pytest.importorskip(framework)
    importlib.import_module("torch").compiler.reset()  # torch counts what other tests compiled of the same `update`
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    monkeypatch.chdir(tmp_path)  # for the files that a page writes
    text = "\n".join(blocks(page, "pycon"))
    examples = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples)
    assert results.attempted
    assert results.failed == 0


def test_no_python_of_a_page_goes_unrun() -> None:
    """Code without prompts is part of a tested example, or a side of a table."""
    files = (ROOT / "docs/examples").rglob("*.py")
    scripts = [{line.partition("  #")[0].strip() for line in path.read_text().splitlines()} for path in files]
    for page in set(PAGES) - {f"docs/migrating/{library}.md" for library in MIGRATED_FROM}:
        for block in [*blocks(page, "python"), *blocks(page, r"\{code-block\} python")]:
            lines = {line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()}
            assert any(lines <= script for script in scripts), (page, block)


@pytest.mark.parametrize("page", PAGES)
def test_python_stands_in_blocks_that_the_tests_know(page: str) -> None:
    """Indented code, or code under another name, would not be tested."""
    fence = r"^[ \t>]*(?:`{3,}|~{3,}) *(?:\{code(?:-block|-cell)?\} *)?i?py[\w-]*$"
    found = set(re.findall(fence, (ROOT / page).read_text(), re.MULTILINE | re.IGNORECASE))
    known = {"```pycon", "```python", "```{code-block} python"}
    assert found <= ({"```{code-cell} ipython3"} if page.startswith("docs/notebooks/") else known)  # the build runs it


def test_the_commands_of_the_pages_are_commands(typer: Any) -> None:
    from gradxform.cli import app

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [(ROOT / page).read_text() for page in [*PAGES, "README.md", "CONTRIBUTING.md"]]
    wanted = {target for text in texts for target in re.findall(r"(?:`|^    |^\$ )make ([a-z-]+)", text, re.MULTILINE)}
    assert {"demo", "test", "docs"} <= wanted <= targets
    texts = [text.replace("\\\n", "") for text in texts]
    lines = {line for text in texts for line in re.findall(r"(?:`|^    |^\$ )gradxform ([^`\n]+)", text, re.MULTILINE)}
    assert len(lines) > 5
    for line in lines:
        name, *arguments = shlex.split(line.partition("  #")[0])
        command = typer.main.get_command(app).commands[name]
        if arguments:  # a name alone may be that of a command with arguments
            command.make_context(name, arguments)


def test_the_page_of_the_command_line_has_every_option(typer: Any) -> None:
    from gradxform.cli import app

    sections = re.split(r"^## gradxform ", (ROOT / "docs/reference/cli.md").read_text(), flags=re.MULTILINE)[1:]
    commands = typer.main.get_command(app).commands
    assert [section.split()[0] for section in sections] == list(commands)
    for section, command in zip(sections, commands.values(), strict=True):
        options = [name for option in command.params for name in option.opts + option.secondary_opts]
        options = [name for name in options if name.startswith("-")]
        assert re.findall(r"`(--[a-z-]+)`(?=[^|]*\|[^|]*\|[^|]*\|$)", section, re.MULTILINE) == options


def test_the_readmes_example_runs() -> None:
    jax, optax, _ = (pytest.importorskip(name) for name in ("jax", "optax", "mlx.optimizers"))
    tf, torch, keras = (pytest.importorskip(name) for name in ("tensorflow", "torch", "keras"))
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2) * 9).sum().backward()
    variable = keras.Variable([1.0, 1.0])
    names = {
        "grads": {"w": jax.numpy.array([30.0, 40.0])},
        "optax": optax,
        "mlx": sys.modules["mlx"],
        "grads_and_vars": [(tf.constant([30.0, 40.0]), variable)],
        "model": model,
    }
    (first,) = blocks("README.md", "python")
    code, last = first.partition("optimizer.apply_gradients")[::2]
    exec(code, names)
    assert names["clipped"]["w"].tolist() == pytest.approx([0.6, 0.8])
    assert names["keras_optimizer"].gradient_transformation == names["tx"]
    names["optimizer"] = keras.optimizers.SGD(1.0)
    exec("optimizer.apply_gradients" + last, names)
    assert variable.numpy() == pytest.approx([0.4, 0.2], abs=1e-6)
    assert float(torch.linalg.vector_norm(model.weight.grad)) <= 1.0


@slow(LARGE)
def test_the_readmes_table_is_what_its_command_prints() -> None:
    for framework in ("jax", "optax", "tensorflow", "keras", "torch"):
        pytest.importorskip(framework)
    assert what_goes_wrong.table() in README


def test_the_readmes_times_are_those_of_the_benchmark() -> None:
    assert bench_page.summary(json.loads((ROOT / "docs/numbers/tables/bench.json").read_text())) in README


def test_the_readmes_demo_is_what_the_command_printed() -> None:
    printed = (ROOT / "docs/numbers/tables/demo.txt").read_text()
    rows = re.findall(r"(gradxform|native) +[\d.]+ +([\d.]+)% +\S+ +\d+ +([\d-]+) ", printed)
    words = " ".join(README.split())
    assert {accuracy for _, accuracy, _ in rows} == set(re.findall(r"both reach ([\d.]+) %", words))
    furthest = {clip: max(int(ulp) for name, _, ulp in rows if name == clip and ulp != "-") for clip, *_ in rows}
    apart = re.search(r"are (\d+) ULP apart with gradxform, and up to (\d+) ULP with native clips", words)
    assert apart and furthest == {"gradxform": int(apart[1]), "native": int(apart[2])}


@pytest.mark.parametrize("like", ["gradxform", "tensorflow", "keras", "optax", "torch", "mlx", "paddle"])
def test_the_tables_of_hard_cases_are_what_the_libraries_do(like: str) -> None:
    if like != "gradxform":
        pytest.importorskip({"mlx": "mlx.core"}.get(like, like))
    tables = re.findall(r"^\| g \|.*?(?=^$)", (ROOT / "docs/migrating/like.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(tables) == 2
    for transform, table in zip(("clip_global_norm", "clip_norm"), tables, strict=True):
        header, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines())
        assert [row[0] for row in rows] == list(peers.HARD)
        clip = peers.gradxform_clip(transform) if like == "gradxform" else peers.find(transform, like)
        for row in rows:
            assert row[header.index(like)] == peers.shown(clip, row[0]), (transform, row[0])


def test_every_transform_is_in_the_catalogue() -> None:
    from gradxform.core.transform import factories

    text = (ROOT / "docs/guides/catalogue.md").read_text()
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
