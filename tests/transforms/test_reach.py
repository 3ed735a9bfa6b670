"""Which leaves a transform may change or measure, so that adapters keep no copies of the others."""

from __future__ import annotations

import numpy as np
import pytest
from trees import Same

import gradxform as gx
from gradxform.core.tree import Tree
from gradxform.proof import parity

TREE = {"a": {"w": np.ones(2), "b": np.ones(2)}, "h": np.ones(2)}
REACHED = {
    "identity()": "",
    "clip_norm(1.0)": "a/b a/w h",
    "stop()": "a/b a/w h",
    "freeze('h')": "h",
    "masked(clip_norm(1.0), 'a/*')": "a/b a/w",
    "masked(identity(), 'a/*')": "",
    "masked(masked(scale(2.0), '**/w'), 'a/*')": "a/w",
    "chain(masked(scale(2.0), 'a/w'), freeze('h'))": "a/w h",
    "chain(masked(scale(2.0), 'a/w'), clip_norm(1.0))": "a/b a/w h",
    "chain()": "",
    "partition({'a/w': scale(2.0), 'a/*': identity()})": "a/w",
    "partition({'a/w': identity(), 'a/*': scale(2.0), 'h': stop()})": "a/b h",
    "partition({'a/w': identity()}, scale(2.0))": "a/b h",
    "measure(masked(scale(2.0), 'a/w'))": "a/b a/w h",
    "accumulate(masked(scale(2.0), 'a/w'), 2)": "a/b a/w h",
    "skip_nonfinite(freeze('h'))": "a/b a/w h",
}


@pytest.mark.parametrize("expression", REACHED)
def test_what_a_transform_reaches(expression: str) -> None:
    view = Tree.read(TREE)
    assert view is not None
    mask = gx.parse(expression).reached(view)
    assert " ".join(path for path, there in zip(view.source.paths, mask, strict=True) if there) == REACHED[expression]
    out, _ = gx.parse(expression).update(TREE, gx.parse(expression).init(TREE))
    new, old = parity.named_leaves(out), parity.named_leaves(TREE)
    assert {path for path in old if (new[path] != old[path]).any()} <= set(REACHED[expression].split())


def test_a_transform_of_another_library_reaches_all() -> None:
    view = Tree.read(TREE)
    assert view is not None and all(gx.chain(gx.freeze("h"), Same()).reached(view))
