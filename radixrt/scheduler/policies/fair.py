"""Shares: nobody's thousand requests keep out another's one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from radixrt.scheduler.policies.base import Entry, Policy
from radixrt.scheduler.requests import Row

MOST_DEBT = 8
"""Rounds that a share may owe at most."""
FORGET_ABOVE = 1024
"""Credits of shares that do not wait are kept up to so many."""


class Fair(Policy):
    """Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) between shares, paid in computed tokens.

    Each round gives a share `quantum` tokens times its weight. It may admit rows while it has credit; what its rows
    compute, prompt and output, is charged when it is planned, so a credit may go below zero (down to `MOST_DEBT`
    rounds) and is worked off in later rounds. What the cache has costs nothing. Only shares with waiting rows are in
    the round, and nothing is charged while one of them is alone: idle capacity is free. A share that waits comes up
    within MOST_DEBT + 1 rounds, one that owes nothing in the first.

    `inner`: makes the policy within a share. Cost: a visit brings a quantum, and the quanta given are those charged
    (and one for each share), so visits are O(computed tokens / quantum) all in all.
    """

    def __init__(self, inner: Callable[[], Policy], weights: Mapping[str, float], quantum: int) -> None:
        self._inner = inner
        self._weights = weights
        self._quantum = quantum
        self._shares: dict[str | None, Policy] = {}
        self._credit: dict[str | None, float] = {}
        self._round: deque[str | None] = deque()
        self.strict = inner().strict

    def __len__(self) -> int:
        return sum(len(policy) for policy in self._shares.values())

    def add(self, entry: Entry) -> None:
        share = entry.row.request.share
        policy = self._shares.get(share)
        if policy is None:
            policy = self._shares[share] = self._inner()
            self._round.append(share)
            self._credit.setdefault(share, 0.0)
        policy.add(entry)

    def discard(self, entry: Entry) -> None:
        policy = self._shares.get(entry.row.request.share)
        if policy is not None:
            policy.discard(entry)

    def changed(self, entry: Entry) -> None:
        self._shares[entry.row.request.share].changed(entry)

    def admitted(self, entry: Entry) -> None:
        policy = self._shares.get(entry.row.request.share)
        if policy is not None:
            policy.admitted(entry)

    def charge(self, row: Row, tokens: int) -> None:
        share = row.request.share
        if len(self._round) > 1 and share in self._credit:
            self._credit[share] = max(self._credit[share] - tokens, -MOST_DEBT * self._grant(share))

    def first(self, now: float) -> Entry | None:
        self._drop_idle()
        while self._round:
            share = self._round[0]
            if len(self._round) == 1 or self._credit[share] > 0:
                entry = self._shares[share].first(now)
                if entry is not None:
                    return entry
                self._round.popleft()
                del self._shares[share]
                continue
            self._round.rotate(-1)
            self._credit[self._round[0]] += self._grant(self._round[0])
        return None

    def _drop_idle(self) -> None:
        """Credits end with the contention that they are about."""
        if len(self._round) <= 1 or len(self._credit) > len(self._round) + FORGET_ABOVE:
            self._credit = {share: self._credit[share] if len(self._round) > 1 else 0.0 for share in self._round}

    def _grant(self, share: str | None) -> float:
        return self._quantum * self._weights.get(share or "", 1.0)
