"""No key twice in one object: the one rule of JSON objects that no context-free grammar can say.

Back ends let a key that the schema does not declare come again; JSON parsers then keep the last one, and validators
see fewer keys than were written. Here the keys of open objects are followed through the tokens, and what would close a key
that is there already is taken out of the mask. It rests on each key having one spelling (no \\uXXXX, no \\/), which the
back end's options see to; declared keys cannot repeat anyway, for they come in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from radixrt.grammar.schema_tree import Tree
from radixrt.grammar.tables import Bits, Tables, pack, words
from radixrt.grammar.token_matcher import Steps

_QUOTE, _BACKSLASH = 0x22, 0x5C


@dataclass(frozen=True)
class Place:
    """Where in a JSON text one stands."""

    stack: tuple[frozenset[bytes] | None, ...] = ()
    """Open objects with the keys that they have, and arrays (None), outermost first."""
    wants_key: bool = False
    """The next string is a key."""
    key: bytes | None = None
    """What is written of a key, as it is spelt; None outside of keys."""
    quoted: bool = False
    """Inside a string."""
    escaped: bool = False

    def after(self, text: bytes) -> Place | None:
        """The place behind a text that may follow; None where a key is closed that its object has."""
        here = self
        for byte in text:
            if here.quoted:
                following = here._in_string(byte)
                if following is None:
                    return None
                here = following
            elif byte == _QUOTE:
                here = replace(here, quoted=True, key=b"" if here.wants_key else None, wants_key=False)
            elif byte == 0x7B:  # {
                here = replace(here, stack=(*here.stack, frozenset()), wants_key=True)
            elif byte == 0x5B:  # [
                here = replace(here, stack=(*here.stack, None), wants_key=False)
            elif byte in b"}]":
                here = replace(here, stack=here.stack[:-1], wants_key=False)
            elif byte == 0x2C:  # ,
                here = replace(here, wants_key=bool(here.stack) and here.stack[-1] is not None)
        return here

    def rests(self, keys: frozenset[bytes]) -> list[bytes]:
        """What is missing of each of the keys that begin as this one does."""
        written = self.key or b""
        return [key[len(written) :] for key in keys if key.startswith(written)]

    def _in_string(self, byte: int) -> Place | None:
        if byte == _QUOTE and not self.escaped:
            if self.key is None:
                return replace(self, quoted=False)
            keys = self.stack[-1] or frozenset()
            if self.key in keys:
                return None
            return Place((*self.stack[:-1], keys | {self.key}))
        escaped = byte == _BACKSLASH and not self.escaped
        if self.key is not None:
            return replace(self, key=self.key + bytes([byte]), escaped=escaped)
        return self if escaped is self.escaped else replace(self, escaped=escaped)


class Quotes:
    """What there is to know of a vocabulary's tokens beforehand."""

    def __init__(self, tables: Tables) -> None:
        found = sorted((text, token) for token, text in enumerate(tables.bytes) if b'"' in text)
        self.texts = [text for text, _ in found]
        self.tokens = [token for _, token in found]
        self.by_text: dict[bytes, list[int]] = {}
        several = np.zeros(words(tables.width) * 32, dtype=np.uint8)
        commas, anywhere = several.copy(), several.copy()
        for token, text in enumerate(tables.bytes):
            self.by_text.setdefault(text, []).append(token)
            several[token] = text.count(b'"') > 1
            anywhere[token] = b'"' in text
            commas[token] = b"," in text
        self.several = pack(several)
        """Tokens of more than one quotation mark: a key may begin and end within."""
        self.any = pack(anywhere)
        self.commas = pack(commas)

    def beginning(self, text: bytes) -> Sequence[int]:
        """Tokens that begin with a text in which a quotation mark is."""
        first = last = bisect_left(self.texts, text)
        while last < len(self.texts) and self.texts[last].startswith(text):
            last += 1
        return self.tokens[first:last]


class UniqueKeys:
    """Steps of another back end, without those that repeat a key; see `token_matcher.Steps`."""

    def __init__(
        self, inner: Steps, tables: Tables, quotes: Quotes, *, scarce: bool, places: list[Place] | None = None
    ) -> None:
        """`scarce`: keys are bound by a pattern, so that all may be used up; then the steps look ahead."""
        self._inner = inner
        self._tables = tables
        self._quotes = quotes
        self._scarce = scarce
        self._places = places or [Place()]

    @property
    def failure(self) -> str | None:
        return self._inner.failure

    def fill(self, mask: Bits) -> None:
        self._fill(self._inner, self._places[-1], mask)
        if self._scarce:
            for token in self._doubtful(self._places[-1], mask):
                if not self._goes_on(self._inner, self._places[-1], token):
                    _clear(mask, (token,))

    def _fill(self, inner: Steps, here: Place, mask: Bits) -> None:
        """The inner steps' mask without tokens that repeat a key."""
        inner.fill(mask)
        if not here.stack:
            return
        keys = here.stack[-1]
        if here.key is not None and keys:
            for rest in here.rests(keys):
                _clear(mask, self._quotes.beginning(rest + b'"'))
        for token in _ids(mask & self._quotes.several):
            if here.after(self._tables.bytes[token]) is None:
                _clear(mask, (token,))

    def _doubtful(self, here: Place, mask: Bits) -> list[int]:
        """Allowed tokens behind which there might be no key left: in a key that is there already, as far as it goes,
        or where the next key is to begin."""
        found: list[int] = []
        if here.key is not None and here.stack and here.stack[-1]:
            for rest in here.rests(here.stack[-1]):
                for size in range(1, len(rest) + 1):
                    found += self._quotes.by_text.get(rest[:size], ())
        elif here.stack and not here.wants_key:
            found = _ids(mask & self._quotes.commas)
        elif here.stack and here.stack[-1]:
            found = _ids(mask & self._quotes.any)
        return [token for token in dict.fromkeys(found) if mask.view(np.uint32)[token >> 5] >> (token & 31) & 1]

    def _goes_on(self, inner: Steps, here: Place, token: int) -> bool:
        """Whether anything may follow an allowed token."""
        there = here.after(self._tables.bytes[token])
        if there is None:
            return False
        keys = there.stack[-1] if there.stack else None
        if not keys or not (there.wants_key or (there.key is not None and any(there.rests(keys)) or there.key in keys)):
            return True
        twin = inner.copy()
        if not twin.accept(token):
            return False
        mask = np.zeros(words(self._tables.width), dtype=np.int32)
        self._fill(twin, there, mask)
        # White space in front of a key changes nothing.
        mask &= self._quotes.any if there.wants_key else self._tables.text_tokens
        doubtful = self._doubtful(there, mask)
        certain = mask.copy()
        _clear(certain, doubtful)
        return bool(certain.any()) or any(self._goes_on(twin, there, one) for one in doubtful)

    def accept(self, token: int) -> bool:
        here = self._places[-1]
        there = here.after(self._tables.bytes[token])
        if there is None:
            return False
        if self._scarce:
            only = np.zeros(words(self._tables.width), dtype=np.int32)
            only.view(np.uint32)[token >> 5] = 1 << (token & 31)
            if self._doubtful(here, only) and not self._goes_on(self._inner, here, token):
                return False
        if not self._inner.accept(token):
            return False
        self._places.append(there)
        return True

    def accepting(self) -> bool:
        return self._inner.accepting()

    def stopped(self) -> bool:
        return self._inner.stopped()

    def rollback(self, n: int) -> None:
        self._inner.rollback(n)
        del self._places[len(self._places) - n :]

    def copy(self) -> Self:
        return self.__class__(
            self._inner.copy(), self._tables, self._quotes, scarce=self._scarce, places=list(self._places)
        )

    def forced(self, before: Sequence[int]) -> Sequence[int]:
        tokens = self._inner.forced(before)
        here: Place | None = self._places[-1]
        for i, token in enumerate(tokens):
            here = here.after(self._tables.bytes[token]) if here is not None else None
            if here is None:
                return tokens[:i]
        return tokens


def key_rules(document: dict[str, Any]) -> tuple[bool, bool]:
    """(whether a schema has an object that may hold keys which it does not declare, whether patterns bind keys)."""
    nodes = Tree(document).judging()
    scarce = any("patternProperties" in node.schema for node in nodes)
    for node in nodes:
        if "object" not in node.types or "const" in node.schema or "enum" in node.schema:
            continue
        if node.schema.get("additionalProperties") is not False or node.schema.get("patternProperties"):
            return True, scarce
    return False, scarce


def _clear(mask: Bits, tokens: Sequence[int]) -> None:
    bits = mask.view(np.uint32)
    for token in tokens:
        bits[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)


def _ids(mask: Bits) -> list[int]:
    if not mask.any():
        return []
    found: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return found
