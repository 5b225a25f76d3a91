"""Ollama's protocol over the same way of answering: /api/chat, generate, tags, show, ps, version."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

import radixrt
from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.messages import TextPrompt
from radixrt.results import ModelInfo
from radixrt.server.body import decoder, read_body
from radixrt.server.errors import ollama_error_body
from radixrt.server.faults import spelled
from radixrt.server.ollama_request import NAMES, chat_request, generate_request
from radixrt.server.ollama_types import (
    Answer,
    ChatRequest,
    Details,
    GenerateRequest,
    Model,
    Models,
    OutCall,
    OutFunction,
    OutMessage,
    Shown,
    ShowRequest,
    Version,
)
from radixrt.server.one_answer import Begin, End, answer_events
from radixrt.server.openai_chat import Job, plan
from radixrt.server.openai_shapes import ChatDelta, encode, json_response
from radixrt.server.openai_types import ChatRequest as OpenAiChat
from radixrt.server.responses_items import ItemWriter
from radixrt.server.sse import EventStream, cancelled_when_gone
from radixrt.server.state import ServerState, ServingEngine

_CHAT = decoder(ChatRequest)
_GENERATE = decoder(GenerateRequest)
_SHOW = decoder(ShowRequest)


@dataclass(frozen=True)
class Talk:
    """A request of either kind, ready to be answered."""

    model: str
    job: Job
    chat: bool
    """Answers are messages, not bare texts."""

    def line(self, message: OutMessage, **more: Any) -> bytes:
        return encode(self.answer(message, **more)) + b"\n"

    def answer(self, message: OutMessage, *, done: bool = False, **more: Any) -> Answer:
        answer = Answer(model=self.model, created_at=_now(), done=done, **more)
        if self.chat:
            answer.message = message
        else:
            answer.response, answer.thinking = message.content, message.thinking
        return answer


async def chat(request: Request) -> Response:
    """Answer a conversation; streamed unless `stream` is false."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _CHAT, state.limits.body_bytes)
    engine = engine_of(state, body.model)
    if not body.messages:
        return json_response(_loaded(body.model, chat=True))
    talk = _talk(body.model, chat_request(body, engine.info), state, engine.info, chat=True)
    return await _answered(request, engine, talk, stream=body.stream is not False)


async def generate(request: Request) -> Response:
    """Answer a prompt; streamed unless `stream` is false."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _GENERATE, state.limits.body_bytes)
    engine = engine_of(state, body.model)
    if not body.prompt:
        return json_response(_loaded(body.model, chat=False))
    talk = _talk(body.model, generate_request(body, engine.info), state, engine.info, chat=False)
    if body.raw or not engine.info.has_chat_template:
        prompt = TextPrompt(text=body.prompt, parse_special=bool(body.raw))  # raw: the client has written the template
        talk = replace(talk, job=replace(talk.job, prompt=prompt, marks=None))
    return await _answered(request, engine, talk, stream=body.stream is not False)


async def tags(request: Request) -> Response:
    """The one model that is served."""
    return json_response(Models(models=[_model(request.app.state.radixrt)]))


async def ps(request: Request) -> Response:
    """The same model: it is always loaded."""
    model = _model(request.app.state.radixrt)
    model.expires_at, model.size_vram = "9999-12-31T23:59:59Z", 0
    return json_response(Models(models=[model]))


async def show(request: Request) -> Response:
    """What the model is and can."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _SHOW, state.limits.body_bytes)
    name = body.model or body.name
    if name is None:
        raise InvalidRequest("model is required", param="model")
    info = engine_of(state, name).info
    capabilities = ["completion"] + (["tools"] if info.tool_dialect else []) + (["thinking"] if info.thinking else [])
    if not info.generates:
        capabilities = ["embedding"]
    facts = {"general.basename": info.name, "radixrt.context_length": info.context_length}
    return json_response(
        Shown(details=Details(), model_info=facts, capabilities=capabilities, modified_at=_time(state.started))
    )


async def version(request: Request) -> Response:
    """radixrt's version."""
    return json_response(Version(version=radixrt.__version__))


def engine_of(state: ServerState, name: str) -> ServingEngine:
    return state.engine_for(name.removesuffix(":latest"))


def _talk(name: str, request: OpenAiChat, state: ServerState, info: ModelInfo, *, chat: bool) -> Talk:
    with spelled(NAMES):
        return Talk(name, plan(request, state, info), chat)


def _loaded(name: str, *, chat: bool) -> Answer:
    """An empty request asks to load the model, which is there."""
    answer = Answer(model=name, created_at=_now(), done=True, done_reason="load")
    if chat:
        answer.message = OutMessage(content="")
    else:
        answer.response = ""
    return answer


async def _answered(request: Request, engine: ServingEngine, talk: Talk, *, stream: bool) -> Response:
    begun = time.monotonic_ns()
    with spelled(NAMES), talk.job.placing():
        if stream:
            return await _Lines.open(request, _lines(engine, talk, begun))
        async with cancelled_when_gone(request.receive):
            whole, calls = OutMessage(content=""), list[OutCall]()
            async with aclosing(_pieces(engine, talk)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, End):
                        return json_response(talk.answer(whole, done=True, **_figures(piece, begun)))
                    whole.content += piece.content
                    if piece.thinking:
                        whole.thinking = (whole.thinking or "") + piece.thinking
                    calls += piece.tool_calls or []
                    if calls:
                        whole.tool_calls = calls
    raise RuntimeError("an answer ended without its end")


class _Lines(EventStream):
    """JSON lines; the last one is done, or an error."""

    media_type = "application/x-ndjson"
    keep_alive = b""
    done = b""

    def failed(self, error: RadixrtError) -> bytes:
        return ollama_error_body(error) + b"\n"


async def _lines(engine: ServingEngine, talk: Talk, begun: int) -> AsyncGenerator[bytes, None]:
    async with aclosing(_pieces(engine, talk)) as pieces:
        async for piece in pieces:
            if isinstance(piece, End):
                yield talk.line(OutMessage(content=""), done=True, **_figures(piece, begun))
            else:
                yield talk.line(piece)


async def _pieces(engine: ServingEngine, talk: Talk) -> AsyncGenerator[OutMessage | End, None]:
    """Text and thoughts as they come; a call when it is whole, for the protocol knows no pieces of one."""
    writer, told = ItemWriter(talk.job.id), 0
    async with aclosing(answer_events(engine, talk.job)) as events:
        async for event in events:
            if isinstance(event, Begin):
                continue
            if isinstance(event, ChatDelta):
                writer.push(event)
                if event.content or event.reasoning_content:
                    yield OutMessage(content=event.content or "", thinking=event.reasoning_content)
            else:
                writer.close(cut=event.finish == "length")
            ended = [item for item in writer.items if item.type == "function_call" and item.status == "completed"]
            for item in ended[told:]:
                function = OutFunction(name=item.name or "", arguments=Raw((item.arguments or "{}").encode()))
                yield OutMessage(content="", tool_calls=[OutCall(function=function)])
            told = len(ended)
            if isinstance(event, End):
                yield event


def _figures(end: End, begun: int) -> dict[str, Any]:
    usage = end.usage
    total = time.monotonic_ns() - begun
    prompt = round(1e9 * usage.ttft_s)
    return {
        "done_reason": "length" if end.finish == "length" else "stop",
        "total_duration": total,
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": prompt,
        "eval_count": usage.completion_tokens,
        "eval_duration": max(0, round(1e9 * usage.total_s) - prompt),
    }


def _model(state: ServerState) -> Model:
    name = state.served_name or state.engine.info.name
    return Model(name=name, model=name, modified_at=_time(state.started), details=Details())


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
