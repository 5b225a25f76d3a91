"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace

from msgspec import UNSET, structs
from starlette.requests import Request
from starlette.responses import Response

from radixrt.calls import Calls
from radixrt.dialects import Marks
from radixrt.errors import ConstraintError, InvalidRequest
from radixrt.messages import ChatPrompt, Prompt, TokensPrompt
from radixrt.params import Constraint, SamplingParams
from radixrt.prompts import token_array
from radixrt.results import Choice, Delta, FinishReason, Generation, ModelInfo, TokenLogprob, Usage
from radixrt.server.body import decoder, read_body
from radixrt.server.openai_answer import PLAIN, AnswerReader, Reading, message_of
from radixrt.server.openai_constraints import constraint_of, place_of
from radixrt.server.openai_logprobs import chat_logprobs, prompt_logprobs
from radixrt.server.openai_messages import chat_prompt
from radixrt.server.openai_params import chat_sampling
from radixrt.server.openai_shapes import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    TokenIds,
    details,
    encode,
    json_response,
    usage_body,
)
from radixrt.server.openai_thinking import ANYTHING, Wanted, behind, behind_own, budget, template_kwargs, wanted
from radixrt.server.openai_tools import calls_of, shown_tools
from radixrt.server.openai_types import ChatRequest
from radixrt.server.places import placing
from radixrt.server.running_usage import RunningUsage
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
    constraint_at: str | None
    calls: Calls | None
    marks: Marks | None
    thought: Wanted
    thought_tokens: int | None
    cache_salt: str | None
    priority: int
    with_ids: bool
    with_usage: bool
    with_timings: bool = False
    with_counts: bool = False
    """The tokens so far stand in every piece of a stream."""
    prompt_tokens: int = 0
    """Known once the job is settled, where they are counted."""
    prompt_ids: TokenIds = UNSET
    reading: Reading = PLAIN
    """How the answers are read; known once the job is settled."""

    def placing(self) -> AbstractContextManager[None]:
        """Refusals of the constraint, or of the tools that are one, name the place as the chat route does."""
        return placing(self.constraint_at, self.calls)


async def chat_completions(request: Request) -> Response:
    """Answer a conversation; streamed with `stream`."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _DECODER, state.limits.body_bytes)
    engine = state.engine_for(body.model)
    job = plan(body, state, engine.info)
    try:
        with job.placing():
            return await _answer(request, engine, job, stream=bool(body.stream))
    except ConstraintError:
        raise  # its place is named already
    except InvalidRequest as error:
        error.param = _client_s_name(error.param, body)
        raise


async def _answer(request: Request, engine: ServingEngine, job: Job, *, stream: bool) -> Response:
    if stream:
        return await EventStream.open(request, chunks(engine, job))
    async with cancelled_when_gone(request.receive):
        job = await settled(engine, job)
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
    return {"template_kwargs": "chat_template_kwargs", "prompt": "messages"}.get(param or "", param)


def plan(body: ChatRequest, state: ServerState, info: ModelInfo) -> Job:
    """Everything that can be wrong with the request is found here, before anything is queued."""
    calls, constraint = calls_of(body, info), constraint_of(body)
    if calls is not None and constraint is not None and not _beside_calls(constraint):
        raise InvalidRequest(
            "beside tools only a JSON response_format can constrain the answer: leave the other constraint out, or "
            "give tool_choice 'none'",
            param="tools",
        )
    return Job(
        id=f"chatcmpl-{state.new_id()}",
        created=int(state.now()),
        model=state.served_name or "",
        prompt=chat_prompt(body, shown_tools(body), template_kwargs(body, info)),
        sampling=chat_sampling(body),
        constraint=constraint,
        constraint_at=place_of(body),
        calls=calls,
        marks=Marks(*info.thinking) if info.thinking else None,
        thought=wanted(body),
        thought_tokens=budget(body, info),
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        with_ids=bool(body.return_token_ids),
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
        with_timings=bool(body.return_timings),
        with_counts=bool(body.stream_options and body.stream_options.continuous_usage_stats),
    )


def _beside_calls(constraint: Constraint) -> bool:
    """Whether an answer may be held to it where it is no call (one that must be a call is not touched by it)."""
    return constraint.kind in ("json_schema", "json_object") and not (
        constraint.lax or constraint.any_whitespace or constraint.whitespace_pattern
    )


async def settled(engine: ServingEngine, job: Job) -> Job:
    """The job with what only the rendered prompt tells: whether it ends inside a thought, and its ids where the client
    wants to see them. What was tokenized is sent as those ids."""
    calls, prompt, sampling, marks = job.calls, job.prompt, job.sampling, job.marks
    wants_ids = job.with_ids or job.with_counts
    made = await engine.atokenize(prompt) if marks or wants_ids else None
    asks = isinstance(prompt, ChatPrompt) and prompt.add_generation_prompt
    in_thought = bool(marks and made and marks.left_open(made.text))
    own_thought = bool(
        marks and made and asks and not (in_thought or marks.closed(made.text)) and job.thought == "free"
    )
    if in_thought and job.thought == "never":
        raise InvalidRequest(
            "this model's chat template begins a thought whatever it is told", param="reasoning_effort"
        )
    constraint, opening = job.constraint, ""
    if calls is not None:
        if asks and not (in_thought or own_thought):
            opening = calls.opening
        constraint = calls.constraint(opening, job.constraint)
        if calls.controls:
            sampling = structs.replace(sampling, skip_special_tokens=False)
    if job.thought_tokens is not None and (in_thought or own_thought):
        constraint = constraint or ANYTHING
    if constraint is not None and marks is not None:
        if in_thought:
            constraint = behind(marks, constraint, job.thought_tokens)
        elif own_thought:
            constraint = behind_own(marks, constraint, job.thought_tokens)
    if opening and isinstance(prompt, ChatPrompt):
        prompt = structs.replace(prompt, opening=opening)
        made = await engine.atokenize(prompt) if wants_ids else None
    if made is not None:
        prompt = TokensPrompt(ids=token_array(made.ids))
    return replace(
        job,
        prompt=prompt,
        sampling=sampling,
        constraint=constraint,
        prompt_ids=made.ids if made is not None and job.with_ids else UNSET,
        prompt_tokens=len(made.ids) if made is not None else 0,
        reading=Reading(calls, job.marks, in_thought, opening),
    )


def completion(job: Job, generation: Generation) -> ChatCompletion:
    return ChatCompletion(
        id=job.id,
        created=job.created,
        model=job.model,
        choices=[_choice(job, choice) for choice in generation.choices],
        usage=usage_body(generation.usage),
        radixrt=details(generation.usage, [generation.usage] if job.with_timings else ()),
        prompt_token_ids=job.prompt_ids,
        prompt_logprobs=prompt_logprobs(generation.prompt_logprobs or ()) if _scores_prompt(job) else UNSET,
    )


def _choice(job: Job, choice: Choice) -> ChatChoice:
    message, reason = message_of(job.reading, choice.text, choice.finish_reason)
    return ChatChoice(
        index=choice.index,
        message=message,
        logprobs=_logprobs(job, choice.logprobs),
        finish_reason=reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if job.with_ids else UNSET,
    )


async def chunks(engine: ServingEngine, job: Job) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer, without the closing [DONE]."""
    job = await settled(engine, job)
    readers = [AnswerReader(job.reading) for _ in range(job.sampling.n)]
    counts = RunningUsage(job.prompt_tokens)
    begun = False
    async with aclosing(
        open_stream(engine, job.prompt, job.sampling, job.constraint, job.cache_salt, job.priority)
    ) as deltas:
        async for delta in deltas:
            data = b""
            if not begun:
                begun = True
                data += _roles(job)
            reader = readers[delta.index]
            counts.add(delta)
            data += b"".join(_chunk(job, choice, counts) for choice in _pieces(job, reader, delta))
            if delta.finish_reason is not None:
                data += _chunk(job, _end(reader, delta, delta.finish_reason), counts, usage=delta.usage)
            if delta.usage is not None and job.with_usage:
                last = ChatChunk(
                    id=job.id, created=job.created, model=job.model, choices=[], usage=usage_body(delta.usage)
                )
                data += event(encode(last))
            if data:
                yield data


def _roles(job: Job) -> bytes:
    """The first chunk of every choice, in order of index: the openai package counts on it, whoever is sampled first."""
    content = "" if job.calls is None else None  # an answer of calls alone has none
    return b"".join(
        _chunk(
            job,
            ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=content)),
            RunningUsage(job.prompt_tokens),
            first=index == 0,
        )
        for index in range(job.sampling.n)
    )


def _chunk(
    job: Job, choice: ChatChunkChoice, counts: RunningUsage, first: bool = False, usage: Usage | None = None
) -> bytes:
    """One event; what is said of constraint and time goes with the request's last choice."""
    said = details(usage, [usage] if usage is not None and job.with_timings else ())
    chunk = ChatChunk(id=job.id, created=job.created, model=job.model, choices=[choice], radixrt=said)
    if job.with_usage or job.with_counts:
        chunk.usage = counts.body() if job.with_counts else None
    if first:
        chunk.prompt_token_ids = job.prompt_ids
    return event(encode(chunk))


def _pieces(job: Job, reader: AnswerReader, delta: Delta) -> list[ChatChunkChoice]:
    """What a delta brings to a choice; log-probabilities and ids go with the first piece, or alone."""
    pieces = reader.push(delta.text)
    if delta.finish_reason is not None:
        pieces += reader.end(delta.finish_reason)
    if not pieces and (delta.logprobs or (job.with_ids and delta.token_ids)):
        pieces = [ChatDelta(content="") if job.reading.plain else ChatDelta()]
    choices = [ChatChunkChoice(index=delta.index, delta=piece) for piece in pieces]
    if choices:
        choices[0].logprobs = _logprobs(job, delta.logprobs)
        choices[0].token_ids = delta.token_ids if job.with_ids else UNSET
    return choices


def _end(reader: AnswerReader, delta: Delta, reason: FinishReason) -> ChatChunkChoice:
    return ChatChunkChoice(
        index=delta.index,
        delta=ChatDelta(),
        finish_reason=reader.finish_reason(reason),
        stop_reason=delta.stop_reason,
    )


def _logprobs(job: Job, entries: Sequence[TokenLogprob] | None) -> ChatLogprobs | None:
    return None if job.sampling.logprobs is None else chat_logprobs(entries or ())


def _scores_prompt(job: Job) -> bool:
    return job.sampling.prompt_logprobs is not None
