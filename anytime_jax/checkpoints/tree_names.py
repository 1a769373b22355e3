"""Names of a tree's leaves, such as `1/mu/blocks/qkv`."""

from collections.abc import Mapping
from typing import Any

import jax


def flatten_by_name(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by name; tuples are named like dicts, by index."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def is_stacked(name: str) -> bool:
    """Returns whether a name is that of a block array, which is stacked over layers."""
    return "blocks" in name.split("/")


def unflatten_by_name(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns named leaves as nested dicts, the structure in which Orbax stores them."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = leaf
    return tree
