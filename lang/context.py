"""A branch's conversation (`radixrt.conversation` has the rules) with its visible text by origin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from radixrt.conversation import Conversation, Turn, cut_ids, tokenize_text
from radixrt.lang.pieces import Event, Piece

__all__ = ["Context", "Turn", "cut_ids", "tokenize_text"]


def _ignore(text: str) -> None:
    pass


@dataclass
class Context(Conversation):
    """`on_text` is told every piece of text that joins `text`, role markers included."""

    pieces: list[Piece] = field(default_factory=list)
    """`text` by origin."""
    on_text: Callable[[str], None] = _ignore

    def copy(self) -> Self:
        return replace(self, ids=list(self.ids), turns=list(self.turns), pieces=list(self.pieces), on_text=_ignore)

    def emit(self, text: str, event: Event | None = None) -> None:
        """Text whose ids are in `ids` (or about to be): it joins the visible text. `event`: what it was made by."""
        if text:
            self.text += text
            last = self.pieces[-1] if self.pieces else None
            if last is not None and last.event is event:
                self.pieces[-1] = Piece(last.text + text, event)
            else:
                self.pieces.append(Piece(text, event))
            self.on_text(text)

    def wrote_text(self, text: str) -> None:
        self.emit(text)

    def wrote_anew(self, text: str, new: str) -> None:
        self.text, self.pieces = text, [Piece(text)]
        self.on_text(new)
