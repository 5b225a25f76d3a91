"""From a request of Ollama's protocol to the chat request that asks for the same."""

from __future__ import annotations

import msgspec
from msgspec import UnsetType

from radixrt.errors import InvalidRequest
from radixrt.results import ModelInfo
from radixrt.server.faults import short
from radixrt.server.ollama_types import ChatRequest, GenerateRequest, InMessage, Options
from radixrt.server.openai_types import ChatRequest as OpenAiChat
from radixrt.server.openai_types import (
    FormatJsonObject,
    FormatJsonSchema,
    FunctionCall,
    JsonSchema,
    OptionalRaw,
    ResponseFormat,
    ToolCall,
)
from radixrt.server.openai_types import InMessage as OpenAiMessage

NAMES = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "response_format.json_schema.schema": "format",
} | {
    name: f"options.{name}"
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")
}
"""This protocol's names of what a chat request calls otherwise."""


def chat_request(body: ChatRequest, info: ModelInfo) -> OpenAiChat:
    """Raises InvalidRequest for what has no counterpart."""
    chat = _request(_turns(body.messages), body.options, body.format, info)
    chat.tools = body.tools or None
    return _thinking(chat, body.think, info)


def generate_request(body: GenerateRequest, info: ModelInfo) -> OpenAiChat:
    """The prompt as a user's turn. Raises InvalidRequest for what has no counterpart."""
    for name in ("suffix", "template", "context", "images"):
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not available; leave it out", param=name, code="unsupported_parameter")
    if body.raw and body.system:
        raise InvalidRequest("a raw prompt has no system turn", param="system")
    system = [OpenAiMessage(role="system", content=body.system)] if body.system else []
    chat = _request([*system, OpenAiMessage(role="user", content=body.prompt)], body.options, body.format, info)
    return _thinking(chat, body.think, info)


def _request(
    messages: list[OpenAiMessage], given: Options | None, form: OptionalRaw, info: ModelInfo
) -> OpenAiChat:  # fmt: skip
    options = given or Options()
    check_context(options, info)
    if options.num_predict < -2:
        raise InvalidRequest(
            "options.num_predict must be a number of tokens, or -1 or -2 (until the model ends or the context is "
            f"full), but is {options.num_predict}",
            param="options.num_predict",
        )
    return OpenAiChat(
        messages=messages,
        max_tokens=options.num_predict if options.num_predict >= 0 else None,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        stop=options.stop,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        response_format=_format(form),
    )


def _thinking(chat: OpenAiChat, think: bool | str | None, info: ModelInfo) -> OpenAiChat:
    if think and info.thinking is None:
        raise InvalidRequest("this model shows no thoughts: leave think out", param="think")
    if think is not None and info.thinking is not None:
        effort = {"reasoning_effort": think} if isinstance(think, str) else {}
        chat.chat_template_kwargs = {"enable_thinking": bool(think), **effort}
    return chat


def check_context(options: Options | None, info: ModelInfo) -> None:
    """InvalidRequest where a longer context is asked for than the server has."""
    if options is not None and options.num_ctx is not None and options.num_ctx > info.context_length:
        raise InvalidRequest(
            f"options.num_ctx is {options.num_ctx}, but this server's context is {info.context_length}; it is set when "
            "the server starts (--context-length)",
            param="options.num_ctx",
        )


def _format(form: OptionalRaw) -> ResponseFormat | None:
    if isinstance(form, UnsetType):
        return None
    value = msgspec.json.decode(form)
    if value is None or value == "":
        return None
    if value == "json":
        return FormatJsonObject()
    if isinstance(value, dict):
        return FormatJsonSchema(json_schema=JsonSchema(name="format", schema=form))
    raise InvalidRequest(f'format must be "json" or a JSON schema, but is {short(value)}', param="format")


def _turns(messages: list[InMessage]) -> list[OpenAiMessage]:
    """The protocol knows no ids of calls, which some templates ask for: calls are numbered, and results come in the
    order of the calls before them."""
    turns, waiting, count = list[OpenAiMessage](), list[str](), 0
    for i, message in enumerate(messages):
        turn = _message(message, i)
        if turn.tool_calls:
            waiting = []
            for call in turn.tool_calls:
                call.id = call.id or f"call{count:05d}"  # nine letters and digits, as the strictest template has it
                waiting.append(call.id)
                count += 1
        elif turn.role == "tool" and turn.tool_call_id is None and waiting:
            turn.tool_call_id = waiting.pop(0)
        turns.append(turn)
    return turns


def _message(message: InMessage, position: int) -> OpenAiMessage:
    if message.images:
        raise InvalidRequest("this model reads no images", param=f"messages[{position}].images")
    calls = [
        ToolCall(id=call.id, function=FunctionCall(name=function.name, arguments=bytes(function.arguments).decode()))
        for call in message.tool_calls or ()
        for function in [call.function]
    ]
    return OpenAiMessage(
        role=message.role,
        content=message.content,
        name=message.tool_name,
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
        reasoning_content=message.thinking,
    )
