"""From the text of an answer to its calls, as the text comes.

    text --opener--> head --name, `{`--> arguments --matching `}`--> tail --closer--> gap --opener--> head ...
      ^--------------- what is no call --------------------------------'               '-- other text --> text

Nothing is shown before it is certain what it is, and joined pieces do not depend on how the text was cut.
"""

from __future__ import annotations

from collections.abc import Collection

from radixrt.dialects.dialect import Dialect
from radixrt.dialects.events import Arguments, CallStart, Event, Text
from radixrt.dialects.syntax import MAX_HEAD, Syntax
from radixrt.dialects.thoughts import held_back


class CallParser:
    """The calls of one answer in one dialect.

    Args:
        dialect: how the model writes calls.
        names: the functions there are; what calls another one is no call but text.
    """

    def __init__(self, dialect: Dialect, names: Collection[str]) -> None:
        self._opener = dialect.opener
        self._syntax = Syntax.of(dialect)
        self._is_head = dialect.is_head
        self._names = names
        self._state = "text" if dialect.opener else "head"
        self._first = True
        """The next head is the first behind its opener."""
        self._taken = ""
        """Text that was taken off in front of the head, to be given back where that is none."""
        self._held = ""
        self._depth = 0
        self._quoted = self._escaped = False
        self.count = 0
        """Calls begun so far."""
        self._moves = {
            "text": self._in_text,
            "head": self._in_head,
            "arguments": self._in_arguments,
            "tail": self._in_tail,
            "gap": self._in_gap,
        }

    @property
    def complete(self) -> bool:
        """Every call that has begun has all its arguments."""
        return self._state != "arguments"

    def push(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while self._moves[self._state](events):
            pass
        return events

    def finish(self, *, cut: bool) -> list[Event]:
        """The text has ended; `cut`: by a limit, so that the unfinished beginning of a call is no text for the user."""
        held, state = self._held, self._state
        self._held = ""
        if state == "tail" or (state == "gap" and not held.strip()):
            return []
        if state == "head":
            if cut and (self._opener or held.lstrip().startswith("{")):
                return []
            held = self._taken + held
        return [Text(held)] if held else []

    # Each move looks at what is held; False: it needs more text.

    def _in_text(self, events: list[Event]) -> bool:
        opener, held = self._opener, self._held
        place = held.find(opener) if opener else -1
        if place < 0:
            keep = held_back(held, opener) if opener else 0
            keep += bool(opener) and held[: len(held) - keep].endswith("\n")
            _show(events, held[: len(held) - keep])
            self._held = held[len(held) - keep :]
            return False
        before = held[:place].removesuffix("\n")  # templates put it there themselves
        _show(events, before)
        self._taken = held[len(before) : place] + opener
        self._held = held[place + len(opener) :]
        self._state, self._first = "head", True
        return True

    def _in_head(self, events: list[Event]) -> bool:
        pattern = self._syntax.first if self._first else self._syntax.next
        match = pattern.match(self._held)
        if match is None and len(self._held) <= MAX_HEAD and pattern.possible(self._held):
            return False
        if match is None or match["name"] not in self._names or not self._is_head(match[0]):
            _show(events, self._taken)
            self._taken, self._state = "", "text"
            return True
        events.append(CallStart(self.count, match["name"]))
        self.count += 1
        self._taken = ""
        self._held = self._held[match.end() :]
        if match["none"]:
            events.append(Arguments(self.count - 1, "{}"))
            self._held = "}" + self._held
            self._state = "tail"
        else:
            self._state = "arguments"
        return True

    def _in_arguments(self, events: list[Event]) -> bool:
        end = self._end_of_value()
        if end:
            events.append(Arguments(self.count - 1, self._held[:end]))
        self._held = self._held[end:]
        return self._state == "tail"

    def _end_of_value(self) -> int:
        """How much of what is held belongs to the arguments; the state is `tail` when they end there."""
        for i, char in enumerate(self._held):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = char == "\\"
                self._quoted = char != '"'
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._state = "tail"
                    return i + 1
        return len(self._held)

    def _in_tail(self, events: list[Event]) -> bool:
        match = self._syntax.tail.match(self._held)
        if match is None:
            if self._syntax.tail.possible(self._held):
                return False
            self._state = "text"  # only where nothing constrains the model
            return True
        self._held = self._held[match.end() :]
        self._first = False
        self._state = "head" if match["more"] else "gap"
        return True

    def _in_gap(self, events: list[Event]) -> bool:
        """White space between two calls belongs to neither; before other text it belongs to that."""
        opener, rest = self._opener, self._held.lstrip()
        if not rest or (opener and rest != opener and opener.startswith(rest)):
            return False
        if opener and rest.startswith(opener):
            self._held = rest
        self._state = "text"
        return True


def _show(events: list[Event], text: str) -> None:
    if text:
        events.append(Text(text))
