"""From a client's messages to the ChatPrompt that the model's template renders."""

from __future__ import annotations

import json
from typing import Any

from radixrt.errors import InvalidRequest
from radixrt.messages import RESERVED_VARIABLES, ChatMessage, ChatPrompt
from radixrt.server.faults import short
from radixrt.server.hints import REFUSED
from radixrt.server.openai_types import ChatRequest, InMessage, Tool, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles that are accepted, and the role that the template sees."""
HARMLESS = frozenset({"type", "cache_control"})
"""Keys of a part beside its text; what is not known is refused, as everywhere."""


def chat_prompt(
    request: ChatRequest, tools: list[Tool] | None = None, kwargs: dict[str, Any] | None = None
) -> ChatPrompt:
    """The prompt of a chat request that shows `tools`; `kwargs`: what the template is told beside, in place of the
    request's own. InvalidRequest names the message and the field at fault."""
    if not request.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    return prompt_of(
        request.messages,
        request.add_generation_prompt,
        request.continue_final_message,
        template_kwargs=(request.chat_template_kwargs or {}) if kwargs is None else kwargs,
        tools=tools,
    )


def prompt_of(
    messages: list[InMessage],
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    *,
    template_kwargs: dict[str, Any],
    tools: list[Tool] | None = None,
) -> ChatPrompt:
    open_end = bool(continue_final_message)
    if open_end and add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    if taken := sorted(RESERVED_VARIABLES & template_kwargs.keys()):
        raise InvalidRequest(
            f"chat_template_kwargs cannot set {taken[0]!r}: the request says it itself", param="chat_template_kwargs"
        )
    return ChatPrompt(
        messages=[_message(message, f"messages[{i}]") for i, message in enumerate(messages)],
        add_generation_prompt=not open_end if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=open_end,
        template_kwargs=template_kwargs,
        tools=[_shown(tool) for tool in tools] if tools else None,
    )


def _shown(tool: Tool) -> dict[str, Any]:
    """A tool as templates show it. `strict` is between the client and the server."""
    spec = tool.function
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": tool.type, "function": {name: value for name, value in function.items() if value is not None}}


def _message(message: InMessage, where: str) -> ChatMessage:
    if message.role not in ROLES:
        told = "; what a function gave back has the role tool" if message.role == "function" else ""
        raise InvalidRequest(
            f"{where}.role is {message.role!r}, but must be one of {', '.join(ROLES)}{told}", param=f"{where}.role"
        )
    for name in ("tool_calls", "reasoning_content", "refusal"):
        if getattr(message, name) and message.role != "assistant":
            raise InvalidRequest(f"{where}.{name} belongs to the role assistant", param=f"{where}.{name}")
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{where}.content is required", param=f"{where}.content", code="missing_parameter")
    if message.content and message.refusal:
        raise InvalidRequest(f"{where} has content or a refusal, but not both", param=f"{where}.refusal")
    return ChatMessage(
        role=ROLES[message.role],
        content=message.refusal or _text(message.content, f"{where}.content", message.role),
        name=message.name,
        tool_calls=[_call(call) for call in message.tool_calls] if message.tool_calls else None,
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
    )


def _text(content: str | list[dict[str, Any]] | None, where: str, role: str) -> str:
    """The text of a message: parts are joined without anything between them, as if they had come as one string."""
    if not isinstance(content, list):
        return content or ""
    return "".join(_part(part, f"{where}[{i}]", role) for i, part in enumerate(content))


def _part(part: dict[str, Any], where: str, role: str) -> str:
    """The text of one part; of the assistant's own a refusal is text too."""
    kind = _required(part, "type", where)
    kinds = ("text", "refusal") if role == "assistant" else ("text",)
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidRequest(
            f"{where} is a part of type {short(kind)}; this model reads only parts of type 'text'",
            param=f"{where}.type",
        )
    if unknown := sorted(part.keys() - HARMLESS - {kind}):
        raise InvalidRequest(
            f"unknown parameter {where}.{unknown[0]}: {REFUSED}",
            param=f"{where}.{unknown[0]}", code="unknown_parameter",
        )  # fmt: skip
    text = _required(part, kind, where)
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{kind} must be a string", param=f"{where}.{kind}")
    return text


def _required(part: dict[str, Any], name: str, where: str) -> Any:
    if part.get(name) is None:  # null means absent
        raise InvalidRequest(f"{where}.{name} is required", param=f"{where}.{name}", code="missing_parameter")
    return part[name]


def _call(call: ToolCall) -> dict[str, Any]:
    """A call as the tokenizer expects it; arguments are kept as text, which need not be JSON."""
    arguments = call.function.arguments or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)  # spaced, as a call is written that a model makes
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
