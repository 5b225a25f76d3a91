"""Where in a structural tag's text one stands: in free text, in what opens or ends a tag, or in its JSON.

The grammar of a tag (`structural.py`) can be read in one way: free text ends with the first trigger (or control token),
what opens a tag is one of a few texts, a JSON value ends where it is complete. So a scanner follows it, and `keys.py`
sees the keys of each tag's objects. What the grammar does not allow is not its business: it then follows nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Self

from radixrt.grammar.keys import Place
from radixrt.grammar.structural import StructuralTag

_NUMBER = frozenset(b"0123456789+-.eE")
_WORDS = (b"true", b"false", b"null")
_SPACE = frozenset(b" \n\r\t")
_OUTSIDE = Place()
_BEGINS_JSON = frozenset(b'{["tfn-0123456789')

Openers = dict[bytes, tuple[bytes, ...]]
"""What comes before a JSON value -> what may come behind it."""


@dataclass(frozen=True)
class Texts:
    """What surrounds the JSON of a structural tag."""

    marks: tuple[bytes, ...]
    """Free text ends with the first of these, which begins an opener."""
    first: Openers
    more: Openers
    """Openers of the tags behind the first, where no free text comes between."""
    again: bool
    """Behind a tag comes free text again."""
    instead: bool
    """The text may be JSON alone."""
    controls: frozenset[bytes] = frozenset()
    """Control tokens: their text is theirs, and no JSON."""


def texts_of(tag: StructuralTag, controls: Iterable[str]) -> Texts:
    """The texts around the JSON of each tag; `controls`: of the control tokens that may come in them."""
    ends: dict[str, tuple[bytes, ...]] = {}
    for one in tag.tags:
        ends[one.begin] = (*ends.get(one.begin, ()), one.end.encode())
    if tag.separator is None:
        openers = {begin.encode(): end for begin, end in ends.items()}
        return Texts(tuple(trigger.encode() for trigger in tag.triggers), openers, openers, True, False)
    first = {f"{tag.before}{begin}".encode(): end for begin, end in ends.items()}
    more = {f"{tag.separator}{begin}".encode(): end for begin, end in ends.items()}
    known = [control.encode() for control in controls]
    marks = tuple(known) if tag.free is not None else ()
    return Texts(marks, first, more, False, tag.instead is not None, frozenset(known))


@dataclass(frozen=True)
class TagPlace:
    """See `keys.Reader`."""

    texts: Texts
    json: Place = _OUTSIDE
    read: bytes = b""
    """What was read of a mark, an opener or an end."""
    free: bool = False
    at_start: bool = False
    """Nothing was read, and JSON alone may come."""
    openers: Openers | None = None
    """In an opener: those that it can be."""
    inside: bool = False
    """In a tag's JSON."""
    word: bytes | None = None
    """In a JSON value that is a number or a word: what was read of it."""
    ends: tuple[bytes, ...] = ()
    """In a tag's JSON, or behind it: what may come behind it."""

    @classmethod
    def start(cls, texts: Texts) -> TagPlace:
        if texts.marks:
            return cls(texts, free=True, at_start=texts.instead)
        return cls(texts, openers=texts.first, at_start=texts.instead)

    def after(self, text: bytes) -> Self | None:
        """The place behind a text that may follow; None where a key is closed that its object has."""
        here: Self | None = replace(self, at_start=False) if self.at_start and text in self.texts.controls else self
        at = 0
        while here is not None and at < len(text):
            rest = text[at:]
            if here.inside and here.json.stack and b"}" not in rest and b"]" not in rest:
                inner = here.json.after(rest)
                return None if inner is None else replace(here, json=inner)
            here = here._step(text[at : at + 1])
            at += 1
        return here

    def _step(self, byte: bytes) -> Self | None:
        if self.inside:
            return self._in_json(byte)
        if self.at_start:
            # Keys of objects within objects are seen in the whole as well as in the part.
            here = self._new(inside=True, ends=(b"",)) if byte[0] in _BEGINS_JSON else replace(self, at_start=False)
            return here._step(byte)
        read = self.read + byte
        if self.free:
            mark = next((mark for mark in self.texts.marks if read.endswith(mark)), None)
            if mark is not None:
                return self._new(openers=self.texts.first, read=mark)._chosen()
            return replace(self, read=read[-max(map(len, self.texts.marks)) :])
        return replace(self, read=read)._chosen()

    def _chosen(self) -> Self | None:
        """Further on where what was read is one of the openers or ends, and can be no longer one."""
        options: Collection[bytes] = self.ends if self.openers is None else self.openers
        if any(option.startswith(self.read) and option != self.read for option in options):
            return self
        found = max((option for option in options if self.read.startswith(option)), key=len, default=None)
        if found is None:
            return self
        there = self._behind_tag() if self.openers is None else self._new(inside=True, ends=self.openers[found])
        return there.after(self.read[len(found) :])

    def _in_json(self, byte: bytes) -> Self | None:
        if self.word is not None:
            word = self.word + byte
            if word in _WORDS:
                return self._behind_json()
            if byte[0] in _NUMBER or any(one.startswith(word) for one in _WORDS):
                return replace(self, word=word)
            return self._behind_json()._step(byte)
        before = self.json
        if not before.stack and not before.quoted and byte[0] not in b'{["':
            return self if byte[0] in _SPACE else replace(self, word=byte)
        inner = before.after(byte)
        if inner is None:
            return None
        if not inner.stack and not inner.quoted:
            return self._behind_json()
        return replace(self, json=inner)

    def _behind_json(self) -> Self:
        return self._new(ends=self.ends) if any(self.ends) else self._behind_tag()

    def _behind_tag(self) -> Self:
        return self._new(free=True) if self.texts.again else self._new(openers=self.texts.more)

    def _new(
        self,
        *,
        free: bool = False,
        openers: Openers | None = None,
        read: bytes = b"",
        inside: bool = False,
        ends: tuple[bytes, ...] = (),
    ) -> Self:
        return self.__class__(self.texts, free=free, openers=openers, read=read, inside=inside, ends=ends)
