"""Priorities."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from radixrt.scheduler.policies.base import Entry, Policy
from radixrt.scheduler.requests import Row

KEPT = 16
"""Bands that stay when nobody waits in them."""


class Bands(Policy):
    """The lowest number first, strictly: whoever waits behind an endless flow of more urgent requests waits for ever.

    `inner`: makes the policy within one priority.
    """

    def __init__(self, inner: Callable[[], Policy]) -> None:
        self._inner = inner
        self._bands: dict[int, Policy] = {}
        self._order: list[int] = []
        self.strict = inner().strict

    def __len__(self) -> int:
        return sum(len(band) for band in self._bands.values())

    def add(self, entry: Entry) -> None:
        priority = entry.row.request.priority
        if priority not in self._bands:
            if len(self._bands) >= KEPT:
                self._bands = {number: band for number, band in self._bands.items() if len(band)}
                self._order = sorted(self._bands)
            self._bands[priority] = self._inner()
            insort(self._order, priority)
        self._bands[priority].add(entry)

    def discard(self, entry: Entry) -> None:
        band = self._bands.get(entry.row.request.priority)
        if band is not None:
            band.discard(entry)

    def changed(self, entry: Entry) -> None:
        self._bands[entry.row.request.priority].changed(entry)

    def admitted(self, entry: Entry) -> None:
        band = self._bands.get(entry.row.request.priority)
        if band is not None:
            band.admitted(entry)

    def charge(self, row: Row, tokens: int) -> None:
        band = self._bands.get(row.request.priority)
        if band is not None:
            band.charge(row, tokens)

    def first(self, now: float) -> Entry | None:
        for priority in self._order:
            entry = self._bands[priority].first(now)
            if entry is not None:
                return entry
        return None
