"""Thoughts: what stands between a model's marks of thinking is told apart from its answer."""

from __future__ import annotations

import msgspec

from radixrt.dialects.events import Event, Text, Thought


class Marks(msgspec.Struct, frozen=True):
    """What a thinking model writes around its thoughts."""

    open: str
    close: str

    def left_open(self, prompt: str) -> bool:
        """Whether a rendered prompt ends inside a thought."""
        begin = prompt.rfind(self.open)
        return begin >= 0 and not prompt[begin + len(self.open) :].strip()

    def closed(self, prompt: str) -> bool:
        """Whether a rendered prompt ends behind a thought, so that no other one follows."""
        return prompt.rstrip().endswith(self.close)


_KNOWN = (Marks("<think>", "</think>"), Marks("[THINK]", "[/THINK]"), Marks("<thinking>", "</thinking>"))


def thinking_marks(template: str) -> Marks | None:
    """The marks that a chat template writes or removes; None for a model that does not think."""
    return next((marks for marks in _KNOWN if marks.close in template), None)


class ThoughtParser:
    """Splits an answer into thoughts and the rest; joined pieces do not depend on how the text was cut.

    Thoughts are there where the prompt left a thought open (`opened`), or where the answer begins with the mark.
    Newlines beside the marks belong to neither part.
    """

    def __init__(self, marks: Marks, *, opened: bool) -> None:
        self._marks = marks
        self._state = "thinking" if opened else "start"
        self._begun = False
        self._held = ""

    def push(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        if self._state == "start":
            self._start()
        if self._state == "thinking":
            self._think(events)
        if self._state == "gap":
            self._held = self._held.lstrip("\n")
            if self._held:
                self._state = "answer"
        if self._state == "answer" and self._held:
            events.append(Text(self._held))
            self._held = ""
        return events

    def finish(self) -> list[Event]:
        """The text has ended: what was held back is what it looks like so far."""
        if self._state == "start" and self._held:
            return [Text(self._held)]
        if self._state == "thinking":
            rest = self._held.lstrip("\n") if not self._begun else self._held
            return [Thought(rest)] if rest.rstrip("\n") else []
        return []

    def _start(self) -> None:
        seen = self._held.lstrip(" \t\r\n")  # as `radixrt.grammar.first_thought` has it
        if seen.startswith(self._marks.open):
            self._held = seen[len(self._marks.open) :]
            self._state = "thinking"
        elif not self._marks.open.startswith(seen):
            self._state = "answer"

    def _think(self, events: list[Event]) -> None:
        if not self._begun:
            self._held = self._held.lstrip("\n")
            self._begun = bool(self._held)
        place = self._held.find(self._marks.close)
        if place < 0:
            keep = held_back(self._held, self._marks.close, "\n")
            shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        else:
            shown, self._held = self._held[:place].rstrip("\n"), self._held[place + len(self._marks.close) :]
            self._state = "gap"
        if shown:
            events.append(Thought(shown))


def held_back(text: str, mark: str, before: str = "") -> int:
    """How many characters at the end of `text` may belong to a `mark` that is not complete, or to the `before`
    characters that stand in front of one."""
    size = next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
    head = text[: len(text) - size]
    return size + len(head) - len(head.rstrip(before)) if before else size
