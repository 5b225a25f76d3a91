"""Tree and pool together: the one place where slots change owner.

Every slot has exactly one owner:

    free list (pool)  --allocate-->  a running row  --extend-->  a tree node  --evict-->  free list
                                          └───────────release───────────────────────────────┘
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from radixrt.cache.check import as_slots, check_owners, check_tree
from radixrt.cache.eviction import EvictionPolicy
from radixrt.cache.node import Node
from radixrt.cache.pins import Pins
from radixrt.cache.pool import SlotPool, Slots
from radixrt.cache.tree import RadixTree


@dataclass(frozen=True)
class Watermarks:
    """When fewer than `low` slots are free, cached text is evicted until `high` are: ahead of need, many at once.

    0 and 0: only what an allocation needs is evicted, when it needs it.
    """

    low: int = 0
    high: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError("watermarks need 0 <= low <= high")


class PrefixCache:
    """`tree` for paths and locks, `pins` for what stays, `allocate`/`release` for the slots that rows own.

    `pin_quota`: tokens that one owner may pin (a quarter of the pool by default); all together may pin half of it.
    """

    def __init__(
        self,
        capacity: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        policy: EvictionPolicy | None = None,
        pin_quota: int | None = None,
        watermarks: Watermarks | None = None,
    ) -> None:
        self.clock = clock
        self.pool = SlotPool(capacity)
        self.tree = RadixTree(self.pool.release, clock=clock, policy=policy)
        quota = capacity // 4 if pin_quota is None else pin_quota
        self.pins = Pins(self.tree, clock, quota=quota, total=max(capacity // 2, quota))
        self.hit_tokens: Counter[str] = Counter(tree=0, in_flight=0)
        """Tokens that requests found when they began, by where: tree, in_flight (their step is under way), a tier."""
        self.settled = 0
        """The last step whose results are known."""
        self.watermarks = watermarks or Watermarks()
        if self.watermarks.high > capacity:
            raise ValueError("the high watermark is above the pool's capacity")

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

    def begin_step(self, step: int) -> None:
        """What follows is planned for this step."""
        self.pins.expire()
        self.tree.epoch = step

    def count_hits(self, node: Node, restored: int = 0) -> None:
        """A request begins on the path to `node`, of which a tier brought `restored` tokens back for it. A node counts
        where its newest token does."""
        found = Counter(tree=0, in_flight=0)
        for part in node.path():
            found["in_flight" if part.epoch > self.settled else "tree"] += len(part)
        from_tier = min(restored, found["tree"])
        found["tree"] -= from_tier
        found["tier"] = from_tier
        self.hit_tokens.update(found)

    def invalidate(self) -> None:
        """What the slots hold cannot be relied on: everything that no row holds goes, pinned or not."""
        self.pins.clear()
        self.tree.clear(reason="failure")

    def keep_free(self) -> int:
        """Evict up to the high watermark if the free slots are below the low one; how many. For idle moments."""
        if self.pool.free >= self.watermarks.low:
            return 0
        return self.tree.evict(self.watermarks.high - self.pool.free)

    def release(self, slots: Sequence[int] | Slots) -> None:
        """Slots that a row owned and that are in no node go back to the free list."""
        self.pool.release(slots)

    def check(self, row_owned: Iterable[int] = ()) -> None:
        """Raise SlotError unless free list, tree and `row_owned` are a partition of all slots, and both parts hold."""
        self.pool.check()
        check_owners(check_tree(self.tree), as_slots(row_owned), self.pool.used_mask)
