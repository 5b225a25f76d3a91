"""The proof that the cache's invariants hold: O(nodes) in Python, and the slots as whole arrays in numpy.

All of it, not a sample: on a million cached tokens it takes about 20 ms (figures in the room's README).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from radixrt.cache.node import Ids
from radixrt.cache.pool import SlotError, Slots

if TYPE_CHECKING:
    from radixrt.cache.tree import RadixTree


def check_tree(tree: RadixTree) -> Slots:
    """Raise SlotError where an invariant of RadixTree does not hold; the slots in the tree, in no order."""
    tokens = evictable = nodes = 0
    held: list[Ids] = []
    for key in tree.namespaces():
        stack = [tree.root(key)]
        while stack:
            node = stack.pop()
            size, children, locks = len(node.tokens), node.children, node.locks
            if size != len(node.slots):
                raise SlotError("a node has as many slots as tokens")
            below = pinned = 0
            end = node.start + size
            for first, child in children.items():
                below += child.locks
                pinned += child.pins
                if child.parent is not node or child.start != end or not child.tokens or child.tokens[0] != first:
                    raise SlotError("a child is not where its first token says")
            if locks < below:
                raise SlotError("a node has fewer locks than its children together")
            if node.parent is not None and not pinned <= node.pins <= locks:
                raise SlotError("a node's pins are not between its children's and its locks")
            stack.extend(children.values())
            if node.parent is None:
                continue
            nodes += 1
            tokens += size
            held.append(node.slots)
            if not locks:
                evictable += size
            if (not locks and not children) != bool(node.ticket):
                raise SlotError("the eviction queue differs from the unlocked leaves")
    if (tokens, evictable, nodes) != (tree.tokens, tree.evictable, tree.nodes):
        raise SlotError("the tree's counts differ from its nodes")
    return np.frombuffer(b"".join(held), dtype=np.int32)


def check_owners(in_tree: Slots, in_rows: Slots, used: NDArray[np.bool_]) -> None:
    """Raise SlotError unless tree and rows together own each used slot (bool[capacity]) once and no other."""
    owned = np.concatenate([in_tree, in_rows])
    if owned.size and (owned.min() < 0 or owned.max() >= used.size):
        raise SlotError("a slot is owned that the pool does not have")
    owners = np.bincount(owned, minlength=used.size)
    if owners.size and owners.max() > 1:
        raise SlotError(f"slot {int(owners.argmax())} has two owners")
    if not np.array_equal(owners.astype(bool), used):
        raise SlotError("the slots in use are not exactly those of the tree and of the running rows")


class Paced:
    """Runs a check now and then, so that it takes at most `share` of the time whatever it costs.

    `interval_s`: at least so long between two runs; 0: never.
    """

    def __init__(
        self,
        check: Callable[[], None],
        interval_s: float,
        *,
        share: float = 0.02,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check = check
        self._interval_s = interval_s
        self._share = share
        self._clock = clock
        self._next = clock() + interval_s
        self.runs = 0
        self.seconds = 0.0

    def tick(self) -> bool:
        """Run the check if its time has come; whether it ran."""
        begun = self._clock()
        if not self._interval_s or begun < self._next:
            return False
        self._check()
        took = self._clock() - begun
        self.runs += 1
        self.seconds += took
        self._next = begun + max(self._interval_s, took / self._share)
        return True


def as_slots(slots: Iterable[int]) -> Slots:
    return np.fromiter(slots, dtype=np.int32)
