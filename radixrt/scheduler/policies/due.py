"""Whose time has come goes first: deadlines that near, and a bound on the wait of everybody else."""

from __future__ import annotations

from collections.abc import Callable

from radixrt.scheduler.policies.base import Entry, Policy
from radixrt.scheduler.policies.heap import EntryHeap


class Due(Policy):
    """Ageing and deadlines as one rule: earliest deadline first among those that are late, before all others.

    A row is late once it has waited `max_wait_s`, or half of its timeout where that is sooner. Late rows go in the
    order of their deadline, where waiting `max_wait_s` counts as one: so neither endless warm traffic (which starves a
    cold request under longest-prefix-first alone) nor endless short deadlines keep a row out.

    When everybody is late (more comes than can be done), strict order of time would go to and fro between subtrees and
    evict each in turn. So each late row is followed by up to `rides` other late rows in the order of the inner policy.
    The bound: a row that is k-th in order of time when it becomes late is admitted after at most
    (rides + 1) * k + rides other admissions.

    `inner`: makes the policy for either half of the rows.
    """

    def __init__(self, inner: Callable[[], Policy], max_wait_s: float, rides: int = 3) -> None:
        self._max_wait_s = max_wait_s
        self._most_rides = rides
        self._rides = 0
        self._fresh, self._late = inner(), inner()
        self.strict = self._fresh.strict
        self._coming = EntryHeap(lambda entry: (self._late_from(entry), entry.number))
        self._by_time = EntryHeap(lambda entry: (self._deadline(entry), entry.arrived, entry.number))

    def __len__(self) -> int:
        return len(self._coming) + len(self._by_time)

    def add(self, entry: Entry) -> None:
        if entry.late:
            self._by_time.add(entry)
            self._late.add(entry)
        else:
            self._coming.add(entry)
            self._fresh.add(entry)

    def discard(self, entry: Entry) -> None:
        for part in (self._coming, self._by_time, self._fresh, self._late):
            part.discard(entry)

    def changed(self, entry: Entry) -> None:
        (self._late if entry.late else self._fresh).changed(entry)

    def admitted(self, entry: Entry) -> None:
        if entry.late:
            self._rides = self._rides - 1 if self._rides else self._most_rides
        self._fresh.admitted(entry)
        self._late.admitted(entry)

    def first(self, now: float) -> Entry | None:
        while (entry := self._coming.first()) is not None and self._late_from(entry) <= now:
            self.discard(entry)
            entry.late = True
            self.add(entry)
        if not len(self._by_time):
            self._rides = 0
            return self._fresh.first(now)
        return self._late.first(now) if self._rides else self._by_time.first()

    def _late_from(self, entry: Entry) -> float:
        return entry.arrived + min(self._max_wait_s, (entry.deadline - entry.arrived) / 2)

    def _deadline(self, entry: Entry) -> float:
        return min(entry.arrived + self._max_wait_s, entry.deadline)
