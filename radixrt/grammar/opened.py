"""A constraint that begins when the model samples a control token: free text up to it, then what a back end enforces.

For templates that open calls with a control token ([TOOL_CALLS]): the answer is free text, or free text, the token and
calls. The token is allowed once, in the free text; readers of the text could not tell it from the same characters as
plain tokens, so those never come in the free text. End tokens come there, and where the back end allows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Self

import numpy as np

from radixrt.errors import ConstraintError
from radixrt.grammar.behind import Marker
from radixrt.grammar.tables import Bits, Tables, bit, pack, words
from radixrt.grammar.token_matcher import Steps


@lru_cache(maxsize=4)
def opener_of(text: bytes, tables: Tables) -> Opener:
    """One for all grammars of a vocabulary. ConstraintError where it has no control token of this text."""
    return Opener(text, tables)


class Opener:
    """The control token, and what may be written before it; shared by all rows."""

    def __init__(self, text: bytes, tables: Tables) -> None:
        """ConstraintError where the vocabulary has no control token of this text."""
        found = tables.controls.get(text)
        if found is None:
            raise ConstraintError(
                f"the vocabulary has no control token {text.decode(errors='replace')!r} that could open the constraint",
                param="opener",
            )
        self.token = found
        self.bit = bit(found, tables.width)
        self._tables = tables
        self._marker = Marker(text, tables)
        self._end = len(text)
        self._masks: dict[int, Bits] = {}
        """By state; rows that are filled at once may both build one."""
        self._last = [token for token, text in enumerate(tables.bytes) if self._marker.text[-1:] in text]

    def after(self, state: int, token: int) -> int | None:
        """How much of the opener's text the free text ends with behind `token`; None where that may not come."""
        text = self._tables.bytes[token]
        there = self._marker.after(state, text) if text else None
        return None if there == self._end else there

    def mask(self, state: int) -> Bits:
        """Tokens that may come where the free text ends with `state` bytes of the opener's, the opener among them."""
        found = self._masks.get(state)
        if found is None:
            spelling = np.zeros(words(self._tables.width) * 32, dtype=np.uint8)
            for token in self._last:
                spelling[token] = self.after(state, token) is None
            found = self._masks[state] = (self._tables.text_tokens & ~pack(spelling)) | self.bit
        return found


class Opened:
    """Steps that begin with free text; see `token_matcher.Steps`."""

    def __init__(
        self, opener: Opener, inner: Steps, places: list[int] | None = None, followed: int | None = None
    ) -> None:
        self._opener = opener
        self._inner = inner
        self._places = places or [0]
        """Before the free text and after each token of it: bytes of the opener's text that it ends with."""
        self._followed = followed
        """Tokens that the inner steps have taken; None before the opener."""

    @property
    def failure(self) -> str | None:
        return self._inner.failure

    def fill(self, mask: Bits) -> None:
        if self._followed is None:
            mask[:] = self._opener.mask(self._places[-1])
        else:
            self._inner.fill(mask)
            mask &= ~self._opener.bit

    def accept(self, token: int) -> bool:
        if self._followed is not None:
            if token == self._opener.token or not self._inner.accept(token):
                return False
            self._followed += 1
        elif token == self._opener.token:
            self._followed = 0
        else:
            there = self._opener.after(self._places[-1], token)
            if there is None:
                return False
            self._places.append(there)
        return True

    def accepting(self) -> bool:
        return self._followed is None or self._inner.accepting()

    def stopped(self) -> bool:
        return self._followed is not None and self._inner.stopped()

    def rollback(self, n: int) -> None:
        if self._followed is not None and n:
            inside = min(n, self._followed)
            if inside:
                self._inner.rollback(inside)
            self._followed -= inside
            n -= inside
            if n:
                self._followed = None
                n -= 1
        if n:
            del self._places[len(self._places) - n :]

    def copy(self) -> Self:
        return self.__class__(self._opener, self._inner.copy(), list(self._places), self._followed)

    def forced(self, before: Sequence[int]) -> Sequence[int]:
        if self._followed is None:
            return []
        # A tokenizer begins anew behind a control token.
        return self._inner.forced(before[len(before) - self._followed :])
