"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import InvalidRequest
from radixrt.messages import Prompt, TokensPrompt
from radixrt.params import Constraint, SamplingParams
from radixrt.prompts import token_array
from radixrt.results import Delta, Generation, TokenLogprob
from radixrt.server.body import decoder, read_body
from radixrt.server.openai_constraints import constraint_of
from radixrt.server.openai_logprobs import chat_logprobs, prompt_logprobs
from radixrt.server.openai_messages import chat_prompt
from radixrt.server.openai_params import chat_sampling
from radixrt.server.openai_shapes import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    TokenIds,
    encode,
    finish,
    json_response,
    usage_body,
)
from radixrt.server.openai_types import ChatRequest
from radixrt.server.sse import EventStream, cancelled_when_gone, event
from radixrt.server.state import ServerState, ServingEngine
from radixrt.server.streams import open_stream

_DECODER = decoder(ChatRequest)


@dataclass(frozen=True)
class Job:
    """A chat request, checked and translated."""

    id: str
    created: int
    model: str
    prompt: Prompt
    sampling: SamplingParams
    constraint: Constraint | None
    cache_salt: str | None
    priority: int
    with_ids: bool
    with_usage: bool
    prompt_ids: TokenIds = UNSET


async def chat_completions(request: Request) -> Response:
    """Answer a conversation; streamed with `stream`."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _DECODER, state.limits.body_bytes)
    try:
        return await _answer(request, state, body)
    except InvalidRequest as error:
        error.param = _client_s_name(error.param, body)
        raise


async def _answer(request: Request, state: ServerState, body: ChatRequest) -> Response:
    engine = state.engine_for(body.model)
    job = plan(body, state)
    if body.stream:
        return await EventStream.open(request, chunks(engine, job))
    async with cancelled_when_gone(request.receive):
        job = await with_prompt_ids(engine, job)
        generation = await engine.agenerate(
            job.prompt,
            job.sampling,
            constraint=job.constraint,
            cache_salt=job.cache_salt,
            priority=job.priority,
        )
    return json_response(completion(job, generation))


def _client_s_name(param: str | None, body: ChatRequest) -> str | None:
    """The client's name of a field that the engine calls otherwise."""
    if param == "max_tokens" and body.max_tokens is None:
        return "max_completion_tokens"
    return "chat_template_kwargs" if param == "template_kwargs" else param


def plan(body: ChatRequest, state: ServerState) -> Job:
    """Everything that can be wrong with the request is found here, before anything is queued."""
    return Job(
        id=f"chatcmpl-{state.new_id()}",
        created=int(state.now()),
        model=state.served_name or "",
        prompt=chat_prompt(body),
        sampling=chat_sampling(body),
        constraint=constraint_of(body),
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        with_ids=bool(body.return_token_ids),
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


async def with_prompt_ids(engine: ServingEngine, job: Job) -> Job:
    """Where the client wants to see the prompt's ids: tokenize it first, and send just those ids."""
    if not job.with_ids:
        return job
    ids = (await engine.atokenize(job.prompt)).ids
    return replace(job, prompt=TokensPrompt(ids=token_array(ids)), prompt_ids=ids)


def completion(job: Job, generation: Generation) -> ChatCompletion:
    return ChatCompletion(
        id=job.id,
        created=job.created,
        model=job.model,
        choices=[
            ChatChoice(
                index=choice.index,
                message=AssistantMessage(content=choice.text),
                logprobs=_logprobs(job, choice.logprobs),
                finish_reason=finish(choice.finish_reason),
                stop_reason=choice.stop_reason,
                token_ids=choice.token_ids if job.with_ids else UNSET,
            )
            for choice in generation.choices
        ],
        usage=usage_body(generation.usage),
        prompt_token_ids=job.prompt_ids,
        prompt_logprobs=prompt_logprobs(generation.prompt_logprobs or ()) if _scores_prompt(job) else UNSET,
    )


async def chunks(engine: ServingEngine, job: Job) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer, without the closing [DONE]."""
    job = await with_prompt_ids(engine, job)
    begun = False
    async with aclosing(
        open_stream(engine, job.prompt, job.sampling, job.constraint, job.cache_salt, job.priority)
    ) as deltas:
        async for delta in deltas:
            data = b""
            if not begun:
                begun = True
                data += _roles(job)
            if delta.text or delta.logprobs or (job.with_ids and delta.token_ids):
                data += _chunk(job, _content(job, delta))
            if delta.finish_reason is not None:
                data += _chunk(job, _end(delta))
            if delta.usage is not None and job.with_usage:
                last = ChatChunk(
                    id=job.id, created=job.created, model=job.model, choices=[], usage=usage_body(delta.usage)
                )
                data += event(encode(last))
            if data:
                yield data


def _roles(job: Job) -> bytes:
    """The first chunk of every choice, in order of index: the openai package counts on it, whoever is sampled first."""
    return b"".join(
        _chunk(job, ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content="")), first=index == 0)
        for index in range(job.sampling.n)
    )


def _chunk(job: Job, choice: ChatChunkChoice, first: bool = False) -> bytes:
    chunk = ChatChunk(id=job.id, created=job.created, model=job.model, choices=[choice])
    if job.with_usage:
        chunk.usage = None
    if first:
        chunk.prompt_token_ids = job.prompt_ids
    return event(encode(chunk))


def _content(job: Job, delta: Delta) -> ChatChunkChoice:
    return ChatChunkChoice(
        index=delta.index,
        delta=ChatDelta(content=delta.text),
        logprobs=_logprobs(job, delta.logprobs),
        token_ids=delta.token_ids if job.with_ids else UNSET,
    )


def _end(delta: Delta) -> ChatChunkChoice:
    return ChatChunkChoice(
        index=delta.index,
        delta=ChatDelta(),
        finish_reason=finish(delta.finish_reason) if delta.finish_reason else None,
        stop_reason=delta.stop_reason,
    )


def _logprobs(job: Job, entries: Sequence[TokenLogprob] | None) -> ChatLogprobs | None:
    return None if job.sampling.logprobs is None else chat_logprobs(entries or ())


def _scores_prompt(job: Job) -> bool:
    return job.sampling.prompt_logprobs is not None
