"""First come, first served."""

from __future__ import annotations

from radixrt.scheduler.policies.base import Entry, Policy
from radixrt.scheduler.policies.heap import EntryHeap


class Arrival(Policy):
    """In order of arrival. Nobody overtakes a row that does not fit yet."""

    strict = True

    def __init__(self) -> None:
        self._heap = EntryHeap(lambda entry: (entry.arrived, entry.number))

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        self._heap.add(entry)

    def discard(self, entry: Entry) -> None:
        self._heap.discard(entry)

    def first(self, now: float) -> Entry | None:
        return self._heap.first()
