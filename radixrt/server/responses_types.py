"""Requests and answers of OpenAI's Responses protocol. A field that is not here is refused."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from radixrt.server.native_types import Priority
from radixrt.server.openai_types import OptionalRaw


class _In(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the request types."""


class Part(msgspec.Struct, kw_only=True):
    """A part of a message's content; only those with text are taken."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """A message (its type may be left out), a function_call, a function_call_output or a reasoning item.

    The fields of all four; other types are refused by name. Items of an earlier answer may be sent back as they were.
    """

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class FunctionTool(_In, kw_only=True):
    type: Literal["function"]
    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Enforced whatever it says."""
    description: str | None = None


class NamedFunction(_In, kw_only=True, tag_field="type", tag="function"):
    name: str


class AllowedFunction(_In, kw_only=True):
    type: Literal["function"]
    name: str


class AllowedFunctions(_In, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The model is told of all tools, and may, or must, call one of these."""

    mode: Literal["auto", "required"]
    tools: list[AllowedFunction]


class FormatText(_In, kw_only=True, tag_field="type", tag="text"):
    """No constraint."""


class FormatJsonObject(_In, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class FormatJsonSchema(_In, kw_only=True, tag_field="type", tag="json_schema"):
    name: str
    schema: OptionalRaw = UNSET
    strict: bool | None = None
    description: str | None = None


class TextConfig(_In, kw_only=True):
    format: FormatText | FormatJsonObject | FormatJsonSchema | None = None


class Reasoning(_In, kw_only=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: None = None


class StreamOptions(_In, kw_only=True):
    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(_In, kw_only=True):
    """Body of POST /v1/responses."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "messages": "they go to /v1/chat/completions; here they are the input",
        "prompt": "use input",
        "response_format": "use text.format",
        "reasoning_effort": "use reasoning.effort",
    }

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    truncation: Literal["disabled"] | None = None
    reasoning: Reasoning | None = None
    background: Literal[False] | None = None

    # As on the chat route.
    seed: int | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


class _Out(msgspec.Struct, kw_only=True):
    """Base of the answer types."""


Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class OutPart(_Out, kw_only=True):
    """`output_text` in a message, `reasoning_text` in a reasoning item."""

    type: str
    text: str
    annotations: list[Any] | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET


class OutItem(_Out, kw_only=True):
    """A message, a function_call or a reasoning item."""

    id: str
    type: Literal["message", "function_call", "reasoning"]
    status: Status | UnsetType = UNSET
    role: Literal["assistant"] | UnsetType = UNSET
    content: list[OutPart] | UnsetType = UNSET
    summary: list[Any] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputDetails(_Out, kw_only=True):
    cached_tokens: int


class OutputDetails(_Out, kw_only=True):
    reasoning_tokens: int = 0


class Usage(_Out, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(_Out, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseError(_Out, kw_only=True):
    code: str
    message: str


class Response(_Out, kw_only=True):
    """A whole answer; in a stream's first events it has no output yet."""

    id: str
    created_at: int
    status: Status
    model: str
    output: list[OutItem]
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[FunctionTool]
    text: TextConfig
    instructions: str | None
    max_output_tokens: int | None
    previous_response_id: str | None
    temperature: float
    top_p: float
    store: bool
    metadata: dict[str, Any]
    user: str | None
    usage: Usage | None = None
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    reasoning: Reasoning = msgspec.field(default_factory=Reasoning)
    truncation: Literal["disabled"] = "disabled"
    background: bool = False
    object: Literal["response"] = "response"
    radixrt: Any = UNSET


class StreamEvent(_Out, kw_only=True):
    """One event of a stream; which fields there are depends on its type."""

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    item: OutItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutPart | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET


class Deleted(_Out, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItems(_Out, kw_only=True):
    data: list[Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
    object: Literal["list"] = "list"
