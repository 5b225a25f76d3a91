"""Guesses found in what the namespace has computed: what stood behind the row's longest suffix before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from radixrt.scheduler.drafts.guess import NOTHING, Branch, Guess
from radixrt.scheduler.drafts.index import ORDER, Stretch, SuffixIndex
from radixrt.scheduler.drafts.rates import Acceptance
from radixrt.scheduler.requests import Alone, Row

MOST_TOKENS = 1 << 18
"""Tokens in all indexes together, about 30 MB; never more than the KV pool has slots."""
BRANCHES, BRANCH_TOKENS = 2, 3

Cursor = tuple[Stretch, int]
"""A place that the row follows: the token there is what it may sample next."""


@dataclass(eq=False)
class _Trail:
    """A running row's own sequence, and the places it follows."""

    index: SuffixIndex
    own: Stretch
    cursors: list[Cursor] = field(default_factory=list)
    length: int = 0
    """Common tokens before the cursors."""
    searched: int = -1
    """Tokens that the row had at the last search."""
    jumped: bool = False
    """The last token was certain: what follows is a choice, which texts that agree so far make differently."""

    @property
    def kind(self) -> int:
        """3-4 common tokens, 5-8, 9-16, ...: the longer, the surer."""
        return (self.length - 1).bit_length()


class TreeSource:
    """One suffix index a namespace: a row draws on what its own namespace holds and on nothing else.

    Tokens enter when a row is admitted (those of its prompt that the tree did not have) and as they are sampled. A row
    that follows a place which goes on as it does costs one comparison a token; only when all its places have failed is
    there a new search. Each token is compared with what was foretold, verified or not, so that the odds are known also
    while no guess pays.
    """

    name = "tree"

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self.tokens = 0
        """Tokens in all indexes."""
        self._most = most_tokens
        self._indexes: OrderedDict[Hashable, SuffixIndex] = OrderedDict()
        self._trails: dict[Row, _Trail] = {}
        self._acceptance = Acceptance(prior=0.5)
        self._behind_certain = Acceptance(prior=0.4)

    def admitted(self, row: Row) -> None:
        if row in self._trails:
            return
        namespace = row.request.namespace
        index = self._indexes.setdefault(namespace, SuffixIndex())
        self._indexes.move_to_end(namespace)
        cached = row.in_tree if index.knows(row.tokens[: row.in_tree]) else 0
        own = index.open(row.tokens[max(cached - ORDER, 0) :])
        self._trails[row] = _Trail(index, own)
        self._count(len(own.tokens))

    def learn(self, row: Row, token: int, *, certain: bool = False) -> None:
        trail = self._trails.get(row)
        if trail is None:
            return
        if trail.cursors:
            groups = _groups(trail.cursors)
            foretold = max(groups, key=lambda one: len(groups[one])) if groups else None
            if foretold is not None and not certain:  # where nothing was to be foretold it says nothing of the odds
                self._rates(trail).add(row, foretold == token, 1, trail.kind)
            trail.cursors = groups.get(token, [])
            trail.length += 1
        trail.jumped = certain
        if not trail.own.dropped:
            trail.index.extend(trail.own, [token])
            self._count(1)

    def ended(self, row: Row) -> None:
        trail = self._trails.pop(row, None)
        if trail is None:
            return
        trail.index.close(trail.own)
        if isinstance(row.request.namespace, Alone) and row.request.finished:
            gone = self._indexes.pop(row.request.namespace, None)
            if gone is not None:
                self.tokens -= gone.tokens
                gone.shrink(0)

    def propose(self, row: Row, most: int) -> Guess:
        trail = self._follow(row)
        if trail is None or most < 1:
            return NOTHING
        odds = self._rates(trail).odds(row, trail.kind)
        chain: list[int] = []
        branches: list[Branch] = []
        cursors = trail.cursors
        while len(chain) < most and (groups := _groups(cursors)):
            token = max(groups, key=lambda one: len(groups[one]))
            for other, places in groups.items():
                if other != token:
                    share = len(places) / len(cursors)
                    branches.append(Branch(len(chain), [other, *_straight(places)], odds ** len(chain) * share))
            chain.append(token)
            cursors = groups[token]
        branches.sort(key=lambda branch: -branch.odds)
        return Guess(self.name, chain, odds, tuple(branches[:BRANCHES]))

    def expect(self, row: Row) -> tuple[float, int]:
        trail = self._follow(row)
        if trail is None:
            return 0.0, 0
        stretch, at = trail.cursors[0]
        return self._rates(trail).odds(row, trail.kind), len(stretch.tokens) - at - 1

    def _rates(self, trail: _Trail) -> Acceptance:
        return self._behind_certain if trail.jumped else self._acceptance

    def verified(self, row: Row, proposed: int, accepted: int) -> None:
        """Nothing to do: `learn` has seen each token."""

    def forget(self, where: Callable[[Hashable], bool] | None = None) -> int:
        """Drop what no running row adds to (the tree was flushed), in the namespaces that `where` accepts; how many
        tokens."""
        freed = sum(index.clear() for one, index in self._indexes.items() if where is None or where(one))
        for namespace in [one for one, index in self._indexes.items() if not len(index)]:
            del self._indexes[namespace]
        self.tokens -= freed
        return freed

    def _follow(self, row: Row) -> _Trail | None:
        """The row's trail with at least one place to follow; None where there is none."""
        trail = self._trails.get(row)
        if trail is None:
            return None
        trail.cursors = [(stretch, at) for stretch, at in trail.cursors if at < len(stretch.tokens)]
        if not trail.cursors and trail.searched != len(row.tokens):
            trail.searched = len(row.tokens)
            found = trail.index.find(row.tokens)
            if found is not None:
                trail.cursors, trail.length = found.places, found.length
        return trail if trail.cursors else None

    def _count(self, added: int) -> None:
        """Keep to the bound: the namespaces that were used longest ago forget first."""
        self.tokens += added
        while self.tokens > self._most and self._indexes:
            namespace, index = next(iter(self._indexes.items()))
            before = index.tokens
            index.shrink(max(before - (self.tokens - self._most), 0))
            self.tokens -= before - index.tokens
            if not len(index):
                del self._indexes[namespace]


def _groups(cursors: list[Cursor]) -> dict[int, list[Cursor]]:
    """The places by their token, each moved behind it; those that have come to their end fall away."""
    groups: dict[int, list[Cursor]] = {}
    for stretch, at in cursors:
        if at < len(stretch.tokens):
            groups.setdefault(stretch.tokens[at], []).append((stretch, at + 1))
    return groups


def _straight(places: list[Cursor]) -> list[int]:
    """What stands at the first of these places, as far as a branch goes."""
    stretch, at = places[0]
    return stretch.tokens[at : at + BRANCH_TOKENS - 1].tolist()
