"""Waiting prompts in lexicographic order: a depth-first order of the tree that they would make.

In such an order the prompts that share the longest prefix with a given one stand next to it, on either side, and the
shared length falls with the distance. So "who shares what this row computes?" costs a binary search and a walk over
those who do, not a look at everybody who waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from typing import Literal, TypeAlias

from radixrt.cache import Ids
from radixrt.scheduler.policies.base import Entry
from radixrt.scheduler.policies.common import common_prefix

Place: TypeAlias = tuple[Ids, int]
STEPS: tuple[Literal[-1, 1], ...] = (-1, 1)
Side: TypeAlias = Iterator[tuple[Entry, int]]


class Neighbours:
    """Entries by namespace, sorted by tokens. add, discard: a binary search and a list insertion."""

    def __init__(self) -> None:
        self._sorted: dict[Hashable, list[Entry]] = {}

    def add(self, entry: Entry) -> None:
        line = self._sorted.setdefault(entry.row.request.namespace, [])
        line.insert(_position(line, entry.tokens, entry.number), entry)

    def discard(self, entry: Entry) -> None:
        """Take an entry out; one that is not in is ignored."""
        namespace = entry.row.request.namespace
        line = self._sorted.get(namespace, [])
        at = _position(line, entry.tokens, entry.number)
        if at < len(line) and line[at] is entry:
            del line[at]
            if not line:
                del self._sorted[namespace]

    def around(self, namespace: Hashable, tokens: Ids) -> tuple[Side, Side]:
        """(entry, shared tokens) before and behind `tokens`, nearest first, as long as any are shared."""
        return tuple(self.beyond(namespace, tokens, (tokens, -1), step) for step in STEPS)  # type: ignore[return-value]

    def beyond(self, namespace: Hashable, tokens: Ids, place: Place, step: Literal[-1, 1]) -> Side:
        """(entry, tokens shared with `tokens`) from behind `place` on in one direction, as long as any are shared.

        `place`: (tokens, number) of an entry, which may have gone meanwhile.
        """
        line = self._sorted.get(namespace, [])
        at = _position(line, *place)
        if step > 0 and at < len(line) and (line[at].tokens, line[at].number) == place:
            at += 1
        shared = len(tokens)
        for i in range(at, len(line)) if step > 0 else range(at - 1, -1, -1):
            other = line[i].tokens
            shared = common_prefix(other, tokens, shared)
            if not shared:
                return
            yield line[i], shared


def _position(line: list[Entry], tokens: Ids, number: int) -> int:
    return bisect_left(line, (tokens, number), key=lambda entry: (entry.tokens, entry.number))
