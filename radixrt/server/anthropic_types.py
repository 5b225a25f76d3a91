"""Requests and answers of Anthropic's Messages protocol. A field that is not here is refused."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType


class _In(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the request types."""


class CacheControl(_In, kw_only=True):
    """Where a cached prefix should end. Every prefix is cached here, so it changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(_In, kw_only=True, tag_field="type", tag="text"):
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


class ImageBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="image"):
    """Refused: it is here so that the refusal can say so."""


class DocumentBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="document"):
    """Refused likewise."""


class ToolUseBlock(_In, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw
    """A JSON object; goes into the history as it was written."""
    cache_control: CacheControl | None = None


class ToolResultBlock(_In, kw_only=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] = ""
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class ThinkingBlock(_In, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


Block: TypeAlias = TextBlock | ImageBlock | DocumentBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock


class InMessage(_In, kw_only=True):
    role: Literal["user", "assistant"]
    content: str | list[Block]


class Tool(_In, kw_only=True):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    """Enforced whatever it says."""
    cache_control: CacheControl | None = None


class ToolChoice(_In, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(_In, kw_only=True):
    user_id: str | None = None


class NoThinking(_In, kw_only=True, tag_field="type", tag="disabled"):
    """The model is told to answer at once."""


class BoundThinking(_In, kw_only=True, tag_field="type", tag="enabled"):
    """The model may think for so many tokens; then its thought is closed."""

    budget_tokens: int
    display: Literal["summarized"] | None = None
    """Thoughts are told whole, never summarized."""


class FreeThinking(_In, kw_only=True, tag_field="type", tag="adaptive"):
    """Whether it thinks, and for how long, is the model's affair: not at all where it shows no thoughts."""

    display: Literal["summarized"] | None = None


Thinking: TypeAlias = NoThinking | BoundThinking | FreeThinking


class JsonFormat(_In, kw_only=True):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(_In, kw_only=True):
    format: JsonFormat | None = None


class CountTokensRequest(_In, kw_only=True):
    """Body of POST /v1/messages/count_tokens."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "prompt": "use messages",
        "input": "use messages",
        "response_format": "use output_config.format",
    }

    messages: list[InMessage]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Body of POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class _Out(msgspec.Struct, kw_only=True):
    """Base of the answer types."""


class Usage(_Out, kw_only=True):
    """`input_tokens` are those that had to be computed; all three input counts together are the prompt."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class OutBlock(_Out, kw_only=True):
    """A text, thinking or tool_use block, or a delta of one."""

    type: str
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET


class OutMessage(_Out, kw_only=True):
    id: str
    model: str
    content: list[OutBlock]
    usage: Usage
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageEnd(_Out, kw_only=True):
    stop_reason: str | None
    stop_sequence: str | None


class StreamEvent(_Out, kw_only=True):
    """One event of a stream; which fields there are depends on its type."""

    type: str
    message: OutMessage | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: OutBlock | UnsetType = UNSET
    delta: OutBlock | UnsetType = UNSET


class EndEvent(_Out, kw_only=True):
    """The event before the last: why the message ended, and what it cost."""

    delta: MessageEnd
    usage: Usage
    type: Literal["message_delta"] = "message_delta"


class TokenCount(_Out, kw_only=True):
    input_tokens: int
