"""Requests of the OpenAI protocol, with the extensions that vLLM and SGLang made common.

Every optional field may be null, which means the same as leaving it out. A field that is not here is refused.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from radixrt.server.native_types import Priority, TokenId

OptionalRaw: TypeAlias = Raw | UnsetType
"""JSON text as the client wrote it: UNSET when it is not there, `null` when it is null."""


class _Struct(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the request types."""


class StreamOptions(_Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """The tokens so far in every piece."""
    include_obfuscation: Literal[False] | None = None


class FormatText(_Struct, kw_only=True, tag_field="type", tag="text"):
    """No constraint."""


class FormatJsonObject(_Struct, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(_Struct, kw_only=True):
    name: str
    schema: OptionalRaw = UNSET
    description: str | None = None
    """For the reader of the request; it does not reach the model."""
    strict: bool | None = None
    """Enforced whatever it says."""


class FormatJsonSchema(_Struct, kw_only=True, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


class FormatStructuralTag(_Struct, kw_only=True, tag_field="type", tag="structural_tag"):
    """SGLang's and vLLM's: `structures` and `triggers`, or a `format`."""

    structures: OptionalRaw = UNSET
    triggers: OptionalRaw = UNSET
    format: OptionalRaw = UNSET


ResponseFormat: TypeAlias = FormatText | FormatJsonObject | FormatJsonSchema | FormatStructuralTag


class StructuredOutputs(_Struct, kw_only=True):
    """vLLM's spelling of a constraint; exactly one of the first six."""

    json: OptionalRaw = UNSET
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: OptionalRaw = UNSET
    disable_any_whitespace: bool | None = None
    """JSON only. Absent or true: compact JSON; false: whitespace is allowed between tokens."""
    whitespace_pattern: str | None = None
    """JSON only: a regular expression of what may stand between tokens."""


class CommonRequest(_Struct, kw_only=True):
    """What chat and plain completions have in common."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Sampling that OpenAI does not have, in vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[TokenId] | None = None
    allowed_token_ids: list[TokenId] | None = None
    stop_regex: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
    return_cache_report: bool | None = None
    return_timings: bool | None = None

    # Constraints; one at a time.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    json_schema: OptionalRaw = UNSET
    regex: str | None = None
    choice: list[str] | None = None
    ebnf: str | None = None
    structural_tag: OptionalRaw = UNSET
    backend: Literal["auto", "llguidance", "xgrammar", "outlines"] | None = None
    lax: bool | None = None

    # Harmless: these say something about the sender or the account, and change no answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: Literal[False] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


class CompletionRequest(CommonRequest, kw_only=True):
    """Body of POST /v1/completions."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "messages": "a conversation goes to /v1/chat/completions; here the text to continue is the prompt",
        "input": "use prompt",
        "top_logprobs": "logprobs is their number here",
        "tools": "tools go to /v1/chat/completions",
        "max_completion_tokens": "use max_tokens",
    }

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None


class FunctionCall(_Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = ""
    """JSON text, as OpenAI has it, or the object itself."""
    parsed_arguments: Any = None
    """What the SDK's `parse` makes of them, and sends back; `arguments` counts."""


class ToolCall(_Struct, kw_only=True):
    """A call in the history."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class FunctionSpec(_Struct, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of an object; absent: the function takes none."""
    strict: bool | None = None
    """Enforced whatever it says."""


class Tool(_Struct, kw_only=True):
    function: FunctionSpec
    type: Literal["function"] = "function"
    cache_control: dict[str, Any] | None = None
    """Taken as in messages, and changes nothing: every prefix is cached."""


class FunctionName(_Struct, kw_only=True):
    name: str


class NamedChoice(_Struct, kw_only=True, tag_field="type", tag="function"):
    """A tool_choice that names a function."""

    function: FunctionName


class AllowedTool(_Struct, kw_only=True):
    function: FunctionName
    type: Literal["function"]


class AllowedTools(_Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class AllowedChoice(_Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """A tool_choice of some of the tools: the model is told of all, so that their tokens stay cached, and may, or must,
    call one of these."""

    allowed_tools: AllowedTools


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


class InMessage(_Struct, kw_only=True):
    """One message as clients send it; `audio`, `annotations`, `parsed` and the like are what the SDK's own answers
    carry."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    """What the assistant said in place of content."""
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None
    parsed: Any = None
    cache_control: dict[str, Any] | None = None
    """As clients of other services send it; it changes nothing: every prefix is cached."""


class ChatRequest(CommonRequest, kw_only=True):
    """Body of POST /v1/chat/completions."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "prompt": "a text to continue goes to /v1/completions; here it is a message of messages",
        "input": "it is for /v1/responses; here it is messages",
        "system": "it is a message of the role system here",
        "instructions": "it is a message of the role system here",
        "echo": "it is for /v1/completions",
    }

    messages: list[InMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking_token_budget: int | None = None
    """Tokens that a thought may have; then it is closed."""
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Harmless or trivially true.
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
