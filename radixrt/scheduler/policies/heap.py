"""A heap of entries whose members may leave or change their key at any time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeAlias

from radixrt.scheduler.policies.base import Entry

Key: TypeAlias = tuple[float, ...]


class EntryHeap:
    """The smallest key first. add, first: O(log n), amortized (stale items are dropped on the way); discard: O(1)."""

    def __init__(self, key: Callable[[Entry], Key]) -> None:
        self._key = key
        self._heap: list[tuple[Key, int, Entry]] = []
        self._tickets: dict[Entry, int] = {}
        self._last_ticket = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._tickets

    def add(self, entry: Entry) -> None:
        """Enter an entry, or enter it anew with the key that it has now."""
        self._last_ticket += 1
        self._tickets[entry] = self._last_ticket
        heapq.heappush(self._heap, (self._key(entry), self._last_ticket, entry))
        if len(self._heap) > 2 * len(self._tickets) + 64:
            self._heap = [item for item in self._heap if self._tickets.get(item[2]) == item[1]]
            heapq.heapify(self._heap)

    def discard(self, entry: Entry) -> None:
        self._tickets.pop(entry, None)

    def first(self) -> Entry | None:
        while self._heap:
            _, ticket, entry = self._heap[0]
            if self._tickets.get(entry) == ticket:
                return entry
            heapq.heappop(self._heap)
        return None
