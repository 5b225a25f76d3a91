"""Answers of the OpenAI protocol, and how results become them. UNSET fields are left out of the JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from radixrt.errors import Aborted
from radixrt.results import CacheReport, ConstraintReport, FinishReason, Usage

encode = msgspec.json.Encoder().encode

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]
TokenIds: TypeAlias = Sequence[int] | UnsetType


class _Struct(msgspec.Struct, kw_only=True):
    """Base of the answer types."""


class PromptDetails(_Struct, kw_only=True):
    cached_tokens: int
    restored_tokens: int | UnsetType = UNSET
    """Of the cached ones, those that a host or disk tier brought back; there only where there are some."""


class CompletionDetails(_Struct, kw_only=True):
    """Tokens that were guessed ahead and verified; those rejected are not in completion_tokens: nobody sees them."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class ChunkUsage(_Struct, kw_only=True):
    """Usage in a stream: all of it in the last piece; three counts in the others, if continuous_usage_stats asks."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: CompletionDetails | UnsetType = UNSET
    cache: CacheReport | UnsetType = UNSET
    """Where return_cache_report asked for it."""


class UsageBody(ChunkUsage, kw_only=True):
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopToken(_Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(_Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopToken]


class ChatLogprobs(_Struct, kw_only=True):
    content: list[ChatToken]
    refusal: None = None


class TextLogprobs(_Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(_Struct, kw_only=True):
    """vLLM's entry of `prompt_logprobs`; `rank` counts from 1 and is null beyond the most likely tokens asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[int, PromptToken] | None] | UnsetType


class CalledFunction(_Struct, kw_only=True):
    arguments: str
    """JSON text; in a stream a piece of it."""
    name: str | UnsetType = UNSET


class ToolCallBody(_Struct, kw_only=True):
    """A call; in a stream `index` says which one, and id, type and name come with its first piece alone."""

    function: CalledFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    index: int | UnsetType = UNSET


class AssistantMessage(_Struct, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallBody] | UnsetType = UNSET


class ChatChoice(_Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None
    token_ids: TokenIds = UNSET


class Timings(_Struct, kw_only=True):
    """Milliseconds of a request in the engine; of several prompts the longest of each."""

    queue_ms: float
    """From arrival to the first planned step; includes `grammar_ms`."""
    grammar_ms: float
    """Until the constraint was compiled."""
    prefill_ms: float
    """From the first planned step to the first token."""
    time_to_first_token_ms: float
    """From arrival."""
    generation_ms: float
    """From the first token to the end."""
    total_ms: float


class Details(_Struct, kw_only=True):
    """What radixrt says of a request beyond the protocol; each only where the request asks for it."""

    constraint: ConstraintReport | UnsetType = UNSET
    """Where it had a constraint or tools."""
    timings: Timings | UnsetType = UNSET
    """Where return_timings asked for it."""


class ChatCompletion(_Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    object: Literal["chat.completion"] = "chat.completion"
    radixrt: Details | UnsetType = UNSET
    prompt_token_ids: TokenIds = UNSET
    prompt_logprobs: PromptLogprobs = UNSET


class ChatDelta(_Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallBody] | UnsetType = UNSET


class ChatChunkChoice(_Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: TokenIds = UNSET


class ChatChunk(_Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    radixrt: Details | UnsetType = UNSET
    usage: ChunkUsage | UnsetType | None = UNSET
    prompt_token_ids: TokenIds = UNSET


class TextChoice(_Struct, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None = None
    token_ids: TokenIds = UNSET
    prompt_token_ids: TokenIds = UNSET
    prompt_logprobs: PromptLogprobs = UNSET


class TextCompletion(_Struct, kw_only=True):
    """Both the whole answer and a chunk of a streamed one."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: Literal["text_completion"] = "text_completion"
    radixrt: Details | UnsetType = UNSET
    usage: ChunkUsage | UnsetType | None = UNSET


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        prompt_tokens_details=PromptDetails(
            cached_tokens=usage.cached_tokens, restored_tokens=usage.restored_tokens or UNSET
        ),
        completion_tokens_details=CompletionDetails(
            accepted_prediction_tokens=usage.accepted_draft_tokens,
            rejected_prediction_tokens=usage.draft_tokens - usage.accepted_draft_tokens,
        ),
        cache=usage.cache or UNSET,
    )


def details(usage: Usage | None, timed: Sequence[Usage] = ()) -> Details | UnsetType:
    """`timed`: the usage of each prompt where timings are wanted and all are known."""
    constraint = UNSET if usage is None or usage.constraint is None else usage.constraint
    if constraint is UNSET and not timed:
        return UNSET
    return Details(constraint=constraint, timings=_timings(timed) if timed else UNSET)


def _timings(usages: Sequence[Usage]) -> Timings:
    def longest(of: Callable[[Usage], float]) -> float:
        return round(1000 * max(of(usage) for usage in usages), 3)

    return Timings(
        queue_ms=longest(lambda usage: usage.queue_s),
        grammar_ms=longest(lambda usage: usage.grammar_s),
        prefill_ms=longest(lambda usage: max(usage.ttft_s - usage.queue_s, 0.0)),
        time_to_first_token_ms=longest(lambda usage: usage.ttft_s),
        generation_ms=longest(lambda usage: max(usage.total_s - usage.ttft_s, 0.0)),
        total_ms=longest(lambda usage: usage.total_s),
    )


def finish(reason: FinishReason) -> Finish:
    """The reason a client may see. A request that somebody aborted is an error, not a short answer."""
    if reason == "abort":
        raise Aborted("the request was aborted before it was finished", code="aborted")
    return reason


def json_response(body: object) -> Response:
    return Response(encode(body), media_type="application/json")
