"""Which paths a `where` chooses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import optree
import pytest
from support import FRAMEWORKS

import gradxform as gx
from gradxform.backend import lookup
from gradxform.core.flat import flat_view
from gradxform.core.matching import chosen

TREE = {"encoder": {"dense": {"kernel": 1, "bias": 2}, "bias": 3}, "layers": [{"bias": 4}, {"kernel": 5}], "bias": 6}
PATHS = ["bias", "encoder/bias", "encoder/dense/bias", "encoder/dense/kernel", "layers/0/bias", "layers/1/kernel"]


def grads(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: grads(value) for key, value in tree.items()}
    return [grads(value) for value in tree] if isinstance(tree, list) else np.full(2, float(tree))


def selected(where: Any) -> list[str]:
    view = flat_view(grads(TREE))
    assert view is not None
    return sorted(path for path, mask in zip(view.source.paths, chosen("masked", where, view), strict=True) if mask)


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("**", PATHS),
        ("bias", ["bias"]),
        ("*/bias", ["encoder/bias"]),
        ("**/bias", ["bias", "encoder/bias", "encoder/dense/bias", "layers/0/bias"]),
        ("encoder/**", ["encoder/bias", "encoder/dense/bias", "encoder/dense/kernel"]),
        ("encoder/**/kernel", ["encoder/dense/kernel"]),
        ("encoder/*/bias", ["encoder/dense/bias"]),
        ("layers/?/*", ["layers/0/bias", "layers/1/kernel"]),
        (re.compile("dense"), ["encoder/dense/bias", "encoder/dense/kernel"]),
        (re.compile("^bias$"), ["bias"]),
        (lambda path, leaf: leaf[0] > 4, ["bias", "layers/1/kernel"]),
        ({"encoder": True, "layers": False, "bias": False},
         ["encoder/bias", "encoder/dense/bias", "encoder/dense/kernel"]),
        ({"encoder": {"dense": True, "bias": False}, "layers": [False, True], "bias": np.bool_(True)},
         ["bias", "encoder/dense/bias", "encoder/dense/kernel", "layers/1/kernel"]),
    ],
)  # fmt: skip
def test_chosen_paths(where: Any, paths: list[str]) -> None:
    assert selected(where) == paths


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_pattern_serves_every_framework(framework: str) -> None:
    backend = lookup.backend(framework)
    tree = {"a": [{"kernel": np.ones(1), "bias": np.ones(1)}], "b": (np.ones(1), None)}
    given = optree.tree_map(backend.from_numpy, tree)
    paths = [p for p, leaf in zip(backend.paths(given), backend.flatten(given)[0], strict=True) if leaf is not None]
    assert sorted(paths) == ["a/0/bias", "a/0/kernel", "b/0"]
    stopped = gx.freeze("a/*/bias")(given)
    assert backend.to_numpy(stopped["a"][0]["bias"]).tolist() == [0.0]
    assert backend.to_numpy(stopped["a"][0]["kernel"]).tolist() == [1.0]


def test_a_callable_tree_of_bools_is_a_tree() -> None:
    """Equinox modules can be called; what they hold decides (optax issue 913)."""

    class Module:
        def __init__(self, bias: Any, kernel: Any) -> None:
            self.bias, self.kernel = bias, kernel

        def __call__(self, path: str, leaf: Any) -> bool:
            raise AssertionError("taken for a function")

    pytest.importorskip("jax").tree_util.register_pytree_with_keys(
        Module,
        lambda m: ([("bias", m.bias), ("kernel", m.kernel)], None),
        lambda _, children: Module(*children),
    )
    import jax.numpy as jnp

    out = gx.freeze(Module(True, False))(Module(jnp.ones(1), jnp.ones(1)))
    assert (float(out.bias[0]), float(out.kernel[0])) == (0.0, 1.0)
