"""Longest cached prefix first; depth-first where memory is tight."""

from __future__ import annotations

from itertools import islice

from radixrt.scheduler.policies.base import Entry, Policy, View
from radixrt.scheduler.policies.common import common_prefix
from radixrt.scheduler.policies.heap import EntryHeap
from radixrt.scheduler.policies.neighbours import Neighbours

REPAIRS = 16
"""Entries whose length turned out smaller than last seen, put right in one question at most."""
LOOKED_AT = 16
"""Neighbours on either side that are asked whether they are siblings."""


class LongestPrefix(Policy):
    """The row with the most tokens in the tree (or on their way there) first, then the one that came first.

    Running the requests of a tree in depth-first order gives the most hits any order can, and taking the longest
    cached prefix first is such an order (SGLang, arXiv 2312.07104, theorem 3.1), as long as equals do not alternate:
    where two subtrees have the same depth and the pool holds only one of them, going from one to the other evicts each
    in turn. So when memory is tight the siblings of the row that was admitted last go before their equals.

    Lengths are kept, not asked for: they grow where a row is admitted (`WaitingQueue` tells its neighbours), and shrink
    by eviction, which is found out when the entry comes up.
    """

    def __init__(self, view: View, neighbours: Neighbours) -> None:
        self._view = view
        self._neighbours = neighbours
        self._heap = EntryHeap(lambda entry: (-entry.cached, entry.arrived, entry.number))
        self._last: Entry | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        if entry.cached < 0:
            entry.cached = self._view.reach(entry.row)
        self._heap.add(entry)

    def discard(self, entry: Entry) -> None:
        self._heap.discard(entry)

    def changed(self, entry: Entry) -> None:
        self._heap.add(entry)

    def admitted(self, entry: Entry) -> None:
        self._last = entry

    def first(self, now: float) -> Entry | None:
        entry = self._heap.first()
        for _ in range(REPAIRS):
            if entry is None or not self._shrunk(entry):
                break
            self._heap.add(entry)
            entry = self._heap.first()
        if entry is not None and entry.cached and self._view.tight:
            return self._sibling(entry) or entry
        return entry

    def _shrunk(self, entry: Entry) -> bool:
        known, entry.cached = entry.cached, self._view.reach(entry.row)
        return entry.cached < known

    def _sibling(self, best: Entry) -> Entry | None:
        """An equal of `best` in the subtree of the row admitted last; None where `best` itself is in it or none is."""
        last = self._last
        if last is None:
            return None
        namespace = last.row.request.namespace
        if best.row.request.namespace == namespace:
            length = min(len(best.tokens), len(last.tokens))
            if common_prefix(best.tokens, last.tokens, length) >= best.cached:
                return None
        for side in self._neighbours.around(namespace, last.tokens):
            for entry, shared in islice(side, LOOKED_AT):
                if shared < best.cached:
                    break
                if entry in self._heap and entry.cached == best.cached and not self._shrunk(entry):
                    return entry
        return None
