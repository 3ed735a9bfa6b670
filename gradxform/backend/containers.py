"""Trees by optree, for frameworks without a tree engine; None is a leaf, so that it has a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optree

from gradxform.backend.protocol import Backend


class Containers(Backend):
    """A backend whose trees are Python containers and types registered with optree."""

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Return leaves and structure."""
        return optree.tree_flatten(tree, none_is_leaf=True)

    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """Rebuild the tree."""
        return structure.unflatten(leaves)

    def paths(self, tree: Any) -> list[str]:
        """Return the path of each leaf."""
        return ["/".join(map(_key, path)) for path in optree.tree_accessors(tree, none_is_leaf=True)]


def _key(entry: Any) -> str:
    return str(entry.field if hasattr(entry, "field") else entry.entry)
