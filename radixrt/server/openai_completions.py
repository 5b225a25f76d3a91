"""POST /v1/completions: one or several prompts, text or token ids; echo and scoring of prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from radixrt.backend import Tokens
from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.messages import TextPrompt, TokensPrompt
from radixrt.params import Constraint, SamplingParams
from radixrt.prompts import token_array
from radixrt.results import Delta, Generation, TokenLogprob, Usage
from radixrt.server.body import decoder, read_body
from radixrt.server.openai_constraints import constraint_of, place_of
from radixrt.server.openai_logprobs import TextLogprobsBuilder, prompt_logprobs
from radixrt.server.openai_params import completion_sampling
from radixrt.server.openai_shapes import TextChoice, TextCompletion, details, encode, finish, json_response, usage_body
from radixrt.server.openai_types import CompletionRequest
from radixrt.server.places import placing
from radixrt.server.running_usage import RunningUsage
from radixrt.server.sse import EventStream, cancelled_when_gone, event
from radixrt.server.state import ServerState, ServingEngine
from radixrt.server.streams import merged, open_stream

_DECODER = decoder(CompletionRequest)

PlainPrompt = TextPrompt | TokensPrompt


@dataclass(frozen=True)
class Job:
    """A completions request, checked and translated."""

    id: str
    created: int
    model: str
    prompts: list[PlainPrompt]
    sampling: SamplingParams
    constraint: Constraint | None
    cache_salt: str | None
    priority: int
    echo: bool
    with_ids: bool
    with_usage: bool
    with_timings: bool
    with_counts: bool
    """The tokens so far stand in every piece of a stream."""

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's log-probabilities are shown under `logprobs` (echo), not in vLLM's own field."""
        return self.echo and self.sampling.logprobs is not None


@dataclass
class Open:
    """What is known of one choice while it is put together."""

    logprobs: TextLogprobsBuilder = field(default_factory=TextLogprobsBuilder)
    begun: bool = False


async def completions(request: Request) -> Response:
    """Continue one or several prompts; streamed with `stream`."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _DECODER, state.limits.body_bytes)
    engine = state.engine_for(body.model)
    job = plan(body, state)
    with placing(place_of(body)):
        if body.stream:
            return await EventStream.open(request, chunks(engine, job))
        async with cancelled_when_gone(request.receive):
            answer = await whole(engine, job)
    return json_response(answer)


def plan(body: CompletionRequest, state: ServerState) -> Job:
    """Everything that can be wrong with the request is found here, before anything is queued."""
    sampling = completion_sampling(body)
    prompts = prompts_of(body, state.limits.prompts)
    return Job(
        id=f"cmpl-{state.new_id()}",
        created=int(state.now()),
        model=state.served_name or "",
        prompts=prompts,
        sampling=sampling,
        constraint=constraint_of(body),
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        echo=bool(body.echo),
        with_ids=bool(body.return_token_ids),
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
        with_timings=bool(body.return_timings),
        with_counts=bool(body.stream_options and body.stream_options.continuous_usage_stats),
    )


def prompts_of(body: CompletionRequest, limit: int) -> list[PlainPrompt]:
    """The prompts of a request. An empty one is a 400 in every form: text, ids, or a list of either."""
    given = body.prompt
    items: Sequence[str | int | list[int]] = [given] if isinstance(given, str) else given
    ids = [item for item in items if isinstance(item, int)]
    if ids:
        if len(ids) != len(items):
            raise InvalidRequest("prompt mixes token ids with other things", param="prompt")
        items = [ids]
    if not items or any(item in ("", []) for item in items):
        raise InvalidRequest("prompt must not be empty, nor hold an empty one", param="prompt")
    if len({type(item) for item in items}) > 1:
        raise InvalidRequest("prompt mixes text and token ids", param="prompt")
    if len(items) > limit:
        raise InvalidRequest(f"prompt may hold at most {limit} prompts, but holds {len(items)}", param="prompt")
    bos = True if body.add_special_tokens is None else body.add_special_tokens
    prompts: list[PlainPrompt] = []
    for item in items:
        if isinstance(item, str):
            prompts.append(TextPrompt(text=item, add_special_tokens=bos, parse_special=bool(body.parse_special)))
        elif isinstance(item, list):
            prompts.append(TokensPrompt(ids=token_array(item)))
    return prompts


async def whole(engine: ServingEngine, job: Job) -> TextCompletion:
    """The unstreamed answer; all prompts run at once, and the first error cancels the others."""
    heads = await _heads(engine, job)
    tasks = [
        asyncio.create_task(
            engine.agenerate(
                prompt,
                job.sampling,
                constraint=job.constraint,
                cache_salt=job.cache_salt,
                priority=job.priority,
            )
        )
        for prompt in job.prompts
    ]
    try:
        generations = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    usage = Usage()
    choices: list[TextChoice] = []
    for position, generation in enumerate(generations):
        usage += generation.usage
        choices += _choices(job, position, generation, heads[position])
    return TextCompletion(
        id=job.id, created=job.created, model=job.model, choices=choices,
        usage=usage_body(usage),
        radixrt=details(usage, [generation.usage for generation in generations] if job.with_timings else ()),
    )  # fmt: skip


async def chunks(engine: ServingEngine, job: Job) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer, without the closing [DONE]."""
    heads = await _heads(engine, job)
    usage, counts = Usage(), RunningUsage(sum(len(head.ids) for head in heads if head is not None))
    opened: dict[tuple[int, int], Open] = {}
    scored: dict[int, Sequence[TokenLogprob]] = {}
    held: list[tuple[int, Delta]] = []
    ended: list[Usage] = []
    streams = [
        open_stream(engine, prompt, job.sampling, job.constraint, job.cache_salt, job.priority)
        for prompt in job.prompts
    ]
    async with aclosing(merged(streams)) as arrivals:
        async for position, arrived in arrivals:
            if arrived.usage is not None:
                usage += arrived.usage
                ended.append(arrived.usage)
            held.append((position, arrived))
            if job.scores_prompt and arrived.index == 0 and position not in scored:
                scored[position] = _scores(arrived.prompt_logprobs, heads[position])
            if job.scores_prompt and position not in scored:
                continue  # the prompt's scores come with index 0 and stand in front of every choice
            ready = [item for item in held if item[0] == position]
            held = [item for item in held if item[0] != position]
            data = b""
            for _, delta in ready:
                choice = opened.setdefault((position, delta.index), Open())
                timed = ended if job.with_timings and delta.usage and len(ended) == len(job.prompts) else ()
                counts.add(delta, position)
                data += _piece(job, position, delta, choice, heads[position], scored.get(position), timed, counts)
            if data:
                yield data
    if job.with_usage:
        last = TextCompletion(id=job.id, created=job.created, model=job.model, choices=[], usage=usage_body(usage))
        yield event(encode(last))


async def _heads(engine: ServingEngine, job: Job) -> list[Tokens | None]:
    """The tokenized prompts, where the answer shows them."""
    if not (job.echo or job.with_ids or job.with_counts):
        return [None] * len(job.prompts)
    return list(await asyncio.gather(*(engine.atokenize(prompt) for prompt in job.prompts)))


def _piece(
    job: Job, position: int, delta: Delta, choice: Open, head: Tokens | None, scored: Sequence[TokenLogprob] | None,
    timed: Sequence[Usage], counts: RunningUsage,
) -> bytes:  # fmt: skip
    first, last = not choice.begun, delta.finish_reason is not None
    choice.begun = True
    piece = _choice(job, position, delta.index, head if first else None, scored, delta.logprobs, choice, last)
    piece.text += delta.text
    if delta.finish_reason is not None:
        piece.finish_reason = finish(delta.finish_reason)
        piece.stop_reason = delta.stop_reason
    if job.with_ids:
        piece.token_ids = delta.token_ids
    shown = piece.text or last or (piece.logprobs and piece.logprobs.tokens) or piece.token_ids
    if not shown:
        return b""
    chunk = TextCompletion(
        id=job.id, created=job.created, model=job.model, choices=[piece], radixrt=details(delta.usage, timed)
    )  # fmt: skip
    if job.with_usage or job.with_counts:
        chunk.usage = counts.body() if job.with_counts else None
    return event(encode(chunk))


def _choices(job: Job, position: int, generation: Generation, head: Tokens | None) -> list[TextChoice]:
    choices = []
    scored = _scores(generation.prompt_logprobs, head) if job.scores_prompt else None
    for made in generation.choices:
        choice = _choice(
            job, position, made.index, head, scored, made.logprobs, Open(), True
        )  # fmt: skip
        choice.text += made.text
        choice.finish_reason = finish(made.finish_reason)
        choice.stop_reason = made.stop_reason
        if job.with_ids:
            choice.token_ids = made.token_ids
        if job.sampling.prompt_logprobs is not None and not job.scores_prompt:
            choice.prompt_logprobs = prompt_logprobs(generation.prompt_logprobs or ())
        choices.append(choice)
    return choices


def _choice(
    job: Job,
    position: int,
    index: int,
    head: Tokens | None,
    scored: Sequence[TokenLogprob] | None,
    entries: Sequence[TokenLogprob] | None,
    choice: Open,
    last: bool,
) -> TextChoice:
    """A choice, or its next piece, without the generated text; `head` only where the prompt has not been shown yet."""
    piece = TextChoice(
        index=position * job.sampling.n + index, text="", logprobs=None, finish_reason=None
    )  # fmt: skip
    prompt = job.prompts[position]
    if head is not None and job.with_ids:
        piece.prompt_token_ids = head.ids
    shown = None
    if head is not None and job.echo:
        hidden = _hidden(prompt, head)
        piece.text = b"".join(head.pieces[hidden:]).decode(errors="replace")
        if scored is not None and job.scores_prompt:
            shown = choice.logprobs.feed(scored, last=True, hidden=hidden)
        else:
            choice.logprobs.skip(piece.text)
    if job.sampling.logprobs is not None:
        piece.logprobs = choice.logprobs.feed(entries or (), last=last)
        if shown is not None:
            for name in piece.logprobs.__struct_fields__:
                setattr(piece.logprobs, name, getattr(shown, name) + getattr(piece.logprobs, name))
    return piece


def _scores(given: Sequence[TokenLogprob] | None, head: Tokens | None) -> Sequence[TokenLogprob]:
    """The prompt's scores. A prompt of one token has nothing to score: its only entry is known beforehand."""
    if given is not None:
        return given
    if head is None or len(head.ids) != 1:
        raise RadixrtError("the prompt's log-probabilities did not come", code="internal_error")
    piece = head.pieces[0]
    return [TokenLogprob(head.ids[0], piece.decode(errors="replace"), piece, None)]


def _hidden(prompt: PlainPrompt, head: Tokens) -> int:
    """How many tokens in front the echoed text leaves out: the BOS token, which the client did not send."""
    if not isinstance(prompt, TextPrompt) or not head.pieces:
        return 0
    text = prompt.text.encode()
    whole = sum(map(len, head.pieces))
    return 1 if whole == len(text) + len(head.pieces[0]) and whole != len(text) else 0
