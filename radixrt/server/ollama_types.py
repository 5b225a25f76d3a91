"""Requests and answers of Ollama's protocol. A field that is not here is refused."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from radixrt.server.openai_types import OptionalRaw, Tool

KeepAlive: TypeAlias = str | float | None
"""Taken and without effect: the served model always stays loaded."""


class _In(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the request types."""


class Options(_In, kw_only=True):
    """Defaults are those of Ollama, where they differ from the OpenAI routes'."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float | None = None
    num_predict: int = -1
    """-1 and -2: until the model ends or the context is full."""
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    num_ctx: int | None = None
    """Taken up to the server's context length, and without effect: the context is as long as the server's."""


class GenerateRequest(_In, kw_only=True):
    """Body of POST /api/generate."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "messages": "a conversation goes to /api/chat",
    }

    model: str
    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    """The prompt is the model's text, without a chat template."""
    format: OptionalRaw = UNSET
    """"json", or a JSON schema."""
    options: Options | None = None
    stream: bool | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: KeepAlive = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None


class CalledFunction(_In, kw_only=True):
    name: str
    arguments: Raw
    index: int | None = None


class ToolCall(_In, kw_only=True):
    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class InMessage(_In, kw_only=True):
    role: str
    content: str = ""
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: list[str] | None = None


class ChatRequest(_In, kw_only=True):
    """Body of POST /api/chat."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "prompt": "a prompt goes to /api/generate; here it is a message of messages",
        "system": "it is a message of the role system here",
        "raw": "it is for /api/generate",
    }

    model: str
    messages: list[InMessage] = []
    tools: list[Tool] | None = None
    format: OptionalRaw = UNSET
    options: Options | None = None
    stream: bool | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: KeepAlive = None


class ShowRequest(_In, kw_only=True):
    """Body of POST /api/show."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class _Out(msgspec.Struct, kw_only=True):
    """Base of the answer types."""


class OutFunction(_Out, kw_only=True):
    name: str
    arguments: Raw


class OutCall(_Out, kw_only=True):
    function: OutFunction


class OutMessage(_Out, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[OutCall] | UnsetType = UNSET


class Answer(_Out, kw_only=True):
    """A whole answer, or a line of a streamed one; durations are nanoseconds, and there in the last line alone."""

    model: str
    created_at: str
    done: bool
    message: OutMessage | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class Details(_Out, kw_only=True):
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""
    parent_model: str = ""


class Model(_Out, kw_only=True):
    name: str
    model: str
    modified_at: str
    details: Details
    size: int = 0
    digest: str = ""
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET


class Models(_Out, kw_only=True):
    models: list[Model]


class Shown(_Out, kw_only=True):
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    template: str = ""
    parameters: str = ""
    license: str = ""


class Version(_Out, kw_only=True):
    version: str
