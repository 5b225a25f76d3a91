"""A constraint whose text the model may begin with a thought of its own opening.

For thinking models whose prompt opens no thought: the text is what a back end enforces, or the opening mark, free text,
the closing mark, an empty line and then what the back end enforces. Both are followed at once until the text says which
it is. Where the mark is complete it is a thought, as for whoever reads the text; a token that goes on beyond the mark
is not allowed, since it would be half of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Self

import numpy as np

from radixrt.grammar.behind import Behind
from radixrt.grammar.tables import Bits, Tables, pack, words
from radixrt.grammar.token_matcher import Steps

SPACE = b" \t\r\n"
"""What may stand in front of the mark, where the back end allows it."""


@lru_cache(maxsize=4)
def opening_mark(text: bytes, tables: Tables) -> OpeningMark:
    """One for all grammars of a vocabulary."""
    return OpeningMark(text, tables)


class OpeningMark:
    """A mark's text and what a vocabulary's tokens do to it at the beginning of a text; shared by all rows."""

    def __init__(self, text: bytes, tables: Tables) -> None:
        self.text = text
        self.tables = tables
        self._masks: dict[int, tuple[Bits, Bits]] = {}
        """By state; rows that are filled at once may both build one."""

    def after(self, state: int, text: bytes) -> int | None:
        """How many bytes of the mark are there behind `text`, where `state` were before, and all of them mean that more
        follows; None where the text is no thought, -1 where it goes on beyond the mark."""
        rest = text if state else text.lstrip(SPACE)
        if self.text.startswith(rest, state):
            return state + len(rest)
        return -1 if rest.startswith(self.text[state:]) else None

    def spells(self, state: int, text: bytes) -> bool:
        """Whether `text` is the next part of the mark and nothing else."""
        return bool(text) and self.text.startswith(text, state)

    def masks(self, state: int) -> tuple[Bits, Bits]:
        """Tokens that spell the next part of the mark, and those that go on beyond it."""
        found = self._masks.get(state)
        if found is None:
            both = np.zeros((2, words(self.tables.width) * 32), dtype=np.uint8)
            first = self.text[state : state + 1]
            for token, text in enumerate(self.tables.bytes):
                if first in text:
                    both[0, token] = self.spells(state, text)
                    both[1, token] = self.after(state, text) == -1
            found = self._masks[state] = pack(both[0]), pack(both[1])
        return found


class FirstThought:
    """Steps that may begin with a thought; see `token_matcher.Steps`."""

    def __init__(
        self,
        mark: OpeningMark,
        thought: Behind,
        answer: Steps,
        places: list[int | None] | None = None,
        taken: list[bool] | None = None,
        followed: int = 0,
    ) -> None:
        """`thought` begins behind the mark, `answer` at the beginning of the text."""
        self._mark = mark
        self._thought = thought
        self._answer = answer
        self._places = places or [0]
        """At the beginning and after each token outside of the thought: bytes of the mark that are there; None: it is
        no thought."""
        self._taken = taken or [True]
        """Beside it: whether the text is one that `answer` has taken."""
        self._followed = followed
        """Tokens that `thought` has taken."""

    @property
    def _is_thought(self) -> bool:
        return self._places[-1] == len(self._mark.text)

    @property
    def failure(self) -> str | None:
        if self._is_thought:
            return self._thought.failure
        return self._answer.failure if self._taken[-1] else None

    def fill(self, mask: Bits) -> None:
        place = self._places[-1]
        if self._is_thought:
            self._thought.fill(mask)
        elif place is None:
            self._answer.fill(mask)
        else:
            spelling, beyond = self._mark.masks(place)
            if self._taken[-1] and not self._answer.stopped():
                self._answer.fill(mask)
                mask &= ~beyond
            mask |= spelling

    def accept(self, token: int) -> bool:
        place = self._places[-1]
        if self._is_thought:
            if not self._thought.accept(token):
                return False
            self._followed += 1
            return True
        text, there = self._mark.tables.bytes[token], None
        if place is not None and text:
            there = self._mark.after(place, text)
            if there == -1:
                return False
        took = self._taken[-1] and not self._answer.stopped() and self._answer.accept(token)
        if not took and (place is None or not self._mark.spells(place, text)):
            return False
        self._places.append(there)
        self._taken.append(took)
        return True

    def accepting(self) -> bool:
        return self._thought.accepting() if self._is_thought else self._taken[-1] and self._answer.accepting()

    def stopped(self) -> bool:
        if self._is_thought:
            return self._thought.stopped()
        return self._places[-1] is None and self._answer.stopped()

    def rollback(self, n: int) -> None:
        inside = min(n, self._followed)
        if inside:
            self._thought.rollback(inside)
            self._followed -= inside
        if n := n - inside:
            if taken := sum(self._taken[-n:]):
                self._answer.rollback(taken)
            del self._places[-n:], self._taken[-n:]

    def copy(self) -> Self:
        return self.__class__(
            self._mark, self._thought.copy(), self._answer.copy(), list(self._places), list(self._taken), self._followed
        )

    def forced(self, before: Sequence[int]) -> Sequence[int]:
        if self._is_thought:
            return self._thought.forced(before)
        return self._answer.forced(before) if self._places[-1] is None else []
