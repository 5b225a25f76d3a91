"""Whether a grammar takes a given JSON value, token by token, or would with its keys in another order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

from radixrt.grammar.errors import GrammarError
from radixrt.grammar.interface import Grammar, Matcher

Encode: TypeAlias = Callable[[str], list[int]]
Verdict: TypeAlias = Literal["accepted", "order", "refused"]
"""`order`: refused as it is written, accepted with its keys in another order."""
MAX_TRIES = 3000
"""Pieces of text tried while another order of keys is looked for."""


def accepts_text(grammar: Grammar, encode: Encode, text: str) -> bool:
    """Whether a text is taken whole."""
    matcher = grammar.matcher(any_spelling=True)
    return _feed(matcher, encode, text) and matcher.may_stop


def verdict(grammar: Grammar, encode: Encode, value: Any, schema: Any, *, loose: bool = False) -> Verdict:
    """What becomes of a value in compact form, or (`loose`) as `json.dumps` writes it.

    `schema` only tells which order of keys is tried first.
    """
    separators = (", ", ": ") if loose else (",", ":")
    if accepts_text(grammar, encode, json.dumps(value, ensure_ascii=False, separators=separators)):
        return "accepted"
    search = _Search(encode, separators, _ranks(schema))
    try:
        return (
            "order"
            if any(end.may_stop for end in search.write(grammar.matcher(any_spelling=True), value))
            else "refused"
        )
    except _Enough:
        return "refused"


class _Enough(Exception):
    """Too many orders were tried."""


class _Search:
    def __init__(self, encode: Encode, separators: tuple[str, str], ranks: dict[str, int]) -> None:
        self._encode = encode
        self._item, self._key = separators
        self._ranks = ranks
        self._tries = 0

    def write(self, matcher: Matcher, value: Any) -> Iterator[Matcher]:
        """States after the value was written, one for each order of keys that is taken."""
        if isinstance(value, dict) and value:
            yield from self._object(matcher, "{", value)
        elif isinstance(value, list) and value:
            yield from self._list(matcher, "[", value)
        else:
            yield from self._text(matcher, json.dumps(value, ensure_ascii=False))

    def _text(self, matcher: Matcher, text: str) -> Iterator[Matcher]:
        self._tries += 1
        if self._tries > MAX_TRIES:
            raise _Enough
        twin = matcher.fork()
        if _feed(twin, self._encode, text):
            yield twin

    def _list(self, matcher: Matcher, lead: str, items: list[Any]) -> Iterator[Matcher]:
        if not items:
            yield from self._text(matcher, "]")
            return
        for begun in self._text(matcher, lead):
            for done in self.write(begun, items[0]):
                yield from self._list(done, self._item, items[1:])

    def _object(self, matcher: Matcher, lead: str, left: dict[str, Any]) -> Iterator[Matcher]:
        if not left:
            yield from self._text(matcher, "}")
            return
        for key in sorted(left, key=lambda key: self._ranks.get(key, len(self._ranks))):
            rest = {other: value for other, value in left.items() if other != key}
            for begun in self._text(matcher, f"{lead}{json.dumps(key, ensure_ascii=False)}{self._key}"):
                for done in self.write(begun, left[key]):
                    yield from self._object(done, self._item, rest)


def _feed(matcher: Matcher, encode: Encode, text: str) -> bool:
    try:
        for token in encode(text):
            matcher.accept(token)
    except GrammarError:
        return False
    return True


def _ranks(schema: Any) -> dict[str, int]:
    """Property names by their first place in the schema."""
    found: dict[str, int] = {}
    todo = [schema]
    while todo:
        value = todo.pop(0)
        if isinstance(value, dict):
            properties = value.get("properties")
            names = [*properties] if isinstance(properties, dict) else []
            required = value.get("required")
            names += [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
            for name in names:
                found.setdefault(name, len(found))
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
    return found
