"""Pins: prefixes that stay in the tree until a time, whatever the eviction policy says.

A pin is a lock on a path with a time to live. It is a promise against other cached text, not against a request: where
a request could not go on otherwise, with nobody else running and nothing left to evict, pins give way, those first
that would end soonest. So pins can make a request wait for running ones, as all locked text does, and never make it
fail or wait for ever.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from radixrt.cache.node import Ids, Node
from radixrt.cache.tree import RadixTree


class PinQuota(ValueError):
    """More tokens would be pinned than the owner may pin; the message says how many."""


class UnknownPin(KeyError):
    """There is no such pin in the namespace: never made, unpinned, expired, or it gave way."""


@dataclass(eq=False)
class Pin:
    """The first `tokens` tokens of a path, kept until `expires` (clock reading, seconds)."""

    id: str
    namespace: Hashable
    owner: Hashable
    node: Node
    tokens: int
    expires: float
    order: int = field(default=0, repr=False)


class Pins:
    """Pins over a tree, each by a name that nobody can guess.

    Args:
        quota: pinned tokens that one owner may have (shared tokens count once).
        total: pinned tokens that all owners together may have.
    """

    def __init__(self, tree: RadixTree, clock: Callable[[], float], *, quota: int, total: int) -> None:
        self._tree = tree
        self._clock = clock
        self.quota = quota
        self.total = total
        self.tokens = 0
        """Tokens pinned now."""
        self.broken = 0
        """Pins that gave way since start."""
        self._by_owner: dict[Hashable, int] = {}
        self._pins: dict[str, Pin] = {}
        self._by_path: dict[Node, Pin] = {}
        self._expiring: list[tuple[float, int, Pin]] = []
        self._orders = 0

    def __len__(self) -> int:
        return len(self._pins)

    def pinned(self, owner: Hashable) -> int:
        """Tokens that the owner has pinned; shared ones count once."""
        return self._by_owner.get(owner, 0)

    def of(self, namespace: Hashable) -> list[Pin]:
        """The namespace's pins, the soonest to expire first."""
        self.expire()
        return sorted((pin for pin in self._pins.values() if pin.namespace == namespace), key=lambda pin: pin.expires)

    def check_room(self, namespace: Hashable, owner: Hashable, ids: Ids) -> None:
        """Raise PinQuota when a pin of all of `ids` would pass a limit."""
        self.expire()
        self._check(owner, len(ids) - self._tree.pinned_prefix(namespace, ids))

    def add(self, namespace: Hashable, owner: Hashable, node: Node, ttl_s: float) -> Pin:
        """Keep the path to the end of `node` for `ttl_s` seconds at least; a pin of this very path is prolonged.

        Its tokens count for `owner`, of whom a namespace has one. The caller holds a lock on the path. Raises PinQuota,
        and nothing is pinned then.
        """
        self.expire()
        expires = self._clock() + ttl_s
        pin = self._by_path.get(node)
        if pin is None:
            new = sum(len(step) for step in node.path() if not step.pins)
            self._check(owner, new)
            pin = Pin(secrets.token_hex(8), namespace, owner, node, node.end, expires)
            self._pins[pin.id] = self._by_path[node] = pin
            self._tree.pin(node)
            self.tokens += new
            self._by_owner[owner] = self.pinned(owner) + new
        pin.expires = max(pin.expires, expires)
        self._enter(pin)
        return pin

    def remove(self, namespace: Hashable, pin_id: str) -> Pin:
        """End a pin before its time. Raises UnknownPin."""
        self.expire()
        pin = self._pins.get(pin_id)
        if pin is None or pin.namespace != namespace:
            raise UnknownPin(pin_id)
        self._drop(pin)
        return pin

    def expire(self) -> None:
        """Let go of the pins whose time is over; costs nothing while there are none."""
        now = self._clock() if self._expiring else 0.0
        while self._expiring and self._expiring[0][0] <= now:
            _, order, pin = heapq.heappop(self._expiring)
            if pin.order == order:
                self._drop(pin)

    def give_way(self, count: int) -> bool:
        """Break the pins that end soonest until at least `count` more tokens can be evicted; whether any could be."""
        before = self._tree.evictable
        while self._expiring and self._tree.evictable - before < count:
            _, order, pin = heapq.heappop(self._expiring)
            if pin.order == order:
                self.broken += 1
                self._drop(pin)
        return self._tree.evictable > before

    def clear(self) -> None:
        """Let go of all pins."""
        for pin in list(self._pins.values()):
            self._drop(pin)

    def _enter(self, pin: Pin) -> None:
        self._orders += 1
        pin.order = self._orders
        heapq.heappush(self._expiring, (pin.expires, pin.order, pin))
        if len(self._expiring) > 2 * len(self._pins) + 64:
            self._expiring = [entry for entry in self._expiring if entry[2].order == entry[1]]
            heapq.heapify(self._expiring)

    def _drop(self, pin: Pin) -> None:
        pin.order = 0
        del self._pins[pin.id], self._by_path[pin.node]
        self._tree.unpin(pin.node)
        freed = sum(len(step) for step in pin.node.path() if not step.pins)
        self.tokens -= freed
        left = self._by_owner[pin.owner] - freed
        if left:
            self._by_owner[pin.owner] = left
        else:
            del self._by_owner[pin.owner]

    def _check(self, owner: Hashable, new: int) -> None:
        if self.pinned(owner) + new > self.quota:
            raise PinQuota(
                f"{new} more tokens would be pinned and {self.pinned(owner)} are, but {self.quota} may be: unpin"
                " something, wait until a pin expires, or raise the quota (--pin-quota)"
            )
        if self.tokens + new > self.total:
            raise PinQuota(
                f"{new} more tokens would be pinned, but no more than {self.total} tokens may be pinned in all: try"
                " again when other pins have expired"
            )
