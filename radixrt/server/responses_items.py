"""An answer as items: a reasoning item, a message, a function_call each; whole, or as the events that build them."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from radixrt.server.one_answer import End
from radixrt.server.openai_shapes import AssistantMessage, CalledFunction, ChatDelta, ToolCallBody
from radixrt.server.openai_types import FunctionCall, InMessage, ToolCall
from radixrt.server.responses_types import OutItem, OutPart, Status, StreamEvent


def turn_of(message: AssistantMessage) -> InMessage:
    """The answer as a turn of the conversation that the next request continues."""
    return InMessage(
        role="assistant",
        content=message.content,
        reasoning_content=message.reasoning_content or None,
        tool_calls=[
            ToolCall(
                id=call.id or None,
                function=FunctionCall(name=call.function.name or "", arguments=call.function.arguments),
            )
            for call in message.tool_calls or ()
        ] or None,
    )  # fmt: skip


def items_of(message: AssistantMessage, end: End, name: str) -> list[OutItem]:
    """The items of a whole answer."""
    writer = ItemWriter(name)
    writer.push(ChatDelta(reasoning_content=message.reasoning_content, content=message.content))
    for index, call in enumerate(message.tool_calls or ()):
        writer.push(ChatDelta(tool_calls=[ToolCallBody(id=call.id, function=call.function, index=index)]))
    writer.close(cut=end.finish == "length")
    return writer.items


class ItemWriter:
    """Puts items together from the pieces of an answer; one is open at a time."""

    def __init__(self, name: str) -> None:
        self._name = name.removeprefix("resp_")
        self.items: list[OutItem] = []
        self.message = AssistantMessage(content=None)
        """The same answer as a message."""

    def push(self, piece: ChatDelta) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if piece.reasoning_content:
            events += self._text("reasoning", "rs", "reasoning_text", piece.reasoning_content)
            self.message.reasoning_content = (self.message.reasoning_content or "") + piece.reasoning_content
        if piece.content:
            events += self._text("message", "msg", "output_text", piece.content)
            self.message.content = (self.message.content or "") + piece.content
        for call in piece.tool_calls or ():
            events += self._call(call)
        return events

    def close(self, *, cut: bool) -> list[StreamEvent]:
        """The end of the answer; `cut`: by max_output_tokens."""
        if not self.items:
            # An answer without a word is an empty message.
            return [*self._text("message", "msg", "output_text", ""), *self._done("incomplete" if cut else "completed")]
        return self._done("incomplete" if cut else "completed")

    def _text(self, kind: str, prefix: str, part: str, text: str) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if not self._is_open(kind):
            events += self._done("completed")
            item = OutItem(id=f"{prefix}_{self._name}_{len(self.items)}", type=kind, status="in_progress", content=[])  # type: ignore[arg-type]
            if kind == "message":
                item.role = "assistant"
            else:
                item.summary = []
            events.append(self._added(item))
            empty = OutPart(type=part, text="")
            if kind == "message":
                empty.annotations, empty.logprobs = [], []
            item.content = [empty]
            events.append(self._event("response.content_part.added", content_index=0, part=_copy(empty)))
        if text:
            self._part.text += text
            events.append(self._event(f"response.{part}.delta", content_index=0, delta=text, logprobs=_logprobs(part)))
        return events

    def _call(self, call: ToolCallBody) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if call.id is not UNSET:
            events += self._done("completed")
            name = call.function.name or ""
            item = OutItem(
                id=f"fc_{self._name}_{len(self.items)}", type="function_call", status="in_progress",
                call_id=call.id, name=name, arguments="",
            )  # fmt: skip
            events.append(self._added(item))
            known = ToolCallBody(id=call.id, function=CalledFunction(name=name, arguments=""))
            self.message.tool_calls = [*(self.message.tool_calls or ()), known]
        piece = call.function.arguments
        if piece:
            item = self.items[-1]
            item.arguments = (item.arguments or "") + piece
            if self.message.tool_calls:
                self.message.tool_calls[-1].function.arguments += piece
            events.append(self._event("response.function_call_arguments.delta", delta=piece))
        return events

    def _is_open(self, kind: str) -> bool:
        return bool(self.items) and self.items[-1].status == "in_progress" and self.items[-1].type == kind

    @property
    def _part(self) -> OutPart:
        return self.items[-1].content[0]  # type: ignore[index]

    def _added(self, item: OutItem) -> StreamEvent:
        self.items.append(item)
        return StreamEvent(
            type="response.output_item.added", sequence_number=0, output_index=len(self.items) - 1, item=_snapshot(item)
        )

    def _done(self, status: Status) -> list[StreamEvent]:
        if not self.items or self.items[-1].status != "in_progress":
            return []
        item = self.items[-1]
        item.status = status
        events = []
        if item.type == "function_call":
            events.append(
                self._event("response.function_call_arguments.done", name=item.name, arguments=item.arguments)
            )
        else:
            part = self._part
            done = self._event(
                f"response.{part.type}.done", content_index=0, text=part.text, logprobs=_logprobs(part.type)
            )
            events += [done, self._event("response.content_part.done", content_index=0, part=_copy(part))]
        ended = StreamEvent(
            type="response.output_item.done", sequence_number=0, output_index=len(self.items) - 1, item=_snapshot(item)
        )
        return [*events, ended]

    def _event(self, kind: str, **fields: object) -> StreamEvent:
        return StreamEvent(
            type=kind, sequence_number=0, item_id=self.items[-1].id, output_index=len(self.items) - 1, **fields  # type: ignore[arg-type]
        )  # fmt: skip


def _logprobs(part: str) -> list[object] | UnsetType:
    return [] if part == "output_text" else UNSET


def _copy(part: OutPart) -> OutPart:
    return OutPart(type=part.type, text=part.text, annotations=part.annotations, logprobs=part.logprobs)


def _snapshot(item: OutItem) -> OutItem:
    """The item as it is now: events are written later than it grows."""
    content = [_copy(part) for part in item.content] if item.content else item.content
    return OutItem(
        id=item.id, type=item.type, status=item.status, role=item.role, content=content, summary=item.summary,
        call_id=item.call_id, name=item.name, arguments=item.arguments,
    )  # fmt: skip
