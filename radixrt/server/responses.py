"""POST /v1/responses, GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count

import msgspec
from msgspec import Raw, structs
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from radixrt.errors import RadixrtError
from radixrt.server import callers
from radixrt.server.body import decoder, read_body
from radixrt.server.faults import spelled
from radixrt.server.one_answer import Begin, End, answer_events, whole_answer
from radixrt.server.openai_chat import Job, plan
from radixrt.server.openai_shapes import AssistantMessage, details, encode, json_response
from radixrt.server.openai_types import InMessage
from radixrt.server.responses_items import ItemWriter, items_of, turn_of
from radixrt.server.responses_request import NAMES, TOOLS, chat_request, turns_of
from radixrt.server.responses_store import Stored
from radixrt.server.responses_types import (
    Deleted,
    FormatText,
    Incomplete,
    InputDetails,
    InputItems,
    OutItem,
    OutputDetails,
    Response,
    ResponsesRequest,
    StreamEvent,
    TextConfig,
    Usage,
)
from radixrt.server.sse import EventStream, cancelled_when_gone
from radixrt.server.state import ServerState, ServingEngine

_DECODER = decoder(ResponsesRequest)


@dataclass(frozen=True)
class Exchange:
    """A request, what it continues, and the job that answers it."""

    body: ResponsesRequest
    turns: tuple[InMessage, ...]
    job: Job
    state: ServerState


async def create(request: Request) -> HttpResponse:
    """Answer an input; streamed with `stream`."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _DECODER, state.limits.body_bytes)
    engine = state.engine_for(body.model)
    turns = tuple(turns_of(body.input))
    if body.previous_response_id is not None:
        namespace = callers.current().namespace
        turns = state.responses.get(body.previous_response_id, namespace, "previous_response_id").turns + turns
    with spelled(NAMES, TOOLS):
        job = replace(plan(chat_request(body, turns), state, engine.info), id=f"resp_{state.new_id()}")
    exchange = Exchange(body, turns, job, state)
    with spelled(NAMES, TOOLS), job.placing():
        if body.stream:
            numbers = count()
            stream = await _Events.open(request, _stream(engine, exchange, numbers))
            stream.numbers = numbers
            return stream
        async with cancelled_when_gone(request.receive):
            message, end = await whole_answer(engine, job)
    return json_response(_finished(exchange, message, end, items_of(message, end, job.id)))


async def retrieve(request: Request) -> HttpResponse:
    """A stored response."""
    return json_response(_stored(request).response)


async def input_items(request: Request) -> HttpResponse:
    """The items of a stored response's own input."""
    return json_response(InputItems(data=[Raw(item) for item in _stored(request).inputs], first_id=None, last_id=None))


async def delete(request: Request) -> HttpResponse:
    """Forget a stored response."""
    state: ServerState = request.app.state.radixrt
    name = request.path_params["response_id"]
    state.responses.delete(name, callers.current().namespace)
    return json_response(Deleted(id=name))


def _stored(request: Request) -> Stored:
    state: ServerState = request.app.state.radixrt
    return state.responses.get(request.path_params["response_id"], callers.current().namespace)


def _begun(exchange: Exchange) -> Response:
    body, job = exchange.body, exchange.job
    return Response(
        id=job.id,
        created_at=job.created,
        status="in_progress",
        model=job.model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        text=body.text or TextConfig(format=FormatText()),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        previous_response_id=body.previous_response_id,
        temperature=job.sampling.temperature,
        top_p=job.sampling.top_p,
        store=body.store is not False,
        metadata=body.metadata or {},
        user=body.user,
    )


def _finished(exchange: Exchange, message: AssistantMessage, end: End, items: list[OutItem]) -> Response:
    """The whole response, which is stored unless the client does not want it."""
    usage = end.usage
    response = structs.replace(
        _begun(exchange),
        status="incomplete" if end.finish == "length" else "completed",
        incomplete_details=Incomplete(reason="max_output_tokens") if end.finish == "length" else None,
        output=items,
        usage=Usage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(),
            total_tokens=usage.total_tokens,
        ),
        radixrt=details(usage),
    )
    if response.store:
        turns = (*exchange.turns, turn_of(message))
        given = exchange.body.input
        inputs = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
        stored = Stored(
            response, turns, tuple(encode(item) for item in inputs), callers.current().namespace,
            size=len(encode(response)) + len(encode(turns)),
        )  # fmt: skip
        exchange.state.responses.put(stored)
    return response


class _Events(EventStream):
    """Named events; the last one is response.completed, response.incomplete, or an error."""

    done = b""
    numbers: Iterator[int] = iter(())

    def failed(self, error: RadixrtError) -> bytes:
        info, number = error.info(), next(self.numbers, 0)
        return _event(
            StreamEvent(type="error", sequence_number=number, code=info.code, message=info.message, param=info.param)
        )


async def _stream(engine: ServingEngine, exchange: Exchange, numbers: Iterator[int]) -> AsyncGenerator[bytes, None]:
    writer = ItemWriter(exchange.job.id)

    def numbered(events: list[StreamEvent]) -> bytes:
        return b"".join(_event(structs.replace(event, sequence_number=next(numbers))) for event in events)

    # Nothing is sent before the engine has taken the request: a refusal is a plain response.
    begun = [
        StreamEvent(type=kind, sequence_number=0, response=_begun(exchange))
        for kind in ("response.created", "response.in_progress")
    ]
    async with aclosing(answer_events(engine, exchange.job)) as events:
        async for event in events:
            if isinstance(event, Begin):
                continue
            if isinstance(event, End):
                last = writer.close(cut=event.finish == "length")
                response = _finished(exchange, writer.message, event, writer.items)
                kind = f"response.{response.status}"
                yield numbered([*begun, *last, StreamEvent(type=kind, sequence_number=0, response=response)])
            else:
                yield numbered([*begun, *writer.push(event)])
                begun = []


def _event(event: StreamEvent) -> bytes:
    return b"event: " + event.type.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
