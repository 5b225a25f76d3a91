"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol over the chat route's way of answering."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import msgspec
from msgspec import UNSET, Raw
from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import RadixrtError
from radixrt.server.anthropic_request import NAMES, TOOLS, chat_request
from radixrt.server.anthropic_types import (
    CountTokensRequest,
    EndEvent,
    MessageEnd,
    MessagesRequest,
    OutBlock,
    OutMessage,
    StreamEvent,
    TokenCount,
    Usage,
)
from radixrt.server.body import decoder, read_body
from radixrt.server.errors import anthropic_error_body
from radixrt.server.faults import spelled
from radixrt.server.one_answer import Begin, End, answer_events, whole_answer
from radixrt.server.openai_chat import Job, plan
from radixrt.server.openai_messages import chat_prompt
from radixrt.server.openai_shapes import AssistantMessage, ChatDelta, encode, json_response
from radixrt.server.openai_tools import shown_tools
from radixrt.server.sse import EventStream, cancelled_when_gone
from radixrt.server.state import ServerState, ServingEngine

_MESSAGES = decoder(MessagesRequest)
_COUNT = decoder(CountTokensRequest)
_STOPS = {"length": "max_tokens", "tool_calls": "tool_use"}


async def messages(request: Request) -> Response:
    """Answer a conversation; streamed with `stream`."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _MESSAGES, state.limits.body_bytes)
    engine = state.engine_for(body.model)
    with spelled(NAMES, TOOLS):
        job = plan(chat_request(body), state, engine.info)
    job = replace(job, id=f"msg_{state.new_id()}")
    with spelled(NAMES, TOOLS), job.placing():
        if body.stream:
            return await _Events.open(request, _stream(engine, replace(job, with_ids=True)))
        async with cancelled_when_gone(request.receive):
            message, end = await whole_answer(engine, job)
    return json_response(_whole(job, message, end))


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a request has."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _COUNT, state.limits.body_bytes)
    chat = chat_request(body)
    made = await state.engine_for(body.model).atokenize(chat_prompt(chat, shown_tools(chat)))
    return json_response(TokenCount(input_tokens=len(made.ids)))


def _whole(job: Job, message: AssistantMessage, end: End) -> OutMessage:
    content = []
    if isinstance(message.reasoning_content, str):
        content.append(OutBlock(type="thinking", thinking=message.reasoning_content, signature=""))
    if message.content:
        content.append(OutBlock(type="text", text=message.content))
    for call in message.tool_calls or ():
        # A call that max_tokens cut is no JSON: its input is empty then, and stop_reason says why.
        arguments = call.function.arguments.encode()
        content.append(
            OutBlock(type="tool_use", id=call.id, name=call.function.name, input=Raw(_object_or_empty(arguments)))
        )
    return OutMessage(
        id=job.id,
        model=job.model,
        content=content,
        usage=_usage(end),
        stop_reason=_stop(end),  # type: ignore[arg-type]
        stop_sequence=_stop_sequence(end),
    )


def _object_or_empty(text: bytes) -> bytes:
    try:
        msgspec.json.decode(text, type=dict)
    except msgspec.MsgspecError:
        return b"{}"
    return text


def _usage(end: End) -> Usage:
    usage = end.usage
    return Usage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=usage.cached_tokens,
    )


def _stop(end: End) -> str:
    if end.finish == "stop":
        return "stop_sequence" if _stop_sequence(end) is not None else "end_turn"
    return _STOPS[end.finish]


def _stop_sequence(end: End) -> str | None:
    return end.stop_reason if isinstance(end.stop_reason, str) else None


class _Events(EventStream):
    """Named events; the last one is message_stop, or an error."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'
    done = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    def failed(self, error: RadixrtError) -> bytes:
        return b"event: error\ndata: " + anthropic_error_body(error) + b"\n\n"


async def _stream(engine: ServingEngine, job: Job) -> AsyncGenerator[bytes, None]:
    blocks, begun = _Blocks(), b""
    async with aclosing(answer_events(engine, job)) as events:
        async for event in events:
            if isinstance(event, Begin):
                usage = Usage(input_tokens=event.prompt_tokens, output_tokens=0)
                message = OutMessage(id=job.id, model=job.model, content=[], usage=usage)
                begun = _event(StreamEvent(type="message_start", message=message))
                # Nothing is sent before the engine has taken the request: a refusal is a plain response.
            elif isinstance(event, End):
                yield begun + blocks.close()
                begun = b""
                end = MessageEnd(stop_reason=_stop(event), stop_sequence=_stop_sequence(event))
                yield _event(EndEvent(delta=end, usage=_usage(event)))
            else:
                yield begun + blocks.push(event)
                begun = b""


def _event(event: StreamEvent | EndEvent) -> bytes:
    return b"event: " + event.type.encode() + b"\ndata: " + encode(event) + b"\n\n"


class _Blocks:
    """Content blocks of a stream: one is open at a time, and another kind of piece begins the next."""

    def __init__(self) -> None:
        self._index = -1
        self._open: object = None

    def push(self, piece: ChatDelta) -> bytes:
        out = b""
        if isinstance(piece.reasoning_content, str):
            out += self._begin("thinking", OutBlock(type="thinking", thinking="", signature=""))
            out += self._delta(OutBlock(type="thinking_delta", thinking=piece.reasoning_content))
        if isinstance(piece.content, str) and piece.content:
            out += self._begin("text", OutBlock(type="text", text=""))
            out += self._delta(OutBlock(type="text_delta", text=piece.content))
        for call in piece.tool_calls or ():
            if call.id is not UNSET:
                block = OutBlock(type="tool_use", id=call.id, name=call.function.name, input=Raw(b"{}"))
                out += self._begin(("call", call.index), block)
            if call.function.arguments:
                out += self._delta(OutBlock(type="input_json_delta", partial_json=call.function.arguments))
        return out

    def close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event(StreamEvent(type="content_block_stop", index=self._index))

    def _begin(self, kind: object, block: OutBlock) -> bytes:
        if self._open == kind:
            return b""
        out = self.close()
        self._open = kind
        self._index += 1
        return out + _event(StreamEvent(type="content_block_start", index=self._index, content_block=block))

    def _delta(self, delta: OutBlock) -> bytes:
        return _event(StreamEvent(type="content_block_delta", index=self._index, delta=delta))
