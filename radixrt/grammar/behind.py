"""A constraint that begins behind a marker: free text up to it, an empty line, then what a back end enforces.

For answers that begin inside a thought. The marker ends with a token, and so does the empty line: a token that goes on
beyond either is not allowed, for a back end takes whole tokens. End tokens come behind the marker only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from radixrt.grammar.tables import Bits, Tables, pack, words
from radixrt.grammar.token_matcher import Steps

LEAD = b"\n\n"
"""What thinking models write between a thought and the answer."""


class Marker:
    """A marker's text and what a vocabulary's tokens do to it; shared by all rows."""

    def __init__(self, text: bytes, tables: Tables) -> None:
        self.text = text
        self.tables = tables
        self._masks: dict[int, Bits] = {}
        self._closing: dict[int, Bits] = {}
        self._next = _automaton(text)

    def after(self, state: int, text: bytes) -> int | None:
        """How much of the marker the text so far ends with; None where the text goes on beyond it."""
        for byte in text:
            if state == len(self.text):
                return None
            state = self._next[state][byte]
        return state

    def mask(self, state: int) -> Bits:
        """Tokens that may come where the text ends with `state` bytes of the marker."""
        found = self._masks.get(state)
        if found is None:
            beyond = np.zeros(words(self.tables.width) * 32, dtype=np.uint8)
            last = self.text[-1:]
            for token, text in enumerate(self.tables.bytes):
                if last in text[:-1] and self.after(state, text) is None:
                    beyond[token] = 1
            found = self._masks[state] = self.tables.text_tokens & ~pack(beyond)
        return found

    def closing_mask(self, state: int) -> Bits:
        """Tokens that spell a part of what is missing of the marker."""
        found = self._closing.get(state)
        if found is None:
            found = self._closing[state] = self._spelling(self.text, state)
        return found

    def lead_mask(self, done: int) -> Bits:
        """Tokens that spell a part of what is missing of the empty line."""
        return self._spelling(LEAD, done)

    def _spelling(self, whole: bytes, done: int) -> Bits:
        found = np.zeros(words(self.tables.width) * 32, dtype=np.uint8)
        for token, text in enumerate(self.tables.bytes):
            found[token] = bool(text) and whole.startswith(text, done)
        return pack(found)


class Behind:
    """Steps that begin with a thought; see `token_matcher.Steps`."""

    def __init__(
        self,
        marker: Marker,
        inner: Steps,
        places: list[int] | None = None,
        followed: int = 0,
        *,
        most: int | None = None,
    ) -> None:
        """`most`: tokens that the thought may have before its marker."""
        self._most = most
        self._marker = marker
        self._inner = inner
        self._places = places or [0]
        """After each token: bytes of marker and empty line that are there, marker first."""
        self._followed = followed
        """Tokens that the inner steps have taken."""
        self._end = len(marker.text)

    @property
    def failure(self) -> str | None:
        return self._inner.failure

    @property
    def _is_inside(self) -> bool:
        return self._places[-1] == self._end + len(LEAD)

    @property
    def _must_close(self) -> bool:
        """The thought has as many tokens as it may: each has a place, and the beginning has one."""
        return self._most is not None and len(self._places) > self._most

    def fill(self, mask: Bits) -> None:
        here = self._places[-1]
        if self._is_inside:
            self._inner.fill(mask)
        elif here < self._end:
            mask[:] = self._marker.closing_mask(here) if self._must_close else self._marker.mask(here)
        else:
            mask[:] = self._marker.lead_mask(here - self._end)

    def accept(self, token: int) -> bool:
        here = self._places[-1]
        if self._is_inside:
            if not self._inner.accept(token):
                return False
            self._followed += 1
            return True
        text = self._marker.tables.bytes[token]
        there = self._marker.after(here, text) if here < self._end else here + len(text)
        if not text or there is None or (here >= self._end and not LEAD.startswith(text, here - self._end)):
            return False
        if here < self._end and self._must_close and not self._marker.text.startswith(text, here):
            return False
        self._places.append(there)
        return True

    def accepting(self) -> bool:
        return self._is_inside and self._inner.accepting()

    def stopped(self) -> bool:
        return self._is_inside and self._inner.stopped()

    def rollback(self, n: int) -> None:
        inside = min(n, self._followed)
        if inside:
            self._inner.rollback(inside)
            self._followed -= inside
        if n > inside:
            del self._places[len(self._places) - (n - inside) :]

    def copy(self) -> Self:
        places = list(self._places)
        return self.__class__(self._marker, self._inner.copy(), places, self._followed, most=self._most)

    def forced(self, before: Sequence[int]) -> Sequence[int]:
        return self._inner.forced(before) if self._is_inside else []


def _automaton(text: bytes) -> list[list[int]]:
    """For each number of bytes matched and each next byte, the number matched then (Knuth, Morris, Pratt 1977)."""
    table: list[list[int]] = []
    shorter = 0
    for state, byte in enumerate(text):
        row = list(table[shorter]) if state else [0] * 256
        row[byte] = state + 1
        table.append(row)
        if state:
            shorter = table[shorter][byte]
    return table
