"""User text never becomes a special token, while the markers that the chat template writes do.

Each spelling of a special token in a caller's string is broken up with a noncharacter before the template sees it, so
that in the rendered text only the template's own spellings are whole. The noncharacter is taken out again before the
text is encoded, and the broken spelling is encoded as the ordinary text that it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from radixrt.checkpoint import Vocabulary
from radixrt.errors import InvalidRequest

NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that Unicode keeps for a program's own use and never assigns."""


class Shield:
    """Breaks up special spellings (`guard`) and encodes what the template made of the guarded strings (`encode`)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._special = dict(vocabulary.special_tokens)
        spellings = sorted(filter(None, self._special), key=len, reverse=True)
        alternatives = "|".join(map(re.escape, spellings)) or "(?!)"
        # A look-ahead finds spellings that overlap, too. Case is ignored because a template may lower a text's case.
        self._anywhere = re.compile(f"(?={alternatives})", re.IGNORECASE)
        self._whole = re.compile(f"({alternatives})")
        self._heads = frozenset(s[:i].lower() for s in spellings for i in range(1, len(s)))
        self._tails = frozenset(s[i:].lower() for s in spellings for i in range(1, len(s)))
        self._longest = max(map(len, spellings), default=0)
        self._spaced_once = self._adds_space_once()

    @property
    def spellings(self) -> Iterable[str]:
        return self._special.keys()

    def guard(self, text: str, mark: str, *, ends: bool = False) -> str:
        """`text` with `mark` inside each special spelling.

        With `ends` also at an end where the template's own text beside it could complete a spelling. That changes
        short, harmless strings too, so it is for contents, and not for what a template compares with its own words.
        """
        places = [match.start() + 1 for match in self._anywhere.finditer(text)]
        if ends and text:
            last = text[-self._longest :].lower()
            if any(last[i:] in self._heads for i in range(len(last))):
                places.append(len(text))
            first = text[: self._longest].lower()
            if any(first[:i] in self._tails for i in range(1, len(first) + 1)) or self._inside(first):
                places.insert(0, 0)
        if not places:
            return text
        return mark.join(text[a:b] for a, b in pairwise([0, *places, len(text)]))

    def _inside(self, text: str) -> bool:
        return len(text) < self._longest and any(text in spelling.lower() for spelling in self._special)

    def guard_all(self, value: Any, mark: str) -> Any:
        """The same for every string, keys included, in nested lists and dicts; a copy."""
        if isinstance(value, str):
            return self.guard(value, mark)
        if isinstance(value, Mapping):
            return {self.guard_all(key, mark): self.guard_all(item, mark) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard_all(item, mark) for item in value]
        return value

    def encode(self, rendered: str, mark: str) -> tuple[list[int], str]:
        """Ids and plain text of what a template rendered from strings guarded with `mark`."""
        escaped = f"\\u{ord(mark):04x}"  # what JSON with ensure_ascii makes of it
        if mark not in rendered and escaped not in rendered:
            return self._vocabulary.encode(rendered, allow_special=True), rendered
        ids: list[int] = []
        plain: list[str] = []
        for i, piece in enumerate(self._whole.split(rendered)):
            if i % 2 == 1:
                ids.append(self._special[piece])
            else:
                piece = piece.replace(mark, "").replace(escaped, "")
                ids += self._encode_text(piece, first=not plain)
            plain.append(piece)
        return ids, "".join(plain)

    def _encode_text(self, piece: str, first: bool) -> list[int]:
        if not piece:
            return []
        encode = self._vocabulary.encode
        if first or not self._spaced_once:
            return encode(piece)
        # A vocabulary that puts a space in front of the text, but not of what follows a special token.
        line = encode("\n")
        ids = encode("\n" + piece)
        return ids[len(line) :] if ids[: len(line)] == line else encode(piece)

    def _adds_space_once(self) -> bool:
        if not self._special:
            return False
        spelling, token = next(iter(self._special.items()))
        encode = self._vocabulary.encode
        return encode(f"{spelling}x", allow_special=True) != [token, *encode("x")]


def choose_marks(texts: Iterable[str], count: int) -> list[str]:
    """`count` noncharacters that occur in none of the texts, neither as such nor as a JSON escape."""
    whole = "\0".join(texts)
    lowered = whole.lower() if "\\u" in whole.lower() else ""
    free = [c for c in NONCHARACTERS if c not in whole and f"\\u{ord(c):04x}" not in lowered]
    if len(free) < count:
        raise InvalidRequest("messages hold too many Unicode noncharacters (U+FDD0 to U+FDEF)", param="messages")
    return free[:count]


def strings_in(value: Any) -> Iterable[str]:
    """Every string in nested lists and dicts, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_in(key)
            yield from strings_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_in(item)
