"""Where the last few tokens stood before: a suffix index over the token sequences of one namespace.

Hash chains as in DEFLATE (RFC 1951, section 4): a table from the last three tokens to where they were seen last, and
from each place a link to the one before; candidates are compared backwards for the longest common suffix. What stood
behind them is the draft: prompt lookup decoding (Saxena 2023) over everything that the namespace has computed, as in
REST (arXiv 2311.08252) and SuffixDecoding (arXiv 2411.04975), whose trees of suffixes this spares: a token costs one
table entry and one link, and is forgotten as cheaply.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

ORDER = 3
"""Tokens of a key. Shorter ones stand almost everywhere, and what follows them is anything."""
CANDIDATES = 16
"""Places of one key that are looked at, latest first."""
LONGEST = 32
"""Common tokens that are told apart: more say nothing more."""
_BITS = 21
"""Of a token id in a key: no vocabulary has two million tokens."""
_PLACE = 32


@dataclass(eq=False)
class Stretch:
    """Token ids in a row, and for each place the place before it with the same key (-1: none)."""

    number: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    links: array[int] = field(default_factory=lambda: array("q"))
    live: bool = True
    """It may still grow."""
    dropped: bool = False


@dataclass(frozen=True)
class Found:
    """Places behind the longest suffix that was found: (sequence, place of the next token), latest first."""

    length: int
    places: list[tuple[Stretch, int]]


class SuffixIndex:
    """Sequences of one namespace. Adding a token takes constant time; forgetting one, too."""

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens in it: each takes 12 bytes in its sequence and at most one entry of the table."""
        self._heads: dict[int, int] = {}
        self._sequences: OrderedDict[int, Stretch] = OrderedDict()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def open(self, tokens: Sequence[int]) -> Stretch:
        """A new sequence that begins with `tokens`."""
        self._numbers += 1
        sequence = self._sequences[self._numbers] = Stretch(self._numbers)
        self.extend(sequence, tokens)
        return sequence

    def extend(self, sequence: Stretch, tokens: Sequence[int]) -> None:
        """Add tokens at the end. One that was dropped stays so: its row draws on the others alone."""
        if sequence.dropped:
            return
        known, links, heads, base = sequence.tokens, sequence.links, self._heads, sequence.number << _PLACE
        a, b = (known[-2] if len(known) > 1 else -1), (known[-1] if known else -1)
        for token in tokens:
            known.append(token)
            if a < 0:
                links.append(-1)
            else:
                key = a << 2 * _BITS | b << _BITS | token
                links.append(heads.get(key, -1))
                heads[key] = base | len(known)
            a, b = b, token
        self.tokens += len(tokens)

    def close(self, sequence: Stretch) -> None:
        """It grows no more."""
        sequence.live = False

    def knows(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens seem to be in the index: a few places of them are looked up."""
        last = len(tokens) - ORDER
        return last < 0 or all(_key(tokens, at + ORDER) in self._heads for at in range(0, last + 1, max(last // 4, 1)))

    def find(self, tokens: Sequence[int]) -> Found | None:
        """Where the longest suffix of `tokens`, of at least ORDER, was continued before."""
        if len(tokens) < ORDER:
            return None
        place = self._heads.get(_key(tokens, len(tokens)), -1)
        best, places = 0, list[tuple[Stretch, int]]()
        for _ in range(CANDIDATES):
            sequence = self._sequences.get(place >> _PLACE) if place >= 0 else None
            if sequence is None:
                break
            at = place & (1 << _PLACE) - 1
            if at < len(sequence.tokens):
                length = _common(sequence.tokens, at, tokens)
                if length > best:
                    best, places = length, []
                if length == best:
                    places.append((sequence, at))
            place = sequence.links[at - 1]
        if not places:
            return None
        self._sequences.move_to_end(places[0][0].number)
        return Found(best, places)

    def shrink(self, most: int) -> None:
        """Forget whole sequences, least recently used first and those that still grow last, down to `most` tokens."""
        if self.tokens <= most:
            return
        for wanted in (False, True):
            for sequence in [one for one in self._sequences.values() if one.live is wanted]:
                if self.tokens <= most:
                    return
                self._drop(sequence)

    def clear(self) -> int:
        """Forget every sequence that no longer grows; how many tokens."""
        before = self.tokens
        for sequence in [one for one in self._sequences.values() if not one.live]:
            self._drop(sequence)
        return before - self.tokens

    def _drop(self, sequence: Stretch) -> None:
        tokens, heads, base = sequence.tokens, self._heads, sequence.number << _PLACE
        for end in range(ORDER, len(tokens) + 1):
            key = _key(tokens, end)
            # Links of others into this sequence end there: a number is never used again.
            if heads.get(key, -1) == base | end:
                del heads[key]
        sequence.dropped = True
        del self._sequences[sequence.number]
        self.tokens -= len(tokens)

    @property
    def keys(self) -> int:
        """Entries of the table."""
        return len(self._heads)


def _key(tokens: Sequence[int], end: int) -> int:
    a, b, c = islice(tokens, end - ORDER, end) if not isinstance(tokens, array) else tokens[end - ORDER : end]
    return a << 2 * _BITS | b << _BITS | c


def _common(known: Sequence[int], at: int, tokens: Sequence[int]) -> int:
    """How many tokens before `at` equal the last of `tokens`; ORDER of them do."""
    length, most, end = ORDER, min(LONGEST, at, len(tokens)), len(tokens)
    while length < most and known[at - length - 1] == tokens[end - length - 1]:
        length += 1
    return length
