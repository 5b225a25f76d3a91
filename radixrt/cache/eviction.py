"""Which unlocked leaf goes first: a policy is one function of a node, and a heap keeps the order (no scan)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from radixrt.cache.node import Node


class EvictionPolicy(Protocol):
    """Leaves with the smallest key are evicted first. The key may change only when the tree touches the node."""

    def key(self, node: Node) -> float: ...


class LRU:
    """Least recently used first."""

    def key(self, node: Node) -> float:
        return node.last_used


class EvictionQueue:
    """Evictable leaves by key, O(log n). An entry whose node was touched, locked or removed since is skipped."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[float, int, Node]] = []
        self._ticket = 0

    def offer(self, node: Node) -> None:
        """(Re-)enter a node that is evictable now; call again whenever its key may have changed."""
        self._ticket += 1
        node.ticket = self._ticket
        heapq.heappush(self._heap, (self._policy.key(node), self._ticket, node))

    def withdraw(self, node: Node) -> None:
        node.ticket = 0

    def drain(self) -> Iterator[Node]:
        """Evictable leaves, first to go first. Each is withdrawn; offers made meanwhile are seen."""
        while self._heap:
            _, ticket, node = heapq.heappop(self._heap)
            if node.ticket == ticket:
                node.ticket = 0
                yield node

    def compact(self, live: int) -> None:
        """Drop stale entries once they outnumber the `live` nodes, so that the heap stays O(nodes)."""
        if len(self._heap) > 2 * live + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)
