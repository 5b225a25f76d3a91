"""A node of the prefix tree."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import TypeAlias

import numpy as np

from radixrt.cache.pool import Slots

Ids: TypeAlias = "array[int]"
"""Token ids as array('i')."""


class Node:
    """A span of a path. Only the tree changes it; others read."""

    __slots__ = ("children", "hits", "key", "last_used", "locks", "parent", "slots", "ticket", "tokens")

    def __init__(self, parent: Node | None, tokens: Ids, slots: Ids, key: Hashable = None) -> None:
        self.parent = parent
        self.tokens = tokens
        self.slots = slots
        self.key = key
        """The namespace, on a root."""
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.hits = 0
        self.last_used = 0.0
        self.ticket = 0
        """Its live entry in the eviction queue, 0 if none."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    def path(self) -> list[Node]:
        """Nodes from the root's child down to this one; empty for a root."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def slot_array(self, count: int | None = None) -> Slots:
        """Its first `count` slots (all by default), int32, a copy."""
        return np.array(self.slots if count is None else self.slots[:count], dtype=np.int32)
