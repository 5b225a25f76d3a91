"""Which unlocked leaf goes first: a policy gives each node a key, and a heap keeps the order (no scan)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeAlias

from radixrt.cache.node import Node

Key: TypeAlias = tuple[float, ...]


class EvictionPolicy:
    """Leaves with the smallest key are evicted first. A node's key may change only in `used` and `evicted`."""

    name = ""

    def key(self, node: Node) -> Key:
        raise NotImplementedError

    def used(self, node: Node) -> Sequence[Node]:
        """The node was made, found or let go (its `last_used` and `hits` say so already).

        Returns other nodes whose keys changed by that.
        """
        return ()

    def evicted(self, node: Node, whole: bool) -> None:
        """It was chosen; `whole`: nothing of it is left in the tree."""


class LRU(EvictionPolicy):
    """Least recently used first."""

    name = "lru"

    def key(self, node: Node) -> Key:
        return (node.last_used,)


class LFU(EvictionPolicy):
    """Least frequently found first, and of these the least recently used."""

    name = "lfu"

    def key(self, node: Node) -> Key:
        return node.hits, node.last_used


class SegmentedLRU(EvictionPolicy):
    """What was found again is protected from what was used once, up to `protected_tokens`; each segment is an LRU.

    When the protected segment is full, its least recently used nodes go back to the young end of the other one. A node
    counts with the tokens it had when it was last used. Source: Karedla, Love, Wherry, "Caching strategies to improve
    disk system performance", IEEE Computer 27(3), 1994.
    """

    name = "slru"

    def __init__(self, protected_tokens: int) -> None:
        self._limit = protected_tokens
        self._protected: dict[Node, int] = {}
        """Their tokens, least recently used first."""
        self._total = 0
        self._demoted: dict[Node, tuple[float, int]] = {}
        self._demotions = 0

    def key(self, node: Node) -> Key:
        if node in self._protected:
            return (1.0, node.last_used)
        return (0.0, *self._demoted.get(node, (node.last_used,)))

    def used(self, node: Node) -> Sequence[Node]:
        self._demoted.pop(node, None)
        if not node.hits:
            return ()
        self._total += len(node) - self._protected.pop(node, 0)
        self._protected[node] = len(node)
        demoted = []
        while self._total > self._limit and self._protected:
            oldest = next(iter(self._protected))
            self._total -= self._protected.pop(oldest)
            self._demotions += 1
            self._demoted[oldest] = node.last_used, self._demotions
            demoted.append(oldest)
        return demoted

    def evicted(self, node: Node, whole: bool) -> None:
        if whole:
            self._total -= self._protected.pop(node, 0)
            self._demoted.pop(node, None)


class Priority(EvictionPolicy):
    """What only requests of low priority (a high number) made or found goes first; of these the least recently used."""

    name = "priority"

    def key(self, node: Node) -> Key:
        return -node.priority, node.last_used


class CostAware(EvictionPolicy):
    """What is cheapest to compute again, for the slots it takes and the use it has, goes first.

    GreedyDual-Size with frequency: H = L + uses * cost / size, and L, the H of what was evicted last, ages whatever is
    not used. A token at position p costs 1 + p / `even_depth`: the share of the weights, and attention, which grows
    with depth and is as dear as the weights at `even_depth`. So cost / size of a node is 1 + its mean position /
    even_depth. Sources: Cao, Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997; Cherkasova, "Improving WWW
    proxies performance with Greedy-Dual-Size-Frequency", HPL-98-69, 1998.
    """

    name = "cost"

    def __init__(self, even_depth: int = 4096) -> None:
        self._even_depth = even_depth
        self._floor = 0.0

    def key(self, node: Node) -> Key:
        return node.rank, node.last_used

    def used(self, node: Node) -> Sequence[Node]:
        cost = 1.0 + (node.start + node.end) / 2 / self._even_depth
        node.rank = self._floor + (1 + node.hits) * cost
        return ()

    def evicted(self, node: Node, whole: bool) -> None:
        self._floor = max(self._floor, node.rank)


POLICIES = ("lru", "lfu", "slru", "priority", "cost")


def make_eviction(name: str, capacity: int) -> EvictionPolicy:
    """The policy of that name for a pool of `capacity` slots. ValueError for an unknown one."""
    if name == "slru":
        return SegmentedLRU(capacity * 4 // 5)
    for policy in (LRU, LFU, Priority, CostAware):
        if policy.name == name:
            return policy()
    raise ValueError(f"unknown eviction policy {name!r}; there are {', '.join(POLICIES)}")


class EvictionQueue:
    """Evictable leaves by key, O(log n). An entry whose node was touched, locked or removed since is skipped."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._heap: list[tuple[Key, int, Node]] = []
        self._ticket = 0

    def offer(self, node: Node) -> None:
        """(Re-)enter a node that is evictable now; call again whenever its key may have changed."""
        self._ticket += 1
        node.ticket = self._ticket
        heapq.heappush(self._heap, (self.policy.key(node), self._ticket, node))

    def withdraw(self, node: Node) -> None:
        node.ticket = 0

    def used(self, node: Node) -> None:
        """Tell the policy, and enter anew whatever waits here with another key now."""
        for other in self.policy.used(node):
            if other.ticket:
                self.offer(other)
        if node.ticket:
            self.offer(node)

    def pop(self) -> Node | None:
        """The evictable leaf that goes first, withdrawn; None if there is none."""
        while self._heap:
            _, ticket, node = heapq.heappop(self._heap)
            if node.ticket == ticket:
                node.ticket = 0
                return node
        return None

    def compact(self, live: int) -> None:
        """Drop stale entries once they outnumber the `live` nodes, so that the heap stays O(nodes)."""
        if len(self._heap) > 2 * live + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)
