"""Tree and pool together: the one place where slots change owner.

Every slot has exactly one owner:

    free list (pool)  --allocate-->  a running row  --extend-->  a tree node  --evict-->  free list
                                          └───────────release───────────────────────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from radixrt.cache.check import as_slots, check_owners, check_tree
from radixrt.cache.eviction import EvictionPolicy
from radixrt.cache.pool import SlotPool, Slots
from radixrt.cache.tree import RadixTree


class PrefixCache:
    """`tree` for paths and locks, `allocate`/`release` for the slots that rows own."""

    def __init__(
        self, capacity: int, *, clock: Callable[[], float] = time.monotonic, policy: EvictionPolicy | None = None
    ) -> None:
        self.pool = SlotPool(capacity)
        self.tree = RadixTree(self.pool.release, clock=clock, policy=policy)

    @property
    def capacity(self) -> int:
        return self.pool.capacity

    @property
    def available(self) -> int:
        """Slots that an allocation can have: free ones and those that may be evicted."""
        return self.pool.free + self.tree.evictable

    def allocate(self, count: int, after: int | None = None) -> Slots | None:
        """`count` slots for a row, evicting as many cached tokens as that takes; None (nothing changed) if too few."""
        if count > self.available:
            return None
        if count > self.pool.free:
            self.tree.evict(count - self.pool.free)
        return self.pool.allocate(count, after)

    def release(self, slots: Sequence[int] | Slots) -> None:
        """Slots that a row owned and that are in no node go back to the free list."""
        self.pool.release(slots)

    def check(self, row_owned: Iterable[int] = ()) -> None:
        """Raise SlotError unless free list, tree and `row_owned` are a partition of all slots, and both parts hold."""
        self.pool.check()
        check_owners(check_tree(self.tree), as_slots(row_owned), self.pool.used_mask)
