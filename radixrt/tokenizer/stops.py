"""Stop strings and stop patterns in streamed text, wherever token boundaries fall.

The rule does not depend on how the text was cut into tokens: of all matches in the text, the one that begins earliest
ends it, and among those that begin there the shortest. So text is held back while it may still be the beginning of a
stop string, and a match is not yet final while an earlier, longer one may still be completed.

A pattern is looked for after each token, from the text that is still held; where it matches, its leftmost match counts.
Text is held back from where a match may have begun (the `regex` library's partial matches). A search has a time limit,
so that no pattern can hold up the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import regex

from radixrt.errors import InvalidRequest

SEARCH_S = 0.05
"""Longest time for one search of one pattern."""
LOOK_BACK = 256
"""Characters before the held text that `\\b`, `^` and lookbehinds of a pattern may see."""


@dataclass(frozen=True)
class Match:
    """A stop string, or what a pattern stands for, in a sample's text."""

    stop: str
    """The string, or the pattern."""
    start: int
    """Characters before it."""
    end: int
    keep: int
    """Tokens that hold the text up to its end."""


@dataclass
class StopScanner:
    """Takes a sample's text token by token and gives the part that no stop string can take back any more.

    [0, released)  given out
    [released, seen)  held: the beginning of a stop string, or a match that is not yet final

    With `min_tokens`, a match counts only when the token that completes it is at least the min_tokens-th. `include`
    leaves the stop string in the text.
    """

    stops: Sequence[str]
    patterns: Sequence[str] = ()
    include: bool = False
    min_tokens: int = 0
    match: Match | None = None
    """The match that ended the sample; later text is ignored."""
    candidate: Match | None = None
    """A match that an earlier one may still replace."""
    released: int = 0
    _held: str = ""
    _before: str = ""
    """Released text that a pattern may look back at."""
    _ends: list[int] = field(default_factory=list)
    """[tokens] characters of text after each token."""

    @property
    def seen(self) -> int:
        return self.released + len(self._held)

    @property
    def cut(self) -> int | None:
        """Where the matched sample's text ends, in characters."""
        if self.match is None:
            return None
        return self.match.end if self.include else self.match.start

    def push(self, text: str) -> str:
        """The text (of one token, "" where it gave none) that may be shown now; a match is in `match`."""
        if self.match is not None:
            return ""
        if not self.stops and not self.patterns:
            self.released += len(text)
            return text
        self._held += text
        self._ends.append(self.seen)
        if not text:
            return ""
        return self._scan(final=False)

    def finish(self, text: str = "") -> str:
        """The rest of the text, as nothing more comes. `text` is what the detokenizer still had of the last token."""
        if self.match is not None:
            return ""
        self._held += text
        if self._ends:
            self._ends[-1] += len(text)
        return self._scan(final=True)

    def _scan(self, final: bool) -> str:
        found = self._search()
        partial = None if final else self._partial()
        if found is not None and (partial is None or found.start - self.released <= partial):
            self.match, self.candidate = found, None
            shown = self._held[: (found.end if self.include else found.start) - self.released]
            self._held = ""
            self.released += len(shown)
            return shown
        self.candidate = found
        return self._release(len(self._held) if partial is None else partial)

    def _release(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        self.released += length
        if self.patterns:
            self._before = (self._before + shown)[-LOOK_BACK:]
        return shown

    def _search(self) -> Match | None:
        """The earliest, then shortest, match that is completed by token min_tokens or a later one."""
        # A match must end beyond what the first min_tokens - 1 tokens hold.
        floor = 0
        if self.min_tokens > 1 and self._ends:
            floor = self._ends[min(self.min_tokens - 1, len(self._ends)) - 1] - self.released
        best: tuple[int, int, str] | None = None
        for stop in self.stops:
            place = self._held.find(stop, max(0, floor - len(stop) + 1))
            if place >= 0 and (best is None or (place, len(stop)) < best[:2]):
                best = place, len(stop), stop
        for pattern in self.patterns:
            begun = len(self._before)
            for match in self._matches(pattern, partial=False):
                if match.end() > match.start() and match.end() - begun > floor:
                    if best is None or (match.start() - begun, match.end() - match.start()) < best[:2]:
                        best = match.start() - begun, match.end() - match.start(), pattern
                    break
        if best is None:
            return None
        place, length, stop = best
        start = self.released + place
        keep = min(bisect_left(self._ends, start + length) + 1, len(self._ends))
        return Match(stop=stop, start=start, end=start + length, keep=keep)

    def _matches(self, pattern: str, *, partial: bool) -> list[Any]:
        """Matches in the held text, in order; with `partial` also one that more text may complete."""
        text, begun = self._before + self._held, len(self._before)
        try:
            return list(compiled(pattern).finditer(text, begun, partial=partial, timeout=SEARCH_S))
        except TimeoutError as error:
            raise InvalidRequest(
                f"stop_regex {pattern!r} takes too long on this text: make it simpler",
                param="stop_regex",
                code="stop_regex_too_complex",
            ) from error

    def _partial(self) -> int | None:
        """Where the earliest stop string begins that the end of the held text may still become."""
        held, best = self._held, len(self._held)
        for stop in self.stops:
            place = max(0, len(held) - len(stop) + 1)
            while (place := held.find(stop[0], place, best)) >= 0:
                if stop.startswith(held[place:]):
                    best = place
                    break
                place += 1
        for pattern in self.patterns:
            starts = [match.start() for match in self._matches(pattern, partial=True) if match.partial]
            best = min([best, *(start - len(self._before) for start in starts)])
        return None if best == len(held) else best


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """The pattern, ready to be searched for. InvalidRequest where it is none, or matches nothing at all."""
    try:
        made = regex.compile(pattern)
        empty = made.fullmatch("", timeout=SEARCH_S)
    except (regex.error, TimeoutError, RecursionError, OverflowError) as error:
        raise InvalidRequest(f"stop_regex {pattern!r} is no regular expression: {error}", param="stop_regex") from error
    if empty:
        raise InvalidRequest(f"stop_regex {pattern!r} matches the empty text", param="stop_regex")
    return made
