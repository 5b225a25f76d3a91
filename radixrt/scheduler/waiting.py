"""The queue: who waits, in the order of the policy, and who waits for what another row computes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from radixrt.cache import Ids
from radixrt.scheduler.policies import Entry, Neighbours, Policy, PolicyOptions, View, make_policy
from radixrt.scheduler.policies.common import common_prefix
from radixrt.scheduler.policies.neighbours import STEPS, Place
from radixrt.scheduler.requests import Row

TRIES = 32
"""Rows that do not fit, of those that may be overtaken, until a step stops trying."""
REFRESHED = 4
"""Waiting rows whose cached length is looked up anew in a step, in turn."""
UNCHANGED = 4
"""Neighbours in a row that learn nothing new, until nobody further away is told."""
TOLD_AT_ONCE, TOLD_LATER = 32, 128
"""Neighbours on either side that are told in the step of an admission, and of those left over in each later step."""


@dataclass(eq=False)
class _News:
    """A row computes `tokens`; neighbours up to `place` in one direction know it."""

    namespace: Hashable
    tokens: Ids
    place: Place
    step: Literal[-1, 1]
    unchanged: int = 0


class WaitingQueue:
    """Waiting rows. A step asks for `candidates`; each other method is one thing that happens to a row.

    A step looks at the rows it admits and at most TRIES + REFRESHED more, whoever waits: O(log waiting) and one look-up
    in the tree each. Admitting a row tells those who share more with it than they had, once for each level of sharing:
    the nearest at once, the others in later steps, at most TOLD_LATER in each.
    """

    def __init__(self, options: PolicyOptions, view: View) -> None:
        self._view = view
        self._neighbours = Neighbours()
        self.policy: Policy = make_policy(options, view, self._neighbours)
        self._entries: dict[Row, Entry] = {}
        self._groups: dict[Row, list[tuple[int, int, Entry]]] = {}
        """By leader: (tokens shared with it, number, entry), a heap."""
        self._news: deque[_News] = deque()
        self._refresh: Iterator[Entry] = iter(())
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Row]:
        return iter(list(self._entries))

    def __contains__(self, row: Row) -> bool:
        return row in self._entries

    # --- coming and going -----------------------------------------------------------------------------------------

    def append(self, row: Row) -> None:
        """The row waits from now on."""
        self._number += 1
        # What a retracted row is still to hear of is appended to its tokens while it waits.
        entry = Entry(row, self._number, row.tokens[:] if row.pending else row.tokens)
        self._entries[row] = entry
        self._neighbours.add(entry)
        self._list(entry)

    def extend(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.append(row)

    def remove(self, row: Row) -> Entry:
        """The row waits no longer. Raises KeyError for one that does not wait."""
        entry = self._entries.pop(row)
        self._neighbours.discard(entry)
        self._unlist(entry)
        return entry

    def admitted(self, row: Row) -> None:
        """The row runs now: it computes its prompt, so whoever shares it need not."""
        entry = self.remove(row)
        self.policy.admitted(entry)
        namespace = row.request.namespace
        for step in STEPS:
            news = _News(namespace, entry.tokens, (entry.tokens, -1), step)
            if not self._tell(news, TOLD_AT_ONCE):
                self._news.append(news)

    def _tell(self, news: _News, most: int) -> bool:
        """Tell the next `most` neighbours; whether everybody who gains by it knows now."""
        side = self._neighbours.beyond(news.namespace, news.tokens, news.place, news.step)
        for told, (other, shared) in enumerate(side, 1):
            news.place = (other.tokens, other.number)
            reach = min(shared, other.row.match_limit)
            if reach > other.cached >= 0:
                other.cached = reach
                if other.listed:
                    self.policy.changed(other)
                news.unchanged = 0
            else:
                news.unchanged += 1
            if news.unchanged == UNCHANGED:
                return True
            if told == most:
                return False
        return True

    def charge(self, row: Row, tokens: int) -> None:
        """A running row computes so many tokens in this step."""
        self.policy.charge(row, tokens)

    # --- parking --------------------------------------------------------------------------------------------------

    def park(self, row: Row, leader: Row | None = None) -> None:
        """The row is no candidate until `wake`, or until `leader`, which runs, has planned all that the two share."""
        entry = self._entries[row]
        self._unlist(entry)
        entry.parked = True
        if leader is not None:
            shared = common_prefix(entry.tokens, leader.tokens, row.match_limit)
            heapq.heappush(self._groups.setdefault(leader, []), (shared, entry.number, entry))

    def parked(self, row: Row) -> bool:
        return row in self._entries and self._entries[row].parked

    def wake(self, row: Row) -> None:
        """The row is a candidate again; one that is not parked is ignored."""
        entry = self._entries.get(row)
        if entry is not None and entry.parked:
            entry.parked = False
            entry.cached = -1
            self._list(entry)

    def _wake_groups(self) -> None:
        for leader, group in list(self._groups.items()):
            while group and (not leader.prefilling or leader.planned >= group[0][0]):
                self.wake(heapq.heappop(group)[2].row)
            if not group:
                del self._groups[leader]

    def _list(self, entry: Entry) -> None:
        entry.listed = True
        self.policy.add(entry)

    def _unlist(self, entry: Entry) -> None:
        entry.listed = False
        self.policy.discard(entry)

    # --- choosing -------------------------------------------------------------------------------------------------

    def candidates(self, now: float) -> Iterator[Row]:
        """Rows to be tried, best first. Of each the caller says `admitted`, `park`, or nothing: it does not fit yet.

        Nobody overtakes a row that is late, or any row under a strict policy: what is freed would go to smaller ones
        for ever. A row whose last results are still under way is passed over.
        """
        self._wake_groups()
        self._look_again()
        if self._news and self._tell(self._news[0], TOLD_LATER):
            self._news.popleft()
        aside: list[Entry] = []
        tries = 0
        try:
            while tries < TRIES:
                entry = self.policy.first(now)
                if entry is None:
                    return
                row = entry.row
                self._unlist(entry)
                aside.append(entry)
                if row.pending:
                    continue
                yield row
                if self._entries.get(row) is entry:
                    if not entry.parked and (entry.late or self.policy.strict):
                        return
                    tries += 1
                self._wake_groups()
        finally:
            for entry in aside:
                if self._entries.get(entry.row) is entry and not entry.parked:
                    self._list(entry)

    def _look_again(self) -> None:
        """Lengths also grow in ways that nobody tells of (a row's output that is another's prompt): a few are looked
        up anew in each step."""
        seen = 0
        for entry in islice(self._refresh, REFRESHED):
            seen += 1
            if entry.listed and entry.cached >= 0:
                known, entry.cached = entry.cached, self._view.reach(entry.row)
                if entry.cached != known:
                    self.policy.changed(entry)
        if seen < REFRESHED:
            self._refresh = iter(list(self._entries.values()))
