"""A regular expression seen from far: whether its texts go on for ever, and how many there are at least."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<atom>[^\\()\[\]|^$*+?{}]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\[pP]\{[^}]*\}|\\[^bBkpPux0-9]"
    r"|\[\^?\]?(?:[^\[\]\\]|\\.)*\])|(?P<count>[*+?]|\{\d+(?:,\d*)?\})|(?P<open>\((?:\?:)?)|(?P<other>[)|^$])",
    re.DOTALL,
)
_MANY = 10**9


@dataclass(frozen=True)
class Outline:
    some: bool = False
    """Each text has a character at least."""
    endless: bool = False
    """What begins a text that matches can be continued to infinitely many of them."""
    least: int = 1
    """So many texts match, if any does."""


def outline_of(pattern: str) -> Outline | None:
    """The outline of a pattern that searches, as those of JSON Schema do; None where it is not understood."""
    tokens, at = [], 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            return None
        tokens.append((str(found.lastgroup), found[0]))
        at = found.end()
    begins, ends = tokens[:1] == [("other", "^")], tokens[-1:] == [("other", "$")]
    rest = iter(tokens[begins : len(tokens) - ends])
    try:
        branches = _branches(rest, inside=False)
    except ValueError:
        return None
    if len(branches) > 1 and (begins or ends):
        return None  # an anchor belongs to one branch alone
    return _either(branches) if begins and ends else Outline(endless=not ends, least=1 if ends else _MANY)


def _branches(tokens: Iterator[tuple[str, str]], *, inside: bool) -> list[Outline]:
    """What stands up to the group's end. Raises ValueError for anchors, and where groups do not close."""
    parts: list[list[Outline]] = [[]]
    for kind, text in tokens:
        if kind == "atom":
            parts[-1].append(Outline(some=True))
        elif kind == "open":
            parts[-1].append(_either(_branches(tokens, inside=True)))
        elif kind == "count" and parts[-1]:
            parts[-1].append(_repeated(parts[-1].pop(), text))
        elif text == "|":
            parts.append([])
        elif text == ")" and inside:
            return list(map(_sequence, parts))
        else:
            raise ValueError(text)
    if inside:
        raise ValueError("a group that does not close")
    return list(map(_sequence, parts))


def _sequence(parts: list[Outline]) -> Outline:
    # Different texts of one part make different texts of the whole, the others being what they are.
    return Outline(
        any(part.some for part in parts),
        bool(parts) and parts[-1].endless,
        max((part.least for part in parts), default=1),
    )


def _either(branches: list[Outline]) -> Outline:
    return Outline(
        all(one.some for one in branches),
        all(one.endless for one in branches),
        max(one.least for one in branches),
    )


def _repeated(body: Outline, count: str) -> Outline:
    if count in ("*", "+", "?"):
        first, last = int(count == "+"), 1 if count == "?" else None
    else:
        bounds = count[1:-1].split(",")
        first, last = int(bounds[0]), (int(bounds[-1]) if bounds[-1] else None)
    some = body.some and first > 0
    if last is None and body.some:
        return Outline(some, True, _MANY)
    if last == 0:
        return Outline()
    lengths = last - first + 1 if body.some and last is not None else 1
    return Outline(some, body.endless, max(body.least, lengths))
