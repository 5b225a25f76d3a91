"""From the text of an answer to a message: thoughts, text and calls, whole or piece by piece.

Both modes go through the same parsers, so that a stream's pieces joined are the unstreamed message.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from radixrt.calls import Calls
from radixrt.dialects import CallParser, CallStart, Event, Marks, Text, Thought, ThoughtParser
from radixrt.results import FinishReason
from radixrt.server.openai_shapes import AssistantMessage, CalledFunction, ChatDelta, Finish, ToolCallBody, finish


@dataclass(frozen=True)
class Reading:
    """What to look for in the answers of one request."""

    calls: Calls | None = None
    marks: Marks | None = None
    in_thought: bool = False
    """The prompt ends inside a thought."""
    opening: str = ""
    """What the prompt ends with: the beginning of a call."""

    @property
    def plain(self) -> bool:
        """An answer is text and nothing else."""
        return self.calls is None and self.marks is None


PLAIN = Reading()


class AnswerReader:
    """Reads one answer."""

    def __init__(self, reading: Reading) -> None:
        calls, marks = reading.calls, reading.marks
        self._thoughts = ThoughtParser(marks, opened=reading.in_thought) if marks else None
        self._calls = CallParser(calls.dialect, calls.names) if calls else None
        if self._calls is not None:
            self._calls.push(reading.opening)
        self._new_id = calls.dialect.new_id if calls else str

    def push(self, text: str) -> list[ChatDelta]:
        return self._deltas(self._events(self._thoughts.push(text) if self._thoughts else [Text(text)]))

    def end(self, reason: FinishReason) -> list[ChatDelta]:
        """The last pieces, when the text has ended."""
        events = self._events(self._thoughts.finish() if self._thoughts else [])
        if self._calls is not None:
            events += self._calls.finish(cut=reason == "length")
        return self._deltas(events)

    def finish_reason(self, reason: FinishReason) -> Finish:
        """`tool_calls` where there are calls and all of them are complete; a cut answer says `length`."""
        called = self._calls is not None and self._calls.count > 0 and self._calls.complete
        return "tool_calls" if called and reason == "stop" else finish(reason)

    def _events(self, events: list[Event]) -> list[Event]:
        if self._calls is None:
            return events
        out: list[Event] = []
        for event in events:
            out += self._calls.push(event.text) if isinstance(event, Text) else [event]
        return out

    def _deltas(self, events: list[Event]) -> list[ChatDelta]:
        deltas: list[ChatDelta] = []
        for event in events:
            if isinstance(event, Text):
                deltas.append(ChatDelta(content=event.text))
            elif isinstance(event, Thought):
                deltas.append(ChatDelta(reasoning_content=event.text))
            elif isinstance(event, CallStart):
                function = CalledFunction(name=event.name, arguments="")
                call = ToolCallBody(index=event.index, id=self._new_id(), type="function", function=function)
                deltas.append(ChatDelta(tool_calls=[call]))
            else:
                piece = ToolCallBody(index=event.index, function=CalledFunction(arguments=event.text))
                deltas.append(ChatDelta(tool_calls=[piece]))
        return [delta for delta in deltas if delta != ChatDelta(content="")]


def message_of(reading: Reading, text: str, reason: FinishReason) -> tuple[AssistantMessage, Finish]:
    """A whole answer as a message, and its finish_reason."""
    if reading.plain:
        return AssistantMessage(content=text), finish(reason)
    reader = AnswerReader(reading)
    said, thought, calls = "", "", list[ToolCallBody]()
    for delta in [*reader.push(text), *reader.end(reason)]:
        said += delta.content or ""
        thought += delta.reasoning_content or ""
        for piece in delta.tool_calls or ():
            if piece.index == len(calls):
                calls.append(ToolCallBody(id=piece.id, type="function", function=piece.function))
            else:
                calls[-1].function.arguments += piece.function.arguments
    message = AssistantMessage(
        content=said or (None if reading.calls else ""),
        reasoning_content=thought or UNSET,
        tool_calls=calls or UNSET,
    )
    return message, reader.finish_reason(reason)
