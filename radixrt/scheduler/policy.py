"""In which order waiting rows are tried. A policy is one small class, chosen once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from radixrt.errors import StartupError
from radixrt.scheduler.requests import Row


class Policy(Protocol):
    """Orders waiting rows, first to be admitted first. `cached(row)` says how many of its tokens are in the tree."""

    def order(self, waiting: Iterable[Row], now: float, cached: Callable[[Row], int]) -> list[Row]: ...


class FirstComeFirstServed:
    """By priority, then by arrival."""

    def order(self, waiting: Iterable[Row], now: float, cached: Callable[[Row], int]) -> list[Row]:
        return sorted(waiting, key=lambda row: (row.request.priority, row.request.arrived, row.index))


class LongestPrefixFirst:
    """By priority; then rows that have waited `max_wait_s` or more, oldest first; then by cached tokens.

    The ageing bounds the wait of a cold request under endless warm traffic (SGLang's policy, arXiv 2312.07104 section
    3, starves it). Only the oldest `probes` rows are probed in the tree; the rest keep their order of arrival.
    """

    def __init__(self, max_wait_s: float, probes: int = 256) -> None:
        self._max_wait_s = max_wait_s
        self._probes = probes

    def order(self, waiting: Iterable[Row], now: float, cached: Callable[[Row], int]) -> list[Row]:
        rows = sorted(waiting, key=lambda row: (row.request.arrived, row.index))
        tail = rows[self._probes :]
        keyed = []
        for row in rows[: self._probes]:
            aged = now - row.request.arrived >= self._max_wait_s
            keyed.append(((row.request.priority, not aged, 0 if aged else -cached(row)), row))
        keyed.sort(key=lambda pair: pair[0])
        return [row for _, row in keyed] + sorted(tail, key=lambda row: row.request.priority)


def make_policy(name: str, max_wait_s: float) -> Policy:
    if name == "lpm":
        return LongestPrefixFirst(max_wait_s)
    if name == "fcfs":
        return FirstComeFirstServed()
    raise StartupError(f"unknown policy {name!r}: lpm or fcfs")
