"""No key twice in one object: the one rule of JSON objects that no context-free grammar can say.

Back ends let a key that the schema does not declare come again; JSON parsers then keep the last one, and validators
see fewer keys than were written. Here the keys of open objects are followed through the tokens; what would close one
that is there already is taken out of the mask. It rests on each key having one spelling (no \\uXXXX, no \\/), which the
back end's options see to; declared keys cannot repeat anyway, for they come in order. Where patterns leave few keys,
what leads to none that is left is taken out too: see `fresh.py`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from radixrt.grammar import fresh
from radixrt.grammar.schema_tree import Tree
from radixrt.grammar.tables import Bits, Tables, pack, words
from radixrt.grammar.token_matcher import Steps

_SPECIAL = re.compile(rb'["\\\\]')
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

    @property
    def json(self) -> Place:
        return self

    def after(self, text: bytes) -> Place | None:
        """The place behind a text that may follow; None where a key is closed that its object has."""
        stack, wants_key, key, quoted, escaped = self.stack, self.wants_key, self.key, self.quoted, self.escaped
        at, size = 0, len(text)
        while at < size:
            if quoted:
                end = at if escaped else _end_of_plain(text, at)
                if end > at:
                    key = key if key is None else key + text[at:end]
                    at = end
                    continue
                byte = text[at]
                at += 1
                if byte == _QUOTE and not escaped:
                    quoted = False
                    if key is not None:
                        keys = stack[-1] or frozenset()
                        if key in keys:
                            return None
                        stack, key = (*stack[:-1], keys | {key}), None
                    continue
                escaped = byte == _BACKSLASH and not escaped
                key = key if key is None else key + bytes([byte])
                continue
            byte = text[at]
            at += 1
            if byte == _QUOTE:
                quoted, key, wants_key = True, b"" if wants_key else None, False
            elif byte == 0x2C:  # ,
                wants_key = bool(stack) and stack[-1] is not None
            elif byte == 0x7B:  # {
                stack, wants_key = (*stack, frozenset()), True
            elif byte == 0x5B:  # [
                stack, wants_key = (*stack, None), False
            elif byte in b"}]":
                stack, wants_key = stack[:-1], False
        inside = quoted and self.quoted and key is None and self.key is None
        if inside and escaped is self.escaped and stack is self.stack:
            return self
        return Place(stack, wants_key, key, quoted, escaped)

    def rests(self, keys: frozenset[bytes]) -> list[bytes]:
        """What is missing of each of the keys that begin as this one does."""
        written = self.key or b""
        return [key[len(written) :] for key in keys if key.startswith(written)]


class Reader(Protocol):
    """A `Place`, or one in a text that holds JSON (`tag_places.py`)."""

    @property
    def json(self) -> Place:
        """The place in the JSON; a fresh one outside of it."""
        ...

    def after(self, text: bytes) -> Self | None: ...


class Quotes:
    """What there is to know of a vocabulary's tokens beforehand."""

    def __init__(self, tables: Tables) -> None:
        found = sorted((text, token) for token, text in enumerate(tables.bytes) if b'"' in text)
        self.texts = [text for text, _ in found]
        self.tokens = [token for _, token in found]
        counts = np.zeros(words(tables.width) * 32, dtype=np.uint8)
        counts[self.tokens] = [min(text.count(b'"'), 4) for text in self.texts]
        self.two = pack((counts >= 2).astype(np.uint8))
        """Tokens that can hold a key whole where no string is open: two quotation marks or more."""
        self.three = pack((counts >= 3).astype(np.uint8))
        """Tokens that can do so inside a string: its end, and both of the key."""
        self.four = pack((counts >= 4).astype(np.uint8))
        """Tokens that can hold two keys."""
        commas = np.zeros(words(tables.width) * 32, dtype=np.uint8)
        commas[: tables.width] = [b"," in text for text in tables.bytes]
        self.commas = pack(commas)
        self.quoted_commas = pack(commas & (counts >= 1))
        self.openings: dict[bytes, list[int]] = {}
        """Of each text, the tokens that end with a quotation mark and it: the beginning of a key perhaps."""
        opening = np.zeros(words(tables.width) * 32, dtype=np.uint8)
        for text, token in found:
            behind = text[text.rindex(b'"') + 1 :]
            if behind:
                self.openings.setdefault(behind, []).append(token)
                opening[token] = 1
        self.opening = pack(opening)
        """All of those tokens."""
        self.most = max((text.count(b'"') for text in self.texts), default=0)
        """Quotation marks in one token."""
        self.ids: dict[bytes, list[int]] = {}
        """Of each text, the tokens that write it."""
        for token, text in enumerate(tables.bytes):
            if text:
                self.ids.setdefault(text, []).append(token)

    def beginning(self, text: bytes) -> Sequence[int]:
        """Tokens that begin with a text in which a quotation mark is."""
        first = last = bisect_left(self.texts, text)
        while last < len(self.texts) and self.texts[last].startswith(text):
            last += 1
        return self.tokens[first:last]


class UniqueKeys:
    """Steps of another back end, without those that repeat a key; see `token_matcher.Steps`."""

    def __init__(
        self,
        inner: Steps,
        tables: Tables,
        quotes: Quotes,
        places: list[Reader] | None = None,
        *,
        few: int | None = None,
        controls: Mapping[int, bytes] | None = None,
    ) -> None:
        """
        Args:
            inner: the other back end's steps, at the start of the text.
            tables: of the vocabulary.
            quotes: of the same.
            places: where the text begins; else JSON does there.
            few: `few_keys.few_keys` of the schemas.
            controls: texts of the control tokens that may come.
        """
        self._inner = inner
        self._tables = tables
        self._quotes = quotes
        self._places: list[Reader] = places or [Place()]
        self._few = few
        self._controls = controls or {}

    @property
    def failure(self) -> str | None:
        return self._inner.failure

    def fill(self, mask: Bits) -> None:
        self._inner.fill(mask)
        reader = self._places[-1]
        here = reader.json
        keys = here.stack[-1] if here.stack else None
        if here.key is not None and keys:
            for rest in here.rests(keys):
                clear(mask, self._quotes.beginning(rest + b'"'))
        if not here.stack:
            suspects = self._quotes.four
        else:
            suspects = self._quotes.three if here.quoted else self._quotes.two
        for token in ids_of(mask & suspects):
            if reader.after(self._tables.bytes[token]) is None:
                clear(mask, (token,))
        if self._few is not None:
            going_on: set[tuple[object, ...]] = set()
            for token in list(fresh.leading_to_keys(mask, here, self._quotes, self._few)):
                there = reader.after(self._tables.bytes[token])
                state = () if there is None else (there.json.stack, there.json.wants_key, there.json.key)
                if state in going_on:
                    continue
                if there is None or not self._goes_on(token, there.json):
                    clear(mask, (token,))
                else:
                    going_on.add(state)

    def accept(self, token: int) -> bool:
        there = self._places[-1].after(self._controls.get(token) or self._tables.bytes[token])
        if there is None or not self._goes_on(token, there.json):
            return False
        if not self._inner.accept(token):
            return False
        self._places.append(there)
        return True

    def _goes_on(self, token: int, there: Place) -> bool:
        """Whether some key is left behind a token, where one must come."""
        if self._few is None or not fresh.needs_a_key(there, self._few):
            return True
        twin = self._inner.copy()
        return not twin.accept(token) or fresh.is_key_left(twin, there, self._tables, self._quotes, self._few)

    def accepting(self) -> bool:
        return self._inner.accepting()

    def stopped(self) -> bool:
        return self._inner.stopped()

    def rollback(self, n: int) -> None:
        self._inner.rollback(n)
        del self._places[len(self._places) - n :]

    def copy(self) -> Self:
        return self.__class__(
            self._inner.copy(),
            self._tables,
            self._quotes,
            list(self._places),
            few=self._few,
            controls=self._controls,
        )

    def forced(self, before: Sequence[int]) -> Sequence[int]:
        tokens = self._inner.forced(before)
        here: Reader | None = self._places[-1]
        for i, token in enumerate(tokens):
            text = self._controls.get(token) or self._tables.bytes[token]
            here = here.after(text) if here is not None else None
            if here is None:
                return tokens[:i]
        return tokens


def may_repeat(document: dict[str, Any]) -> bool:
    """Whether a schema has an object that may hold keys which it does not declare."""
    for node in Tree(document).judging():
        if "object" not in node.types or "const" in node.schema or "enum" in node.schema:
            continue
        if node.schema.get("additionalProperties") is not False or node.schema.get("patternProperties"):
            return True
    return False


def _end_of_plain(text: bytes, at: int) -> int:
    """Where the first quotation mark or backslash from `at` on stands."""
    match = _SPECIAL.search(text, at)
    return len(text) if match is None else match.start()


def clear(mask: Bits, tokens: Sequence[int]) -> None:
    bits = mask.view(np.uint32)
    for token in tokens:
        bits[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)


def ids_of(mask: Bits) -> list[int]:
    if not mask.any():
        return []
    found: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return found
