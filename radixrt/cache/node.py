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
    """A span of a path. Only the tree (and its eviction policy and watchers, each its own field) changes it."""

    __slots__ = (
        "children", "epoch", "ghosts", "hashes", "hits", "key", "last_used", "locks", "parent", "pins", "priority",
        "rank", "slots", "start", "ticket", "tokens",
    )  # fmt: skip

    def __init__(self, parent: Node | None, tokens: Ids, slots: Ids, key: Hashable = None) -> None:
        self.parent = parent
        self.tokens = tokens
        self.slots = slots
        self.key = key
        """The namespace, on a root."""
        self.children: dict[int, Node] = {}
        self.start = 0 if parent is None else parent.end
        """Position of its first token in the path."""
        self.locks = 0
        """Running rows and pins whose path it is on."""
        self.pins = 0
        """Of these, pins."""
        self.hits = 0
        """Matches that went through it."""
        self.last_used = 0.0
        self.priority = 0
        """Best (lowest) priority of the requests that made or found it."""
        self.rank = 0.0
        """The eviction policy's own."""
        self.epoch = 0
        """The tree's epoch when its newest token came."""
        self.ghosts: set[int] | None = None
        """First tokens of what followed its end and was evicted (see `misses.py`)."""
        self.hashes: list[bytes] | None = None
        """A watcher's own: hashes of the blocks that end in it."""
        self.ticket = 0
        """Its live entry in the eviction queue, 0 if none."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.start + len(self.tokens)

    @property
    def namespace(self) -> Hashable:
        """The key of its root."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node.key

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
