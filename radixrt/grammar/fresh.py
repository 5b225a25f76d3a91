"""Whether an object can still get a key that it has not, where patterns leave few keys (`few_keys.py`).

A prefix of a key that its object has is no dead end if the grammar goes on in another way than to that key. Those ways
are looked for along the keys that are there, which are finitely many: wherever the grammar allows a token that leaves
them, a fresh key follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from radixrt.grammar.tables import Bits, Tables, words
from radixrt.grammar.token_matcher import Steps

if TYPE_CHECKING:
    from radixrt.grammar.keys import Place, Quotes


def needs_a_key(place: Place, few: int) -> bool:
    """Whether a key must come of which there may be `few` alone, or one is being written that its object may have."""
    keys = place.stack[-1] if place.stack else None
    if not keys:
        return False
    if place.key:
        return any(key.startswith(place.key) for key in keys)
    return (place.wants_key or place.key is not None) and len(keys) >= few


def leading_to_keys(mask: Bits, here: Place, quotes: Quotes, few: int) -> Iterator[int]:
    """Tokens of a mask behind which `needs_a_key` may hold."""
    keys = here.stack[-1] if here.stack else None
    if here.key is not None and keys:
        texts = {rest[:size] for rest in here.rests(keys) for size in range(1, len(rest) + 1)}
        yield from _allowed(mask, texts, quotes.ids)
    if not here.stack:
        yield from _ids(mask & quotes.quoted_commas & quotes.two)
        return
    there = frozenset().union(*filter(None, here.stack))
    if len(there) + quotes.most < few:  # there are keys enough: one must begin as another does
        yield from _ids(mask & quotes.quoted_commas & quotes.two & quotes.opening)
        begun = {key[:size] for key in there for size in range(1, len(key) + 1)}
        yield from _allowed(mask, begun, quotes.openings)
    elif not here.quoted and here.wants_key and keys:
        yield from _ids(mask)
    else:
        yield from _ids(mask & (quotes.quoted_commas if here.quoted else quotes.commas))


def _allowed(mask: Bits, texts: set[bytes], tokens: dict[bytes, list[int]]) -> Iterator[int]:
    bits = mask.view(np.uint32)
    for text in texts:
        for token in tokens.get(text, ()):
            if bits[token >> 5] >> np.uint32(token & 31) & 1:
                yield token


def is_key_left(steps: Steps, place: Place, tables: Tables, quotes: Quotes, few: int) -> bool:
    """Whether a key follows that the object has not. `steps` stand at `place`, and may be moved."""
    seen: set[tuple[bytes | None, bool]] = set()
    todo = [(steps, place)]
    while todo:
        here, at = todo.pop()
        mask = np.zeros(words(tables.width), dtype=np.int32)
        here.fill(mask)
        if here.failure is not None:
            return True  # it says so itself
        mask &= tables.text_tokens
        ahead: list[tuple[int, Place]] = []
        for token in _suspects_first(mask, at, quotes):
            if token is None:
                return True
            there = at.after(tables.bytes[token])
            if there is not None and not needs_a_key(there, few):
                return True
            if there is not None:
                ahead.append((token, there))
        for token, there in ahead:
            state = (there.key, there.wants_key)
            if state not in seen:
                seen.add(state)
                twin = here.copy()
                if twin.accept(token):
                    todo.append((twin, there))
    return False


def _suspects_first(mask: Bits, at: Place, quotes: Quotes) -> Iterator[int | None]:
    """Tokens that may stay on the way to a key that is there; None: the mask has another one."""
    if at.key is None:
        yield from _ids(mask)
        return
    left = mask.copy()
    bits = left.view(np.uint32)
    found = []
    for rest in at.rests(at.stack[-1] or frozenset()):
        for size in range(1, len(rest) + 1):
            found += quotes.ids.get(rest[:size], [])
        found += quotes.beginning(rest + b'"')
    found += _ids(left & quotes.two)
    suspects = [token for token in dict.fromkeys(found) if bits[token >> 5] >> np.uint32(token & 31) & 1]
    for token in suspects:
        bits[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
    if left.any():
        yield None
    yield from suspects


def _ids(mask: Bits) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return found
